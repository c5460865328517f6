"""Output without a reader, on a full device, or closed: real processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import sluice

READING = ("status", "gaps --json", "query --help")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("store")
    for words in (("init",), ("doctor",), ("reconciler", "--once")):
        assert sluice(*words, folder=made).returncode == 0
    return made


def shell(line: str, folder: Path) -> tuple[int, str]:
    """Run a line of bash in which `sluice` is the command; return its exit code and stderr."""
    command = f'sluice() {{ "{sys.executable}" -m sluice_cli "$@"; }}; {line}'
    done = subprocess.run(
        ["/bin/bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.daily(1)
@pytest.mark.parametrize("words", READING)
def test_a_reader_that_ended_is_no_fault(words: str, folder: Path) -> None:
    """The code is that of a program that SIGPIPE ended, not that of a problem that was found."""
    # The command starts to write after the reader has ended.
    line = f"sluice {words} | exec true; exit ${{PIPESTATUS[0]}}"
    assert shell(line, folder) == (141, "")


@pytest.mark.daily(1)
@pytest.mark.parametrize("words", READING)
def test_a_full_device_is_one_line(words: str, folder: Path) -> None:
    code, stderr = shell(f"sluice {words} >/dev/full", folder)
    assert code == 2
    assert stderr.startswith("sluice: cannot read or write: No space left on device; free space")
    assert stderr.count("\n") == 1


@pytest.mark.daily(1)
@pytest.mark.parametrize("words", READING)
def test_closed_output_is_discarded(words: str, folder: Path) -> None:
    assert shell(f"sluice {words} >&-", folder) == (0, "")


@pytest.mark.daily(2)
@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_an_error_that_cannot_be_printed_has_its_exit_code(closed: str, folder: Path) -> None:
    assert shell(f"sluice nosuch {closed}", folder) == (2, "")
    assert shell(f"sluice query -q x --store file://./gone {closed}", folder) == (2, "")


def test_ctrl_c_while_the_command_is_imported_is_no_traceback(folder: Path) -> None:
    """A module of the path interrupts the process when the first library is imported."""
    (folder / "msgspec.py").write_text("raise KeyboardInterrupt\n")
    try:
        assert shell("PYTHONPATH=. sluice status", folder) == (130, "")
    finally:
        (folder / "msgspec.py").unlink()


def test_a_file_of_a_store_is_never_standard_output(folder: Path) -> None:
    """What a command prints is not written to the first file that it opens."""
    assert shell("sluice reconciler --once --json >&-", folder)[0] == 0
    assert sluice("status", folder=folder).returncode == 0
