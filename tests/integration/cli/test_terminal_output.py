"""Texts of senders on a terminal, and in a locale that cannot print them: real processes."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ESCAPE = "\x1b[31mé"


@pytest.fixture
def frame(tmp_path: Path) -> Path:
    """A frame whose resource contains a sequence that colours a terminal."""
    made = tmp_path / "made.frame"
    command = [sys.executable, "-m", "sluice_cli", "frame", "encode", "--kind", "logs"]
    identity = ["--agent", "a", "--boot", "b", "--seq-start", "0"]
    with made.open("wb") as output:
        subprocess.run(
            [*command, *identity, "--resource", f"host={ESCAPE}"],
            input=b'{"ts": "2026-01-01T00:00:00Z", "body": "a"}\n',
            stdout=output,
            check=True,
        )
    return made


def on_terminal(*words: str, **variables: str) -> tuple[int, bytes]:
    """Run a command whose output is a terminal; return its exit code and what it printed."""
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "sluice_cli", *words],
        stdout=end,
        stderr=end,
        env={**os.environ, **variables},
    ) as process:
        os.close(end)
        printed = b""
        while part := _read(terminal):
            printed += part
    os.close(terminal)
    return process.returncode, printed


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the process has ended
        return b""


def test_a_text_of_a_sender_executes_nothing(frame: Path) -> None:
    code, printed = on_terminal("frame", "inspect", str(frame))
    assert code == 0
    assert b"\x1b" not in printed
    assert "host=\ufffd[31mé".encode() in printed


def test_a_wrong_word_executes_nothing() -> None:
    code, printed = on_terminal(f"nosuch{ESCAPE}")
    assert code == 2
    assert b"\x1b" not in printed


def test_a_character_that_the_locale_lacks_is_escaped(frame: Path) -> None:
    code, printed = on_terminal("frame", "inspect", str(frame), PYTHONIOENCODING="ascii")
    assert code == 0
    assert rb"host=\ufffd[31m\xe9" in printed
