"""The parameters of queries and views as text, as an HTTP client and the command line give them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.timestamps import format_rfc3339, parse_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.request import (
    BUCKETS_DEFAULT,
    BUCKETS_MAX,
    BUCKETS_MIN,
    DURATION,
    END_NS,
    FIRST_NS,
    LIMIT_MAX,
    METRICS_DEFAULT,
    METRICS_MAX,
    NEIGHBOURS_DEFAULT,
    NEIGHBOURS_MAX,
    OPERATIONS_DEFAULT,
    OPERATIONS_MAX,
    SPANS_DEFAULT,
    TOP_DEFAULT,
    TOP_MAX,
    VALUES_MAX,
    Aggregate,
    FieldList,
    FilterOperator,
    Histogram,
    MetricList,
    Neighbourhood,
    Operations,
    ParameterName,
    Query,
    RecordField,
    RecordFilter,
    Series,
    TopValues,
    bucket_starts,
    check_encodable,
    check_query,
    choose_width,
    parse_duration,
    parse_field,
    plain_name,
)
from sluice_query.settings import FROM_DEFAULT, LIMIT_DEFAULT, STEP_DEFAULT, VALUES_DEFAULT
from sluice_web.parameters import (
    ChoiceParameter,
    FlagParameter,
    IntegerParameter,
    Parameter,
    TextParameter,
)

FIELD_CHARS_MAX: Final = 4_000
_KINDS: Final[Mapping[str, Kind]] = {name: name for name in KINDS}
_FROM: Final = TextParameter(name="from")
_TO: Final = TextParameter(name="to")
_KIND: Final = ChoiceParameter(name="kind", choices=tuple(_KINDS), default="logs")
_STATS_ONLY: Final = FlagParameter(name="stats_only")
_LIMIT: Final = IntegerParameter(name="limit", default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
_NEWEST_FIRST: Final = FlagParameter(name="newest_first")
_METRIC: Final = TextParameter(name="metric")
_STEP: Final = TextParameter(name="step")
_AGGREGATE: Final = ChoiceParameter(
    name="agg", choices=tuple(one.value for one in Aggregate), default="avg"
)
_SERIES_BY: Final = TextParameter(name="by", repeated=True, chars_max=FIELD_CHARS_MAX)
_EACH: Final = FlagParameter(name="each")
_RAW: Final = FlagParameter(name="raw")
_HIGHLIGHT: Final = FlagParameter(name="highlight")
_LOGQL: Final = TextParameter(name="query", chars_max=10_000)
_REPLACED: Final = {
    "q": '{} |= "TEXT"',
    "regex": '{} |~ "PATTERN"',
    "ignore_case": '{} |~ "(?i)PATTERN"',
    "agent": '{agent="AGENT"}',
    "attribute": '{KEY="VALUE"}',
    "filter": '{LABEL="VALUE"}',
    "of": "avg_over_time({} | unwrap LABEL [1m])",
}
"""Parameters of earlier versions, and the question that has the same records."""
CONDITIONS: Final[tuple[Parameter, ...]] = (_FROM, _TO, _KIND, _LOGQL)
"""The parameters that select records, for the parser and for the OpenAPI description."""
_OF_SERIES: Final = (_STEP, _AGGREGATE, _SERIES_BY, _EACH, _RAW)
PARAMETERS: Final[tuple[Parameter, ...]] = (
    *CONDITIONS,
    *(_STATS_ONLY, _LIMIT, _NEWEST_FIRST, _METRIC, *_OF_SERIES, _HIGHLIGHT),
)
"""Every parameter of `/v1/query`."""
ORDERED: Final[tuple[Parameter, ...]] = (*CONDITIONS, _NEWEST_FIRST)
"""The parameters that select records and their order."""
STREAMED: Final[tuple[Parameter, ...]] = (*CONDITIONS, _LIMIT, _HIGHLIGHT)
"""Every parameter of a query whose records are returned while it runs."""
_AFTER: Final = TextParameter(name="after")
TAILED: Final[tuple[Parameter, ...]] = (
    *(one for one in STREAMED if one is not _TO),
    _AFTER,
)
"""Every parameter of a tail."""

_OTHER_DURATION: Final = re.compile(
    r"([1-9][0-9]{0,5}) ?(msec|sec|second|min|minute|hr|hour|d|day|w|week|[smh])s?(?: ago)?",
    re.ASCII,
)
_WITHOUT_OFFSET: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?)?", re.ASCII
)
_DATE_CHARS: Final = 10
_INSTANT_END: Final = 2**63
"""Instants are 64-bit integers of nanoseconds."""
_UNIX: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_UNIX_UNITS: Final = ((10**11, NS_PER_S), (10**14, NS_PER_S // 10**3), (10**17, NS_PER_S // 10**6))
"""Sizes below which a number is of seconds, milliseconds or microseconds; larger ones are of ns.

The sizes separate the units for every time from 1973 to 5138. Smaller numbers are of seconds.
"""

_Value = TypeVar("_Value")


def parse_query(
    given: Mapping[str, Sequence[str]],
    now_ns: UnixNs,
    name: ParameterName = plain_name,
    known: Sequence[Parameter] = PARAMETERS,
) -> Query:
    """Return the query that parameters describe; raise `BadUsage` as `check_query` does.

    Only `by` may have several values. Durations count back from `now_ns`. Error messages use the
    names that `name` returns.
    """
    check_given(given, known, name)
    read = ParameterReader(given, name)
    kind = "metrics" if _METRIC.name in given else _KINDS[read.choice(_KIND)]
    series = None
    if _METRIC.name in given:
        series = _read_series(given, read)
    elif unfit := [
        one.name
        for one in _OF_SERIES
        if one.name in given and not (one is _STEP and _LOGQL.name in given)
    ]:
        wanted = name(_METRIC.name)
        raise BadUsage(f"{name(unfit[0])} applies to a metric only: add {wanted}, or omit it")
    from_ns = read.value(_FROM, FROM_DEFAULT, lambda text: parse_instant(text, now_ns))
    if from_ns >= now_ns and _TO.name not in given:
        raise BadUsage(
            f"{name(_FROM.name)} is in the future, and {name(_TO.name)} is now: add a later"
            f" {name(_TO.name)} to find records with future times, from=`{format_rfc3339(from_ns)}`"
        )
    query = Query(
        from_ns=from_ns,
        to_ns=read.value(_TO, "now", lambda text: parse_instant(text, now_ns)),
        kind=kind,
        stats_only=read.flag(_STATS_ONLY),
        limit=read.integer(_LIMIT),
        newest_first=read.flag(_NEWEST_FIRST),
        series=series,
        highlight=read.flag(_HIGHLIGHT),
    )
    if _LOGQL.name in given:
        from sluice_query.logql.planning import plan_query  # noqa: PLC0415 - only for LogQL

        has_step = _STEP.name in given and series is None
        step = read.value(_STEP, "", parse_duration) if has_step else None
        query = plan_query(given[_LOGQL.name][0], query, step, name)
    return check_query(query, name)


def _read_series(given: "Given", read: "ParameterReader") -> Series:
    return Series(
        metric=given[_METRIC.name][0],
        step_ns=read.value(_STEP, STEP_DEFAULT, parse_duration),
        aggregate=Aggregate(read.choice(_AGGREGATE)),
        by=read.values(_SERIES_BY, lambda text: parse_field(text, "metrics")),
        each=read.flag(_EACH),
        raw=read.flag(_RAW),
    )


def parse_instant(text: str, now_ns: UnixNs) -> UnixNs:
    """Return the instant of an RFC 3339 time, a Unix time, `now`, or `15m` for that ago.

    The unit of a Unix time follows from its size: seconds, milliseconds, microseconds or ns.

    Raises:
        BadUsage: The text has another form, or the instant is outside 1677 to 2262.
    """
    instant_ns = _instant(text, now_ns)
    if not -_INSTANT_END <= instant_ns < _INSTANT_END:
        raise BadUsage(f"must be a time between 1677 and 2262, time=`{text[:40]}`")
    return instant_ns


def _instant(text: str, now_ns: UnixNs) -> UnixNs:
    if text == "now":
        return now_ns
    if _UNIX.fullmatch(text):
        number = int(text)
        return UnixNs(number * next((ns for end, ns in _UNIX_UNITS if abs(number) < end), 1))
    if DURATION.fullmatch(text.removeprefix("-")):
        return UnixNs(now_ns - parse_duration(text.removeprefix("-")))
    try:
        return parse_rfc3339(text)
    except BadUsage as error:
        raise BadUsage(
            f"{error}; or a duration like 15m for that ago, units ms, s, m, h, d{meant_time(text)}"
        ) from error


def meant_time(text: str) -> str:
    """Return the time that a text of another form means, as a question; else nothing."""
    quantity = _OTHER_DURATION.fullmatch(text.strip().lower())
    if text.lower() == "yesterday":
        meant = "1d"
    elif quantity is not None and quantity[2] in {"w", "week"}:
        meant = f"{7 * int(quantity[1])}d"
    elif quantity is not None:
        meant = quantity[1] + ("ms" if quantity[2].startswith("ms") else quantity[2][0])
    elif _WITHOUT_OFFSET.fullmatch(text):
        meant = f"{text}Z" if len(text) > _DATE_CHARS else f"{text}T00:00:00Z"
    else:
        return ""
    return f"; did you mean {meant}?"


@dataclass(frozen=True, slots=True)
class ParameterReader:
    """Reads single parameters; every error names the parameter."""

    given: Mapping[str, Sequence[str]]
    name: ParameterName

    def value(
        self, parameter: TextParameter, default: str, parse: Callable[[str], _Value]
    ) -> _Value:
        """Return the parsed value of a parameter, or of the default."""
        return self._parsed(parameter, self.given.get(parameter.name, (default,))[0], parse)

    def values(
        self, parameter: TextParameter, parse: Callable[[str], _Value]
    ) -> tuple[_Value, ...]:
        """Return the parsed values of a repeated parameter."""
        found = self.given.get(parameter.name, ())
        return tuple(self._parsed(parameter, text, parse) for text in found)

    def flag(self, parameter: FlagParameter) -> bool:
        """Return the value of a flag."""
        shown, found = self._shown(parameter)
        return replace(parameter, name=shown).read(found)

    def choice(self, parameter: ChoiceParameter) -> str:
        """Return the chosen word."""
        shown, found = self._shown(parameter)
        return replace(parameter, name=shown).read(found)

    def integer(self, parameter: IntegerParameter) -> int:
        """Return the number."""
        shown, found = self._shown(parameter)
        return replace(parameter, name=shown).read(found)

    def _shown(self, parameter: Parameter) -> tuple[str, Mapping[str, str]]:
        """Return the name for error messages, and the parameter's value under that name."""
        shown = self.name(parameter.name)
        values = self.given.get(parameter.name)
        return shown, {} if values is None else {shown: values[0]}

    def _parsed(self, parameter: Parameter, text: str, parse: Callable[[str], _Value]) -> _Value:
        try:
            return parse(text)
        except BadUsage as error:
            raise BadUsage(f"{self.name(parameter.name)}: {error}") from error


def check_given(
    given: Mapping[str, Sequence[str]], parameters: Sequence[Parameter], name: ParameterName
) -> None:
    """Check that parameters are known, not too long, and each given as often as it may be."""
    known = {parameter.name: parameter for parameter in parameters}
    for parameter, values in given.items():
        if parameter not in known:
            instead = _REPLACED.get(parameter)
            if instead is not None and _LOGQL.name in known:
                raise BadUsage(
                    f"parameter is replaced by LogQL: write {name(_LOGQL.name)}={instead},"
                    f" parameter=`{parameter}`"
                )
            raise BadUsage(f"unknown parameter, parameter=`{parameter[:40]}`")
        one = known[parameter]
        if not one.repeated and len(values) > 1:
            raise BadUsage(f"parameter is repeated, parameter=`{name(parameter)}`")
        if isinstance(one, TextParameter):
            for text in values:
                replace(one, name=name(parameter)).check(text)


_BUCKETS: Final = IntegerParameter(
    name="buckets", default=BUCKETS_DEFAULT, minimum=BUCKETS_MIN, maximum=BUCKETS_MAX
)
_BUCKET_STEP: Final = TextParameter(name="step")
_BY: Final = TextParameter(name="by", chars_max=FIELD_CHARS_MAX)
_TOP: Final = IntegerParameter(name="top", default=TOP_DEFAULT, maximum=TOP_MAX)
_FIELD: Final = TextParameter(name="field", chars_max=FIELD_CHARS_MAX)
_VALUES_LIMIT: Final = IntegerParameter(name="limit", default=VALUES_DEFAULT, maximum=VALUES_MAX)
_AGENT: Final = TextParameter(name="agent")
_BOOT: Final = TextParameter(name="boot")
_SEQ: Final = IntegerParameter(name="seq", default=0, minimum=0, maximum=10**18 - 1)
_RECORDS_BEFORE: Final = IntegerParameter(
    name="before", default=NEIGHBOURS_DEFAULT, minimum=0, maximum=NEIGHBOURS_MAX
)
_RECORDS_AFTER: Final = IntegerParameter(
    name="after", default=NEIGHBOURS_DEFAULT, minimum=0, maximum=NEIGHBOURS_MAX
)
HISTOGRAM: Final[tuple[Parameter, ...]] = (*CONDITIONS, _BUCKETS, _BUCKET_STEP, _BY, _TOP)
FIELDS: Final[tuple[Parameter, ...]] = CONDITIONS
VALUES: Final[tuple[Parameter, ...]] = (*CONDITIONS, _FIELD, _VALUES_LIMIT)
_POSITION: Final[tuple[Parameter, ...]] = (_AGENT, _BOOT, _SEQ, _RECORDS_BEFORE, _RECORDS_AFTER)
CONTEXT: Final[tuple[Parameter, ...]] = (*CONDITIONS, *_POSITION, _HIGHLIGHT)

_SPANS_LIMIT: Final = IntegerParameter(name="limit", default=SPANS_DEFAULT, maximum=LIMIT_MAX)
_OPERATIONS_LIMIT: Final = IntegerParameter(
    name="limit", default=OPERATIONS_DEFAULT, maximum=OPERATIONS_MAX
)
TRACE: Final[tuple[Parameter, ...]] = (_FROM, _TO, _SPANS_LIMIT)
OPERATIONS: Final[tuple[Parameter, ...]] = (
    *(one for one in CONDITIONS if one is not _KIND),
    _OPERATIONS_LIMIT,
)
_METRICS_LIMIT: Final = IntegerParameter(name="limit", default=METRICS_DEFAULT, maximum=METRICS_MAX)
METRICS: Final[tuple[Parameter, ...]] = (
    *(one for one in CONDITIONS if one is not _KIND),
    _METRICS_LIMIT,
)

Given = Mapping[str, Sequence[str]]
"""Each parameter's values."""


def parse_histogram(given: Given, now_ns: UnixNs, name: ParameterName = plain_name) -> Query:
    """Return the query for a histogram."""
    query, read = _parse(given, now_ns, name, HISTOGRAM)
    width_ns = _read_width(given, query, name, read)
    by = None if _BY.name not in given else _read_field(read, _BY, query.kind)
    return replace(query, view=Histogram(step_ns=width_ns, by=by, top=read.integer(_TOP)))


def _read_width(given: Given, query: Query, name: ParameterName, read: ParameterReader) -> int:
    """Return the width of a bar: the given step, or one that makes few enough bars."""
    if _BUCKET_STEP.name not in given:
        return choose_width(query.from_ns, query.to_ns, read.integer(_BUCKETS))
    if _BUCKETS.name in given:
        raise BadUsage(f"choose one of {name(_BUCKET_STEP.name)} and {name(_BUCKETS.name)}")
    width_ns = read.value(_BUCKET_STEP, "", parse_duration)
    bars = len(bucket_starts(query.from_ns, query.to_ns, width_ns))
    if bars > BUCKETS_MAX:
        raise BadUsage(
            f"{name(_BUCKET_STEP.name)} is too short for the time range, bars=`{bars}`,"
            f" most=`{BUCKETS_MAX}`"
        )
    return width_ns


def parse_fields(given: Given, now_ns: UnixNs, name: ParameterName = plain_name) -> Query:
    """Return the query for the fields of records."""
    query, _ = _parse(given, now_ns, name, FIELDS)
    return replace(query, view=FieldList())


def parse_values(given: Given, now_ns: UnixNs, name: ParameterName = plain_name) -> Query:
    """Return the query for the values of a field."""
    query, read = _parse(given, now_ns, name, VALUES)
    _require(given, (_FIELD,), name)
    field = _read_field(read, _FIELD, query.kind)
    return replace(query, view=TopValues(field=field, limit=read.integer(_VALUES_LIMIT)))


def parse_context(given: Given, now_ns: UnixNs, name: ParameterName = plain_name) -> Query:
    """Return the query for the neighbours of a record."""
    everything = {"from": (str(FIRST_NS),), "to": (str(END_NS),)}
    query, read = _parse({**everything, **given}, now_ns, name, CONTEXT)
    _require(given, (_AGENT, _BOOT, _SEQ), name)
    query = replace(query, agents=(given[_AGENT.name][0],))
    around = Neighbourhood(
        boot_id=given[_BOOT.name][0],
        seq=read.integer(_SEQ),
        before=read.integer(_RECORDS_BEFORE),
        after=read.integer(_RECORDS_AFTER),
    )
    query = replace(query, view=around, highlight=read.flag(_HIGHLIGHT))
    return check_query(query, name)


def parse_trace(trace_id: str, given: Given, now_ns: UnixNs) -> Query:
    """Return the query for the spans of a trace, of any time unless a range is given."""
    check_encodable(trace_id)
    check_given(given, TRACE, plain_name)
    everything = {"from": (str(FIRST_NS),), "to": (str(END_NS),)}
    whole = {**everything, "kind": ("spans",), "limit": (str(SPANS_DEFAULT),), **given}
    is_its = RecordFilter(RecordField("trace_id"), FilterOperator.EQUAL, trace_id)
    return replace(parse_query(whole, now_ns), filters=(is_its,))


def parse_operations(given: Given, now_ns: UnixNs) -> Query:
    """Return the query for the operations of services."""
    check_given(given, OPERATIONS, plain_name)
    query, read = _parse({**given, "kind": ("spans",)}, now_ns, plain_name, (*OPERATIONS, _KIND))
    return replace(query, view=Operations(limit=read.integer(_OPERATIONS_LIMIT)))


def parse_metrics(given: Given, now_ns: UnixNs, name: ParameterName = plain_name) -> Query:
    """Return the query for the names of metrics."""
    check_given(given, METRICS, name)
    query, read = _parse({**given, "kind": ("metrics",)}, now_ns, name, (*METRICS, _KIND))
    return replace(query, view=MetricList(limit=read.integer(_METRICS_LIMIT)))


def _parse(
    given: Given, now_ns: UnixNs, name: ParameterName, known: Sequence[Parameter]
) -> tuple[Query, ParameterReader]:
    check_given(given, known, name)
    names = {one.name for one in CONDITIONS}
    selecting = {key: values for key, values in given.items() if key in names}
    query = parse_query(selecting, now_ns, name, known=CONDITIONS)
    if query.metric is not None:
        raise BadUsage(f"write a log query, which selects records: {name(_LOGQL.name)}")
    return query, ParameterReader(given, name)


def _require(given: Given, parameters: Sequence[Parameter], name: ParameterName) -> None:
    for one in parameters:
        if one.name not in given:
            raise BadUsage(f"parameter is missing: add {name(one.name)}")


def _read_field(read: ParameterReader, parameter: TextParameter, kind: Kind) -> RecordField:
    return read.value(parameter, "", lambda text: parse_field(text, kind))
