"""What a command prints and logs: the data as it is, and one line if it cannot be written."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TextIO

import pytest
import structlog

from sluice_cli.main import main
from sluice_cli.shell.output import emit, print_columns
from sluice_gateway.process import worker
from sluice_web.log_output import log_to_stderr


@pytest.fixture(params=["full disk", "closed pipe"])
def unwritable(request: pytest.FixtureRequest) -> Iterator[TextIO]:
    if request.param == "full disk":
        stream = open("/dev/full", "w", buffering=1)  # noqa: PTH123, SIM115 - closed below
    else:
        reader, writer = os.pipe()
        os.close(reader)
        stream = os.fdopen(writer, "w", buffering=1)
    yield stream
    with suppress(OSError):
        stream.close()


@pytest.fixture
def kept_configuration() -> Iterator[None]:
    known = structlog.get_config()
    yield
    structlog.configure(**known)


def of_gateways() -> None:
    worker.configure_logs(worker=0, skip_probe=False)


@pytest.mark.usefixtures("kept_configuration")
@pytest.mark.parametrize("configure", [log_to_stderr, of_gateways])
def test_a_log_line_that_cannot_be_written_is_lost(
    configure: Callable[[], None], unwritable: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service continues while the disk of its log is full, or when no program reads its log."""
    monkeypatch.setattr(worker, "send_library_logs", lambda: None)
    monkeypatch.setattr(sys, "stderr", unwritable)
    configure()
    log = structlog.get_logger("sluice.test")
    log.warning("first", text="x" * 10_000)
    log.error("second")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("kept_configuration")
@pytest.mark.parametrize("configure", [log_to_stderr, of_gateways])
def test_a_client_cannot_write_to_the_terminal_of_a_service(
    configure: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a request may contain any character, for example those that begin a line."""
    terminal = Terminal()
    monkeypatch.setattr(worker, "send_library_logs", lambda: None)
    monkeypatch.setattr(sys, "stderr", terminal)
    configure()
    structlog.get_logger("sluice.test").info("request_refused", path="/a\n\x1b]0;title\x07\x9b2J")
    shown = terminal.getvalue()
    assert shown.count("\n") == 1
    assert "/a\ufffd\ufffd]0;title\ufffd\ufffd2J" in shown


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_output_on_a_full_disk_is_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115 - closed below
    monkeypatch.setattr(sys, "stdout", full)
    monkeypatch.setattr(sys, "argv", ["sluice", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("sluice: cannot read or write: No space left on device; free space")
    assert said.count("\n") == 1
    with suppress(OSError):
        full.close()


@pytest.mark.parametrize(
    "text", ["sluice-gateway[query]", "[red]agent[/red]", "level :warning: ok"]
)
def test_texts_of_the_data_are_no_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit({}, as_json=False, human=lambda console: console.print(text))
    assert capsys.readouterr().out == f"{text}\n"


def test_columns_are_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a" * 300
    rows = [("state", "id"), ("open", long), ("[red]x", "b")]
    emit({}, as_json=False, human=lambda console: print_columns(console, rows))
    assert capsys.readouterr().out.splitlines() == ["state   id", f"open    {long}", "[red]x  b"]
