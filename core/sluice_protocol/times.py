"""The reader of the times that other programs write: lines of files, syslog, and every door.

Every consumer calls `read_number` for a number, `read_time` for a text that is only a time, or
`scan_time` for a text that begins with one, so the same text is the same time everywhere. A zone or
a marker that is not understood means that the time cannot be read: no time is better than a wrong
one. All arithmetic is in integers.

Forms, of which `docs/doors.md` has the table: RFC 3339 and its relatives (`T`, `t` or a space; `.`
or `,` before a fraction of any length, cut off after the nanosecond; seconds may be missing), the
older form of syslog (`Nov 21 02:16:19`, also with a year and a fraction), both with `AM` or `PM`,
and with `Z`, `UTC`, `GMT`, `+01`, `+0100`, `+01:00` or no zone.

Sources: RFC 3339 section 5.6, RFC 9557 section 4.1, RFC 3164 section 4.1.2.
"""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from sluice_protocol.units import NS_PER_S

TS_END: Final = 2**63
"""Times from here on, in the year 2262, are out of the range of a column."""
TIME_BYTES_MAX: Final = 192
"""More than any time that can be read has: `scan_time` needs no more of a text."""
SLACK_S: Final = 86_400
"""A time without a year is at most this much later than its receipt."""
_NUMBER_CHARACTERS_MAX: Final = 40
_UNITS: Final = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3))
"""Numbers below the first are in units of the second, in ns: seconds, milliseconds, microseconds.
The next unit starts where seconds would be after the year 5000.
"""
NS_FROM: Final = _UNITS[-1][0]
"""Numbers from this on are nanoseconds."""
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?|[0-9]*\.[0-9]+")
_NS_DIGITS: Final = 9
_SECOND_END: Final = len("2026-11-21T02:16:19")
_HOUR_S: Final = 3600
_NOON: Final = 12
_YEARS_BACK: Final = 8
"""29 February exists at least once in so many years, also around 2100."""
_ZONE_S_MAX: Final = 14 * _HOUR_S
_ZONE_MINUTES: Final = (0, 30, 45)
"""Offsets of the zones of today are at most 14 hours, and whole hours, half ones or 45 minutes."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1
    )
}
_YEAR: Final = "(19[7-9][0-9]|2[0-2][0-9]{2})"
"""Other numbers of four digits are the name of a host."""
_FRACTION: Final = r"(?:[.,]([0-9]{1,40}))?(?![.,]?[0-9])"
_ISO: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})"
    rf"(?::([0-9]{{2}}){_FRACTION})?(?![:.,]?[0-9])"
)
_OLD: Final = re.compile(
    rf"[*.]?({'|'.join(_MONTHS)}) ([ 0-9]?[0-9])(?: {_YEAR})? "
    rf"([0-9]{{2}}):([0-9]{{2}}):([0-9]{{2}}){_FRACTION}"
)
_YEAR_AFTER: Final = re.compile(rf" {_YEAR}(?![0-9A-Za-z_.-])")
_MARKER: Final = re.compile(r" ?(?:([Aa])|[Pp])(?:[Mm]|\.[Mm]\.)(?![0-9A-Za-z_])")
_ZONE: Final = re.compile(
    r"( ?)(?:Z|(?<! )z|[Uu][Tt][Cc]|[Gg][Mm][Tt]|([+-])([0-9]{2})(?::?([0-9]{2}))?)"
    r"(?![0-9A-Za-z_]|[:+-][0-9])"
)
_ATTACHED: Final = re.compile(
    r"[A-Za-z_]|[.,](?:[+-]|[Zz](?![0-9A-Za-z_]))|[+-][0-9]|\[[A-Za-z_]+/[A-Za-z0-9_/+-]+\]"
)
"""What follows a clock without a space and is not a zone that is understood."""
_AFTER_ZONE: Final = re.compile(
    r"(?:\[!?[A-Za-z][A-Za-z0-9_/+-]{0,63}\])?(?: ([A-Z]{2,5})(?![0-9A-Za-z_]))?"
)
"""Names of the zone after its offset, as Java and Go write them: the offset counts."""
_WORD: Final = re.compile(r"(?:([A-Za-z]+)| ([A-Z]{2,5}))(?![0-9A-Za-z_])")
_SIGNED: Final = re.compile(r"[+-][0-9]")
ABBREVIATIONS: Final = frozenset(
    [
        "ACDT",
        "ACST",
        "ADT",
        "AEDT",
        "AEST",
        "AKDT",
        "AKST",
        "AST",
        "AWST",
        "BST",
        "CAT",
        "CDT",
        "CEST",
        "CET",
        "CST",
        "EAT",
        "EDT",
        "EEST",
        "EET",
        "EST",
        "GMT",
        "HDT",
        "HKT",
        "HST",
        "IDT",
        "IST",
        "JST",
        "KST",
        "MDT",
        "MEST",
        "MET",
        "MSD",
        "MSK",
        "MST",
        "NDT",
        "NST",
        "NZDT",
        "NZST",
        "PDT",
        "PKT",
        "PST",
        "SAST",
        "SGT",
        "SST",
        "UCT",
        "UT",
        "UTC",
        "WAT",
        "WEST",
        "WET",
        "WIB",
        "WIT",
        "WITA",
    ]
)
"""Abbreviations of zones, many of them ambiguous: one is understood only if the zone of times
without a zone has this name at that time. Any other word after a time is not a zone."""


class Scanned(NamedTuple):
    """A time at the start of a text, None if it cannot be read, and where the text continues."""

    ts_ns: int | None
    end: int


class _Clock(NamedTuple):
    """A date and a time of day as they were written; a year of None is missing."""

    year: int | None
    month: int
    day: int
    hour: int
    minute: int
    second: int
    fraction: str | None


def read_number(value: float | Decimal) -> int | None:
    """Return the Unix ns of a number; None if it is out of range.

    It is in seconds, milliseconds, microseconds or nanoseconds, by its size. A float is the decimal
    number that it is printed as.
    """
    if not 0 < value < TS_END:
        return None
    unit_ns = 1
    for end, unit in _UNITS:
        if value < end:
            unit_ns = unit
            break
    # A product of doubles is wrong by up to 256 ns.
    exact = value if isinstance(value, int) else Decimal(str(value))
    found = int(exact * unit_ns)
    return found if found < TS_END else None


def read_time(text: str, *, zone: tzinfo | None, received_ns: int | None = None) -> int | None:
    """Return the Unix ns of a text that is a time or a number; None if it cannot be read.

    White space around the time is ignored. `zone` is that of times that state none; None is the
    system's zone. `received_ns` is the basis of a missing year; without it, such a time cannot be
    read.
    """
    text = text.strip()
    if text[-1:] == "Z" and text[_SECOND_END : _SECOND_END + 1] in (".", "Z"):
        second, digits = _second_ns(text[:_SECOND_END]), text[_SECOND_END + 1 : -1]
        if second is not None and len(digits) <= _NS_DIGITS and digits.isascii():
            if digits.isdigit():
                return second + int(digits.ljust(_NS_DIGITS, "0"))
            if not digits and text[_SECOND_END] == "Z":
                return second
    if _NUMBER.fullmatch(text) is not None:
        # A double loses the nanoseconds of a fraction.
        return read_number(Decimal(text)) if len(text) <= _NUMBER_CHARACTERS_MAX else None
    found = scan_time(text, zone=zone, received_ns=received_ns)
    return found.ts_ns if found is not None and found.end == len(text) else None


@lru_cache(maxsize=1_024)
def _second_ns(text: str) -> int | None:
    """Return the Unix ns of a second in UTC; many records of a request share it."""
    found = scan_time(text, zone=UTC)
    return found.ts_ns if found is not None and found.end == _SECOND_END == len(text) else None


def scan_time(
    text: str, at: int = 0, *, zone: tzinfo | None, received_ns: int | None = None
) -> Scanned | None:
    """Return the time with which a text begins at `at`, as `read_time`; None if it has none."""
    clock, end = _scan_clock(text, at)
    if clock is None:
        return None
    clock, end = _year_after(text, end, clock)
    marker = _MARKER.match(text, end)
    if marker is not None:
        end = marker.end()
        if not 1 <= clock.hour <= _NOON:
            return Scanned(None, end)
        clock = clock._replace(hour=clock.hour % _NOON + (0 if marker[1] else _NOON))
    try:
        zone, name, end = _scan_zone(text, end, zone)
        clock, end = _year_after(text, end, clock)
        return Scanned(_in_zone(clock, zone, name, received_ns), end)
    except (ValueError, OverflowError):
        return Scanned(None, end)


def _scan_clock(text: str, at: int) -> tuple[_Clock | None, int]:
    found = _ISO.match(text, at)
    if found is not None:
        year, month, day, hour, minute, second, fraction = found.groups()
        date = int(year), int(month), int(day)
        return _Clock(*date, int(hour), int(minute), int(second or 0), fraction), found.end()
    found = _OLD.match(text, at)
    if found is None:
        return None, at
    name, day, year, hour, minute, second, fraction = found.groups()
    day_clock = int(day), int(hour), int(minute), int(second)
    return _Clock(int(year) if year else None, _MONTHS[name], *day_clock, fraction), found.end()


def _year_after(text: str, end: int, clock: _Clock) -> tuple[_Clock, int]:
    found = _YEAR_AFTER.match(text, end) if clock.year is None else None
    return (clock, end) if found is None else (clock._replace(year=int(found[1])), found.end())


def _scan_zone(text: str, end: int, zone: tzinfo | None) -> tuple[tzinfo | None, str | None, int]:
    """Return the zone of a clock, the name that it must have, and where the text continues."""
    found = _ZONE.match(text, end)
    if found is not None and not _is_message(found):
        named = _AFTER_ZONE.match(text, found.end())
        is_name = named is not None and named[1] in (None, *ABBREVIATIONS)
        return _zone_of(found), None, named.end() if named and is_name else found.end()
    word = _WORD.match(text, end)
    if word is not None and (word[1] or word[2] in ABBREVIATIONS):
        if _SIGNED.match(text, word.end()):
            raise ValueError("zone is not understood")
        return zone, word[1] or word[2], word.end()
    if _ATTACHED.match(text, end) is not None:
        raise ValueError("zone is not understood")
    return zone, None, end


def _is_message(found: "re.Match[str]") -> bool:
    """Return True for a number after a space that is the offset of no zone."""
    spaced, _, hours, minutes = found.groups()
    if not spaced or hours is None:
        return False
    size_s = int(hours) * _HOUR_S + int(minutes or 0) * 60
    return size_s > _ZONE_S_MAX or int(minutes or 0) not in _ZONE_MINUTES


def _zone_of(found: "re.Match[str]") -> tzinfo:
    _, sign, hours, minutes = found.groups()
    if hours is None:
        return UTC
    if int(hours) > 23 or int(minutes or 0) > 59:  # noqa: PLR2004 - limits of a clock
        raise ValueError("zone is not understood")
    size_s = int(hours) * _HOUR_S + int(minutes or 0) * 60
    return _fixed_zone(-size_s if sign == "-" else size_s)


@lru_cache(maxsize=128)
def _fixed_zone(offset_s: int) -> timezone:
    return timezone(timedelta(seconds=offset_s))


def _in_zone(
    clock: _Clock, zone: tzinfo | None, name: str | None, received_ns: int | None
) -> int | None:
    """Return the Unix ns; without a year, in the latest that puts it at most a day ahead.

    Raises:
        ValueError: There is no such time in the year that is stated.
    """
    fraction = (clock.fraction or "")[:_NS_DIGITS].ljust(_NS_DIGITS, "0")
    if clock.year is not None:
        found = _seconds(clock.year, clock, zone, name) * NS_PER_S + int(fraction)
        return found if 0 <= found < TS_END else None
    if received_ns is None:
        return None
    received_year = (_EPOCH + timedelta(seconds=received_ns // NS_PER_S)).year
    for year in range(received_year + 1, received_year - 1 - _YEARS_BACK, -1):
        try:
            found = _seconds(year, clock, zone, name) * NS_PER_S + int(fraction)
        except ValueError:
            continue
        if found <= received_ns + SLACK_S * NS_PER_S:
            return found if 0 <= found < TS_END else None
    return None


def _seconds(year: int, clock: _Clock, zone: tzinfo | None, name: str | None) -> int:
    if clock.second > 59:  # noqa: PLR2004 - a leap second has no Unix time
        raise ValueError("second must be in 0..59")
    date = (year, clock.month, clock.day)
    return _minute_s(date, (clock.hour, clock.minute), zone, name) + clock.second


@lru_cache(maxsize=4_096)
def _minute_s(
    date: tuple[int, int, int], clock: tuple[int, int], zone: tzinfo | None, name: str | None
) -> int:
    """Return the Unix seconds of a minute; with a name, of the one in which the zone has it.

    Raises:
        ValueError: There is no such minute, or the zone has another name then.
    """
    naive = datetime(*date, *clock)  # noqa: DTZ001 - the zone is added below
    for fold in (0, 1):
        local = naive.replace(fold=fold)
        aware = local.replace(tzinfo=zone) if zone is not None else local.astimezone()
        if name is None or aware.tzname() == name:
            return (aware - _EPOCH) // timedelta(seconds=1)
    raise ValueError("the zone has another name at this time")
