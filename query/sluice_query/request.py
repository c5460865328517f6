"""A query as a value: fields of a record, conditions on them, and what is computed from records.

`check_query` decides whether it can be answered. `condition_of` returns the plain texts that every
match of an RE2 pattern contains, by which index chunks are searched.

A part of a pattern is a list of alternatives. An alternative is a sequence of plain texts with
anything between them, so the last text of a part and the first one of the next part join.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from sluice_protocol.errors import UNREADABLE_JSON, BadUsage
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import UNITS_NS, UnixNs
from sluice_query.settings import LIMIT_DEFAULT

if TYPE_CHECKING:
    from sluice_query.logql.expressions import Evaluation, LogQuery, MetricQuery


ALTERNATIVES_MAX: Final = 64
"""A part with more of them may contain anything."""
_UNSURE: Final = re.compile(r"\\[QpPxCoO0-9]")
"""Quotes, classes by name and numbered characters are not analysed."""
_TOKEN: Final = re.compile(
    r"(?P<set>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\])"
    r"|(?P<count>(?:[*+?]|\{\d*(?:,\d*)?\})\??)"
    r"|(?P<open>\((?:\?(?:P?<\w+>|(?P<flags>[a-zA-Z-]*)(?P<alone>[:)])))?)"
    r"|(?P<close>\))"
    r"|(?P<bar>\|)"
    r"|\\(?P<escaped>\W)"
    r"|(?P<other>\\.|[.^$\n])"
    r"|(?P<plain>.)",
    re.DOTALL,
)
_AT_LEAST_ONCE: Final = re.compile(r"\+|\{0*[1-9]")

Alternatives = tuple[tuple[str, ...], ...]
_EMPTY: Final[Alternatives] = (("",),)
_ANYTHING: Final[Alternatives] = (("", ""),)


@dataclass(frozen=True, slots=True)
class TextCondition:
    """A text must contain all texts of at least one alternative, with or without regard to case."""

    alternatives: Alternatives
    ignore_case: bool = False


def condition_of(pattern: str) -> TextCondition:
    """Return what every text contains that matches an RE2 pattern."""
    if _UNSURE.search(pattern):
        return TextCondition(((),))
    ignore_case, groups = False, [_Group()]
    for token in _TOKEN.finditer(pattern):
        if token["open"]:
            ignore_case = ignore_case or "i" in (token["flags"] or "")
            if token["alone"] != ")":
                groups.append(_Group())
        elif token["close"] and len(groups) > 1:
            inner = groups.pop()
            groups[-1].parts.append(inner.alternatives())
        else:
            groups[-1].add(token)
    if len(groups) > 1:  # does not compile
        return TextCondition(((),), ignore_case)
    texts = (tuple(text for text in one if text) for one in groups[0].alternatives())
    return TextCondition(tuple(dict.fromkeys(texts)), ignore_case)


def common_text(pattern: str) -> str:
    """Return the longest text that every match of an RE2 pattern contains; empty if none is known.

    Of a pattern that ignores case it is empty.
    """
    found = condition_of(pattern)
    if found.ignore_case:
        return ""
    some = {text for texts in found.alternatives for text in texts}
    known = [
        text
        for text in some
        if all(any(text in one for one in texts) for texts in found.alternatives)
    ]
    return max(sorted(known), key=len, default="")


@dataclass(slots=True)
class _Group:
    """An open group: its finished alternatives, and the parts of the current one."""

    done: Alternatives = ()
    parts: list[Alternatives] = field(default_factory=list)

    def add(self, token: re.Match[str]) -> None:
        letter = token["plain"] or token["escaped"]
        if token["bar"]:
            self.done, self.parts = (*self.done, *_joined(self.parts)), []
        elif token["count"] and self.parts:
            if not _AT_LEAST_ONCE.match(token["count"]):
                self.parts.pop()
            self.parts.append(_ANYTHING)
        else:
            self.parts.append(_ANYTHING if letter is None else ((letter,),))

    def alternatives(self) -> Alternatives:
        found = (*self.done, *_joined(self.parts))
        return found if len(found) <= ALTERNATIVES_MAX else _ANYTHING


def _joined(parts: list[Alternatives]) -> Alternatives:
    """Return the alternatives of parts that follow each other."""
    found = _EMPTY
    for part in parts:
        if len(found) * len(part) > ALTERNATIVES_MAX:
            part = _ANYTHING  # noqa: PLW2901 - the rest may still contain plain texts
        found = tuple((*a[:-1], a[-1] + b[0], *b[1:]) for a in found for b in part)
    return found


COLUMN_FIELDS: Final[dict[Kind, tuple[str, ...]]] = {
    name: ("agent_id", "boot_id", *(field.name for field in kind.queried_fields))
    for name, kind in KINDS.items()
}
MAPS: Final = ("attributes", "resource")
FIELDS: Final = {field.name: field for kind in KINDS.values() for field in kind.queried_fields}
"""The fields of all kinds; kinds that have a name in common have the same field."""
NUMBERS: Final = tuple(name for name, field in FIELDS.items() if field.is_number)
"""Fields whose values are numbers."""
_PLAIN: Final = r'[^=!<>~"]*[^=!<>~" ]'
"""A key without quotes. It does not end with a space, which is typed before an operator."""
FIELD_PATTERN: Final = (
    rf'(?P<column>[a-z_]+)(?:\.(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<plain>{_PLAIN})))?'
)
_FIELD: Final = re.compile(FIELD_PATTERN, re.DOTALL)
_PLAIN_KEY: Final = re.compile(_PLAIN, re.DOTALL)
_SHOWN_CHARS_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field: a column, or a key of a column that is a map."""

    column: str
    key: str | None = None

    @property
    def name(self) -> str:
        """The name that clients use for the field."""
        if self.key is None:
            return self.column
        if _PLAIN_KEY.fullmatch(self.key):
            return f"{self.column}.{self.key}"
        return f"{self.column}.{msgspec.json.encode(self.key).decode()}"

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers."""
        return self.column in NUMBERS


def parse_field(text: str, kind: Kind) -> RecordField:
    """Return the field of a name; raise `BadUsage` if records of the kind have no such field."""
    check_encodable(text)
    found = _FIELD.fullmatch(text)
    if found is None:
        raise unknown_field(text, kind)
    return field_of_match(found, text, kind)


def field_of_match(found: re.Match[str], text: str, kind: Kind) -> RecordField:
    """Return the field that `FIELD_PATTERN` found in a text."""
    column, quoted, plain = found["column"], found["quoted"], found["plain"]
    key = plain
    if quoted is not None:
        try:
            key = msgspec.json.decode(quoted, type=str)
        except (*UNREADABLE_JSON, UnicodeError) as error:
            raise BadUsage(f"key is not a JSON string, key=`{_shown(quoted)}`") from error
    known = MAPS if key is not None else COLUMN_FIELDS[kind]
    if column not in known:
        raise unknown_field(text, kind)
    return RecordField(column, key)


def unknown_field(text: str, kind: Kind) -> BadUsage:
    """Return the error for a text that names no field of a kind."""
    columns = ", ".join(COLUMN_FIELDS[kind])
    maps = " or ".join(f"{one}.KEY" for one in MAPS)
    return BadUsage(f"unknown field: use one of {columns}, {maps}, field=`{_shown(text)}`")


def check_encodable(text: str) -> None:
    """Raise `BadUsage` if a text cannot be encoded as UTF-8: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadUsage("text is not valid UTF-8") from error


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARS_MAX].encode(errors="replace").decode()


FILTERS_MAX: Final = 50


class FilterOperator(StrEnum):
    """How a field is compared."""

    EQUAL = "="
    UNEQUAL = "!="
    AT_MOST = "<="
    AT_LEAST = ">="
    ABSENT = "absent"


DURATION: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)", re.ASCII)
NUMBER_PATTERN: Final = (
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9][0-9]?[0-9]?)?|[+-]?(?i:inf(?:inity)?)"
)
"""The texts that are numbers, of filters and of senders, alike in Python and in RE2."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """One condition; `value` is empty for `ABSENT`."""

    field: RecordField
    operator: FilterOperator
    value: str | int = ""


def parse_duration(text: str) -> int:
    """Return a duration such as `90s`, `15m`, `2h` or `1d` in ns."""
    found = DURATION.fullmatch(text)
    if found is None:
        raise BadUsage(f"duration must be a number and ms, s, m, h or d, duration=`{text[:40]}`")
    return int(found[1]) * UNITS_NS[found[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The number of records in each bucket of time.

    Buckets start at the multiples of their width since 1970. With `by`, the `top` most frequent
    values of the field have separate counts.
    """

    step_ns: int
    by: RecordField | None = None
    top: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldList:
    """The fields that the records have, of at most `records_max` or what the settings allow."""

    keys_max: int = 500
    records_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopValues:
    """The most frequent values of one field."""

    field: RecordField
    limit: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """The records before and after one record of one boot of an agent.

    The agent is that of the query.
    """

    boot_id: str
    seq: int
    before: int = 10
    after: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The operations of services: the names of their spans, with errors and durations."""

    limit: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricList:
    """The metrics that the records are samples of."""

    limit: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePatterns:
    """The forms of lines: lines that differ only in words with a digit have the same form."""

    step_ns: int
    limit: int = 300


View = Histogram | FieldList | TopValues | Neighbourhood | Operations | MetricList | LinePatterns


BUCKETS_DEFAULT: Final = 60
BUCKETS_MIN: Final = 4
"""With fewer, the widest buckets could not cover all times."""
BUCKETS_MAX: Final = 1_000
TOP_DEFAULT: Final = 5
TOP_MAX: Final = 20
VALUES_MAX: Final = 1_000
OPERATIONS_DEFAULT: Final = 1_000
OPERATIONS_MAX: Final = 10_000
METRICS_DEFAULT: Final = 1_000
METRICS_MAX: Final = 10_000
SPANS_DEFAULT: Final = 10_000
"""Spans of a trace that a client gets if it states no limit."""
NEIGHBOURS_DEFAULT: Final = 10
NEIGHBOURS_MAX: Final = 1_000
LIMIT_MAX: Final = 100_000
STEPS_MAX: Final = 100_000
SPLITS_MAX: Final = 10
PATTERN_BYTES_MAX: Final = 1_000
FIRST_NS: Final = UnixNs(-(1 << 63) + (1 << 56))
"""Before any record, Unix ns; a margin of two years below it still is a 64-bit number."""
END_NS: Final = UnixNs((1 << 63) - 1)
"""After any record, Unix ns."""

ParameterName = Callable[[str], str]
"""Returns the name under which the caller knows a parameter: a command line has `--by-agent`."""


NS_PER_MS: Final = 1_000_000
_S: Final = 1_000 * NS_PER_MS
_MIN: Final = 60 * _S
_HOUR: Final = 60 * _MIN
_DAY: Final = 24 * _HOUR
WIDTHS_NS: Final = (
    *(number * NS_PER_MS for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(number * _S for number in (1, 2, 5, 10, 15, 30)),
    *(number * _MIN for number in (1, 2, 5, 10, 15, 30)),
    *(number * _HOUR for number in (1, 2, 3, 6, 12)),
    *(number * _DAY for number in (1, 7, 30, 365, 3_650, 36_500, 100_000)),
)
"""The widths of buckets."""


def choose_width(from_ns: int, to_ns: int, buckets: int) -> int:
    """Return the smallest width with which a range needs at most `buckets` buckets, ns."""
    for width_ns in WIDTHS_NS:
        if len(bucket_starts(from_ns, to_ns, width_ns)) <= buckets:
            return width_ns
    return WIDTHS_NS[-1]


def bucket_starts(from_ns: int, to_ns: int, width_ns: int) -> range:
    """Return the starts of the buckets of a range, Unix ns."""
    return range(from_ns // width_ns * width_ns, to_ns, width_ns)


def plain_name(parameter: str) -> str:
    """Return the parameter's own name, which an HTTP client uses."""
    return parameter


class Aggregate(StrEnum):
    """How the numbers of one step become one value."""

    AVG = "avg"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"
    LAST = "last"
    RATE = "rate"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"

    @property
    def quantile(self) -> float | None:
        """Its rank among the sorted numbers, 0 to 1; None if it is no quantile."""
        return int(self[1:]) / 100 if self[1:].isdecimal() else None


LOOKBACK_NS: Final = 5 * _MIN
"""How long before its range a rate searches for the sample that the first increase starts from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A series to compute from the samples of a metric.

    Attributes:
        by: Fields; each combination of their values has a separate series.
        each: Whether each set of labels has a separate series: attributes, resource, and the agent
            unless that is a door.
        raw: Whether it is computed from samples only, without rollups.
    """

    step_ns: int
    metric: str
    aggregate: Aggregate = Aggregate.AVG
    by: tuple[RecordField, ...] = ()
    each: bool = False
    raw: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query.

    Attributes:
        to_ns: Exclusive.
        every_kind: Whether batches of every kind match, as in the table `batches` of SQL.
        every_column: Whether every promoted column is used, as in the other tables of SQL.
        required: What the searched column of every record that matches contains. It rules out files
            and row groups, and is no condition.
        agents: Empty means all.
        attributes: Pairs that must be among the record's attributes or its batch's resource.
        labels: Labels of which some attribute has the value in every record that matches. They
            rule out files and row groups, and are no condition.
        accepted_from_ns: Earliest acceptance of the records' batches; None for any.
        series: None for records.
        pipeline: What LogQL demands of a record in addition to the other conditions.
        metric: A metric query of LogQL, computed at the times of `evaluation`; None for records.
        logql: The text of the question, in which errors and hints name a column; empty without it.
        names_labels: Whether the text names labels, of which unknown ones are reported.
    """

    from_ns: UnixNs
    to_ns: UnixNs
    kind: Kind = "logs"
    every_kind: bool = False
    every_column: bool = False
    required: tuple[TextCondition, ...] = ()
    agents: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    filters: tuple[RecordFilter, ...] = ()
    accepted_from_ns: UnixNs | None = None
    stats_only: bool = False
    limit: int = LIMIT_DEFAULT
    newest_first: bool = False
    series: Series | None = None
    deleting: DeleteRecord | None = None
    view: View | None = None
    highlight: bool = False
    pipeline: "LogQuery | None" = None
    metric: "MetricQuery | None" = None
    evaluation: "Evaluation | None" = None
    logql: str = ""
    names_labels: bool = False

    @property
    def around(self) -> Neighbourhood | None:
        """The record whose neighbours are searched, if that is what is computed."""
        return self.view if isinstance(self.view, Neighbourhood) else None

    @property
    def is_for_records(self) -> bool:
        """Whether the result is records, and nothing that is computed of all of them."""
        computed = (self.series, self.metric, self.view, self.deleting)
        return not self.stats_only and all(one is None for one in computed)


def query_of_delete(record: DeleteRecord) -> Query:
    """Return the query that counts the records that a delete hides.

    Its range, agents and text only narrow what is read; the delete itself decides.
    """
    contains = None if KINDS[record.kind].is_named else record.contains
    start, end = record.from_unix_ns, record.to_unix_ns
    return Query(
        kind=record.kind,
        from_ns=FIRST_NS if start is None else UnixNs(start),
        to_ns=END_NS if end is None else UnixNs(end),
        required=(TextCondition(((contains,),)),) if contains else (),
        agents=() if record.agent_id is None else (record.agent_id,),
        deleting=record,
    )


def check_query(query: Query, name: ParameterName = plain_name) -> Query:
    """Return the query if it can be answered.

    Raises:
        BadUsage: The range ends before it starts, a limit is exceeded, or conditions do not fit the
            kind.
    """
    if query.to_ns <= query.from_ns:
        raise BadUsage(
            f"time range ends before it starts: swap {name('from')} and {name('to')},"
            f" from=`{format_rfc3339(query.from_ns)}`, to=`{format_rfc3339(query.to_ns)}`"
        )
    if not 1 <= query.limit <= LIMIT_MAX:
        raise BadUsage(f"{name('limit')} must be 1 to {LIMIT_MAX}, limit=`{query.limit}`")
    if query.series is not None:
        _check_series(query, query.series, name)
    return query


def _check_series(query: Query, series: Series, name: ParameterName) -> None:
    if query.stats_only:
        raise BadUsage(f"a series has no counts: omit {name('stats_only')} or {name('metric')}")
    if series.each and series.by:
        raise BadUsage(f"choose one of {name('each')} and {name('by')}")
    if len(series.by) > SPLITS_MAX:
        raise BadUsage(f"at most {SPLITS_MAX} times: {name('by')}, times=`{len(series.by)}`")
    steps = -(-(query.to_ns - query.from_ns) // series.step_ns)
    if steps > STEPS_MAX:
        raise BadUsage(
            f"{name('step')} is too short for the time range, steps=`{steps}`, most=`{STEPS_MAX}`"
        )
