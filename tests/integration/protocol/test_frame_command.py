"""The `sluice frame` command in a shell and, where no bytes are printed, in the test's process."""

import io
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support.commands import CommandResult, sluice

LINES = (
    '{"ts":"2026-01-01T00:00:00.000000001Z","body":"hé"}\n'
    '{"ts":"2026-01-01T00:00:00.000000003Z","body":"","severity":9,"attributes":{"a":"b"}}\n'
)
ENCODE = ("encode", "--agent", "A", "--boot", "B", "--seq-start", "3", "--kind", "logs")


def _in_shell(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = (sys.executable, "-m", "sluice_cli", "frame", *arguments)
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)


def _frame(*arguments: str, given: bytes = b"") -> CommandResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), "utf-8"))
        return sluice("frame", *arguments)


@cache
def _encoded() -> bytes:
    """Return a frame that the command has printed."""
    return _in_shell(*ENCODE, given=LINES.encode()).stdout


def test_frames_round_trip_through_the_command(tmp_path: Path) -> None:
    """NDJSON encodes to a frame that decodes to the same NDJSON; `inspect` reports its fields."""
    out = tmp_path / "one.lmbatch"
    resource = ("--resource", "host.name=h1", "--resource", "z=")
    made = _in_shell(*ENCODE, *resource, given=LINES.encode())
    assert (made.returncode, made.stderr) == (0, b"")
    out.write_bytes(made.stdout)
    assert _frame("inspect", str(out), "--records").stdout == LINES
    told = json.loads(_in_shell("inspect", "-", "--json", given=made.stdout).stdout)
    assert told["resource"] == {"host.name": "h1", "z": ""}
    assert (told["seq_start"], told["seq_end"], told["record_count"]) == (3, 4, 2)
    assert told["accepted_key"].endswith("/00000000000000000003-00000000000000000004.json")
    assert told["min_ts"] == "2026-01-01T00:00:00.000000001Z"


def test_inspect_shows_the_version() -> None:
    told = _frame("inspect", "-", given=_encoded()).stdout.splitlines()
    assert [line.split() for line in told if line.startswith("version")] == [["version", "3"]]
    assert (
        json.loads(_frame("inspect", "-", "--json", given=_encoded()).stdout)["frame_version"] == 3
    )


def test_inspect_of_a_later_version_states_what_to_do() -> None:
    """One line with the version, the one that this release reads, and the remedy."""
    made = _encoded()
    done = _frame("inspect", "-", given=made[:4] + b"\x04" + made[5:])
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "unsupported version of frame: a newer version of sluice made it" in line
    assert "found=`4`, supported=`3`" in line


def test_bad_input_prints_one_line_and_sets_the_exit_code() -> None:
    """Each error is one line; bad usage exits with 2, a broken frame with 1."""
    cases = (
        (_frame(*ENCODE, given=b'{"ts":1}'), 2, "line 1: Object missing required field `body`"),
        (_frame(*ENCODE), 2, "no records in the input"),
        (_frame(*ENCODE, "--resource", "x", given=LINES.encode()), 2, "KEY=VALUE"),
        (_frame("inspect", "/nonexistent"), 2, "cannot read the frame"),
        (_frame("inspect", "-", given=b"LMB1"), 1, "field=`magic`"),
    )
    for done, code, says in cases:
        assert done.returncode == code
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
