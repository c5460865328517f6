"""The tables of the lake, their columns and partitions, as data that writers and readers share.

A record table contains one row per record. `batches` contains one row per accepted batch. It is the
ledger of ingestion: a batch is in the lake when its identity is in the ledger. `dead_letters`
contains batches whose blob was missing or damaged during ingestion; they never enter the ledger.

Source: `docs/adr/0030-exactly-once-into-the-lake.md`, `docs/adr/0031-ingestion-and-tables.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from sluice_protocol.fields import KINDS, Field, FieldType, Kind
from sluice_protocol.keys import INGEST_QUEUE
from sluice_protocol.units import NS_PER_S


class ColumnType(StrEnum):
    """A column type, by its name in a Delta schema."""

    STRING = "string"
    BINARY = "binary"
    INTEGER = "integer"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"
    """Microseconds, UTC."""
    TEXT_MAP = "map<string,string>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    `meaning` is one line, stored as the column's comment. Data files record the minimum and maximum
    of a `skippable` column, so that readers can skip files. A table of an earlier version may do
    without an `addable` column: its next writer adds it, and rows written before have null.
    `promotes` is the attribute that an operator gave this column, `attributes.KEY` (ADR 46).
    """

    name: str
    type: ColumnType
    meaning: str
    skippable: bool = False
    addable: bool = False
    promotes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table under `lake/v1/`.

    The partition column is the last; its value is in the path instead of in the data files.
    Compaction sorts the rows of a partition by the columns of `order`.
    """

    name: str
    columns: tuple[Column, ...]
    partition_column: str
    order: tuple[str, ...] = ()

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns that are in the data files: all but the partition column."""
        return tuple(column for column in self.columns if column.name != self.partition_column)

    @property
    def addable_columns(self) -> tuple[Column, ...]:
        """The columns that a table of an earlier version may do without."""
        return tuple(column for column in self.columns if column.addable)

    @property
    def promoted_columns(self) -> tuple[Column, ...]:
        """The columns that operators gave to attributes; they follow from the maps of a row."""
        return tuple(column for column in self.columns if column.promotes)

    @property
    def without_promoted(self) -> "Table":
        """The table as this version defines it."""
        return replace(self, columns=tuple(one for one in self.columns if not one.promotes))

    def with_promoted(self, columns: Sequence[Column]) -> "Table":
        """Return the table with further promoted columns, before the partition column."""
        have = {column.name for column in self.columns}
        new = [column for column in columns if column.name not in have]
        return replace(self, columns=(*self.columns[:-1], *new, self.columns[-1]))

    @property
    def skipping_columns(self) -> tuple[Column, ...]:
        """The stored columns whose minimum and maximum are recorded for each data file."""
        return tuple(column for column in self.stored_columns if column.skippable)


def _column(name: str, kind: ColumnType, meaning: str, *, skippable: bool = False) -> Column:
    return Column(name=name, type=kind, meaning=meaning, skippable=skippable)


# A meaning is stored in the table as a comment: rewording one would change the stored schema.
_STRING, _LONG, _INTEGER = ColumnType.STRING, ColumnType.LONG, ColumnType.INTEGER
_TIMESTAMP, _MAP = ColumnType.TIMESTAMP, ColumnType.TEXT_MAP

ACCEPTED_DATE: Final = "accepted_date"
ACCEPTED_HOUR: Final = "accepted_hour"

_RECORD_HEAD: Final = (
    _column("agent_id", _STRING, "the agent that sent it", skippable=True),
    _column("boot_id", _STRING, "the boot of that agent", skippable=True),
    _column("seq", _LONG, "sequence number of the record in that boot", skippable=True),
    _column("ts_ns", _LONG, "the record's own time, exact, Unix ns; null without one"),
    _column("ts", _TIMESTAMP, "the record's own time, cut to microseconds", skippable=True),
    _column("accepted_at", _TIMESTAMP, "when its batch was accepted", skippable=True),
    _column("queue_sequence", _LONG, "sequence of the queue entry that brought it", skippable=True),
)
_RECORD_TAIL: Final = (
    _column("attributes", _MAP, "the record's attributes; null when its batch has none at all"),
    Column(
        name="attribute_types",
        type=_MAP,
        meaning="the types of those attributes that are not text; null if all are",
        addable=True,
    ),
    _column("resource", _MAP, "attributes of the source of the batch"),
    _column(ACCEPTED_DATE, ColumnType.DATE, "UTC date of accepted_at"),
)


FIELD_TYPES: Final = {
    FieldType.TIME: _LONG,
    FieldType.NAME: _STRING,
    FieldType.BYTE: _INTEGER,
    FieldType.LONG: _LONG,
    FieldType.FLOAT: ColumnType.DOUBLE,
    FieldType.TEXT: _STRING,
    FieldType.OPAQUE: ColumnType.BINARY,
}


def _field_column(field: Field, *, addable: bool = False) -> Column:
    return Column(
        name=field.name,
        type=FIELD_TYPES[field.type],
        meaning=field.meaning,
        skippable=field.is_skippable,
        addable=addable,
    )


def _record_table(kind: Kind) -> Table:
    own = [_field_column(field) for field in KINDS[kind].own_fields]
    derived = [_field_column(field, addable=True) for field in KINDS[kind].derived]
    columns = (*_RECORD_HEAD, *own, *derived, *_RECORD_TAIL)
    order = (*KINDS[kind].sorted_by, "agent_id", "boot_id", "seq")
    return Table(name=kind, columns=columns, partition_column=ACCEPTED_DATE, order=order)


RECORD_TABLES: Final[dict[Kind, Table]] = {kind: _record_table(kind) for kind in KINDS}
LOGS: Final = RECORD_TABLES["logs"]
METRICS: Final = RECORD_TABLES["metrics"]
ENTRIES: Final = RECORD_TABLES["entries"]
SPANS: Final = RECORD_TABLES["spans"]

_IDENTITY: Final = (
    _column("agent_id", _STRING, "the agent that sent it", skippable=True),
    _column("boot_id", _STRING, "the boot of that agent", skippable=True),
    _column("seq_start", _LONG, "first sequence number", skippable=True),
    _column("seq_end", _LONG, "last sequence number, inclusive", skippable=True),
    _column("kind", _STRING, ", ".join(KINDS)),
    _column("frame_sha256", _STRING, "sha256 of the frame, hex"),
    _column("frame_bytes", _LONG, "size of the frame"),
    _column("record_count", _LONG, "number of records"),
    _column("accepted_at", _TIMESTAMP, "when it was accepted", skippable=True),
    _column("accepted_at_ns", _LONG, "the same, exact, Unix ns"),
    _column("lane", _INTEGER, "queue lane that brought it", skippable=True),
    _column("queue_sequence", _LONG, "sequence of the queue entry", skippable=True),
)
BATCHES: Final = Table(
    name="batches",
    columns=(
        *_IDENTITY,
        _column("min_ts_ns", _LONG, "earliest record, Unix ns, or null", skippable=True),
        _column("max_ts_ns", _LONG, "latest record, Unix ns, or null", skippable=True),
        _column("collector_id", _STRING, "the gateway that accepted it"),
        _column("principal", _STRING, "the principal that sent it"),
        _column(ACCEPTED_HOUR, _STRING, "UTC hour of accepted_at, YYYY-MM-DDTHH"),
    ),
    partition_column=ACCEPTED_HOUR,
)
DEAD_LETTERS: Final = Table(
    name="dead_letters",
    columns=(
        *_IDENTITY,
        _column("reason", _STRING, "missing, corrupt, invalid_frame or disagrees"),
        _column("detail", _STRING, "what exactly was wrong"),
        _column("observed_at", _TIMESTAMP, "when ingestion looked", skippable=True),
        _column(ACCEPTED_HOUR, _STRING, "UTC hour of accepted_at, YYYY-MM-DDTHH"),
    ),
    partition_column=ACCEPTED_HOUR,
)

WINDOW_DATE: Final = "window_date"
ROLLUPS: Final = Table(
    name="rollups",
    columns=(
        _column("window", _STRING, "1m or 1h", skippable=True),
        _column("window_start", _TIMESTAMP, "first instant of the window", skippable=True),
        _column("name", _STRING, "name of the metric", skippable=True),
        _column("agent_id", _STRING, "the agent that sent it", skippable=True),
        _column("attributes", _MAP, "the series' attributes; empty without any"),
        _column("count", _LONG, "number of points that are numbers"),
        _column("sum", ColumnType.DOUBLE, "their sum"),
        _column("min", ColumnType.DOUBLE, "the least"),
        _column("max", ColumnType.DOUBLE, "the greatest"),
        _column("last", ColumnType.DOUBLE, "the one of the latest time"),
        _column("last_ts_ns", _LONG, "that time, Unix ns"),
        _column("sketch", ColumnType.BINARY, "KLL sketch of doubles, k = 200, Apache DataSketches"),
        _column("cover", _LONG, "number of the cover that wrote the row", skippable=True),
        _column(WINDOW_DATE, ColumnType.DATE, "UTC date of window_start"),
    ),
    partition_column=WINDOW_DATE,
)
"""A late point adds another row of the same series and window: readers merge the rows."""

TABLES: Final = (*RECORD_TABLES.values(), BATCHES, DEAD_LETTERS, ROLLUPS)


def ingest_app_id(lane: int) -> str:
    """Return the application id whose transaction version is a lane's last ingested sequence."""
    return f"sluice-ingest/{INGEST_QUEUE}.{lane:03d}"


def accepted_date(accepted_at_ns: int) -> str:
    """Return the partition of a record, `YYYY-MM-DD` in UTC."""
    return datetime.fromtimestamp(accepted_at_ns // NS_PER_S, UTC).strftime("%Y-%m-%d")


def accepted_hour(accepted_at_ns: int) -> str:
    """Return the partition of a ledger row, `YYYY-MM-DDTHH` in UTC."""
    return datetime.fromtimestamp(accepted_at_ns // NS_PER_S, UTC).strftime("%Y-%m-%dT%H")
