"""The parameters of a query as text, as an HTTP client and the command line give them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sluice_protocol.errors import BadUsage
from sluice_protocol.manifests import Kind
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.request import (
    LIMIT_DEFAULT,
    Aggregate,
    ParameterName,
    Query,
    Series,
    check_query,
    plain_name,
)

FROM_DEFAULT: Final = "1h"
STEP_DEFAULT: Final = "1m"
_REPEATABLE: Final = frozenset({"agent", "attribute"})
_PARAMETERS: Final = _REPEATABLE | {
    *("from", "to", "q", "regex", "ignore_case", "kind", "stats_only", "limit", "newest_first"),
    *("metric", "step", "agg", "by_agent"),
}
_KINDS: Final[Mapping[str, Kind]] = {"logs": "logs", "metrics": "metrics", "entries": "entries"}
_UNITS_NS: Final = {
    "ms": NS_PER_S // 1000,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
    "d": 86_400 * NS_PER_S,
}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)", re.ASCII)
_UNIX_NS: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]+", re.ASCII)

_Value = TypeVar("_Value")


def parse_query(
    given: Mapping[str, Sequence[str]], now_ns: UnixNs, name: ParameterName = plain_name
) -> Query:
    """Return the query that parameters describe.

    Args:
        given: Each parameter's values. Only `agent` and `attribute` may have several.
        now_ns: The time from which durations count back, Unix ns.
        name: Names of the parameters for error messages.

    Raises:
        BadUsage: A parameter is unknown, repeated or malformed, or `check_query` refuses the query.
    """
    _check_names(given, name)
    read = _Reader(given, name)
    series = None
    if "metric" in given:
        series = Series(
            metric=given["metric"][0],
            step_ns=read.value("step", STEP_DEFAULT, parse_duration),
            aggregate=read.value("agg", "avg", _parse_aggregate),
            by_agent=read.flag("by_agent"),
        )
    query = Query(
        from_ns=read.value("from", FROM_DEFAULT, lambda text: parse_instant(text, now_ns)),
        to_ns=read.value("to", "now", lambda text: parse_instant(text, now_ns)),
        kind="metrics" if series else read.value("kind", "logs", _parse_kind),
        text=given["q"][0] if "q" in given else None,
        regex=read.flag("regex"),
        ignore_case=read.flag("ignore_case"),
        agents=tuple(given.get("agent", ())),
        attributes=read.values("attribute", parse_pair),
        stats_only=read.flag("stats_only"),
        limit=read.value("limit", str(LIMIT_DEFAULT), _parse_limit),
        newest_first=read.flag("newest_first"),
        series=series,
    )
    return check_query(query, name)


def parse_duration(text: str) -> int:
    """Return a duration such as `90s`, `15m`, `2h` or `1d` in ns.

    Raises:
        BadUsage: The text has another form.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise BadUsage(f"duration must be a number and ms, s, m, h or d, duration=`{text[:40]}`")
    return int(found[1]) * _UNITS_NS[found[2]]


def parse_instant(text: str, now_ns: UnixNs) -> UnixNs:
    """Return the instant of an RFC 3339 time, a number of Unix ns, `now`, or `15m` for that ago.

    Raises:
        BadUsage: The text has another form.
    """
    if text == "now":
        return now_ns
    if _UNIX_NS.fullmatch(text):
        return UnixNs(int(text))
    if _DURATION.fullmatch(text.removeprefix("-")):
        return UnixNs(now_ns - parse_duration(text.removeprefix("-")))
    return parse_rfc3339(text)


def parse_pair(text: str) -> tuple[str, str]:
    """Return the two sides of `KEY=VALUE`.

    Raises:
        BadUsage: The text contains no `=`, or no key.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise BadUsage(f"must be KEY=VALUE, found=`{text[:80]}`")
    return key, value


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads single parameters; every error names the parameter."""

    given: Mapping[str, Sequence[str]]
    name: ParameterName

    def value(self, parameter: str, default: str, parse: Callable[[str], _Value]) -> _Value:
        return self._parsed(parameter, self.given.get(parameter, (default,))[0], parse)

    def values(self, parameter: str, parse: Callable[[str], _Value]) -> tuple[_Value, ...]:
        return tuple(self._parsed(parameter, text, parse) for text in self.given.get(parameter, ()))

    def flag(self, parameter: str) -> bool:
        return self.value(parameter, "false", _parse_flag)

    def _parsed(self, parameter: str, text: str, parse: Callable[[str], _Value]) -> _Value:
        try:
            return parse(text)
        except BadUsage as error:
            raise BadUsage(f"{self.name(parameter)}: {error}") from error


def _check_names(given: Mapping[str, Sequence[str]], name: ParameterName) -> None:
    for parameter, values in given.items():
        if parameter not in _PARAMETERS:
            raise BadUsage(f"there is no such parameter, parameter=`{parameter[:40]}`")
        if parameter not in _REPEATABLE and len(values) > 1:
            raise BadUsage(f"parameter must not be repeated, parameter=`{name(parameter)}`")


def _parse_flag(text: str) -> bool:
    if text not in ("true", "false", "1", "0", ""):
        raise BadUsage(f"must be true or false, found=`{text[:40]}`")
    return text in ("true", "1", "")


def _parse_kind(text: str) -> Kind:
    if text not in _KINDS:
        raise BadUsage(f"must be logs, metrics or entries, found=`{text[:40]}`")
    return _KINDS[text]


def _parse_aggregate(text: str) -> Aggregate:
    try:
        return Aggregate(text)
    except ValueError as error:
        raise BadUsage(f"must be one of {', '.join(Aggregate)}, found=`{text[:40]}`") from error


def _parse_limit(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise BadUsage(f"must be a whole number, found=`{text[:40]}`")
    return int(text[:20])
