"""Records as lines of JSON, for pipes and manual use (`docs/protocol.md`, NDJSON).

`ts` is an RFC 3339 time or an integer of Unix ns, exact to the nanosecond both ways. Keys and
values of entries are base64. JSON has no NaN and no infinity, so these are the strings `NaN`,
`Infinity` and `-Infinity`.
"""

import base64
import binascii
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, TypeVar

import msgspec

from sluice_protocol.columns import (
    AttributeColumns,
    Columns,
    EntryColumns,
    LogColumns,
    MetricColumns,
)
from sluice_protocol.errors import UNREADABLE_JSON, BadUsage, InvalidFrame
from sluice_protocol.manifests import Kind
from sluice_protocol.records import (
    EntryRecord,
    LogRecord,
    MetricPoint,
    entries_from_records,
    logs_from_records,
    metrics_from_records,
)
from sluice_protocol.timestamps import format_rfc3339, parse_rfc3339

METRIC_TYPES: Final[tuple[Literal["gauge", "delta", "cumulative"], ...]] = (
    "gauge",
    "delta",
    "cumulative",
)
"""Names of the metric types 0, 1 and 2."""

_NotFinite = Literal["NaN", "Infinity", "-Infinity"]
_Line = TypeVar("_Line", bound=msgspec.Struct)
_Record = TypeVar("_Record")
_ENCODER: Final = msgspec.json.Encoder()


class _LogLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    ts: str | int
    body: str
    severity: int = 0
    attributes: dict[str, str] = {}


class _MetricLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    ts: str | int
    name: str
    value: float | _NotFinite
    type: Literal["gauge", "delta", "cumulative"] = "gauge"
    attributes: dict[str, str] = {}


class _EntryLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    key: str
    value: str
    ts: str | int | None = None


def columns_from_ndjson(kind: Kind, lines: Iterable[str | bytes]) -> Columns:
    """Build columns from lines of JSON; empty lines are skipped.

    Raises:
        BadUsage: A line is not JSON of this kind, or there is no line; the error names the line.
        InvalidFrame: The records cannot be encoded as one frame.
    """
    columns: Columns
    match kind:
        case "logs":
            columns = logs_from_records(list(_records(lines, _LogLine, _log_record)))
        case "metrics":
            columns = metrics_from_records(list(_records(lines, _MetricLine, _metric_point)))
        case "entries":
            columns = entries_from_records(list(_records(lines, _EntryLine, _entry_record)))
    if not len(columns):
        raise BadUsage("no records in the input: give at least one line of JSON")
    return columns


def _records(
    lines: Iterable[str | bytes], form: type[_Line], build: Callable[[_Line], _Record]
) -> Iterator[_Record]:
    decoder = msgspec.json.Decoder(form)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield build(decoder.decode(line))
        except (*UNREADABLE_JSON, UnicodeError, BadUsage, InvalidFrame) as error:
            raise BadUsage(f"line {number}: {error}") from error


def _log_record(line: _LogLine) -> LogRecord:
    return LogRecord(
        ts_ns=_time(line.ts), body=line.body, severity=line.severity, attributes=line.attributes
    )


def _metric_point(line: _MetricLine) -> MetricPoint:
    return MetricPoint(
        ts_ns=_time(line.ts),
        name=line.name,
        value=float(line.value),
        type=METRIC_TYPES.index(line.type),
        attributes=line.attributes,
    )


def _entry_record(line: _EntryLine) -> EntryRecord:
    return EntryRecord(
        key=_base64("key", line.key),
        value=_base64("value", line.value),
        ts_ns=None if line.ts is None else _time(line.ts),
    )


def _time(ts: str | int) -> int:
    return ts if isinstance(ts, int) else parse_rfc3339(ts)


def _base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadUsage(f"{name} must be base64: {error}") from error


def ndjson_from_columns(columns: Columns) -> Iterator[str]:
    """Yield one line of JSON for each record, without line ends, in the order of the columns."""
    match columns:
        case LogColumns():
            lines: Iterator[msgspec.Struct] = _log_lines(columns)
        case MetricColumns():
            lines = _metric_lines(columns)
        case EntryColumns():
            lines = _entry_lines(columns)
    for line in lines:
        yield _ENCODER.encode(line).decode()


def _log_lines(columns: LogColumns) -> Iterator[_LogLine]:
    count = len(columns)
    severity = [0] * count if columns.severity is None else columns.severity.tolist()
    rows = zip(
        columns.ts.tolist(),
        columns.body.slices(),
        severity,
        attribute_rows(columns.attributes, count),
        strict=True,
    )
    for ts_ns, body, level, attributes in rows:
        yield _LogLine(format_rfc3339(ts_ns), body.decode(), level, attributes)


def _metric_lines(columns: MetricColumns) -> Iterator[_MetricLine]:
    rows = zip(
        columns.ts.tolist(),
        columns.name.tolist(),
        columns.value.tolist(),
        columns.type.tolist(),
        attribute_rows(columns.attributes, len(columns)),
        strict=True,
    )
    for ts_ns, name, value, kind, attributes in rows:
        line = _MetricLine(format_rfc3339(ts_ns), columns.names[name], _json_number(value))
        line.type = METRIC_TYPES[kind]
        line.attributes = attributes
        yield line


def _json_number(value: float) -> float | _NotFinite:
    if value != value:  # noqa: PLR0124 - NaN is the one value that differs from itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _entry_lines(columns: EntryColumns) -> Iterator[_EntryLine]:
    times = [None] * len(columns) if columns.ts is None else columns.ts.tolist()
    for key, value, ts_ns in zip(columns.key.slices(), columns.value.slices(), times, strict=True):
        yield _EntryLine(
            base64.b64encode(key).decode(),
            base64.b64encode(value).decode(),
            None if ts_ns is None else format_rfc3339(ts_ns),
        )


def attribute_rows(columns: AttributeColumns | None, count: int) -> Iterator[dict[str, str]]:
    """Yield the attributes of each record as a mapping, in the order of the columns."""
    if columns is None:
        yield from ({} for _ in range(count))
        return
    edges = columns.offsets.tolist()
    names = [columns.names[key] for key in columns.keys.tolist()]
    values = [value.decode() for value in columns.values.slices()]
    for start, end in itertools.pairwise(edges):
        yield dict(zip(names[start:end], values[start:end], strict=True))
