"""Columns of many records, made piece by piece: a record takes ten times the memory of its columns.

The pieces are joined at the end. Names may have another order than in columns of all records
together; the canonical form sorts them.

Decoders represent bytes that are not UTF-8 by surrogates (`surrogateescape`). A record with such
text has U+FFFD instead, the original bytes in base64 in `sluice.raw` (body) or `sluice.raw.<key>`
(attribute), and the reason in `sluice.error`.
"""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sluice_doors.attributes import (
    EMPTY_KEY,
    OWN,
    ScopeGroup,
    Sources,
    free_name,
    merged,
    outer_pairs,
    outer_sources,
)
from sluice_doors.decoded import ERROR_ATTRIBUTE, DecodedRecords, Tally
from sluice_protocol.columns import (
    I64,
    U8,
    AttributeColumns,
    LogColumns,
    MetricColumns,
    SpanColumns,
    TextColumn,
    join_columns,
)
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.fields import SPANS, FieldType
from sluice_protocol.records import (
    RAW_ATTRIBUTE,
    LogRecord,
    MetricPoint,
    SpanRecord,
    attribute_columns,
    logs_from_records,
    metrics_from_records,
    spans_from_records,
)

NOT_UTF8: Final = "text is not UTF-8"


_Record = TypeVar("_Record", LogRecord, MetricPoint, SpanRecord)
_Columns = TypeVar("_Columns", LogColumns, MetricColumns, SpanColumns)
_Message = TypeVar("_Message")
_Number = TypeVar("_Number", bound=np.generic)
_SPAN_TEXTS: Final = tuple(one.name for one in SPANS.fields if one.type is FieldType.TEXT)


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
_REPEATED_MIN: Final = 8
"""Fewer attributes of a scope and a resource are merged into each record, which then costs less."""
_APART_MAX: Final = 64
"""Sets of names that records of a group also have, for which the rest is kept."""


class Repeated:
    """What the scope and resource of a group add to each of its records.

    It becomes columns without an object for each pair of each record: a request of 73 KB may
    describe four million of them.
    """

    def __init__(self, sources: Sources) -> None:
        """Merge and repair the pairs of a scope and a resource."""
        found = merged(sources)
        self._sources = sources
        self._without: dict[frozenset[str], Repeated] = {}
        self.is_repaired = not _all_utf8(found)
        self.attributes = _repaired_attributes(found, {}) if self.is_repaired else found
        self.text_bytes = sum(map(len, found.values()))

    def apart_from(self, row: _Record) -> "tuple[_Record, Repeated | None]":
        """Return a record and what it has in addition, in which no name of the record occurs."""
        taken: frozenset[str] = frozenset(self.attributes.keys() & row.attributes.keys())
        if not taken:
            return row, self
        if self.is_repaired:
            return self.merged_into(row), None
        if taken not in self._without:
            if len(self._without) == _APART_MAX:
                self._without.clear()
            self._without[taken] = Repeated(_chosen(self._sources, taken, is_in=False))
        rest = self._without[taken]
        own = (OWN, list(row.attributes.items()))
        found = merged([own, *_chosen(self._sources, taken, is_in=True)])
        if rest.attributes.keys() & found.keys():
            return self.merged_into(row), None
        return replace(row, attributes=found), rest

    def merged_into(self, row: _Record) -> _Record:
        """Return a record with these attributes among its own."""
        own = (OWN, list(row.attributes.items()))
        return replace(row, attributes=merged([own, *self._sources]))


def _chosen(sources: Sources, names: frozenset[str], *, is_in: bool) -> Sources:
    return tuple(
        (prefix, [pair for pair in pairs if ((pair[0] or EMPTY_KEY) in names) is is_in])
        for prefix, pairs in sources
    )


def repeated_part(sources: Sources) -> tuple[Sources, Repeated | None]:
    """Return what to merge into each record of a group, and what becomes columns; one is empty."""
    if sum(len(pairs) for _, pairs in sources) < _REPEATED_MIN:
        return sources, None
    return (), Repeated(sources)


class RowPieces(Generic[_Record, _Columns]):
    """Collects the records of one kind of a request.

    Records with text that is not UTF-8 are repaired. `tally` counts those that had no other error.
    """

    def __init__(
        self,
        build: Callable[[list[_Record]], _Columns],
        repair: Callable[[_Record], _Record],
        tally: Tally,
    ) -> None:
        """Begin without a record.

        `build` raises `InvalidFrame` for text that is not UTF-8. `repair` returns the same object
        if nothing was wrong.
        """
        self._build: Callable[[list[_Record]], _Columns] = build
        self._repair: Callable[[_Record], _Record] = repair
        self._tally = tally
        self._rows: list[_Record] = []
        self._around: list[Repeated | None] = []
        self._parts: list[_Columns] = []
        self._built = 0

    def __len__(self) -> int:
        """Return the number of records so far."""
        return self._built + len(self._rows)

    def append(self, row: _Record, repeated: Repeated | None = None) -> None:
        """Add a record, which also has the `repeated` attributes."""
        self._rows.append(row)
        self._around.append(repeated)
        if len(self._rows) >= PIECE_ROWS:
            self._finish_piece()

    def extend(self, rows: Iterable[_Record], repeated: Repeated | None = None) -> None:
        """Add records; a generator makes them one by one."""
        for row in rows:
            self.append(row, repeated)

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
        rows, around = self._rows, self._around
        self._rows, self._around = [], []
        self._parts.append(
            built_or_repaired(rows, self._build, self._repair, self._tally, around=around)
        )
        self._built += len(rows)


def built_or_repaired(
    rows: list[_Record],
    build: Callable[[list[_Record]], _Columns],
    repair: Callable[[_Record], _Record],
    tally: Tally,
    *,
    around: Sequence[Repeated | None] = (),
) -> _Columns:
    """Return the columns of records, and repair those with text that is not UTF-8.

    `build` raises `InvalidFrame` for text that is not UTF-8. `repair` returns the same object if
    nothing was wrong. `tally` counts the repaired records that had no other error. `around` is what
    each record has in addition.
    """
    if not any(around):
        around = [None] * len(rows)
    for one in filter(None, around):
        tally.add_sizes(len(one.attributes), one.text_bytes)
    apart = [
        (row, one) if one is None else one.apart_from(row)
        for row, one in zip(rows, around, strict=True)
    ]
    try:
        columns = build([row for row, _ in apart])
    except InvalidFrame:
        apart = [_repaired(row, one, repair, tally) for row, one in apart]
        columns = build([row for row, _ in apart])
    found = [one for _, one in apart]
    tally.unreadable += sum(one is not None and one.is_repaired for one in found)
    return with_repeated(columns, found) if any(found) else columns


def _repaired(
    row: _Record, around: Repeated | None, repair: Callable[[_Record], _Record], tally: Tally
) -> tuple[_Record, Repeated | None]:
    """Return a record with valid text only, and what it has in addition."""
    repaired = repair(row)
    if repaired is row:
        return row, around
    if around is not None:  # its names decide those of what is repaired
        row = around.merged_into(row)
        repaired = repair(row)
    tally.unreadable += ERROR_ATTRIBUTE not in row.attributes
    return repaired, None


def with_repeated(columns: _Columns, around: Sequence[Repeated | None]) -> _Columns:
    """Return records with what is around each of them, none of whose names it has."""
    known: dict[int, int] = {}
    rows: list[dict[str, str]] = []
    owner = np.zeros(len(around), np.int64)
    for place, one in enumerate(around):
        number = known.setdefault(id(one), len(rows))
        if number == len(rows):
            rows.append({} if one is None else one.attributes)
        owner[place] = number
    repeated = attribute_columns(rows)
    if repeated is None:
        return columns
    own = columns.attributes or AttributeColumns(
        names=(),
        offsets=np.zeros(len(around) + 1, np.int32),
        keys=np.zeros(0, np.uint32),
        values=TextColumn(offsets=np.zeros(1, np.int32), data=b""),
    )
    return replace(columns, attributes=_joined(own, repeated, owner))


def _joined(own: AttributeColumns, repeated: AttributeColumns, owner: I64) -> AttributeColumns:
    """Return the pairs of each record and of the repeated row that it has, sorted by name."""
    names = sorted({*own.names, *repeated.names})
    numbers = {name: number for number, name in enumerate(names)}
    own_keys, repeated_keys = (
        np.array([numbers[name] for name in one.names], np.uint32)[one.keys]
        if one.names
        else one.keys
        for one in (own, repeated)
    )
    own_counts = np.diff(own.offsets)
    counts = np.diff(repeated.offsets)[owner]
    offsets = np.zeros(len(owner) + 1, np.int64)
    np.cumsum(own_counts + counts, out=offsets[1:])
    # Both sides are sorted by key in each record, so the place of a pair is its rank in both.
    record = np.repeat(np.arange(len(owner)), own_counts)
    row = np.repeat(np.arange(len(repeated.offsets) - 1), np.diff(repeated.offsets))
    before = np.searchsorted(
        row * len(names) + repeated_keys, owner[record] * len(names) + own_keys
    )
    rank = np.arange(len(own_keys)) - own.offsets[record] + before - repeated.offsets[owner[record]]
    own_at = offsets[record] + rank
    is_repeated = np.ones(int(offsets[-1]), np.bool_)
    is_repeated[own_at] = False
    first = repeated.offsets[:-1][owner]
    taken = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())

    def placed(
        own_values: npt.NDArray[_Number], repeated_values: npt.NDArray[_Number]
    ) -> npt.NDArray[_Number]:
        found = np.empty(len(is_repeated), own_values.dtype)
        found[own_at] = own_values
        found[is_repeated] = repeated_values[taken]
        return found

    ends = np.zeros(len(is_repeated) + 1, np.int64)
    np.cumsum(placed(np.diff(own.values.offsets), np.diff(repeated.values.offsets)), out=ends[1:])
    types = None
    if own.types is not None or repeated.types is not None:
        types = placed(*(_some(one) for one in (own, repeated)))
    return AttributeColumns(
        names=tuple(names),
        offsets=offsets.astype(np.int32),
        keys=placed(own_keys, repeated_keys),
        values=TextColumn(
            offsets=ends.astype(np.int32), data=_joined_text(own, repeated, owner, before)
        ),
        types=types,
    )


def _some(one: AttributeColumns) -> U8:
    return np.zeros(len(one.keys), np.uint8) if one.types is None else one.types


def _joined_text(
    own: AttributeColumns, repeated: AttributeColumns, owner: I64, before: I64
) -> bytes:
    """Return the values of all records; `before` is the repeated pair that follows each own one."""
    text, shared = memoryview(own.values.data), memoryview(repeated.values.data)
    edges = own.values.offsets.tolist()
    cuts = repeated.values.offsets[before].tolist()
    rows = repeated.values.offsets[repeated.offsets].tolist()
    pairs = own.offsets.tolist()
    pieces: list[memoryview] = []
    for record, one in enumerate(owner.tolist()):
        start = rows[one]
        for pair in range(pairs[record], pairs[record + 1]):
            pieces += shared[start : cuts[pair]], text[edges[pair] : edges[pair + 1]]
            start = cuts[pair]
        pieces.append(shared[start : rows[one + 1]])
    return b"".join(pieces)


def log_pieces(tally: Tally) -> RowPieces[LogRecord, LogColumns]:
    """Return an empty collection of log records; `tally` counts those that are repaired."""
    return RowPieces(logs_from_records, repaired_log, tally)


def metric_pieces(tally: Tally) -> RowPieces[MetricPoint, MetricColumns]:
    """Return an empty collection of points; `tally` counts those that are repaired."""
    return RowPieces(metrics_from_records, repaired_point, tally)


def span_pieces(tally: Tally) -> RowPieces[SpanRecord, SpanColumns]:
    """Return an empty collection of spans; `tally` counts those that are repaired."""
    return RowPieces(spans_from_records, repaired_span, tally)


def records_of_groups(
    groups: Iterable[ScopeGroup[_Message]],
    rows: RowPieces[_Record, _Columns],
    read: Callable[[_Message, Sources], _Record],
    tally: Tally,
) -> DecodedRecords | None:
    """Return the records of all groups; None if there are none.

    `read` returns the record of a message, into which it merges the second argument.
    """
    filled = [each for each in groups if each.records]
    shared, outer = outer_sources(filled)
    tally.check_repeated(
        (len(group.records), outer_pairs(sources))
        for group, sources in zip(filled, outer, strict=True)
    )
    for group, sources in zip(filled, outer, strict=True):
        around, repeated = repeated_part(sources)
        rows.extend((read(message, around) for message in group.records), repeated)
    return tally.decoded(rows.columns(), shared) if rows else None
