"""Columns from plain records, as agents and the command line have them.

Every builder is a pure function: the same records in the same order result in the same columns,
with names sorted and each record's attributes in the order of the names.
"""

import base64
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sluice_protocol.columns import (
    FEW,
    I64,
    AttributeColumns,
    Columns,
    ColumnValues,
    EntryColumns,
    LogColumns,
    MetricColumns,
    NameColumn,
    SpanColumns,
    TextColumn,
    make_columns,
    number_type,
)
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.fields import ENTRIES, LOGS, METRICS, SPANS, Field, FieldType, RecordKind
from sluice_protocol.values import value_types

RAW_ATTRIBUTE: Final = "sluice.raw"
"""The attribute with the original bytes, in base64, of a body that was not UTF-8."""
NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})
_OFFSET_MAX: Final = 2**31 - 1
_SHAPES_MAX: Final = 1_024
"""The orders of names that are remembered while attributes are built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One log record.

    Attributes:
        ts_ns: Unix ns.
        body: The line; bytes that are not UTF-8 are replaced and kept in `sluice.raw`.
        severity: OpenTelemetry severity number, 0 (unspecified) to 24.
        attributes: Attributes of this record; a value that is no text is a `TypedText`.
    """

    ts_ns: int
    body: str | bytes
    severity: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """One metric point.

    Attributes:
        ts_ns: Unix ns.
        name: Name of the metric.
        value: The value.
        type: 0 gauge, 1 delta, 2 cumulative.
        attributes: Attributes of this point; a value that is no text is a `TypedText`.
    """

    ts_ns: int
    name: str
    value: float
    type: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """One span.

    Attributes:
        ts_ns: When it started, Unix ns.
        name: Name of the operation.
        span_kind: 0 unspecified, 1 internal, 2 server, 3 client, 4 producer, 5 consumer.
        status: 0 unset, 1 ok, 2 error.
        trace_id: Lower-case hexadecimal, as the other ids.
        events: Canonical JSON list, or empty; `links` likewise.
        attributes: Attributes of this span.
    """

    ts_ns: int
    name: str
    span_kind: int = 0
    duration_ns: int = 0
    status: int = 0
    status_message: str = ""
    trace_id: str = ""
    span_id: str = ""
    parent_id: str = ""
    trace_state: str = ""
    events: str = ""
    links: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecord:
    """One opaque entry; `ts_ns` is given for all entries of a batch or for none."""

    key: bytes
    value: bytes
    ts_ns: int | None = None


def logs_from_records(records: Sequence[LogRecord]) -> LogColumns:
    """Build log columns.

    Raises:
        InvalidFrame: A value is outside its range, or text cannot be encoded as UTF-8.
    """
    bodies = [_bytes_of("body", record.body) for record in records]
    body, attributes = readable_bodies(bodies, [record.attributes for record in records])
    return LogColumns(
        body=body,
        attributes=attribute_columns(attributes),
        **_columns_of(LOGS, records, but="body"),
    )


def logs_from_lines(
    lines: Sequence[bytes],
    ts_ns: I64,
    *,
    attributes: Mapping[str, str] = NO_ATTRIBUTES,
) -> LogColumns:
    """Build log columns from raw lines that share their attributes: the fast path of file inputs.

    Args:
        lines: The lines without their line ends; bytes that are not UTF-8 are replaced and kept
            in `sluice.raw`.
        ts_ns: i64[n], Unix ns.
        attributes: Attributes of every line.

    Raises:
        InvalidFrame: An attribute cannot be encoded as UTF-8.
    """
    body, own = readable_bodies(lines, [attributes] * len(lines))
    shared = all(each is attributes for each in own)
    return LogColumns(
        ts=ts_ns,
        body=body,
        attributes=(
            shared_attributes(attributes, len(lines)) if shared else attribute_columns(own)
        ),
    )


def metrics_from_records(points: Sequence[MetricPoint]) -> MetricColumns:
    """Build metric columns.

    Raises:
        InvalidFrame: A value is outside its range, or text cannot be encoded as UTF-8.
    """
    return MetricColumns(
        attributes=attribute_columns([point.attributes for point in points]),
        **_columns_of(METRICS, points),
    )


def spans_from_records(spans: Sequence[SpanRecord]) -> SpanColumns:
    """Build span columns.

    Raises:
        InvalidFrame: A value is outside its range, or text cannot be encoded as UTF-8.
    """
    return SpanColumns(
        attributes=attribute_columns([span.attributes for span in spans]),
        **_columns_of(SPANS, spans),
    )


def entries_from_records(records: Sequence[EntryRecord]) -> EntryColumns:
    """Build entry columns.

    Raises:
        InvalidFrame: Some entries have a time and some have none, or one is outside its range.
    """
    return EntryColumns(**_columns_of(ENTRIES, records))


def columns_from_rows(kind: RecordKind, rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Build the columns of any kind from the value of each field by its name.

    Args:
        kind: The kind of the records.
        rows: The values of each record, and its `attributes` if the kind has them.

    Raises:
        InvalidFrame: As the functions for each kind.
    """
    values: dict[str, Any] = {
        field.name: _column_of(field, [row[field.name] for row in rows]) for field in kind.fields
    }
    if kind.has_attributes:
        values["attributes"] = attribute_columns([row["attributes"] for row in rows])
    return make_columns(kind.name, values)


def _columns_of(kind: RecordKind, records: Sequence[object], *, but: str = "") -> dict[str, Any]:
    return {
        field.name: _column_of(
            field,
            list(map(attrgetter("ts_ns" if field.type is FieldType.TIME else field.name), records)),
        )
        for field in kind.fields
        if field.name != but
    }


def _column_of(field: Field, values: list[Any]) -> ColumnValues | None:
    match field.type:
        case FieldType.TIME:
            return _times(field, values)
        case FieldType.NAME:
            return _name_column(values)
        case FieldType.TEXT:
            stated = not field.is_optional or any(values)
            return string_column(field.column, values) if stated else None
        case FieldType.OPAQUE:
            return text_column(field.column, values)
        case _:
            stated = not field.is_optional or any(values)
            return _numbers(field, values) if stated else None


def _times(field: Field, values: list[int | None]) -> I64 | None:
    times = [at for at in values if at is not None]
    if field.is_optional and not times:
        return None
    if len(times) != len(values):
        raise InvalidFrame(field.column, "some entries have a time and some have none")
    return _numbers(field, times)


def _name_column(values: Sequence[str]) -> NameColumn:
    names = sorted(set(values))
    index = {name: place for place, name in enumerate(names)}
    for name in names:
        _bytes_of("names", name)
    return NameColumn(names=tuple(names), indexes=np.array([index[one] for one in values], "u4"))


def text_column(name: str, values: Sequence[bytes]) -> TextColumn:
    """Concatenate byte strings into a column.

    Raises:
        InvalidFrame: Their total length exceeds the range of an offset; the error names `name`.
    """
    return _end_to_end(name, values, b"".join(values))


def attribute_columns(rows: Sequence[Mapping[str, str]]) -> AttributeColumns | None:
    """Build the attributes of all records; None when no record has any.

    Raises:
        InvalidFrame: Text cannot be encoded as UTF-8.
    """
    names = sorted(set().union(*rows))
    if not names:
        return None
    for name in names:
        _bytes_of("attr_names", name)
    index = {name: place for place, name in enumerate(names)}
    orders: dict[tuple[str, ...], tuple[list[str], list[int]]] = {}
    keys: list[int] = []
    values: list[str] = []
    last: Mapping[str, str] | None = None
    places: list[int] = []
    texts: list[str] = []
    for row in rows:
        if row is last:
            keys += places
            values += texts
            continue
        last = row
        # Most records have the same names in the same order as one before them.
        shape = tuple(row)
        if shape not in orders:
            if len(orders) == _SHAPES_MAX:
                orders.clear()
            order = sorted(row)
            orders[shape] = order, [index[name] for name in order]
        order, places = orders[shape]
        texts = [row[name] for name in order]
        keys += places
        values += texts
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, rows), np.int32, len(rows)), out=offsets[1:])
    return AttributeColumns(
        names=tuple(names),
        offsets=offsets,
        keys=np.array(keys, np.uint32),
        values=string_column("attr_val", values),
        types=value_types(values),
    )


def string_column(name: str, values: Sequence[str]) -> TextColumn:
    """Concatenate texts into a column.

    Raises:
        InvalidFrame: Text cannot be encoded as UTF-8, or is too long; the error names `name`.
    """
    joined = "".join(values)
    if not joined.isascii():
        return text_column(name, [_bytes_of(name, value) for value in values])
    return _end_to_end(name, values, joined.encode())


def _end_to_end(name: str, values: Sequence[str] | Sequence[bytes], data: bytes) -> TextColumn:
    """Return the column of values of which `data` is the concatenation."""
    if len(data) > _OFFSET_MAX:
        raise InvalidFrame(name, "is longer than 2 GiB")
    if len(values) <= FEW:
        offsets = np.array([0, *itertools.accumulate(map(len, values))], np.int32)
    else:
        offsets = np.zeros(len(values) + 1, np.int32)
        lengths = np.fromiter(map(len, values), np.int32, len(values))
        np.cumsum(lengths, dtype=np.int32, out=offsets[1:])
    return TextColumn(offsets=offsets, data=data)


def shared_attributes(attributes: Mapping[str, str], count: int) -> AttributeColumns | None:
    """Build the attributes of `count` records that all have the same ones."""
    one = attribute_columns([attributes])
    if one is None:
        return None
    width = len(one.names)
    if len(one.values.data) * count > _OFFSET_MAX:
        raise InvalidFrame("attr_val", "is longer than 2 GiB")
    lengths = np.tile(np.diff(one.values.offsets), count)
    ends = np.zeros(count * width + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return AttributeColumns(
        names=one.names,
        offsets=np.arange(count + 1, dtype=np.int32) * np.int32(width),
        keys=np.tile(one.keys, count),
        values=TextColumn(offsets=ends, data=one.values.data * count),
        types=None if one.types is None else np.tile(one.types, count),
    )


def readable_bodies(
    bodies: Sequence[bytes], attributes: list[Mapping[str, str]]
) -> tuple[TextColumn, list[Mapping[str, str]]]:
    """Return bodies as text, with the original of each that is not UTF-8 as `sluice.raw`."""
    # Nearly every batch is valid UTF-8, which one check of the whole shows.
    column = text_column("body", bodies)
    if column.data.isascii():
        return column, attributes
    kept = list(bodies)
    own = list(attributes)
    for place in _not_utf8(bodies):
        kept[place] = bodies[place].decode("utf-8", "replace").encode()
        raw = base64.b64encode(bodies[place]).decode()
        own[place] = {**attributes[place], RAW_ATTRIBUTE: raw}
    return text_column("body", kept), own


def _not_utf8(bodies: Iterable[bytes]) -> list[int]:
    return [place for place, body in enumerate(bodies) if not _is_utf8(body)]


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _bytes_of(name: str, value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidFrame(
            name, "text contains a lone surrogate and cannot be encoded as UTF-8"
        ) from error


def _numbers(field: Field, values: Sequence[float]) -> npt.NDArray[Any]:
    dtype = np.dtype(number_type(field.type))
    try:
        return np.array(values, dtype)
    except OverflowError as error:
        shown = "an unsigned byte" if dtype == np.uint8 else "a 64-bit integer"
        raise InvalidFrame(field.column, f"is outside the range of {shown}") from error
