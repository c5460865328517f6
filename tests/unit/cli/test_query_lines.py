"""Records as lines of text."""

import sys
from datetime import UTC

import pytest

from sluice_cli.query import (
    LineWriter,
    column_value,
    format_duration,
    is_colored,
    sender_of,
)

ROW: dict[str, object] = {
    "ts": "1970-01-01T00:00:00.000000000Z",
    "agent_id": "web-1",
    "body": "a\tb\x1b[2J\r\n1970-01-01 00:00:01.000Z web-2 forged",
}
WHEN = "1970-01-01 00:00:00.000Z"


def test_a_record_cannot_write_to_the_terminal_or_imitate_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program gets the text as it is."""
    head = f"{WHEN} -     web-1"
    assert LineWriter("logs", zone=UTC).line(ROW) == f"{head} {ROW['body']}"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    first, second = LineWriter("logs", zone=UTC).line(ROW).split("\n")
    assert first == f"{head} a\tb\ufffd[2J\ufffd"
    assert second == "    1970-01-01 00:00:01.000Z web-2 forged"
    hostile = {**ROW, "service": "\x1b[2J", "level": "\x1b[2J", "attributes": {"k": "\x1b[2J"}}
    assert "\x1b" not in LineWriter("logs", zone=UTC).line(hostile)
    assert "\x1b" not in LineWriter("logs", zone=UTC, columns=("k",)).line(hostile)


def test_a_record_is_shown_by_what_its_sender_is_called() -> None:
    door = {"agent_id": "door:shop:57"}
    assert sender_of(door) == "shop"
    assert sender_of({**door, "host": "db-1"}) == "db-1"
    assert sender_of({**door, "host": "db-1", "service": "cart"}) == "cart"


def test_the_level_is_colored_on_a_terminal_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = LineWriter("logs", zone=UTC, colored=True).line({**ROW, "level": "error", "body": "x"})
    assert line == f"\x1b[2m{WHEN}\x1b[0m \x1b[31merror \x1b[0mweb-1 x"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert is_colored("auto")
    monkeypatch.setenv("NO_COLOR", "1")
    assert (is_colored("auto"), is_colored("always"), is_colored("never")) == (False, True, False)


def test_chosen_columns_are_fields_attributes_and_those_of_the_resource() -> None:
    row = {**ROW, "body": "x", "attributes": {"path": "/a", "n": 5}, "resource": {"rack": "r1"}}
    names = ("time", "line", "attributes.path", "n", "resource.rack", "missing")
    shown = LineWriter("logs", zone=UTC, columns=names).line(row)
    assert shown == f"{WHEN}  x  /a  5  r1  -"
    assert column_value(row, "agent") == "web-1"


def test_a_span_is_its_start_service_name_duration_and_status() -> None:
    span: dict[str, object] = {
        "ts": ROW["ts"], "agent_id": "door:shop:57", "service": "cart", "name": "GET /cart",
        "duration_ns": 250_000_002, "status": "error",
    }  # fmt: skip
    writer = LineWriter("spans", zone=UTC)
    assert writer.line(span) == f"{WHEN} cart GET /cart 250 ms error"
    unnamed = {**span, "service": None, "status": "unset"}
    assert writer.line(unnamed) == f"{WHEN} shop GET /cart 250 ms unset"


def test_a_sample_has_its_labels() -> None:
    sample = {**ROW, "name": "hits", "value": 1.5, "attributes": {"path": "/a"}}
    assert LineWriter("metrics", zone=UTC).line(sample) == f'{WHEN} web-1 hits{{path="/a"}} 1.5'


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
