"""Times as people write and read them: of a day, in a zone, or a duration ago."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S, UNITS_NS, UnixNs

_DURATION: Final = re.compile(r"-?((?:[0-9]{1,9}(?:ms|s|m|h|d|w))+)", re.ASCII)
_PART: Final = re.compile(r"([0-9]+)(ms|s|m|h|d|w)", re.ASCII)
_UNITS_NS: Final = {**UNITS_NS, "w": 7 * UNITS_NS["d"]}
_DAY_AND_TIME: Final = re.compile(
    r"(?:(?P<day>\d{4}-\d\d-\d\d|today|yesterday)(?:[T ]|$))?"
    r"(?:(?P<minute>\d\d?:\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?)?",
    re.ASCII,
)


def parse_zone(name: str) -> tzinfo | None:
    """Return the zone of a name such as `Europe/Berlin` or `UTC`; None for `local`."""
    if name == "local":
        return None
    if name.upper() in {"UTC", "Z"}:
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - most people read times of their own zone

    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise BadUsage(
            f"unknown time zone: use local, UTC or a name such as Europe/Berlin, zone=`{name[:40]}`"
        ) from error


def parse_time(text: str, now_ns: UnixNs, zone: tzinfo | None) -> str:
    """Return a time as the parameters of queries have it.

    A day, a time of day, or both are those of the zone: `2026-11-28 14:00`, `14:00`, `yesterday`.
    Of a time that a change of clocks repeats, the first is meant. Other texts are returned as they
    are: RFC 3339, Unix times and `now`.
    """
    duration = _DURATION.fullmatch(text)
    if duration is not None:
        ago_ns = sum(int(n) * _UNITS_NS[unit] for n, unit in _PART.findall(duration[1]))
        return str(now_ns - ago_ns)
    found = _DAY_AND_TIME.fullmatch(text)
    if found is None or not text:
        return text
    today = datetime.fromtimestamp(now_ns // NS_PER_S, zone)
    day = found["day"] or "today"
    try:
        if day in {"today", "yesterday"}:
            date = (today - timedelta(days=day == "yesterday")).date()
        else:
            date = datetime.fromisoformat(day).date()
        hour, minute = map(int, (found["minute"] or "0:0").split(":"))
        moment = datetime(
            date.year, date.month, date.day, hour, minute, int(found["second"] or 0), tzinfo=zone
        )
    except ValueError as error:
        raise BadUsage(f"no such time: {error}, time=`{text}`") from error
    # Without a zone, a moment is in that of this machine.
    fraction_ns = int((found["fraction"] or "0").ljust(9, "0"))
    at_ns = int(moment.timestamp()) * NS_PER_S + fraction_ns
    # A small number would be read as a Unix time in seconds.
    return (
        f"{datetime.fromtimestamp(at_ns // NS_PER_S, UTC):%Y-%m-%dT%H:%M:%S}.{at_ns % NS_PER_S:09}Z"
    )


def format_moment(at_ns: int, zone: tzinfo | None) -> str:
    """Return a time in a zone, with milliseconds, in a form that `parse_time` reads again."""
    moment = datetime.fromtimestamp(at_ns // NS_PER_S, zone)
    end = "Z" if zone is UTC else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at_ns % NS_PER_S // 1_000_000:03}{end}"
