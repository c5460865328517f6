"""The parameters of Loki's routes: times, steps, limits and questions, as its clients send them.

Source: Loki's reference of its HTTP API. Grafana sends times in ns to routes of queries and as RFC
3339 to others; `logcli` sends ns, and scripts seconds.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.logql.expressions import Drop, LogQuery
from sluice_query.logql.grammar import parse_logql
from sluice_query.logql.lexer import TokenKind, next_token
from sluice_query.logql.planning import narrowed, ranges_of
from sluice_query.logql.stages import changes_records
from sluice_query.request import (
    END_NS,
    FIRST_NS,
    LIMIT_MAX,
    Query,
    check_query,
    parse_duration,
)
from sluice_query.settings import FROM_DEFAULT

LIMIT_DEFAULT: Final = 100
SINCE_DEFAULT_NS: Final = parse_duration(FROM_DEFAULT)
_TEXT_CHARS_MAX: Final = 10_000
_SECONDS_DIGITS_MAX: Final = 10
"""A whole number of more digits is of ns."""
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}(?:\.[0-9]{1,9})?", re.ASCII)


def parse_loki_time(text: str) -> UnixNs:
    """Return the time of a text: RFC 3339, seconds with a point or few digits, else ns."""
    if _NUMBER.fullmatch(text):
        whole = len(text.lstrip("-")) <= _SECONDS_DIGITS_MAX
        number = Decimal(text) * (NS_PER_S if whole or "." in text else 1)
        if not FIRST_NS <= number <= END_NS:
            raise BadUsage(f"must be a time between 1677 and 2262, time=`{text}`")
        return UnixNs(int(number))
    try:
        return parse_rfc3339(text)
    except BadUsage as error:
        raise BadUsage(
            f"must be RFC 3339, or a Unix time in seconds or ns, time=`{text[:40]}`"
        ) from error


def parse_loki_duration(text: str) -> int:
    """Return the ns of a duration such as `1h30m`, or of a number of seconds."""
    seconds = Decimal(text) if _NUMBER.fullmatch(text) else _duration_s(text)
    if seconds is None:
        raise BadUsage(f"must be seconds, or a duration such as 1h30m, duration=`{text[:40]}`")
    length_ns = int(seconds * NS_PER_S)
    if not 0 < length_ns <= END_NS:
        raise BadUsage(f"must be more than 0 and less than 292 years, duration=`{text[:40]}`")
    return length_ns


def _duration_s(text: str) -> Decimal | None:
    """Return the seconds of a text that is a duration of LogQL; None for another text."""
    try:
        token = next_token(text, 0)
    except BadUsage:
        return None
    is_whole = token.kind is TokenKind.DURATION and token.text == text
    return token.value if is_whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LokiParameters:
    """The parameters of one request. Each error names the parameter.

    Attributes:
        given: Their values, from the URL and from a form.
        now_ns: The end of a range without one.
    """

    given: Mapping[str, Sequence[str]]
    now_ns: UnixNs

    def text(self, name: str) -> str:
        """Return a parameter that must be given once."""
        values = self.given.get(name, ())
        if len(values) != 1 or not values[0]:
            raise BadUsage(f"{name} must be given once, times=`{len(values)}`")
        return _checked(name, values[0])

    def optional(self, name: str) -> str:
        """Return the first value of a parameter; empty without one."""
        return _checked(name, next(iter(self.given.get(name, ("",)))))

    def texts(self, *names: str) -> tuple[str, ...]:
        """Return every value of parameters."""
        return tuple(_checked(one, value) for one in names for value in self.given.get(one, ()))

    def limit(self, name: str = "limit", default: int = LIMIT_DEFAULT) -> int:
        """Return a limit."""
        text = self.optional(name) or str(default)
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:10]) <= LIMIT_MAX:
            raise BadUsage(f"{name} must be 1 to {LIMIT_MAX}, {name}=`{text[:40]}`")
        return int(text)

    def newest_first(self) -> bool:
        """Return whether the newest records are wanted, and first."""
        text = self.optional("direction").lower()
        if text not in ("", "backward", "forward"):
            raise BadUsage(f"direction must be forward or backward, direction=`{text[:40]}`")
        return text != "forward"

    def step_ns(self) -> int | None:
        """Return the time between the values of a series; None without one."""
        return self._parsed("step", parse_loki_duration) if self.optional("step") else None

    def range(self) -> tuple[UnixNs, UnixNs]:
        """Return the start and the end of the range."""
        end_ns = self._parsed("end", parse_loki_time) if self.optional("end") else self.now_ns
        if self.optional("start"):
            return UnixNs(self._parsed("start", parse_loki_time)), UnixNs(end_ns)
        since_ns = SINCE_DEFAULT_NS
        if self.optional("since"):
            since_ns = self._parsed("since", parse_loki_duration)
        return UnixNs(end_ns - since_ns), UnixNs(end_ns)

    def time(self) -> UnixNs:
        """Return the time of an instant query."""
        return (
            UnixNs(self._parsed("time", parse_loki_time)) if self.optional("time") else self.now_ns
        )

    def selection(self, question: LogQuery, limit: int = LIMIT_DEFAULT) -> Query:
        """Return the query for the records of a log query."""
        from_ns, to_ns = self.range()
        query = Query(from_ns=from_ns, to_ns=to_ns, limit=limit, newest_first=self.newest_first())
        return check_query(narrowed(query, question))

    def records(self, question: LogQuery, limit: int = LIMIT_DEFAULT) -> Query:
        """Return the query for the records of a log query, each with its labels."""
        if not changes_records(question):
            # A stage without an effect, after which records have their labels.
            question = replace(question, stages=(*question.stages, Drop()))
        return self.selection(question, limit)

    def selector(self, name: str = "query") -> LogQuery:
        """Return the records that a parameter selects; all of them without one."""
        text = self.optional(name)
        return log_query(text) if text.strip() else LogQuery()

    def _parsed(self, name: str, parse: Callable[[str], int]) -> int:
        try:
            return parse(self.optional(name))
        except BadUsage as error:
            raise BadUsage(f"{name}: {error}") from error


def log_query(text: str) -> LogQuery:
    """Return a log query; raise `BadUsage` for a metric query."""
    question = parse_logql(text)
    if not isinstance(question, LogQuery):
        raise BadUsage('query must be a log query such as `{service_name="shop"}`')
    return question


def log_part(text: str) -> LogQuery:
    """Return the log query of a question: for a metric query, that of its first range."""
    question = parse_logql(text)
    return question if isinstance(question, LogQuery) else next(iter(ranges_of(question))).query


def _checked(name: str, text: str) -> str:
    if len(text) > _TEXT_CHARS_MAX:
        raise BadUsage(f"{name} must have at most {_TEXT_CHARS_MAX} characters")
    return text
