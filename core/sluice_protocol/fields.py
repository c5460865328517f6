"""The kinds of records and the fields of each: one table, from which all other lists follow.

From a row follow the column of a frame with its checks, the lines of NDJSON, the column of the
lake's table, its Arrow type and its row in `docs/reference/tables.md`, the field of a query with
its filters, and what a result shows. A row needs an attribute of the same name in the class of its
columns (`columns`), and a door or a decoder that fills it; `records` has the rows that doors build.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

Kind = Literal["logs", "metrics", "entries", "spans"]
SEVERITY_MAX: Final = 24
TEXT_BYTES_MIN: Final = 6
"""Bytes of a gram of index chunks; a shorter text has none."""


class FieldType(IntEnum):
    """What the values of a field are, in the order in which clients list fields."""

    TIME = 1
    """Unix ns, 64 bits."""
    NAME = 2
    """A text that many records have in common."""
    BYTE = 3
    """0 to 255."""
    LONG = 4
    """64 bits with a sign, exact."""
    FLOAT = 5
    """64 bits, any of them; NaN is kept."""
    TEXT = 6
    """UTF-8, usually another for each record."""
    OPAQUE = 7
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of the records of a kind.

    Attributes:
        name: Its name in columns, JSON, the lake and queries.
        type: What its values are.
        meaning: One line, which the lake stores: rewording it changes the schema of a table.
        column: Name of its column in a frame; by default `name`.
        is_optional: Whether a frame may do without the column. Numbers are then 0 and texts empty,
            and a query shows none for these.
        maximum: The largest number.
        labels: The texts that JSON and queries have for the numbers 0, 1, ….
        is_shown: Whether the line of a record on a terminal contains it.
        is_skippable: Whether data files record its minimum and maximum.
        is_indexed: Whether index chunks show which data files contain a value: parts of texts of
            the searched field, whole values of others.
    """

    name: str
    type: FieldType
    meaning: str
    column: str = ""
    is_optional: bool = False
    maximum: int | None = None
    labels: tuple[str, ...] = ()
    is_shown: bool = False
    is_skippable: bool = False
    is_indexed: bool = False

    def __post_init__(self) -> None:
        if not self.column:
            object.__setattr__(self, "column", self.name)

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers for filters, so that they have an order."""
        return self.type in (FieldType.LONG, FieldType.FLOAT) or (
            self.type is FieldType.BYTE and not self.labels
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """One kind of records.

    Attributes:
        name: Its name in envelopes, manifests and queries, and of its table in the lake.
        fields: Its fields, in the order of the columns of its table, `ts` first.
        derived: Fields that no frame contains: they follow from the others, the attributes and the
            resource when a record is read (`meaning.py`). In tables they are after the others.
        searched: The field that a text is searched in; None if it has none.
        has_attributes: Whether each record has attributes.
        sorted_by: The columns by which compaction sorts the records of a day.
    """

    name: Kind
    fields: tuple[Field, ...]
    searched: str | None
    derived: tuple[Field, ...] = ()
    has_attributes: bool = True
    sorted_by: tuple[str, ...] = ("ts",)

    @property
    def indexed(self) -> tuple[str, ...]:
        """The names of the indexed fields."""
        return tuple(one.name for one in self.read_fields if one.is_indexed)

    @property
    def is_named(self) -> bool:
        """Whether the searched field is a name, which a delete compares as a whole."""
        return any(one.type is FieldType.NAME for one in self.fields if one.name == self.searched)

    @property
    def has_every_time(self) -> bool:
        """Whether each record has a time; otherwise all records of a batch have one, or none."""
        return not self.fields[0].is_optional

    @property
    def own_fields(self) -> tuple[Field, ...]:
        """The fields without `ts`, which all kinds have."""
        return self.fields[1:]

    @property
    def read_fields(self) -> tuple[Field, ...]:
        """The fields of a record that was read, without `ts`."""
        return (*self.own_fields, *self.derived)

    @property
    def queried_fields(self) -> tuple[Field, ...]:
        """The fields that a query filters by, in the order in which clients list them."""
        unfiltered = (FieldType.OPAQUE, FieldType.TIME)
        found = [one for one in self.read_fields if one.type not in unfiltered]
        return tuple(sorted(found, key=lambda one: one.type))


def _optional(
    name: str,
    meaning: str,
    *,
    kind: FieldType = FieldType.NAME,
    is_skippable: bool = False,
    is_indexed: bool = False,
) -> Field:
    return Field(
        name=name,
        type=kind,
        meaning=meaning,
        is_optional=True,
        is_skippable=is_skippable,
        is_indexed=is_indexed,
    )


_TRACE_ID: Final = _optional(
    "trace_id",
    "id of the trace, lower-case hexadecimal",
    kind=FieldType.TEXT,
    is_indexed=True,
)


_SENDER: Final = (
    _optional("service", "name of the service that wrote it", is_skippable=True),
    _optional("host", "name of the machine", is_skippable=True),
    _optional("instance", "which instance of the service, for example a pod"),
)
"""What describes the source of a record, of any kind."""

LOGS: Final = RecordKind(
    name="logs",
    searched="body",
    derived=(
        _optional("level", "trace, debug, info, warn, error, fatal, or as it was sent"),
        *_SENDER,
        _TRACE_ID,
        _optional("span_id", "id of the span, lower-case hexadecimal", kind=FieldType.TEXT),
        _optional("file", "path of the file that it was read from"),
        _optional("request", "id of the request that it is about", kind=FieldType.TEXT),
        Field(
            name="observed_ns",
            type=FieldType.TIME,
            meaning="when it was observed, if that is not its time, Unix ns",
            is_optional=True,
        ),
    ),
    fields=(
        Field(name="ts", type=FieldType.TIME, meaning="the record's own time, exact, Unix ns"),
        Field(name="body", type=FieldType.TEXT, meaning="the line", is_shown=True, is_indexed=True),
        Field(
            name="severity",
            type=FieldType.BYTE,
            meaning="OpenTelemetry severity number 0 to 24, or null",
            is_optional=True,
            maximum=SEVERITY_MAX,
            is_skippable=True,
        ),
    ),
)
METRICS: Final = RecordKind(
    name="metrics",
    searched="name",
    derived=_SENDER,
    fields=(
        Field(name="ts", type=FieldType.TIME, meaning="the point's own time, exact, Unix ns"),
        Field(
            name="name",
            type=FieldType.NAME,
            meaning="name of the metric",
            is_shown=True,
            is_skippable=True,
        ),
        Field(name="value", type=FieldType.FLOAT, meaning="the value, any bits", is_shown=True),
        Field(
            name="type",
            type=FieldType.BYTE,
            meaning="0 gauge, 1 delta, 2 cumulative",
            maximum=2,
            labels=("gauge", "delta", "cumulative"),
        ),
    ),
)
ENTRIES: Final = RecordKind(
    name="entries",
    searched=None,
    has_attributes=False,
    fields=(
        Field(
            name="ts",
            type=FieldType.TIME,
            meaning="the entry's own time, exact, Unix ns",
            is_optional=True,
        ),
        Field(name="key", type=FieldType.OPAQUE, meaning="opaque bytes", is_shown=True),
        Field(
            name="value",
            type=FieldType.OPAQUE,
            meaning="opaque bytes",
            column="val",
            is_shown=True,
        ),
    ),
)

SPANS: Final = RecordKind(
    name="spans",
    searched="name",
    sorted_by=("service", "ts"),
    derived=_SENDER,
    fields=(
        Field(name="ts", type=FieldType.TIME, meaning="when the span started, exact, Unix ns"),
        Field(
            name="name",
            type=FieldType.NAME,
            meaning="name of the operation",
            is_shown=True,
            is_skippable=True,
        ),
        Field(
            name="span_kind",
            type=FieldType.BYTE,
            meaning="0 unspecified, 1 internal, 2 server, 3 client, 4 producer, 5 consumer",
            maximum=5,
            labels=("unspecified", "internal", "server", "client", "producer", "consumer"),
        ),
        Field(
            name="duration_ns",
            type=FieldType.LONG,
            meaning="time from its start to its end, exact, ns; below 0 if it ended before",
            is_shown=True,
            is_skippable=True,
        ),
        Field(
            name="status",
            type=FieldType.BYTE,
            meaning="0 unset, 1 ok, 2 error",
            maximum=2,
            labels=("unset", "ok", "error"),
            is_shown=True,
            is_skippable=True,
        ),
        _optional("status_message", "why it failed", kind=FieldType.TEXT),
        _TRACE_ID,
        _optional("span_id", "id of the span, lower-case hexadecimal", kind=FieldType.TEXT),
        _optional(
            "parent_id",
            "id of the span that caused it; null for the first of a trace",
            kind=FieldType.TEXT,
        ),
        _optional("trace_state", "state of the trace, as W3C defines it", kind=FieldType.TEXT),
        _optional("events", "JSON list of its events: ts, name, attributes", kind=FieldType.TEXT),
        _optional(
            "links",
            "JSON list of the spans it refers to: trace_id, span_id, attributes",
            kind=FieldType.TEXT,
        ),
    ),
)

KINDS: Final[Mapping[Kind, RecordKind]] = {one.name: one for one in (LOGS, METRICS, ENTRIES, SPANS)}


def label_of(key: str) -> str:
    """Return the label for the key of an attribute: other characters become `_`."""
    label = re.sub(r"[^A-Za-z0-9_]", "_", key)
    return f"_{label}" if label[:1].isdigit() else label or "_"
