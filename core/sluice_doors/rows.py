"""Columns of many records, made piece by piece: a record takes ten times the memory of its columns.

The pieces are joined at the end. Names may have another order than in columns of all records
together; the canonical form sorts them.

Decoders represent bytes that are not UTF-8 by surrogates (`surrogateescape`). A record with such
text has U+FFFD instead, the original bytes in base64 in `sluice.raw` (body) or `sluice.raw.<key>`
(attribute), and the reason in `sluice.error`.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from sluice_doors.attributes import ScopeGroup, Sources, free_name, outer_pairs, outer_sources
from sluice_doors.decoded import ERROR_ATTRIBUTE, DecodedRecords, Tally
from sluice_protocol.columns import LogColumns, MetricColumns, SpanColumns, join_columns
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.fields import SPANS, FieldType
from sluice_protocol.records import (
    RAW_ATTRIBUTE,
    LogRecord,
    MetricPoint,
    SpanRecord,
    logs_from_records,
    metrics_from_records,
    spans_from_records,
)

NOT_UTF8: Final = "text is not UTF-8"


_Record = TypeVar("_Record", LogRecord, MetricPoint, SpanRecord)
_Columns = TypeVar("_Columns", LogColumns, MetricColumns, SpanColumns)
_Message = TypeVar("_Message")
_SPAN_TEXTS: Final = tuple(one.name for one in SPANS.fields if one.type is FieldType.TEXT)


def built_or_repaired(
    records: list[_Record],
    build: Callable[[list[_Record]], _Columns],
    repair: Callable[[_Record], _Record],
    tally: Tally,
) -> _Columns:
    """Return the columns of records, and repair those with text that is not UTF-8.

    `build` raises `InvalidFrame` for text that is not UTF-8. `repair` returns the same object if
    nothing was wrong. `tally` counts the repaired records that had no other error.
    """
    try:
        return build(records)
    except InvalidFrame:
        repaired = [repair(record) for record in records]
        tally.unreadable += sum(
            new is not old and ERROR_ATTRIBUTE not in old.attributes
            for new, old in zip(repaired, records, strict=True)
        )
        return build(repaired)


def is_utf8(text: str) -> bool:
    """Return True if the text can be encoded."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def repaired_log(record: LogRecord) -> LogRecord:
    """Return the record with valid text only; the same object if nothing was wrong."""
    body = record.body if isinstance(record.body, str) else record.body.decode(errors="replace")
    wrong = not is_utf8(body)
    if not wrong and _all_utf8(record.attributes):
        return record
    raw = {RAW_ATTRIBUTE: base64_of(body)} if wrong else {}
    return replace(
        record, body=readable(body), attributes=_repaired_attributes(record.attributes, raw)
    )


def repaired_point(point: MetricPoint) -> MetricPoint:
    """Return the point with valid text only; the same object if nothing was wrong."""
    wrong = not is_utf8(point.name)
    if not wrong and _all_utf8(point.attributes):
        return point
    raw = {RAW_ATTRIBUTE: base64_of(point.name)} if wrong else {}
    return replace(
        point, name=readable_key(point.name), attributes=_repaired_attributes(point.attributes, raw)
    )


def repaired_span(span: SpanRecord) -> SpanRecord:
    """Return the span with valid text only; the same object if nothing was wrong."""
    texts = {name: str(getattr(span, name)) for name in _SPAN_TEXTS}
    wrong = {name: text for name, text in texts.items() if not is_utf8(text)}
    repaired: dict[str, Any] = {name: readable(text) for name, text in wrong.items()}
    if not wrong and is_utf8(span.name) and _all_utf8(span.attributes):
        return span
    raw = {f"{RAW_ATTRIBUTE}.{name}": base64_of(text) for name, text in wrong.items()}
    if not is_utf8(span.name):
        raw[RAW_ATTRIBUTE] = base64_of(span.name)
    return replace(
        span,
        name=readable_key(span.name),
        attributes=_repaired_attributes(span.attributes, raw),
        **repaired,
    )


def _all_utf8(attributes: Mapping[str, str]) -> bool:
    return all(is_utf8(key) and is_utf8(value) for key, value in attributes.items())


def _repaired_attributes(attributes: Mapping[str, str], raw: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    after: dict[str, int] = {}
    extra = dict(raw)
    for key, value in attributes.items():
        name = free_name(readable_key(key), found, after)
        found[name] = type(value)(readable(value))
        if not is_utf8(value):
            extra[f"{RAW_ATTRIBUTE}.{name}"] = base64_of(value)
    for key, value in {**extra, ERROR_ATTRIBUTE: NOT_UTF8}.items():
        found[free_name(key, found, after)] = value
    return found


def readable_key(key: str) -> str:
    r"""Return a name with bytes that are not UTF-8 as `\xff`."""
    return key if is_utf8(key) else _bytes(key).decode(errors="backslashreplace")


def readable(text: str) -> str:
    """Return text with U+FFFD instead of bytes that are not UTF-8."""
    return text if is_utf8(text) else _bytes(text).decode(errors="replace")


def base64_of(text: str) -> str:
    """Return the original bytes of a text in base64."""
    return base64.b64encode(_bytes(text)).decode()


def _bytes(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # JSON may contain half of a surrogate pair
        return text.encode(errors="surrogatepass")


PIECE_ROWS: Final = 8_192
"""Records that exist as objects at the same time."""


class RowPieces(Generic[_Record, _Columns]):
    """Collects the records of one kind of a request."""

    def __init__(self, build: Callable[[list[_Record]], _Columns]) -> None:
        """Begin without a record; `build` also repairs records with text that is not UTF-8."""
        self._build: Callable[[list[_Record]], _Columns] = build
        self._rows: list[_Record] = []
        self._parts: list[_Columns] = []
        self._built = 0

    def __len__(self) -> int:
        """Return the number of records so far."""
        return self._built + len(self._rows)

    def append(self, row: _Record) -> None:
        """Add a record."""
        self._rows.append(row)
        if len(self._rows) >= PIECE_ROWS:
            self._finish_piece()

    def extend(self, rows: Iterable[_Record]) -> None:
        """Add records; a generator makes them one by one."""
        for row in rows:
            self.append(row)

    def add(self, columns: _Columns) -> None:
        """Add records that are columns already."""
        if self._rows:
            self._finish_piece()
        self._parts.append(columns)
        self._built += len(columns)

    def columns(self) -> _Columns:
        """Return the columns of all records, of which there is at least one."""
        if self._rows:
            self._finish_piece()
        return join_columns(self._parts)

    def _finish_piece(self) -> None:
        self._parts.append(self._build(self._rows))
        self._built += len(self._rows)
        self._rows = []


def log_pieces(tally: Tally) -> RowPieces[LogRecord, LogColumns]:
    """Return an empty collection of log records; `tally` counts those that are repaired."""
    return RowPieces(lambda rows: built_or_repaired(rows, logs_from_records, repaired_log, tally))


def metric_pieces(tally: Tally) -> RowPieces[MetricPoint, MetricColumns]:
    """Return an empty collection of points; `tally` counts those that are repaired."""
    return RowPieces(
        lambda points: built_or_repaired(points, metrics_from_records, repaired_point, tally)
    )


def span_pieces(tally: Tally) -> RowPieces[SpanRecord, SpanColumns]:
    """Return an empty collection of spans; `tally` counts those that are repaired."""
    return RowPieces(
        lambda spans: built_or_repaired(spans, spans_from_records, repaired_span, tally)
    )


def records_of_groups(
    groups: Iterable[ScopeGroup[_Message]],
    rows: RowPieces[_Record, _Columns],
    read: Callable[[_Message, Sources], _Record],
    tally: Tally,
) -> DecodedRecords | None:
    """Return the records of all groups; None if there are none.

    `read` returns the record of a message, whose scope and resource are the second argument.
    """
    filled = [each for each in groups if each.records]
    shared, outer = outer_sources(filled)
    tally.check_repeated(
        (len(group.records), outer_pairs(sources))
        for group, sources in zip(filled, outer, strict=True)
    )
    for group, sources in zip(filled, outer, strict=True):
        rows.extend(read(message, sources) for message in group.records)
    return tally.decoded(rows.columns(), shared) if rows else None
