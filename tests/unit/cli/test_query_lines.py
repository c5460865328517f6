"""Records as lines of text."""

import sys

import pytest

from sluice_cli.query import _line

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
