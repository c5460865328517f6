"""Read push requests of Loki in protobuf through Arrow, without a Python loop over lines.

The result is the same as that of `push`, which also decodes the requests that this module cannot
map: a request with labels that cannot be parsed, text that is not UTF-8, or a time that is out of
range.
"""

from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import pyarrow as pa

from sluice_doors.arrow.pairs import Names, PairSource, joined_attributes, shared_source
from sluice_doors.arrow.pieces import (
    CUT_BYTES,
    PIECE_BYTES,
    NotCut,
    cut_streams,
    find_streams,
)
from sluice_doors.arrow.requests import MappedRecords, Pieces, decode_pieces, parse_list
from sluice_doors.arrow.texts import (
    ArrowArray,
    NotPlain,
    check_text,
    integers,
    list_offsets,
    text_of,
)
from sluice_doors.attributes import OWN, RESOURCE, shared_resource
from sluice_doors.decoded import DecodedRecords, Tally
from sluice_doors.loki.push import parse_labels, push_classes
from sluice_protocol.columns import I64, LogColumns
from sluice_protocol.frame import Resource
from sluice_protocol.times import TS_END
from sluice_protocol.units import NS_PER_S


def decode_push(
    body: bytes, *, cut_bytes: int = CUT_BYTES, piece_bytes: int = PIECE_BYTES
) -> DecodedRecords | None:
    """Return the records of a push request; None if it has none."""
    return decode_pieces(_pieces_of(body, cut_bytes, piece_bytes), _mapped)


def _pieces_of(body: bytes, cut_bytes: int, piece_bytes: int) -> Pieces:
    if len(body) >= cut_bytes:
        with suppress(NotCut):
            streams = find_streams(body, piece_bytes=piece_bytes)
            stream = push_classes()["Stream"]
            shared = shared_resource(
                _labels(stream.FromString(one.fields).labels for one in streams)
            )
            return Pieces(cut_streams(body, streams, piece_bytes=piece_bytes), shared)
    return Pieces((body,), None)


def _mapped(body: bytes, shared: Resource | None, tally: Tally) -> MappedRecords | None:
    """Return the records of a request or a piece of one; None if there are none."""
    streams = parse_list(push_classes()["PushRequest"].DESCRIPTOR, body)
    listed = streams.field("entries")
    counts = np.diff(list_offsets(listed))
    filled = np.flatnonzero(counts)
    if not len(filled):
        return None
    entries = listed.flatten()
    labels = _labels(streams.field("labels").take(pa.array(filled)).to_pylist())
    if shared is None:
        shared = shared_resource(labels)
    common = dict(shared)
    rest = [{key: one for key, one in row.items() if key not in common} for row in labels]
    owner = np.repeat(np.arange(len(filled)), counts[filled])
    names = Names()
    body_text = text_of(entries.field("line"))
    check_text(body_text)
    tally.add_sizes(0, len(body_text.data))
    sources = [
        _metadata(entries.field("structured_metadata"), names),
        _metadata(entries.field("parsed"), names),
        shared_source(RESOURCE, rest, owner, names),
    ]
    columns = LogColumns(
        ts=_times(entries.field("timestamp")),
        body=body_text,
        attributes=joined_attributes(sources, names, tally),
    )
    return MappedRecords(columns, shared)


def _labels(texts: Iterable[bytes]) -> list[dict[str, str]]:
    """Return the labels of each stream; equal texts are parsed once."""
    known: dict[bytes, dict[str, str]] = {}
    found = []
    for text in texts:
        if text not in known:
            labels = parse_labels(text.decode(errors="surrogateescape"))
            if labels is None:
                raise NotPlain
            known[text] = labels
        found.append(known[text])
    return found


def _times(stamps: ArrowArray) -> I64:
    if stamps.null_count:
        raise NotPlain  # an entry of another kind has no time where this one has it
    seconds = integers(stamps.field("seconds").fill_null(0))
    nanos = integers(stamps.field("nanos").fill_null(0))
    if int(seconds.min()) < 0 or int(seconds.max()) >= TS_END // NS_PER_S:
        raise NotPlain
    ts: I64 = seconds * NS_PER_S + nanos
    if int(ts.min()) < 0:
        raise NotPlain
    return ts


def _metadata(listed: ArrowArray, names: Names) -> PairSource:
    pairs = listed.flatten()
    return PairSource(
        prefix=OWN,
        offsets=list_offsets(listed).astype(np.int64),
        keys=names.numbers_of(pairs.field("name")),
        values=pairs.field("value"),
    )
