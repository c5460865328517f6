"""Parse the timestamps of lines that all have the same form, as those of most files do.

The form is that of the first line: an ISO 8601 time with a fixed width of the fraction and a fixed
zone. Eight digits are one number of 64 bits here, so a line costs a few operations. Neighbouring
lines of one minute share its conversion. `parse_timestamps` reads every other block; both have the
same result.
"""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from sluice_agent.settings import Zone
from sluice_protocol.columns import TextColumn
from sluice_protocol.units import NS_PER_S

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]

YEARS: Final = (1970, 2261)
"""Years whose times fit into 64 bits of nanoseconds."""
_FORM: Final = re.compile(
    rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d):\d\d(?:[.,](\d{1,9})(?!\d))?(Z|z|[+-]\d\d:?\d\d)?"
)
_ROW_BYTES: Final = 40
_MINUTE_BYTES: Final = 16
_PARTS: Final = ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16))
"""Year, month, day, hour and minute."""
_SECOND_AT: Final = 17
_FRACTION_AT: Final = 20
_WORD_DIGITS: Final = 8
_FRACTION_DIGITS: Final = 9
_NUMERIC_ZONE_BYTES: Final = 6
_LINES_PER_RUN: Final = 16
"""Lines that a minute must have on average; else the conversion of minutes costs more."""
_SECONDS_MAX: Final = 59
_HOUR_S: Final = 3600


def parse_uniform(lines: TextColumn, zone: Zone) -> Ints | None:
    """Return the time of each line, or None if the lines differ in form or are not all valid."""
    found = _FORM.match(lines.data, int(lines.data[:1] == b"["))
    if found is None or found.end() > int(lines.offsets[1]):
        return None
    bracket, digits = found.start(), len(found[2] or b"")
    zone_at = found.end(2 if digits else 1) - bracket + (0 if digits else 3)
    rows = _rows(lines, bracket, zone_at)
    if rows is None or not _same_form(rows, zone_at, digits):
        return None
    minutes = _minutes(rows, zone, local=found[3] is None)
    if minutes is None:
        return None
    seconds = _number(rows[:, _SECOND_AT : _SECOND_AT + 2])
    if seconds is None or seconds.max() > _SECONDS_MAX:
        return None
    ts = (minutes + seconds - _offset_s(found[3])) * NS_PER_S
    if digits:
        fraction = _number(rows[:, _FRACTION_AT : _FRACTION_AT + digits])
        if fraction is None:
            return None
        ts += fraction * 10 ** (_FRACTION_DIGITS - digits)
    return ts


def _rows(lines: TextColumn, bracket: int, zone_at: int) -> Rows | None:
    """Return the first bytes of each line; None if a line is too short or begins otherwise."""
    sizes = np.diff(lines.offsets)
    if sizes.min() < bracket + zone_at + _NUMERIC_ZONE_BYTES:
        return None
    padded = lines.data + bytes(_ROW_BYTES + 1)
    # One item for each byte at which a line may begin. Items overlap, and none is copied here.
    items = np.ndarray((len(lines.data) + 1,), f"V{_ROW_BYTES}", padded, strides=(1,))
    starts = lines.offsets[:-1]
    if bracket:
        if (np.frombuffer(padded, np.uint8)[starts] != ord("[")).any():
            return None
        starts = starts + 1
    return items[starts].view(np.uint8).reshape(len(lines), _ROW_BYTES)


def _same_form(rows: Rows, zone_at: int, digits: int) -> bool:
    """Return True if every row has the separators, the end of the fraction and the zone of row 0.

    The bytes of digits are not compared.
    """
    first = rows[0]
    end = _NUMERIC_ZONE_BYTES if first[zone_at] in b"+-" else 1
    fixed = [_MINUTE_BYTES, *range(zone_at, zone_at + end)]
    if digits:
        fixed.append(_FRACTION_AT - 1)
    elif first[zone_at] in b".,":
        return False  # another row may have a fraction
    return all((rows[:, place] == first[place]).all() for place in fixed)


def _minutes(rows: Rows, zone: Zone, *, local: bool) -> Ints | None:
    """Return the start of each row's minute, Unix seconds; None if they change often."""
    words = rows.view("<u8")
    changed = (words[1:, 0] != words[:-1, 0]) | (words[1:, 1] != words[:-1, 1])
    runs = np.concatenate(([0], np.flatnonzero(changed) + 1))
    if len(runs) > 1 + len(rows) // _LINES_PER_RUN:
        return None
    values = [_minute_s(rows[at, :_MINUTE_BYTES].tobytes()) for at in runs.tolist()]
    known = [value for value in values if value is not None]
    if len(known) != len(values):
        return None
    if local:
        known = [value - offset_of_zone(value - value % _HOUR_S, zone) for value in known]
    return np.repeat(np.array(known, np.int64), np.diff(np.append(runs, len(rows))))


@lru_cache(maxsize=1024)
def _minute_s(text: bytes) -> int | None:
    """Return a minute as Unix seconds as if its zone were UTC; None if there is no such minute."""
    if _FORM.match(text + b":00") is None:
        return None
    year, month, day, hour, minute = (int(text[a:b]) for a, b in _PARTS)
    if not YEARS[0] <= year <= YEARS[1]:
        return None
    try:
        return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _number(digits: Rows) -> Ints | None:
    """Return the number that at most nine digits of each row are; None if one is no digit."""
    if digits.shape[1] > _WORD_DIGITS:
        high, low = _number(digits[:, :_WORD_DIGITS]), _number(digits[:, _WORD_DIGITS:])
        return None if high is None or low is None else high * 10 + low
    padded = np.full((len(digits), _WORD_DIGITS), ord("0"), np.uint8)
    padded[:, _WORD_DIGITS - digits.shape[1] :] = digits
    words: _Words = padded.view("<u8")[:, 0]
    high_nibbles = words & np.uint64(0xF0F0F0F0F0F0F0F0)
    above_nine = (words + np.uint64(0x0606060606060606)) & np.uint64(0xF0F0F0F0F0F0F0F0)
    zeros = np.uint64(0x3030303030303030)
    if (high_nibbles != zeros).any() or (above_nine != zeros).any():
        return None
    # Pairs of digits, then of pairs, then of fours are added up in one multiplication each.
    pairs = ((words & np.uint64(0x0F0F0F0F0F0F0F0F)) * np.uint64(2561)) >> np.uint64(8)
    fours = ((pairs & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
    eights = ((fours & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32)
    return eights.astype(np.int64)


def _offset_s(zone: bytes | None) -> int:
    """Return the offset of `Z`, `+HH:MM` or `+HHMM`, seconds."""
    if zone is None or zone in b"Zz":
        return 0
    size_s = int(zone[1:3]) * _HOUR_S + int(zone[-2:]) * 60
    return -size_s if zone[:1] == b"-" else size_s


def offset_of_zone(seconds: int, zone: Zone) -> int:
    """Return the zone's offset at a local time, seconds."""
    naive = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    aware = naive.replace(tzinfo=zone) if zone is not None else naive.astimezone()
    offset = aware.utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0
