"""Times that people write, in a zone."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from sluice_cli.shell.asking import format_moment, parse_time, parse_zone
from sluice_protocol.errors import BadUsage
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.parameters import parse_instant

NOW_NS = UnixNs(int(datetime(2026, 11, 28, 12, 30, tzinfo=UTC).timestamp()) * NS_PER_S)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-28 14:00", "2026-11-28T13:00:00Z"),
        ("2026-07-01T14:00:30.25", "2026-07-01T12:00:30.25Z"),
        ("14:00", "2026-11-28T13:00:00Z"),
        ("9:05:01", "2026-11-28T08:05:01Z"),
        ("today", "2026-11-27T23:00:00Z"),
        ("yesterday", "2026-11-26T23:00:00Z"),
        ("yesterday 8:00", "2026-11-27T07:00:00Z"),
        ("2026-11-28", "2026-11-27T23:00:00Z"),
        ("2026-10-25 02:30", "2026-10-25T00:30:00Z"),  # the clocks show it twice
        ("1970-01-01 01:00:05", "1970-01-01T00:00:05Z"),
        ("15m", "2026-11-28T12:15:00Z"),
        ("1h30m", "2026-11-28T11:00:00Z"),
        ("2w", "2026-11-14T12:30:00Z"),
        ("2026-11-28T14:00:00+03:00", "2026-11-28T11:00:00Z"),
        ("1790000000", "2026-09-21T14:13:20Z"),
        ("now", "2026-11-28T12:30:00Z"),
    ],
)
def test_a_time_is_that_of_its_zone(text: str, wanted: str) -> None:
    assert parse_instant(parse_time(text, NOW_NS, BERLIN), NOW_NS) == parse_rfc3339(wanted)


def test_times_that_do_not_exist_are_refused_in_one_line() -> None:
    for text in ("25:00", "2026-02-30", "12:61"):
        with pytest.raises(BadUsage, match="no such time"):
            parse_time(text, NOW_NS, BERLIN)
    with pytest.raises(BadUsage, match="unknown time zone: use local, UTC or a name"):
        parse_zone("Mars/Olympus")
    with pytest.raises(BadUsage, match="unknown time zone"):
        parse_zone("../../etc/passwd")


def test_a_shown_time_is_read_again() -> None:
    for zone in (BERLIN, UTC, None):
        shown = format_moment(NOW_NS + 123_000_000, zone)
        assert parse_instant(parse_time(shown, NOW_NS, zone), NOW_NS) == NOW_NS + 123_000_000
    assert format_moment(NOW_NS, BERLIN) == "2026-11-28 13:30:00.000"
    assert format_moment(NOW_NS, UTC) == "2026-11-28 12:30:00.000Z"
    assert parse_zone("local") is None
