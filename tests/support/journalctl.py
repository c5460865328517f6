"""A `journalctl` that prints entries of a file, for machines without a journal."""

import json
import sys
from pathlib import Path

import pytest

PROGRAM = """\
#!{python}
import json, os, sys, time
parent = os.getppid()
cursor = next((a.split("=", 1)[1] for a in sys.argv if a.startswith("--after-cursor=")), "")
follow, last = "--follow" in sys.argv, "--lines=1" in sys.argv
shown = 0
with open({path!r}, "rb") as file:
    lines = file.readlines()
    cursors = [json.loads(one)["__CURSOR"] for one in lines]
    start = cursors.index(cursor) + 1 if cursor else 0
    for line in lines[start:][-1 if last else 0:]:
        sys.stdout.buffer.write(line)
        shown += 1
        if shown == {fail_after}:
            sys.exit(1)
    sys.stdout.flush()
    while follow and os.getppid() == parent:  # a killed agent leaves it without a reader
        line = file.readline()
        sys.stdout.buffer.write(line)
        sys.stdout.flush()
        time.sleep(0 if line else 0.02)
"""


def entry(number: int) -> bytes:
    """Return an entry as `journalctl -o json` prints it."""
    found = {
        "__CURSOR": f"c{number}",
        "__REALTIME_TIMESTAMP": str(1_700_000_000_000_000 + number),
        "MESSAGE": f"message {number}",
    }
    return json.dumps(found).encode() + b"\n"


def write_journalctl(folder: Path, *, fail_after: int = 0) -> tuple[Path, Path]:
    """Write the program; return its folder, and the file of entries, which the caller writes."""
    path = folder / "journal.jsonl"
    program = folder / "bin" / "journalctl"
    program.parent.mkdir()
    text = PROGRAM.format(python=sys.executable, path=str(path), fail_after=fail_after or -1)
    program.write_text(text)
    program.chmod(0o755)
    return program.parent, path


def journalctl(folder: Path, monkeypatch: pytest.MonkeyPatch, *, fail_after: int = 0) -> Path:
    """Make it the `journalctl` of this process; return the file of entries."""
    programs, path = write_journalctl(folder, fail_after=fail_after)
    monkeypatch.setenv("PATH", str(programs))
    return path
