"""Parse the timestamps of log lines, a whole column at a time.

Two forms are recognized at the start of a line, after an optional `[`: ISO 8601
(`2026-11-21T02:16:19.123456+01:00`, also with a space, a comma, `Z`, or no zone) and the older
syslog form (`Nov 21 02:16:19`, without year and zone). The zone may follow a space: ` +0100`,
` UTC` or ` GMT`, as PostgreSQL, Ruby and Go write it. A timestamp without a zone is in the agent's
zone, and so is one with another abbreviation, of which many are ambiguous. Any other line has its
time of arrival: a wrong guess is worse than none.

Source: RFC 3339 section 5.6, RFC 3164 section 4.1.2.
"""

from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt

from sluice_agent.settings import Zone
from sluice_agent.uniform_timestamps import YEARS, Ints, offset_of_zone, parse_uniform
from sluice_protocol.columns import TextColumn
from sluice_protocol.units import NS_PER_S, UnixNs

Bytes2D = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

_HEAD_BYTES: Final = 36
"""19 bytes of date and time, 10 of the fraction, a space and 6 of the zone."""
_ISO_DIGITS: Final = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18)
_FRACTION_DIGITS: Final = 9
_SLACK_NS: Final = 86_400 * NS_PER_S
_MONTHS: Final = {
    int.from_bytes(name.encode(), "big"): number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_HOUR_S: Final = 3600
_ZONE_S_MAX: Final = 14 * _HOUR_S
_ZONE_MINUTES_S: Final = (0, 30 * 60, 45 * 60)
"""Offsets of the zones of today are at most 14 hours, and whole hours, half ones or 45 minutes."""


def parse_timestamps(lines: TextColumn, *, arrived_ns: UnixNs, zone: Zone) -> Ints:
    """Return the time of each line, i64[n] Unix ns.

    Args:
        lines: The lines.
        arrived_ns: The time of lines without a timestamp.
        zone: The zone of timestamps that specify none.
    """
    if not len(lines):
        return np.zeros(0, np.int64)
    uniform = parse_uniform(lines, zone)
    return parse_mixed(lines, arrived_ns=arrived_ns, zone=zone) if uniform is None else uniform


def parse_mixed(lines: TextColumn, *, arrived_ns: UnixNs, zone: Zone) -> Ints:
    """Return the time of each line, of which each may have another form."""
    ts = np.full(len(lines), arrived_ns, np.int64)
    head = _heads(lines)
    iso = _looks_iso(head)
    if iso.any():
        _fill(ts, iso, *_parse_iso(_rows(head, iso), zone))
    if not iso.all():
        old = ~iso & _looks_syslog(head)
        if old.any():
            _fill(ts, old, *_parse_syslog(_rows(head, old), arrived_ns, zone))
    return ts


def _rows(head: Bytes2D, chosen: Bools) -> Bytes2D:
    return head if chosen.all() else np.asfortranarray(head[chosen])


def _fill(ts: Ints, rows: Bools, values: Ints, valid: Bools) -> None:
    ts[np.flatnonzero(rows)[valid]] = values[valid]


def _heads(lines: TextColumn) -> Bytes2D:
    """Return the first bytes of each line without a leading `[`, padded with zeros.

    The array is in column order in memory, because all later steps read columns.
    """
    data = np.frombuffer(lines.data + bytes(_HEAD_BYTES + 1), np.uint8)
    starts, ends = lines.offsets[:-1], lines.offsets[1:]
    starts = starts + ((data[starts] == ord("[")) & (starts < ends))
    head = np.asfortranarray(np.lib.stride_tricks.sliding_window_view(data, _HEAD_BYTES)[starts])
    size = ends - starts
    short = np.flatnonzero(size < _HEAD_BYTES)
    if len(short):
        beyond = np.arange(_HEAD_BYTES) >= size[short, None]
        head[short] = np.where(beyond, 0, head[short])
    return head


def _looks_iso(head: Bytes2D) -> Bools:
    found: Bools = (head[:, 4] == ord("-")) & (head[:, 7] == ord("-"))
    found &= (head[:, 10] == ord("T")) | (head[:, 10] == ord(" "))
    found &= (head[:, 13] == ord(":")) & (head[:, 16] == ord(":"))
    for place in _ISO_DIGITS:
        found &= _is_digit(head[:, place])
    return found


def _looks_syslog(head: Bytes2D) -> Bools:
    found: Bools = (head[:, 3] == ord(" ")) & (head[:, 6] == ord(" ")) & (head[:, 15] == ord(" "))
    found &= (head[:, 9] == ord(":")) & (head[:, 12] == ord(":"))
    found &= _is_digit(head[:, (5, 7, 8, 10, 11, 13, 14)]).all(axis=1)
    found &= _is_digit(head[:, 4]) | (head[:, 4] == ord(" "))
    return found


def _is_digit(octets: Bytes2D) -> Bools:
    found: Bools = (octets >= ord("0")) & (octets <= ord("9"))
    return found


def _number(head: Bytes2D, *places: int) -> Ints:
    value = np.zeros(len(head), np.int32)
    for place in places:
        value = value * 10 + (head[:, place] & 15)
    return value.astype(np.int64)


def _parse_iso(head: Bytes2D, zone: Zone) -> tuple[Ints, Bools]:
    seconds, valid = _seconds(
        (_number(head, 0, 1, 2, 3), _number(head, 5, 6), _number(head, 8, 9)),
        (_number(head, 11, 12), _number(head, 14, 15), _number(head, 17, 18)),
    )
    fraction_ns, width = _fraction(head)
    offset_s, named = _zone_offsets(_at(head, 19 + width))
    spaced = ~named & (_at(head, 19 + width)[:, 0] == ord(" "))
    if spaced.any():
        later_s, later = _zone_offsets_after_a_space(_at(head, 20 + width))
        offset_s = np.where(spaced, later_s, offset_s)
        named |= spaced & later
    local = valid & ~named
    if local.any():
        offset_s[local] = _local_offsets(seconds[local], zone)
    return (seconds - offset_s) * NS_PER_S + fraction_ns, valid


def _parse_syslog(head: Bytes2D, arrived_ns: UnixNs, zone: Zone) -> tuple[Ints, Bools]:
    """Choose the latest year that puts the line at most a day after its arrival."""
    code = (head[:, 0].astype(np.int64) << 16) | (head[:, 1].astype(np.int64) << 8) | head[:, 2]
    month = np.zeros(len(head), np.int64)
    for name, number in _MONTHS.items():
        month[code == name] = number
    day = np.where(head[:, 4] == ord(" "), 0, _number(head, 4)) * 10 + _number(head, 5)
    clock = (_number(head, 7, 8), _number(head, 10, 11), _number(head, 13, 14))
    year = datetime.fromtimestamp(arrived_ns / NS_PER_S, UTC).year
    result = np.zeros(len(head), np.int64)
    found = np.zeros(len(head), np.bool_)
    for candidate in (year + 1, year, year - 1):
        seconds, valid = _seconds((np.full(len(head), candidate), month, day), clock)
        ts = np.zeros(len(head), np.int64)
        if valid.any():
            ts[valid] = (seconds[valid] - _local_offsets(seconds[valid], zone)) * NS_PER_S
        take = ~found & valid & (ts <= arrived_ns + _SLACK_NS)
        result[take] = ts[take]
        found |= take
    return result, found


def _seconds(date: tuple[Ints, Ints, Ints], clock: tuple[Ints, Ints, Ints]) -> tuple[Ints, Bools]:
    """Return seconds since 1970 as if the zone were UTC, and which rows are valid."""
    hour, minute, second = clock
    if all((part == part[0]).all() for part in date):  # usually a block has one day
        days, valid = _days(*(part[:1] for part in date))
    else:
        days, valid = _days(*date)
    valid = valid & (hour <= 23) & (minute <= 59) & (second <= 59)  # noqa: PLR2004 - limits of a clock
    total = days * 86_400 + hour * _HOUR_S + minute * 60 + second
    return np.where(valid, total, 0), valid


def _days(year: Ints, month: Ints, day: Ints) -> tuple[Ints, Bools]:
    """Return days since 1970, and which rows are valid days."""
    valid = (year >= YEARS[0]) & (year <= YEARS[1]) & (month >= 1) & (month <= 12)  # noqa: PLR2004
    valid &= day >= 1
    months = np.where(valid, (year - 1970) * 12 + month - 1, 0).astype("M8[M]")
    days = months.astype("M8[D]") + np.where(valid, day - 1, 0).astype("m8[D]")
    valid &= days.astype("M8[M]") == months  # 31 April would be 1 May
    return days.astype(np.int64), valid


def _fraction(head: Bytes2D) -> tuple[Ints, Ints]:
    """Return the nanoseconds of the fraction, and its width in bytes including the separator."""
    running: Bools = (head[:, 19] == ord(".")) | (head[:, 19] == ord(","))
    value = np.zeros(len(head), np.int64)
    width = np.zeros(len(head), np.int64)
    for place in range(20, 20 + _FRACTION_DIGITS):
        running &= _is_digit(head[:, place])
        value = value * 10 + np.where(running, head[:, place] & 15, 0)
        width += running
    return value, np.where(width > 0, width + 1, 0)


def _zone_offsets(zone: Bytes2D) -> tuple[Ints, Bools]:
    """Return the offset of `Z`, `+HH:MM` or `+HHMM`, seconds, and which rows have one."""
    offset_s, numeric = _numeric_offsets(zone)
    zulu = (zone[:, 0] == ord("Z")) | (zone[:, 0] == ord("z"))
    return offset_s, numeric | zulu


def _zone_offsets_after_a_space(zone: Bytes2D) -> tuple[Ints, Bools]:
    """Return the offset of `+HH:MM`, `+HHMM`, `UTC` or `GMT`, seconds, and which rows have one.

    What follows a space may be the message, so an offset that no zone has is not taken for one.
    """
    offset_s, numeric = _numeric_offsets(zone)
    numeric &= np.isin(np.abs(offset_s) % _HOUR_S, _ZONE_MINUTES_S)
    numeric &= np.abs(offset_s) <= _ZONE_S_MAX
    universal = np.zeros(len(zone), np.bool_)
    for name in (b"UTC", b"GMT"):
        universal |= (zone[:, :3] == np.frombuffer(name, np.uint8)).all(axis=1)
    letter = zone[:, 3] | 0x20
    universal &= (letter < ord("a")) | (letter > ord("z"))
    return np.where(numeric, offset_s, 0), numeric | universal


def _numeric_offsets(zone: Bytes2D) -> tuple[Ints, Bools]:
    """Return the offset of `+HH:MM` or `+HHMM`, seconds, otherwise 0; and which rows have one."""
    colon = zone[:, 3] == ord(":")
    minutes = (np.where(colon, zone[:, 4], zone[:, 3]), np.where(colon, zone[:, 5], zone[:, 4]))
    signed = (zone[:, 0] == ord("+")) | (zone[:, 0] == ord("-"))
    tail = np.asfortranarray(np.stack([zone[:, 1], zone[:, 2], *minutes], axis=1))
    numeric = signed & _is_digit(tail).all(axis=1)
    size_s = _number(tail, 0, 1) * _HOUR_S + _number(tail, 2, 3) * 60
    offset_s = np.where(zone[:, 0] == ord("-"), -size_s, size_s)
    return np.where(numeric, offset_s, 0), numeric


def _at(head: Bytes2D, at: Ints) -> Bytes2D:
    """Return six bytes of each row from byte `at`, which is at most 30."""
    if (at == at[0]).all():
        return head[:, int(at[0]) : int(at[0]) + 6]
    rows = np.arange(len(head))
    return np.asfortranarray(np.stack([head[rows, at + place] for place in range(6)], axis=1))


def _local_offsets(seconds: Ints, zone: Zone) -> Ints:
    """Return the zone's offset at each local time, computed once for each hour that occurs."""
    hours, back = np.unique(seconds // _HOUR_S, return_inverse=True)
    offsets = np.array([offset_of_zone(int(hour) * _HOUR_S, zone) for hour in hours], np.int64)
    return offsets[back]
