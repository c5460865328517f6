"""Windows of time in which a task may start, in UTC.

`22:00-04:00` is every night; `sat 00:00-24:00, sun 00:00-24:00` is the weekend. A window that ends
at or before its start ends on the next day. An empty text is always open.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_S: Final = 86_400
_WEEK_S: Final = 7 * _DAY_S
_THURSDAY: Final = 3
"""The weekday of 1970-01-01."""
_WINDOW: Final = re.compile(
    r"(?:(mon|tue|wed|thu|fri|sat|sun) +)?([01]\d|2[0-4]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """One window: seconds from the start of a week, and a length below a week."""

    start_s: int
    length_s: int


def parse_windows(text: str) -> tuple[TimeWindow, ...]:
    """Return the windows in a text; an empty text has none, which means always."""
    parts = [part.strip().lower() for part in text.split(",") if part.strip()]
    return tuple(window for part in parts for window in _parse_window(part))


def _parse_window(part: str) -> list[TimeWindow]:
    found = _WINDOW.fullmatch(part)
    if found is None:
        raise _not_a_window(part)
    start_s = int(found[2]) * 3600 + int(found[3]) * 60
    end_s = int(found[4]) * 3600 + int(found[5]) * 60
    if start_s >= _DAY_S or end_s > _DAY_S:
        raise _not_a_window(part)
    length_s = end_s - start_s if end_s > start_s else end_s - start_s + _DAY_S
    days = [_DAYS.index(found[1])] if found[1] else range(len(_DAYS))
    return [TimeWindow(start_s=day * _DAY_S + start_s, length_s=length_s) for day in days]


def _not_a_window(part: str) -> BadUsage:
    return BadUsage(
        "window must be HH:MM-HH:MM in UTC, with a weekday in front if wanted, such as"
        f" `sat 22:00-04:00`, window=`{part[:40]}`"
    )


def next_open_ns(windows: Sequence[TimeWindow], at_ns: int) -> int:
    """Return the first instant at or after `at_ns` at which a window is open."""
    if not windows:
        return at_ns
    return min(at_ns + _wait_ns(window, at_ns) for window in windows)


def _wait_ns(window: TimeWindow, at_ns: int) -> int:
    week_ns = (at_ns + _THURSDAY * _DAY_S * NS_PER_S) % (_WEEK_S * NS_PER_S)
    since_ns = (week_ns - window.start_s * NS_PER_S) % (_WEEK_S * NS_PER_S)
    return 0 if since_ns < window.length_s * NS_PER_S else _WEEK_S * NS_PER_S - since_ns


def describe_instant(at_ns: int) -> str:
    """Return an instant with seconds, for example `2026-01-02T03:04:05Z`."""
    return f"{datetime.fromtimestamp(at_ns // NS_PER_S, UTC):%Y-%m-%dT%H:%M:%SZ}"
