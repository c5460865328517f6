"""Parse the timestamps of lines that all have the same form, as those of most files do.

The form is that of the first line: an ISO 8601 time with a fixed width of the fraction and a fixed
zone without a space. Eight bytes are one number of 64 bits here, so a line costs a few operations.
Neighbouring lines of one minute share its conversion. `parse_timestamps` reads every other block;
both have the same result.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from sluice_agent.settings import Zone
from sluice_protocol.columns import TextColumn
from sluice_protocol.times import ABBREVIATIONS
from sluice_protocol.units import NS_PER_S

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

YEARS: Final = (1970, 2261)
"""Years whose times fit into 64 bits of nanoseconds."""
_FORM: Final = re.compile(
    rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d):\d\d(?:[.,](\d{1,9})(?!\d))?"
    rb"(Z|z|[+-]\d\d:?\d\d)?(?=[ \]])"
)
_ROW_BYTES: Final = 40
_MINUTE_BYTES: Final = 16
_PARTS: Final = ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16))
"""Year, month, day, hour and minute."""
_SECOND_END: Final = 19
_FRACTION_AT: Final = 20
_WORD_BYTES: Final = 8
_FRACTION_DIGITS: Final = 9
_ROW_BYTES_MIN: Final = 24
"""A shorter line may end before the bytes that are read after its time."""
_PAIRS: Final = [
    int.from_bytes(word, "big") & 0xDFDF for word in (b"AM", b"PM", b"A.", b"P.", b"UT")
]
_TRIPLES: Final = sorted(
    {int.from_bytes(word.encode()[:3], "big") & 0xDFDFDF for word in ABBREVIATIONS if len(word) > 2}  # noqa: PLR2004
)
_LINES_PER_RUN: Final = 16
"""Lines that a minute must have on average; else the conversion of minutes costs more."""
_SECONDS_MAX: Final = 59
_HOUR_S: Final = 3600
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_uniform(lines: TextColumn, zone: Zone) -> Ints | None:
    """Return the time of each line, or None if the lines differ in form or are not all valid."""
    found = _FORM.match(lines.data, int(lines.data[:1] == b"["))
    if found is None or found.end() > int(lines.offsets[1]):
        return None
    bracket, digits = found.start(), len(found[2] or b"")
    zone_at = found.end(2 if digits else 1) - bracket + (0 if digits else 3)
    zone_end = zone_at + len(found[3] or b"") + 1
    rows = _rows(lines, bracket, zone_end)
    if rows is None or not _same_form(rows, zone_at, zone_end, digits):
        return None
    local = found[3] is None
    if local and rows[zone_at] == ord(" ") and _may_be_zones(rows, zone_at + 1):
        return None
    offset_s = _offset_s(found[3])
    minutes, seconds = _minutes(rows, zone, local=local), _number(rows, _SECOND_END, 2)
    if offset_s is None or minutes is None or seconds is None or seconds.max() > _SECONDS_MAX:
        return None
    ts = (minutes + seconds - offset_s) * NS_PER_S
    if digits:
        fraction = _number(rows, _FRACTION_AT + digits, digits)
        if fraction is None:
            return None
        ts += fraction * 10 ** (_FRACTION_DIGITS - digits)
    return ts if ts.min() >= 0 else None


def _may_be_zones(rows: Rows, at: int) -> bool:
    columns = rows.reshape(-1, _ROW_BYTES)[:, at : at + 3]
    return bool(may_be_zone(columns[:, 0], columns[:, 1], columns[:, 2]).any())


def _rows(lines: TextColumn, bracket: int, zone_end: int) -> Rows | None:
    """Return the first 40 bytes of each line; None if a line is too short or begins otherwise."""
    sizes = np.diff(lines.offsets)
    if sizes.min() < bracket + max(zone_end, _ROW_BYTES_MIN):
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


def _same_form(rows: Rows, zone_at: int, zone_end: int, digits: int) -> bool:
    """Return True if every row has the separators and the zone of row 0, and the byte after it.

    The bytes of digits are not compared.
    """
    fixed = [_MINUTE_BYTES]
    if digits:
        fixed.append(_FRACTION_AT - 1)
    zone = range(zone_at, zone_end)
    return _equal_bytes(rows, _MINUTE_BYTES, fixed) and _equal_bytes(rows, zone_at, zone)


def may_be_zone(first: Rows, second: Rows, third: Rows) -> Bools:
    """Return which words may be a zone, or AM or PM; each word is given by its first three bytes.

    The reader of times (`sluice_protocol.times`) decides about these.
    """
    found: Bools = (first == ord("+")) | (first == ord("-")) | (first == ord("Z"))
    two = ((first.astype(np.int64) << 8) | second) & 0xDFDF
    found |= np.isin(two, _PAIRS)
    found |= np.isin((two << 8) | (third & 0xDF), _TRIPLES)
    return found


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
        known = [value - offset_of_zone(value, zone) for value in known]
    return np.repeat(np.array(known, np.int64), np.diff(np.append(runs, len(first))))


@lru_cache(maxsize=1024)
def _minute_s(text: bytes) -> int | None:
    """Return a minute as Unix seconds as if its zone were UTC; None if there is no such minute."""
    if _FORM.match(text + b":00 ") is None:
        return None
    year, month, day, hour, minute = (int(text[a:b]) for a, b in _PARTS)
    if not YEARS[0] <= year <= YEARS[1]:
        return None
    try:
        moment = datetime(year, month, day, hour, minute, tzinfo=UTC)
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(seconds=1)


def _number(rows: Rows, end: int, count: int) -> Ints | None:
    """Return the number that at most nine digits before byte `end` of each row are.

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


def _offset_s(zone: bytes | None) -> int | None:
    """Return the offset of `Z`, `+HH:MM` or `+HHMM`, seconds; None for one that no clock has."""
    if zone is None or zone in b"Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:  # noqa: PLR2004 - limits of a clock
        return None
    size_s = hours * _HOUR_S + minutes * 60
    return -size_s if zone[:1] == b"-" else size_s


@lru_cache(maxsize=4096)
def offset_of_zone(seconds: int, zone: Zone) -> int:
    """Return the zone's offset at a local time, seconds."""
    naive = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None)
    aware = naive.replace(tzinfo=zone) if zone is not None else naive.astimezone()
    offset = aware.utcoffset()
    return offset // timedelta(seconds=1) if offset is not None else 0
