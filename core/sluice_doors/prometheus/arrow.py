"""Read remote write 1.0 through Arrow, without a Python loop over samples.

The result is the same as that of `write`, which also decodes the requests that this module cannot
map: a request with histograms or exemplars, a series without samples or one name, text that is not
UTF-8, or a time that is 0 or out of range.
"""

from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice_doors.arrow.pairs import Names, PairSource, joined_attributes
from sluice_doors.arrow.pieces import CUT_BYTES, PIECE_BYTES, NotCut, find_elements
from sluice_doors.arrow.requests import parse_lists
from sluice_doors.arrow.texts import ArrowArray, NotPlain, integers, list_offsets
from sluice_doors.attributes import OWN
from sluice_doors.decoded import Tally
from sluice_doors.otlp.metrics import UNNAMED
from sluice_doors.prometheus.write import (
    NAME_LABEL,
    NS_PER_MS,
    RemoteWrite,
    WritePoints,
    WrittenCounts,
    parse_write_request,
    point_type,
    write_request_type,
)
from sluice_doors.rows import metric_pieces
from sluice_protocol.columns import I64, U32, MetricColumns, NameColumn, join_columns
from sluice_protocol.times import TS_END

_NAME: Final = pa.scalar(NAME_LABEL.encode(), pa.binary())


def decode_write(
    body: bytes, *, received_ns: int, cut_bytes: int = CUT_BYTES, piece_bytes: int = PIECE_BYTES
) -> RemoteWrite:
    """Return the points of a request; metadata has the time of receipt."""
    reader = WritePoints(received_ns)
    bodies, described = [body], b""
    if len(body) >= cut_bytes:
        with suppress(NotCut):
            found = find_elements(body, piece_bytes=piece_bytes)
            bodies = [body[start:end] for start, end in found.runs]
            described = found.fields
    parts: list[MetricColumns] = []
    has_metadata = bool(described)
    for each in bodies:
        columns, with_metadata = _samples(each, reader.tally)
        has_metadata = has_metadata or with_metadata
        if columns is not None:
            parts.append(columns)
    written = WrittenCounts(samples=sum(map(len, parts)), histograms=0, exemplars=0)
    if has_metadata:
        rows = metric_pieces(reader.tally)
        rows.extend(reader.described(parse_write_request(described or body).metadata))
        if rows:
            parts.append(rows.columns())
    if not parts:
        return RemoteWrite(records=(), written=written)
    return RemoteWrite(records=(reader.tally.decoded(join_columns(parts)),), written=written)


def _samples(body: bytes, tally: Tally) -> tuple[MetricColumns | None, bool]:
    """Return the samples of a request or a piece of one, and whether it has metadata."""
    series, metadata = parse_lists(write_request_type(), body)
    if any(len(series.field(name).flatten()) for name in ("exemplars", "histograms")):
        raise NotPlain
    listed = series.field("samples")
    samples = listed.flatten()
    counts = np.diff(list_offsets(listed))
    if not counts.all():
        raise NotPlain  # a series of another kind has its samples under another number
    if not len(samples):
        return None, bool(len(metadata))
    owner = np.repeat(np.arange(len(series)), counts)
    pairs = series.field("labels").flatten()
    is_name = integers(pc.equal(pairs.field("name"), _NAME))
    of_pair = np.repeat(np.arange(len(series)), np.diff(list_offsets(series.field("labels"))))
    if not bool((np.bincount(of_pair[is_name], minlength=len(series)) == 1).all()):
        raise NotPlain
    names, name = _names(pairs.field("value").filter(pa.array(is_name)), owner)
    types = np.array([point_type(one) for one in names], np.uint8)
    known = Names()
    columns = MetricColumns(
        ts=_times(samples),
        name=NameColumn(names=names, indexes=name),
        value=integers(samples.field("value")),
        type=types[name],
        attributes=joined_attributes(
            [_labels(pairs, ~is_name, of_pair, owner, known)], known, tally
        ),
    )
    return columns, bool(len(metadata))


def _labels(
    pairs: ArrowArray, kept: npt.NDArray[np.bool_], of_pair: I64, owner: I64, known: Names
) -> PairSource:
    """Return the labels of each sample without the name of its series."""
    counts = np.bincount(of_pair[kept], minlength=int(owner[-1]) + 1)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    mask = pa.array(kept)
    return PairSource(
        prefix=OWN,
        offsets=offsets,
        keys=known.numbers_of(pairs.field("name").filter(mask)),
        values=pairs.field("value").filter(mask),
        owner=owner,
    )


def _times(samples: ArrowArray) -> I64:
    ms = integers(samples.field("timestamp"))
    # A sample of another kind has no time where this one has it.
    if int(ms.min()) <= 0 or int(ms.max()) > TS_END // NS_PER_MS:
        raise NotPlain
    ts: I64 = ms * NS_PER_MS
    return ts


def _names(texts: ArrowArray, owner: I64) -> tuple[tuple[str, ...], U32]:
    """Return the distinct names of the series with samples, and the name of each sample."""
    coded = texts.dictionary_encode()
    used, places = np.unique(integers(coded.indices)[owner], return_inverse=True)
    listed = coded.dictionary.to_pylist()
    known: dict[str, int] = {}
    try:
        numbers = [known.setdefault(listed[one].decode() or UNNAMED, len(known)) for one in used]
    except UnicodeDecodeError as error:
        raise NotPlain from error
    return tuple(known), np.array(numbers, np.uint32)[places]
