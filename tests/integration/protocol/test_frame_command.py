"""The `sluice frame` command in a shell."""

import json
import subprocess
import sys
from pathlib import Path

LINES = (
    '{"ts":"2026-01-01T00:00:00.000000001Z","body":"hé"}\n'
    '{"ts":"2026-01-01T00:00:00.000000003Z","body":"","severity":9,"attributes":{"a":"b"}}\n'
)
ENCODE = ("encode", "--agent", "A", "--boot", "B", "--seq-start", "3", "--kind", "logs")


def _frame(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = (sys.executable, "-m", "sluice_cli", "frame", *arguments)
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)


def test_frames_round_trip_through_the_command(tmp_path: Path) -> None:
    """NDJSON encodes to a frame that decodes to the same NDJSON; `inspect` reports its fields."""
    out = tmp_path / "one.lmbatch"
    resource = ("--resource", "host.name=h1", "--resource", "z=")
    made = _frame(*ENCODE, *resource, given=LINES.encode())
    assert (made.returncode, made.stderr) == (0, b"")
    out.write_bytes(made.stdout)
    assert _frame("inspect", str(out), "--records").stdout.decode() == LINES
    told = json.loads(_frame("inspect", "-", "--json", given=made.stdout).stdout)
    assert told["resource"] == {"host.name": "h1", "z": ""}
    assert (told["seq_start"], told["seq_end"], told["record_count"]) == (3, 4, 2)
    assert told["accepted_key"].endswith("/00000000000000000003-00000000000000000004.json")
    assert told["min_ts"] == "2026-01-01T00:00:00.000000001Z"


def test_bad_input_prints_one_line_and_sets_the_exit_code() -> None:
    """Each error is one line; bad usage exits with 2, a broken frame with 1."""
    cases = (
        (_frame(*ENCODE, given=b'{"ts":1}'), 2, b"line 1: Object missing required field `body`"),
        (_frame(*ENCODE), 2, b"no records in the input"),
        (_frame(*ENCODE, "--resource", "x", given=LINES.encode()), 2, b"KEY=VALUE"),
        (_frame("inspect", "/nonexistent"), 2, b"cannot read the frame"),
        (_frame("inspect", "-", given=b"LMB1"), 1, b"field=`magic`"),
    )
    for done, code, says in cases:
        assert done.returncode == code
        assert says in done.stderr
        assert done.stderr.count(b"\n") == 1
