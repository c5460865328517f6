"""Texts of senders on a terminal, and in a locale that cannot print them: real processes."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import sluice

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


def on_terminal(*words: str, folder: Path | None = None, **variables: str) -> tuple[int, bytes]:
    """Run a command whose output is a terminal; return its exit code and what it printed."""
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "sluice_cli", *words],
        stdout=end,
        stderr=end,
        cwd=folder,
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


def test_a_terminal_shows_which_store_a_command_uses(tmp_path: Path) -> None:
    """It is that of the option, the environment, the settings file, or the working directory."""
    assert sluice("init", "--store", f"file://{tmp_path}/.sluice").returncode == 0
    shown = f"store: file://{tmp_path}/.sluice\r\n".encode()
    for words, variables in [
        (("batches", "--store", f"file://{tmp_path}/.sluice"), {}),
        (("conflicts", "list"), {"SLUICE_STORE": f"file://{tmp_path}/.sluice"}),
        (("query", "-q", "a"), {}),
    ]:
        code, printed = on_terminal(*words, folder=tmp_path, **variables)
        assert code == 0, printed
        assert printed.count(shown) == 1, printed
    (tmp_path / "sluice.toml").write_text(f'store = "file://{tmp_path}/.sluice"\n')
    (tmp_path / "below").mkdir()
    settings = {"SLUICE_CONFIG": str(tmp_path / "sluice.toml")}
    code, printed = on_terminal("gaps", folder=tmp_path / "below", **settings)
    assert shown in printed, printed


def test_a_program_gets_no_line_with_the_store(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    assert sluice("init", "--store", store).returncode == 0
    assert sluice("conflicts", "list", "--store", store).stderr == ""
