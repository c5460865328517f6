"""Windows of time."""

import pytest
from support.maintain_processes import at

from sluice_maintain.time_windows import describe_instant, next_open_ns, parse_windows
from sluice_protocol.errors import BadUsage

HOUR_S = 3600
DAY_S = 24 * HOUR_S


@pytest.mark.parametrize(
    ("text", "at_s", "opens_s"),
    [
        ("", 5, 5),
        ("01:00-02:00", 0, HOUR_S),
        ("01:00-02:00", HOUR_S, HOUR_S),
        ("01:00-02:00", 2 * HOUR_S, DAY_S + HOUR_S),
        ("22:00-04:00", 3 * HOUR_S, 3 * HOUR_S),
        ("22:00-04:00", 4 * HOUR_S, 22 * HOUR_S),
        ("sat 00:00-24:00", 0, 2 * DAY_S),
        ("sat 00:00-24:00, sun 00:00-06:00", 3 * DAY_S + 5 * HOUR_S, 3 * DAY_S + 5 * HOUR_S),
        ("sun 23:00-02:00", 4 * DAY_S + HOUR_S, 4 * DAY_S + HOUR_S),
        ("00:00-24:00", 7, 7),
    ],
)
def test_the_next_instant_at_which_a_window_is_open(text: str, at_s: int, opens_s: int) -> None:
    """The tests begin on a Thursday."""
    assert next_open_ns(parse_windows(text), at(at_s)) == at(opens_s)


@pytest.mark.parametrize("text", ["1-2", "25:00-26:00", "22:00", "so 22:00-23:00", "24:00-24:00"])
def test_another_form_is_refused_and_named(text: str) -> None:
    with pytest.raises(BadUsage, match=text):
        parse_windows(text)


def test_an_instant_is_shown_in_utc() -> None:
    assert describe_instant(at(1)) == "2026-01-01T00:00:01Z"
