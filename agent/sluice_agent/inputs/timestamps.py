"""Parse the timestamps of log lines, a whole column at a time.

The time is at the start of a line, after an optional `[`, in a form that `sluice_protocol.times`
reads. The usual forms are read here: that of the first line, in all lines that have it, then that
of the first line left, and so on. Eight bytes are one number of 64 bits, so a line costs a few
operations, and neighbouring lines of one minute share its conversion: 20 to 80 times as fast as
that reader. Lines of rarer forms are left to it, as are those whose time is followed by anything
else than one usual zone, or by what may be another zone. A timestamp without a zone is in the
agent's zone. A line without a time, or with one that cannot be read, has its time of arrival: a
wrong guess is worse than none.

Source: RFC 3339 section 5.6, RFC 3164 section 4.1.2.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sluice_agent.settings import Zone
from sluice_protocol.columns import TextColumn
from sluice_protocol.times import ABBREVIATIONS, SLACK_S, TIME_BYTES_MAX, scan_time
from sluice_protocol.units import NS_PER_S, UnixNs

Ints = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]
Heads = npt.NDArray[Any]
"""The first `_HEAD_BYTES` bytes of each line as one item; lines may be shorter."""
Bytes2D = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

YEARS: Final = (1970, 2261)
"""Years whose times fit into 64 bits of nanoseconds."""
_HEAD_BYTES: Final = 40
"""19 bytes of date and time, 10 of the fraction, 6 of the zone, and a word after them."""
_HEAD: Final = np.dtype(f"V{_HEAD_BYTES}")
_WORD_BYTES: Final = 8
_FORMS_MAX: Final = 16
"""Forms of one block that are read together; the fraction of a second may have up to ten widths."""
_ISO: Final = re.compile(
    rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,](\d{1,9})(?!\d))?(Z|z|[+-]\d\d:?\d\d)?[ \]]"
)
_OLD: Final = re.compile(rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ")
_ISO_DIGITS: Final = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15)
_OLD_DIGITS: Final = (5, 7, 8, 10, 11)
_FRACTION_DIGITS: Final = 9
_NAMES: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS: Final = {
    int.from_bytes(name.encode(), "little"): number for number, name in enumerate(_NAMES, 1)
}
_STARTS: Final = np.isin(np.arange(256), [ord(one) for one in {*"*.", *(n[0] for n in _NAMES)}])
"""Whether a time of the older form may begin with this byte."""
_UPPER: Final = 0xDFDFDF
"""The bits of three bytes without those that differ between upper and lower case."""
_PAIRS: Final = [
    int.from_bytes(one, "little") & _UPPER for one in (b"AM", b"PM", b"A.", b"P.", b"UT")
]
_TRIPLES: Final = sorted(
    {int.from_bytes(one.encode()[:3], "little") & _UPPER for one in ABBREVIATIONS if len(one) > 2}  # noqa: PLR2004
)
_PREFIXES: Final = np.zeros(1 << 16, np.bool_)
"""Whether a zone, or AM or PM, may begin with these two bytes in upper case."""
_PREFIXES[[*_PAIRS, *(one & 0xFFFF for one in _TRIPLES)]] = True
_SIGNS: Final = np.isin(np.arange(256), list(b"+-Z"))
_DIGITS: Final = np.uint64(0x3030303030303030)
_ABOVE_NINE: Final = np.uint64(0x0606060606060606)
_HIGH: Final = np.uint64(0xF0F0F0F0F0F0F0F0)
_SUMS: Final = (
    (np.uint64(2561), np.uint64(8), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(6553601), np.uint64(16), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(42949672960001), np.uint64(32), np.uint64(0xFFFFFFFF)),
)
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_timestamps(lines: TextColumn, *, arrived_ns: UnixNs, zone: Zone) -> Ints:
    """Return the time of each line, i64[n] Unix ns; the forms may differ from line to line."""
    ts = np.full(len(lines), arrived_ns, np.int64)
    places, starts, heads = _may_be_times(lines.data, lines.offsets[:-1])
    sizes = lines.offsets[1:][places] - starts
    unread: list[int] = []
    for _ in range(_FORMS_MAX):
        if not len(places):
            break
        form = _form_of(heads[:1].tobytes()[: int(sizes[0])])
        read = np.zeros(len(places), np.bool_)
        if form is not None:
            values, read = _read(form, heads, sizes, arrived_ns, zone)
            if read.all():
                ts[places] = values
                places = places[:0]
                break
            ts[places[read]] = values[read]
        if not read[0]:
            unread.append(int(places[0]))
            read[0] = True
        places, heads, sizes = places[~read], heads[~read], sizes[~read]
    for row in (*unread, *places.tolist()):
        start, end = int(lines.offsets[row]), int(lines.offsets[row + 1])
        text = lines.data[start : min(end, start + TIME_BYTES_MAX)].decode("latin-1")
        found = scan_time(text.removeprefix("["), zone=zone, received_ns=arrived_ns)
        if found is not None and found.ts_ns is not None:
            ts[row] = found.ts_ns
    return ts


# -- the starts of lines ------------------------------------------------------------------


def _heads(data: bytes, starts: I32) -> Heads:
    """Return the bytes that begin at each start, with zeros behind the data."""
    data = data.ljust(_HEAD_BYTES, b"\0")
    last = len(data) - _HEAD_BYTES
    # One item for each byte at which a line may begin; they overlap, and only some are copied.
    items = np.ndarray((last + 1,), _HEAD, data, strides=(1,))
    heads = items[np.minimum(starts, last)]
    for row in range(int(np.searchsorted(starts, last, side="right")), len(starts)):
        heads[row : row + 1] = np.frombuffer(data[starts[row] :].ljust(_HEAD_BYTES, b"\0"), _HEAD)
    return heads


def _may_be_times(data: bytes, starts: I32) -> tuple[npt.NDArray[np.intp], I32, Heads]:
    """Return which lines may begin with a time, where, behind a `[`, and their heads there.

    A time begins with a year and a hyphen, or with a month, which a mark may precede.
    """
    heads = _heads(data, starts)
    bracket = _words(heads, 0).astype(np.uint8) == ord("[")
    if bracket.any():
        starts = starts + bracket
        heads = _heads(data, starts)
    words = _words(heads, 0)
    first = words.astype(np.uint8)
    found: Bools = (first - np.uint8(ord("0")) < 10) & (  # noqa: PLR2004 - smaller bytes wrap around
        (words >> np.uint64(32)).astype(np.uint8) == ord("-")
    )
    old = np.flatnonzero(_STARTS[first])
    if len(old):
        marked = (first[old] == ord("*")) | (first[old] == ord("."))
        named = words[old] >> np.where(marked, 8, 0).astype(np.uint64)
        found[old] = np.isin(named & np.uint64(0xFFFFFF), list(_MONTHS))
    places = np.flatnonzero(found)
    if len(places) == len(heads):
        return places, starts, heads
    return places, starts[places], heads[places]


def _words(heads: Heads, at: int) -> Words:
    """Return bytes `at` to `at + 8` of each line."""
    return np.ndarray(heads.shape, "<u8", heads, offset=at, strides=(_HEAD_BYTES,)).copy()


def _columns(heads: Heads, count: int) -> Bytes2D:
    """Return the first bytes of each line, in column order in memory."""
    return np.asfortranarray(heads.view(np.uint8).reshape(-1, _HEAD_BYTES)[:, :count])


# -- one form -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a time.

    Attributes:
        zone_at: Where the zone begins.
        after: The zone, and the byte after it.
        digits: The width of the fraction; `separator` is the byte before it.
        offset_s: The offset of the zone; None if it is the agent's.
        is_iso: It is that of ISO 8601, and otherwise the older one of syslog, `Nov 21 02:16:19`.
    """

    zone_at: int
    after: bytes
    digits: int = 0
    separator: int = 0
    offset_s: int | None = None
    is_iso: bool = True

    @property
    def minute_bytes(self) -> int:
        """The size of date, hour and minute."""
        return 16 if self.is_iso else 12


def _form_of(line: bytes) -> _Form | None:
    """Return the form of the time at the start of a line; None if the form is not usual."""
    found = _ISO.match(line)
    if found is not None:
        digits, named = len(found[1] or b""), found[2] or b""
        zone_at = found.end() - 1 - len(named)
        offset_s = _offset_s(named) if named else None
        if named and offset_s is None:
            return None
        return _Form(zone_at, line[zone_at : found.end()], digits, line[19], offset_s)
    found = _OLD.match(line)
    return None if found is None else _Form(found.end() - 1, b" ", is_iso=False)


def _read(
    form: _Form, heads: Heads, sizes: I32, arrived_ns: UnixNs, zone: Zone
) -> tuple[Ints, Bools]:
    """Return the time of each line, and which lines have one of the form."""
    first, second = _words(heads, 0), _words(heads, _WORD_BYTES)
    if not form.is_iso:
        second &= np.uint64(0xFFFFFFFF)
    changed = (second[1:] != second[:-1]) | (first[1:] != first[:-1])
    runs = np.concatenate(([0], np.flatnonzero(changed) + 1))
    head = _columns(heads[runs], form.minute_bytes)
    if form.is_iso:
        minutes_s, valid = _iso_minutes(head, zone, form.offset_s)
    else:
        minutes_s, valid = _old_minutes(head, arrived_ns, zone)
    lengths = np.diff(runs, append=len(heads))
    read = valid.repeat(lengths) & (sizes >= form.zone_at + len(form.after))
    rest = _words(heads, form.minute_bytes)
    read &= (rest & np.uint64(0xFF)) == ord(":")
    if form.digits:
        read &= (rest >> np.uint64(24)).astype(np.uint8) == form.separator
    seconds, plain = _number(heads, form.minute_bytes + 3, 2)
    read &= plain & (seconds <= 59)  # noqa: PLR2004 - limit of a clock
    ts = (minutes_s * NS_PER_S).repeat(lengths) + seconds * NS_PER_S
    if form.digits:
        fraction, plain = _number(heads, form.zone_at, form.digits)
        read &= plain
        ts += fraction * 10 ** (_FRACTION_DIGITS - form.digits)
    return ts, read & _has_zone(form, heads)


def _has_zone(form: _Form, heads: Heads) -> Bools:
    """Return which lines have the zone of the form, and certainly no other behind it."""
    words = _words(heads, form.zone_at)
    size = len(form.after)
    wanted = np.uint64(int.from_bytes(form.after, "little"))
    found: Bools = (words & np.uint64((1 << 8 * size) - 1)) == wanted
    if form.after == b" ":
        words >>= np.uint64(8)
        if not form.is_iso:  # a year may follow
            found &= words.astype(np.uint8) - np.uint8(ord("0")) >= 10  # noqa: PLR2004
        found &= ~_may_be_zone(words)
    return found


def _may_be_zone(words: Words) -> Bools:
    """Return which words may be a zone, or AM or PM.

    The reader of times (`sluice_protocol.times`) decides about these.
    """
    found: Bools = _SIGNS[words.astype(np.uint8)]
    pairs = words.astype(np.uint16) & np.uint16(_UPPER & 0xFFFF)
    rows = np.flatnonzero(_PREFIXES[pairs])
    if len(rows):
        triples = words[rows] & np.uint64(_UPPER)
        found[rows] |= np.isin(pairs[rows], _PAIRS) | np.isin(triples, _TRIPLES)
    return found


def _number(heads: Heads, end: int, count: int) -> tuple[Ints, Bools]:
    """Return the number that at most nine digits before byte `end` are, and which lines have it."""
    if count > _WORD_BYTES:
        high, is_high = _number(heads, end - 1, count - 1)
        low, is_low = _number(heads, end, 1)
        return high * 10 + low, is_high & is_low
    # The last digit is the highest byte. Bytes before the first digit become the digit 0.
    words = _words(heads, end - _WORD_BYTES)
    above = np.uint64((1 << 64) - (1 << 8 * (_WORD_BYTES - count)))
    words ^= _DIGITS
    words &= above
    plain: Bools = ((words | words + _ABOVE_NINE) & _HIGH) == 0
    # Pairs of digits, then of pairs, then of fours are added up in one multiplication each.
    for factor, bits, mask in _SUMS:
        words *= factor
        words >>= bits
        words &= mask
    return words.view(np.int64), plain


# -- minutes ------------------------------------------------------------------------------


def _is_digit(octets: Bytes2D) -> Bools:
    found: Bools = octets - np.uint8(ord("0")) < 10  # noqa: PLR2004 - smaller bytes wrap around
    return found


def _decimal(head: Bytes2D, *places: int) -> Ints:
    """Return the number that at most four digits of each row are."""
    value = np.zeros(len(head), np.int16)
    for place in places:
        value = value * 10 + (head[:, place] & 15)
    return value.astype(np.int64)


def _iso_minutes(head: Bytes2D, zone: Zone, offset_s: int | None) -> tuple[Ints, Bools]:
    """Return the minute of each row, Unix seconds, and which rows have one.

    Without an offset, they are in the agent's zone.
    """
    valid: Bools = (head[:, 4] == ord("-")) & (head[:, 7] == ord("-"))
    valid &= (head[:, 10] == ord("T")) | (head[:, 10] == ord(" "))
    valid &= head[:, 13] == ord(":")
    for place in _ISO_DIGITS:
        valid &= _is_digit(head[:, place])
    seconds, is_minute = _minutes(
        (_decimal(head, 0, 1, 2, 3), _decimal(head, 5, 6), _decimal(head, 8, 9)),
        (_decimal(head, 11, 12), _decimal(head, 14, 15)),
    )
    valid &= is_minute
    if offset_s is not None:
        seconds -= offset_s
    elif valid.any():
        seconds[valid] -= _local_offsets(seconds[valid], zone)
    return seconds, valid & (seconds >= 0)


def _old_minutes(head: Bytes2D, arrived_ns: UnixNs, zone: Zone) -> tuple[Ints, Bools]:
    """Return the minute of each row, Unix seconds, and which rows have one.

    The year is the latest that puts the line at most a day after its arrival. A minute that this
    limit divides is left to the reader.
    """
    valid: Bools = (head[:, 3] == ord(" ")) & (head[:, 6] == ord(" ")) & (head[:, 9] == ord(":"))
    for place in _OLD_DIGITS:
        valid &= _is_digit(head[:, place])
    valid &= _is_digit(head[:, 4]) | (head[:, 4] == ord(" "))
    code = sum(head[:, place].astype(np.int64) << 8 * place for place in range(3))
    month = np.zeros(len(head), np.int64)
    for name, number in _MONTHS.items():
        month[code == name] = number
    day = np.where(head[:, 4] == ord(" "), 0, _decimal(head, 4)) * 10 + _decimal(head, 5)
    clock = (_decimal(head, 7, 8), _decimal(head, 10, 11))
    year = datetime.fromtimestamp(arrived_ns // NS_PER_S, UTC).year
    limit_s = arrived_ns // NS_PER_S + SLACK_S
    result = np.zeros(len(head), np.int64)
    left = valid.copy()
    for candidate in (year + 1, year, year - 1):
        seconds, is_minute = _minutes((np.full(len(head), candidate), month, day), clock)
        is_minute &= left
        if is_minute.any():
            seconds[is_minute] -= _local_offsets(seconds[is_minute], zone)
        is_minute &= (seconds >= 0) & (seconds <= limit_s)
        result[is_minute] = seconds[is_minute]
        left &= ~is_minute
        valid &= ~is_minute | (seconds + _MINUTE_S <= limit_s)
    return result, valid & ~left


def _minutes(date: tuple[Ints, Ints, Ints], clock: tuple[Ints, Ints]) -> tuple[Ints, Bools]:
    """Return seconds since 1970 as if the zone were UTC, and which rows are valid."""
    (year, month, day), (hour, minute) = date, clock
    valid = (year >= YEARS[0]) & (year <= YEARS[1]) & (month >= 1) & (month <= 12)  # noqa: PLR2004
    valid &= (day >= 1) & (hour <= 23) & (minute <= 59)  # noqa: PLR2004 - limits of a clock
    months = np.where(valid, (year - 1970) * 12 + month - 1, 0).astype("M8[M]")
    days = months.astype("M8[D]") + np.where(valid, day - 1, 0).astype("m8[D]")
    valid &= days.astype("M8[M]") == months  # 31 April would be 1 May
    return days.astype(np.int64) * 86_400 + hour * _HOUR_S + minute * _MINUTE_S, valid


def _offset_s(zone: bytes) -> int | None:
    """Return the offset of `Z`, `+HH:MM` or `+HHMM`, seconds; None for one that no clock has."""
    if zone in (b"Z", b"z"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:  # noqa: PLR2004 - limits of a clock
        return None
    size_s = hours * _HOUR_S + minutes * _MINUTE_S
    return -size_s if zone[:1] == b"-" else size_s


def _local_offsets(seconds: Ints, zone: Zone) -> Ints:
    """Return the zone's offset at each local time, computed once for each minute that occurs."""
    minutes, back = np.unique(seconds // _MINUTE_S, return_inverse=True)
    offsets = [_offset_of_zone(int(one) * _MINUTE_S, zone) for one in minutes]
    return np.array(offsets, np.int64)[back]


@lru_cache(maxsize=4096)
def _offset_of_zone(seconds: int, zone: Zone) -> int:
    """Return the zone's offset at a local time, seconds."""
    naive = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None)
    aware = naive.replace(tzinfo=zone) if zone is not None else naive.astimezone()
    offset = aware.utcoffset()
    return offset // timedelta(seconds=1) if offset is not None else 0
