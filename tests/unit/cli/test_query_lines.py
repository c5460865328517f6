"""Records as lines of text."""

import sys

import pytest

from sluice_cli.query import _line, format_duration

ROW: dict[str, object] = {
    "ts_ns": 0,
    "agent_id": "web-1",
    "body": "a\tb\x1b[2J\r\n1970-01-01T00:00:01Z web-2 forged",
}


def test_a_record_cannot_write_to_the_terminal_or_imitate_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program gets the text as it is."""
    head = "1970-01-01T00:00:00.000000000Z web-1"
    assert _line("logs", ROW) == f"{head} {ROW['body']}"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    first, second = _line("logs", ROW).split("\n")
    assert first == f"{head} a\tb\ufffd[2J\ufffd"
    assert second == "    1970-01-01T00:00:01Z web-2 forged"


def test_a_span_is_its_start_service_name_duration_and_status() -> None:
    span: dict[str, object] = {
        "ts_ns": 0, "agent_id": "door:shop:57", "service": "shop", "name": "GET /cart",
        "duration_ns": 250_000_002, "status": 2,
    }  # fmt: skip
    assert _line("spans", span) == "1970-01-01T00:00:00.000000000Z shop GET /cart 250 ms error"
    unnamed = _line("spans", {**span, "service": None, "status": 0})
    assert unnamed == "1970-01-01T00:00:00.000000000Z door:shop:57 GET /cart 250 ms unset"


@pytest.mark.parametrize(
    ("size_ns", "shown"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_500, "1.5 µs"),
        (999_999, "1000 µs"),
        (12_345_678, "12.3 ms"),
        (-5, "-5 ns"),
        (61_000_000_000, "61.000 s"),
    ],
)
def test_durations_have_a_readable_unit(size_ns: int, shown: str) -> None:
    assert format_duration(size_ns) == shown
