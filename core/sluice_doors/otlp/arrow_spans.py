"""Read OTLP spans in protobuf through Arrow, without a Python loop over spans.

The result is the same as that of `protobuf` and `spans`, which also decode the requests that this
module cannot map. Only spans with events or links are visited one by one, for these lists.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice_doors.arrow.pairs import (
    Names,
    PairSource,
    field_source,
    joined_attributes,
    numbers_within,
    optional_sources,
)
from sluice_doors.arrow.pieces import CUT_BYTES, PIECE_BYTES
from sluice_doors.arrow.requests import (
    MappedRecords,
    ScopedRecords,
    decode_pieces,
    own_pairs,
    parse_list,
    pieces_of,
)
from sluice_doors.arrow.texts import (
    ArrowArray,
    NotPlain,
    check_text,
    decimal_texts,
    hex_texts,
    integers,
    lengths,
    list_offsets,
    text_of,
)
from sluice_doors.decoded import BodyUnreadable, DecodedRecords, Tally
from sluice_doors.otlp.metrics import UNNAMED
from sluice_doors.otlp.protobuf import (
    TRACES_REQUEST,
    message_type,
    span_messages,
    span_parts,
)
from sluice_doors.otlp.spans import KIND_MAX, STATUS_MAX, has_bad_time, list_texts
from sluice_doors.protobuf import is_foreign
from sluice_protocol.columns import NameColumn, SpanColumns, TextColumn
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.frame import Resource
from sluice_protocol.records import string_column
from sluice_protocol.times import TS_END

_COUNTS: Final = (
    ("flags", "trace_flags", decimal_texts),
    ("dropped_attributes_count", "dropped_attributes_count", decimal_texts),
    ("dropped_events_count", "dropped_events_count", decimal_texts),
    ("dropped_links_count", "dropped_links_count", decimal_texts),
)


def decode_spans(
    body: bytes, *, received_ns: int, cut_bytes: int = CUT_BYTES, piece_bytes: int = PIECE_BYTES
) -> DecodedRecords | None:
    """Return the spans of a traces request; None if it has none."""
    pieces = pieces_of(body, cut_bytes=cut_bytes, piece_bytes=piece_bytes)
    return decode_pieces(pieces, partial(_mapped, received_ns=received_ns))


def _mapped(
    body: bytes, shared: Resource | None, tally: Tally, *, received_ns: int
) -> MappedRecords | None:
    """Return the spans of a request or a piece of one; None if there are none."""
    resources = parse_list(message_type(TRACES_REQUEST), body)
    scoped = ScopedRecords(resources, "scope_spans", "spans")
    spans = scoped.records
    if not len(spans):
        return None
    # A message of another kind, for example a log record, has no id where a span has it.
    unnamed = lengths(spans.field("trace_id")) == 0
    if unnamed.any() and any(map(is_foreign, span_messages(body, unnamed.tolist()))):
        raise NotPlain
    names = Names()
    start, end = (integers(spans.field(f"{one}_time_unix_nano")) for one in ("start", "end"))
    if max(int(start.max()), int(end.max())) >= TS_END:
        raise NotPlain
    stated = (start != 0) | (end != 0)
    tally.timed = tally.timed and bool(stated.all())
    kind, kind_source = numbers_within(spans.field("kind"), KIND_MAX, "kind", names)
    statuses = spans.field("status")
    code = statuses.field("code").fill_null(0)
    status, status_source = numbers_within(code, STATUS_MAX, "status_code", names)
    sources = [
        own_pairs(spans.field("attributes"), names),
        *_unset(start, "start_time_unix_nano", names),
        *_unset(end, "end_time_unix_nano", names),
        *kind_source,
        *status_source,
        *optional_sources(spans, _COUNTS, names),
    ]
    texts = {
        "status_message": text_of(statuses.field("message")),
        "trace_id": text_of(hex_texts(spans.field("trace_id"))),
        "span_id": text_of(hex_texts(spans.field("span_id"))),
        "parent_id": text_of(hex_texts(spans.field("parent_span_id"))),
        "trace_state": text_of(spans.field("trace_state")),
        **_lists(body, spans, tally),
    }
    for one in texts.values():
        check_text(one)
    tally.add_sizes(0, sum(len(texts[name].data) for name in ("status_message", "events", "links")))
    outer = scoped.outer(shared)
    columns = SpanColumns(
        ts=np.where(stated, np.where(start != 0, start, end), np.uint64(received_ns)).astype(
            np.int64
        ),
        name=_names(spans.field("name")),
        span_kind=kind,
        duration_ns=np.where(
            (start != 0) & (end != 0), end.astype(np.int64) - start.astype(np.int64), 0
        ),
        status=status,
        **{name: one if one.data else None for name, one in texts.items()},
        attributes=joined_attributes([*sources, *outer.sources(names)], names, tally),
    )
    return MappedRecords(columns, outer.shared)


def _unset(times: npt.NDArray[np.uint64], key: str, names: Names) -> list[PairSource]:
    """Return the source of the times that are not set."""
    unset = times == 0
    if not unset.any():
        return []
    texts = pa.array([b"0"] * int(unset.sum()), pa.binary())
    return [field_source(names.number(key), unset, texts)]


def _names(values: ArrowArray) -> NameColumn:
    coded = values.dictionary_encode()
    try:
        texts = [one.decode() or UNNAMED for one in coded.dictionary.to_pylist()]
    except UnicodeDecodeError as error:
        raise NotPlain from error
    known = {text: place for place, text in enumerate(sorted(set(texts)))}
    numbers = np.array([known[text] for text in texts], np.uint32)
    return NameColumn(
        names=tuple(known), indexes=numbers[coded.indices.to_numpy(zero_copy_only=False)]
    )


def _lists(body: bytes, spans: ArrowArray, tally: Tally) -> dict[str, TextColumn]:
    """Return the events and links of all spans as text."""
    filled = np.zeros(len(spans), np.bool_)
    for name in ("events", "links"):
        filled |= np.diff(list_offsets(spans.field(name))) > 0
    found: dict[str, list[str]] = {name: [""] * len(spans) for name in ("events", "links")}
    if filled.any():
        places: Iterable[int] = np.flatnonzero(filled).tolist()
        try:
            for place, message in zip(places, span_messages(body, filled.tolist()), strict=True):
                events, links = span_parts(message)
                if has_bad_time(events):
                    raise NotPlain
                found["events"][place], found["links"][place] = list_texts(events, links, tally)
        except BodyUnreadable as error:  # only its span is kept raw
            raise NotPlain from error
    try:
        return {name: string_column(name, texts) for name, texts in found.items()}
    except InvalidFrame as error:  # text that is not UTF-8, which is repaired span by span
        raise NotPlain from error
