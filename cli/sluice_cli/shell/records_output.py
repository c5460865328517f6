"""Rows of a result on standard output: aligned lines, NDJSON, CSV or Parquet.

A writer gets one Arrow record batch after another and keeps at most one row group of Parquet, or
the rows from which it computes the widths of columns. The values are the same in each form: times
are RFC 3339 in the zone of their column, bytes base64, and maps, lists and structs JSON.
"""

import base64
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import BinaryIO, Final, Literal, Protocol
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa

from sluice_cli.shell.output import csv_line, value_text
from sluice_protocol.errors import BadUsage
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.utf8 import printable_text
from sluice_query.result import number_json

OutputForm = Literal["lines", "json", "csv", "parquet"]
"""`lines` is a table for people, `json` one object a line."""

_NS_OF_UNIT: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_UTC: Final = frozenset({"UTC", "Etc/UTC", "Z", "+00:00"})
_ZEROS: Final = re.compile(r"\.?0+(?=(?:Z|[+-]\d\d:\d\d)?$)", re.ASCII)
"""The zeros at the end of a fraction of a second, which a table for people does not show."""
_SAMPLE_ROWS: Final = 1_000
"""The rows whose cells decide how wide the columns of a table are."""
_COLUMN_CHARS_MAX: Final = 80
"""In a pipe no cell is cut; a longer one does not widen its column."""
_CUT_CHARS_MIN: Final = 12
"""On a terminal no column is cut to less."""
_ROW_GROUP_ROWS: Final = 100_000
_ROW_GROUP_BYTES: Final = 64 << 20


class RowWriter(Protocol):
    """Writes the rows of one result."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of one batch."""

    def finish(self) -> None:
        """Write what is left, and the end of the file."""


def open_writer(form: OutputForm, schema: pa.Schema, out: BinaryIO) -> RowWriter:
    """Return the writer of a form to a binary file.

    Raises:
        BadUsage: Parquet is not for terminals, or has no type for a column.
    """
    if form == "parquet" and out.isatty():
        raise BadUsage(
            "Parquet is not for a terminal: write to a file, as in `--output parquet > r.parquet`"
        )
    match form:
        case "parquet":
            return _ParquetWriter(schema, out)
        case "csv":
            return _CsvWriter(schema, out)
        case "json":
            return _JsonWriter(schema, out)
        case "lines" if schema.names == ["explain_key", "explain_value"]:
            return _PlanWriter(out)
        case "lines":
            return _LineWriter(schema, out)


def row_names(schema: pa.Schema) -> list[str]:
    """Return the names of the columns, each once: a repeated one is followed by its number."""
    names: list[str] = []
    for name in schema.names:
        unique, count = name, 1
        while unique in names:
            count += 1
            unique = f"{name}_{count}"
        names.append(unique)
    return names


def json_rows(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a batch with values for JSON."""
    return zip(*map(_column_values, batch.columns), strict=True)


class _JsonWriter:
    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        self._names = row_names(schema)
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        rows = (dict(zip(self._names, row, strict=True)) for row in json_rows(batch))
        self._out.write(msgspec.json.Encoder().encode_lines(rows))

    def finish(self) -> None:
        self._out.flush()


class _CsvWriter:
    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        self._out = out
        self._out.write(csv_line(row_names(schema)).encode())

    def write(self, batch: pa.RecordBatch) -> None:
        self._out.write("".join(map(csv_line, json_rows(batch))).encode())

    def finish(self) -> None:
        self._out.flush()


class _ParquetWriter:
    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - slow, and not for the other forms

        names = row_names(schema)
        self._schema = pa.schema(
            one.with_name(name) for one, name in zip(schema, names, strict=True)
        )
        try:
            self._file = pq.ParquetWriter(out, self._schema, compression="zstd")
        except pa.ArrowNotImplementedError as error:
            raise BadUsage(
                f"Parquet has no type for a column: cast it to VARCHAR, reason=`{error}`"
            ) from error
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _ROW_GROUP_ROWS or self._bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._held:
            self._file.write_table(pa.Table.from_batches(self._held), max(self._rows, 1))
        self._held, self._rows, self._bytes = [], 0, 0

    def finish(self) -> None:
        self._write_group()
        self._file.close()


class _PlanWriter:
    """The plans of EXPLAIN, which are drawn on several lines."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        for _, plan in json_rows(batch):
            self._out.write((printable_text(value_text(plan), kept="\n") + "\n").encode())

    def finish(self) -> None:
        self._out.flush()


class _LineWriter:
    """A table with aligned columns, numbers to the right; a terminal cuts wide cells."""

    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        self._out = out
        self._rows: list[list[str]] = [row_names(schema)]
        self._to_right = [_is_number(one.type) for one in schema]
        self._is_time = [pa.types.is_timestamp(one.type) for one in schema]
        self._widths: list[int] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        for row in json_rows(batch):
            cells = zip(row, self._is_time, strict=True)
            self._rows.append([_cell(value, is_time=is_time) for value, is_time in cells])
        if len(self._rows) > _SAMPLE_ROWS:
            self._print()

    def finish(self) -> None:
        self._print()
        self._out.flush()

    def _print(self) -> None:
        if self._widths is None:
            self._widths = self._choose_widths()
            self._rows.insert(1, ["─" * width for width in self._widths])
        lines = [self._line(row, self._widths) for row in self._rows]
        self._out.write("".join(lines).encode())
        self._rows = []

    def _choose_widths(self) -> list[int]:
        widths = [max(map(_width, column)) for column in zip(*self._rows, strict=True)]
        if not self._out.isatty():
            return [min(width, _COLUMN_CHARS_MAX) for width in widths]
        import shutil  # noqa: PLC0415 - for a terminal

        room = shutil.get_terminal_size().columns - 2 * (len(widths) - 1)
        cut = max(widths, default=0)
        while cut > _CUT_CHARS_MIN and sum(min(width, cut) for width in widths) > room:
            cut -= 1
        return [min(width, cut) for width in widths]

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        cut = self._out.isatty()
        cells = []
        for cell, width, to_right in zip(row, widths, self._to_right, strict=True):
            shown = _cut(cell, width) if cut else cell
            space = " " * (width - _width(shown))
            cells.append(space + shown if to_right else shown + space)
        return "  ".join(cells).rstrip() + "\n"


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _cell(value: object, *, is_time: bool) -> str:
    """Return a value for a table: on one line, and without characters that a terminal executes."""
    if value is None:
        return "-"
    if is_time:
        return _ZEROS.sub("", str(value), count=1)
    return printable_text(value_text(value).replace("\n", "↵").replace("\t", " "))


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def _cut(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    kept = text[: width - 1]
    while _width(kept) > width - 1:
        kept = kept[:-1]
    return kept + "…"


def _column_values(array: pa.Array) -> list[object]:
    """Return the values of a column for JSON."""
    if pa.types.is_timestamp(array.type):
        factor = _NS_OF_UNIT[array.type.unit]
        ticks = array.cast(pa.int64()).to_pylist()
        zone = array.type.tz
        return [None if one is None else _format_time(one * factor, zone) for one in ticks]
    if pa.types.is_floating(array.type):
        return list(map(number_json, array.to_pylist()))
    if pa.types.is_integer(array.type) or pa.types.is_string(array.type):
        found: list[object] = array.to_pylist()
        return found
    return list(map(_json_value, array.to_pylist(maps_as_pydicts="lossy")))


def _format_time(at_ns: int, zone: str | None) -> str:
    """Return a time as RFC 3339; without an offset if it has no zone."""
    try:
        text = format_rfc3339(at_ns)
        if zone is None:
            return text.removesuffix("Z")
        if zone in _UTC:
            return text
        moment = datetime.fromtimestamp(at_ns // 10**9, ZoneInfo(zone))
    except (OverflowError, ValueError):  # DuckDB has years that Python does not have
        return f"{at_ns} ns"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ns % 10**9:09d}{moment.isoformat()[-6:]}"


def _interval_text(value: pa.MonthDayNano) -> str:
    """Return an interval such as `1 months 2 days 3.5 s`, without its parts that are 0."""
    sign, rest_ns = "-" if value.nanoseconds < 0 else "", abs(value.nanoseconds)
    seconds = f"{sign}{rest_ns // 10**9}.{rest_ns % 10**9:09d}".rstrip("0").rstrip(".")
    parts = [f"{value.months} months"] if value.months else []
    parts += [f"{value.days} days"] if value.days else []
    return " ".join([*parts, f"{seconds} s"] if rest_ns or not parts else parts)


def _json_value(value: object) -> object:  # noqa: C901 - one case for each type
    """Return a value of Python for JSON."""
    found = value
    match value:
        case float():
            found = number_json(value)
        case Decimal():
            found = msgspec.Raw(str(value).encode()) if value.is_finite() else str(value)
        case bytes():
            found = base64.b64encode(value).decode()
        case datetime() | date() | time():
            found = value.isoformat()
        case pa.MonthDayNano():
            found = _interval_text(value)
        case Mapping():
            found = {str(key): _json_value(one) for key, one in value.items()}
        case list():
            found = list(map(_json_value, value))
        case None | bool() | int() | str():
            pass
        case _:
            found = str(value)
    return found
