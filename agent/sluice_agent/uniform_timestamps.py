"""Parse the timestamps of lines that all have the same form, as those of most files do.

The form is that of the first line: an ISO 8601 time with a fixed width of the fraction and a fixed
zone without a space. Eight bytes are one number of 64 bits here, so a line costs a few operations.
Neighbouring lines of one minute share its conversion. `parse_timestamps` reads every other block;
both have the same result.
"""

import re
from collections.abc import Iterable
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
Words = npt.NDArray[np.uint64]

YEARS: Final = (1970, 2261)
"""Years whose times fit into 64 bits of nanoseconds."""
_FORM: Final = re.compile(
    rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d):\d\d(?:[.,](\d{1,9})(?!\d))?(Z|z|[+-]\d\d:?\d\d)?"
)
_ROW_BYTES: Final = 40
_MINUTE_BYTES: Final = 16
_PARTS: Final = ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16))
"""Year, month, day, hour and minute."""
_SECOND_END: Final = 19
_FRACTION_AT: Final = 20
_WORD_BYTES: Final = 8
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
    local = found[3] is None
    if local and _may_name_zones(rows, zone_at):
        return None
    minutes, seconds = _minutes(rows, zone, local=local), _number(rows, _SECOND_END, 2)
    if minutes is None or seconds is None or seconds.max() > _SECONDS_MAX:
        return None
    ts = (minutes + seconds - _offset_s(found[3])) * NS_PER_S
    if digits:
        fraction = _number(rows, _FRACTION_AT + digits, digits)
        if fraction is None:
            return None
        ts += fraction * 10 ** (_FRACTION_DIGITS - digits)
    return ts


def _rows(lines: TextColumn, bracket: int, zone_at: int) -> Rows | None:
    """Return the first 40 bytes of each line; None if a line is too short or begins otherwise."""
    sizes = np.diff(lines.offsets)
    if sizes.min() < bracket + zone_at + _NUMERIC_ZONE_BYTES:
        return None
    data, starts = lines.data, lines.offsets[:-1]
    if bracket:
        if (np.frombuffer(data, np.uint8)[starts] != ord("[")).any():
            return None
        starts = starts + 1
    if len(data) < _ROW_BYTES:
        data = data.ljust(_ROW_BYTES, b"\0")
    last = len(data) - _ROW_BYTES
    # One item for each byte at which a row may begin. Items overlap, and none is copied here.
    items = np.ndarray((last + 1,), f"V{_ROW_BYTES}", data, strides=(1,))
    rows = items[np.minimum(starts, last)].view(np.uint8)
    for row in range(int(np.searchsorted(starts, last, side="right")), len(starts)):
        # The data ends before the 40th byte of this line.
        row_bytes = data[int(starts[row]) :].ljust(_ROW_BYTES, b"\0")
        rows[row * _ROW_BYTES : (row + 1) * _ROW_BYTES] = np.frombuffer(row_bytes, np.uint8)
    return rows


def _words(rows: Rows, at: int) -> Words:
    """Return bytes `at` to `at + 8` of each row."""
    shape = (len(rows) // _ROW_BYTES,)
    return np.ndarray(shape, "<u8", rows, offset=at, strides=(_ROW_BYTES,)).copy()


def _same_form(rows: Rows, zone_at: int, digits: int) -> bool:
    """Return True if every row has the separators, the end of the fraction and the zone of row 0.

    The bytes of digits are not compared.
    """
    end = _NUMERIC_ZONE_BYTES if rows[zone_at] in b"+-" else 1
    fixed = [_MINUTE_BYTES]
    if digits:
        fixed.append(_FRACTION_AT - 1)
    elif rows[zone_at] in b".,":
        return False  # another row may have a fraction
    zone = range(zone_at, zone_at + end)
    return _equal_bytes(rows, _MINUTE_BYTES, fixed) and _equal_bytes(rows, zone_at, zone)


def _may_name_zones(rows: Rows, at: int) -> bool:
    """Return True if a row may have a space and a zone there: `+0100`, `UTC` or `GMT`."""
    if rows[at] != ord(" "):
        return False  # all rows have this byte
    two = _words(rows, at + 1) & np.uint64(0xFFFF)
    signs = np.isin(two & np.uint64(0xFF), [ord("+"), ord("-")])
    names = np.isin(two, [int.from_bytes(name, "little") for name in (b"UT", b"GM")])
    return bool((signs | names).any())


def _equal_bytes(rows: Rows, at: int, places: Iterable[int]) -> bool:
    """Return True if all rows have the same bytes at `places`, all within eight bytes of `at`."""
    mask = sum(0xFF << 8 * (place - at) for place in places)
    words = _words(rows, at)
    words &= np.uint64(mask)
    return bool((words == words[0]).all())


def _minutes(rows: Rows, zone: Zone, *, local: bool) -> Ints | None:
    """Return the start of each row's minute, Unix seconds; None if they change often."""
    first, second = _words(rows, 0), _words(rows, _WORD_BYTES)
    changed = (second[1:] != second[:-1]) | (first[1:] != first[:-1])
    runs = np.concatenate(([0], np.flatnonzero(changed) + 1))
    if len(runs) > 1 + len(first) // _LINES_PER_RUN:
        return None
    starts = (runs * _ROW_BYTES).tolist()
    values = [_minute_s(rows[start : start + _MINUTE_BYTES].tobytes()) for start in starts]
    known = [value for value in values if value is not None]
    if len(known) != len(values):
        return None
    if local:
        known = [value - offset_of_zone(value - value % _HOUR_S, zone) for value in known]
    return np.repeat(np.array(known, np.int64), np.diff(np.append(runs, len(first))))


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


def _number(rows: Rows, end: int, count: int) -> Ints | None:
    """Return the number that at most nine digits before byte `end` of each row are.

    Returns:
        None if one of them is no digit.
    """
    if count > _WORD_BYTES:
        high, low = _number(rows, end - 1, count - 1), _number(rows, end, 1)
        return None if high is None or low is None else high * 10 + low
    # The last digit is the highest byte. Bytes before the first digit become the digit 0.
    words = _words(rows, end - _WORD_BYTES)
    above = np.uint64((1 << 64) - (1 << 8 * (_WORD_BYTES - count)))
    digits = (words ^ np.uint64(0x3030303030303030)) & above
    if ((digits | digits + np.uint64(0x0606060606060606)) & np.uint64(0xF0F0F0F0F0F0F0F0)).any():
        return None
    # Pairs of digits, then of pairs, then of fours are added up in one multiplication each.
    pairs = (digits * np.uint64(2561)) >> np.uint64(8)
    fours = ((pairs & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
    eights = ((fours & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32)
    return eights.view(np.int64)


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
