"""Records of a query as lines for people, and as tables for programs."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Any, Final, Literal

from sluice_cli.shell.asking import format_moment
from sluice_cli.shell.output import csv_line, value_text
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.identity import DOOR_AGENT_PREFIX
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.utf8 import printable_text

Record = Mapping[str, Any]
"""One record as the query service returns it."""
Coloring = Literal["auto", "always", "never"]

_RESET: Final = "\x1b[0m"
_DIM: Final = "\x1b[2m"
_COLORS: Final = {
    "fatal": "\x1b[1;31m",
    "error": "\x1b[31m",
    "warn": "\x1b[33m",
    "debug": _DIM,
    "trace": _DIM,
}
_OTHER_NAMES: Final = {
    "time": "ts",
    "agent": "agent_id",
    "service_name": "service",
    "line": "body",
}
_UNIT_END: Final = 1_000


def is_colored(coloring: Coloring) -> bool:
    """Return whether lines are colored: on a terminal, unless NO_COLOR is set."""
    if coloring == "auto":
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return coloring == "always"


class LineWriter:
    """Returns the line of each record."""

    def __init__(
        self,
        kind: Kind,
        *,
        zone: tzinfo | None,
        columns: Sequence[str] = (),
        colored: bool = False,
    ) -> None:
        self._kind: Kind = kind
        self._zone = zone
        self._columns = columns
        self._colored = colored
        self._is_terminal = sys.stdout.isatty()

    def line(self, record: Record, mark: str = "") -> str:
        """Return one record as a line, after a mark; control characters of it execute nothing."""
        when = format_moment(parse_rfc3339(record["ts"]), self._zone) if "ts" in record else "-"
        if self._columns:
            text = "  ".join(self._value(record, one, when) for one in self._columns)
            return mark + self._safe(text)
        sender = self._safe(sender_of(record))
        what = self._safe(self._what(record))
        level = str(record.get("level", ""))[:5].lower()
        shown = f"{self._safe(level or '-'):<5} " if self._kind == "logs" else ""
        if not self._colored:
            return f"{mark}{when} {shown}{sender} {what}"
        color = _COLORS.get(level, "")
        return f"{mark}{_DIM}{when}{_RESET} {color}{shown}{_RESET if color else ''}{sender} {what}"

    def _what(self, record: Record) -> str:
        if self._kind == "logs":
            return str(record.get("line", record.get("body", "")))
        if self._kind == "metrics":
            attributes = record.get("attributes", {})
            labels = ",".join(f'{key}="{value}"' for key, value in attributes.items())
            return f"{record['name']}{f'{{{labels}}}' if labels else ''} {record['value']}"
        if self._kind == "spans":
            duration = format_duration(int(record["duration_ns"]))
            return f"{record['name']} {duration} {record['status']}"
        return f"{record['key']} {record['value']}"

    def _value(self, record: Record, column: str, when: str) -> str:
        if _OTHER_NAMES.get(column, column) == "ts":
            return when
        value = column_value(record, column)
        return "-" if value is None else value_text(value)

    def _safe(self, text: str) -> str:
        """Return text for a terminal: it executes nothing, and further lines are indented.

        Otherwise a sender of records could write to the terminal, or imitate another record.
        """
        if not self._is_terminal:
            return text
        return "\n    ".join(printable_text(one, kept="\t") for one in text.split("\n"))


def sender_of(record: Record) -> str:
    """Return what a record's sender is called: its service, else host, else agent."""
    agent = str(record.get("agent_id", "-"))
    if agent.startswith(DOOR_AGENT_PREFIX):
        agent = agent.removeprefix(DOOR_AGENT_PREFIX).rpartition(":")[0]
    return str(record.get("service") or record.get("host") or agent)


def column_value(record: Record, column: str) -> object:
    """Return a field of a record, or its attribute or that of its resource; None without one."""
    name = _OTHER_NAMES.get(column, column)
    if name in record:
        value: object = record[name]
        return value
    for place in ("labels", "attributes", "resource"):
        pairs = record.get(place, {})
        key = name.removeprefix(f"{place}.")
        if key in pairs:
            found: object = pairs[key]
            return found
    return None


def format_duration(size_ns: int) -> str:
    """Return a duration with three digits in a unit up to seconds, those exact to the ms."""
    size: float = abs(size_ns)
    sign = "-" if size_ns < 0 else ""
    for unit in ("ns", "µs", "ms"):
        if size < _UNIT_END:
            digits = 2 if size < 10 else 1 if size < 100 else 0  # noqa: PLR2004 - three digits
            return f"{sign}{round(size, digits):g} {unit}"
        size /= _UNIT_END
    return f"{sign}{size:.3f} s"


def write_csv(kind: Kind, records: Sequence[Record], columns: Sequence[str]) -> None:
    """Write records as CSV with a header; maps are JSON."""
    for row in ((columns or _table_columns(kind)), *_rows(kind, records, columns)):
        sys.stdout.write(csv_line(row))
    sys.stdout.flush()


def write_parquet(kind: Kind, records: Sequence[Record], columns: Sequence[str]) -> None:
    """Write records as one Parquet file to standard output; numbers keep their types."""
    import pyarrow as pa  # noqa: PLC0415 - only for this output

    from sluice_cli.shell.records_output import open_writer  # noqa: PLC0415 - the same

    names = columns or _table_columns(kind)
    values = list(zip(*_rows(kind, records, columns), strict=True)) or [()] * len(names)
    arrays = []
    for name, column in zip(names, values, strict=True):
        if _OTHER_NAMES.get(name, name) == "ts":
            at_ns = [None if one is None else parse_rfc3339(str(one)) for one in column]
            arrays.append(pa.array(at_ns, pa.timestamp("ns", "UTC")))
        elif column and all(isinstance(one, int | float | None) for one in column):
            arrays.append(pa.array(column))
        else:
            arrays.append(
                pa.array([None if one is None else value_text(one) for one in column], pa.string())
            )
    rows = pa.record_batch(dict(zip(names, arrays, strict=True)))
    writer = open_writer("parquet", rows.schema, sys.stdout.buffer)
    writer.write(rows)
    writer.finish()


def _table_columns(kind: Kind) -> tuple[str, ...]:
    own = [one.name for one in KINDS[kind].read_fields]
    maps = ("attributes", "resource") if KINDS[kind].has_attributes else ("resource",)
    return ("ts", "agent_id", "boot_id", "seq", *own, *maps)


def _rows(kind: Kind, records: Sequence[Record], columns: Sequence[str]) -> Iterator[list[object]]:
    names = columns or _table_columns(kind)
    for one in records:
        yield [column_value(one, name) for name in names]
