"""What is asked: a time range and conditions, checked once, here."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.manifests import Kind
from sluice_protocol.timestamps import format_rfc3339, parse_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs

LIMIT_DEFAULT: Final = 1_000
LIMIT_MAX: Final = 100_000
BUCKETS_MAX: Final = 100_000
PATTERN_BYTES_MAX: Final = 1_000
_UNITS_NS: Final = {
    "ms": NS_PER_S // 1000,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
    "d": 86_400 * NS_PER_S,
}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)", re.ASCII)


class Aggregate(StrEnum):
    """How the points of one step become one value."""

    AVG = "avg"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """That a metric is asked for as a series.

    Attributes:
        metric: Its name.
        step_ns: Width of a step, ns.
        aggregate: How the points of one step become one value.
        by_agent: Whether each agent has a series of its own.
    """

    metric: str
    step_ns: int
    aggregate: Aggregate = Aggregate.AVG
    by_agent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One question. `check_query` has passed on it wherever it is used.

    Attributes:
        kind: Kind of the records.
        from_ns: First instant, Unix ns.
        to_ns: First instant that is out again, Unix ns.
        text: What the body (of a log) or the name (of a metric) must contain, or match.
        regex: Whether `text` is an RE2 pattern.
        ignore_case: Whether letters match in either case.
        agents: Only these agents; none means all.
        attributes: Pairs that the record's attributes or its batch's resource must hold.
        stats_only: Count, and give no records.
        limit: Most records to give.
        newest_first: Whether the latest records come first.
        series: What series to make of a metric, or None for records.
    """

    from_ns: UnixNs
    to_ns: UnixNs
    kind: Kind = "logs"
    text: str | None = None
    regex: bool = False
    ignore_case: bool = False
    agents: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    stats_only: bool = False
    limit: int = LIMIT_DEFAULT
    newest_first: bool = False
    series: Series | None = None


def check_query(query: Query) -> Query:
    """Gives the query when it can be answered.

    Raises:
        BadUsage: The range ends before it starts, a limit is passed, or conditions do not fit the
            kind.
    """
    if query.to_ns <= query.from_ns:
        raise BadUsage(
            "time range ends before it starts: swap --from and --to,"
            f" from=`{format_rfc3339(query.from_ns)}`, to=`{format_rfc3339(query.to_ns)}`"
        )
    if not 1 <= query.limit <= LIMIT_MAX:
        raise BadUsage(f"limit must be 1 to {LIMIT_MAX}, limit=`{query.limit}`")
    _check_text(query)
    if query.series is not None:
        _check_series(query, query.series)
    return query


def _check_text(query: Query) -> None:
    if query.text is None:
        if query.regex or query.ignore_case:
            raise BadUsage("a regex or a case needs a text: give -q")
        return
    if query.kind == "entries":
        raise BadUsage("entries are opaque bytes and cannot be searched for text: leave out -q")
    try:
        size_bytes = len(query.text.encode())
    except UnicodeEncodeError as error:
        raise BadUsage("text is not valid UTF-8") from error
    if not 1 <= size_bytes <= PATTERN_BYTES_MAX:
        raise BadUsage(f"text must be 1 to {PATTERN_BYTES_MAX} bytes, bytes=`{size_bytes}`")


def _check_series(query: Query, series: Series) -> None:
    if query.kind != "metrics":
        raise BadUsage("a series is made of metrics: leave out --kind, or --metric")
    if query.stats_only:
        raise BadUsage("a series has no stats-only form: leave one of them out")
    buckets = -(-(query.to_ns - query.from_ns) // series.step_ns)
    if buckets > BUCKETS_MAX:
        raise BadUsage(f"step is too short for this range: {buckets} steps, most=`{BUCKETS_MAX}`")


def parse_duration(text: str) -> int:
    """Gives a duration like `90s`, `15m`, `2h`, `1d` in ns.

    Raises:
        BadUsage: It has another form.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise BadUsage(f"duration must be a number and ms, s, m, h or d, duration=`{text[:40]}`")
    return int(found[1]) * _UNITS_NS[found[2]]


def parse_instant(text: str, now_ns: UnixNs) -> UnixNs:
    """Gives the instant of an RFC 3339 time, a number of Unix ns, `now`, or `15m` ago.

    Raises:
        BadUsage: It is none of them.
    """
    if text == "now":
        return now_ns
    if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
        return UnixNs(int(text))
    if _DURATION.fullmatch(text.removeprefix("-")):
        return UnixNs(now_ns - parse_duration(text.removeprefix("-")))
    return parse_rfc3339(text)


def parse_pair(text: str) -> tuple[str, str]:
    """Gives the two sides of `KEY=VALUE`.

    Raises:
        BadUsage: There is no `=`.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise BadUsage(f"attribute must be KEY=VALUE, attribute=`{text[:80]}`")
    return key, value
