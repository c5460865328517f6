"""Entries of the journal of systemd, the cursor, and a `journalctl` that ends."""

import asyncio
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.journalctl import entry, journalctl

from sluice_agent.errors import SpoolBroken
from sluice_agent.inputs.journal import (
    ENTRY_BYTES_MAX,
    EntryLines,
    JournalInput,
    JournalPorts,
    journal_command,
    read_journal_entries,
)
from sluice_agent.spool.batching import RecordBlock
from sluice_agent.spool.format import FileCheckpoint
from sluice_protocol.columns import LogColumns
from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock

ENTRY = {
    "__CURSOR": "s=1;i=2", "__REALTIME_TIMESTAMP": "1795860000000001",
    "__MONOTONIC_TIMESTAMP": "5", "MESSAGE": "paid", "PRIORITY": "3",
    "_SYSTEMD_UNIT": "shop.service", "_PID": "42",
}  # fmt: skip


def read(*entries: object) -> list[tuple[int, object, int, dict[str, str]]]:
    lines = [json.dumps(one).encode() for one in entries]
    found = read_journal_entries(lines, arrived_ns=7).records
    return [(one.ts_ns, one.body, one.severity, dict(one.attributes)) for one in found]


def test_the_fields_of_an_entry() -> None:
    assert read(ENTRY) == [
        (1_795_860_000_000_001_000, "paid", 17, {"_SYSTEMD_UNIT": "shop.service", "_PID": "42"})
    ]


def test_fields_of_other_types_are_kept() -> None:
    """Bytes, repeated fields, none, and a priority or time of another form."""
    assert read({"MESSAGE": [104, 255], "A": ["x", "y"], "B": None, "PRIORITY": "9"}) == [
        (7, "h\udcff", 0, {"A": '["x","y"]', "B": "", "PRIORITY": "9"})
    ]
    assert read({"__REALTIME_TIMESTAMP": "9" * 19, "MESSAGE": None})[0][:2] == (7, "")
    assert read([1])[0][1:] == ("[1]", 0, {"sluice.error": "entry is not an object"})


def test_an_entry_that_is_too_large_is_kept_in_pieces() -> None:
    lines = EntryLines()
    long = b"x" * (ENTRY_BYTES_MAX + 5)
    whole, pieces = lines.feed(b"a\n" + long)
    more = lines.feed(b"end\nb\n")
    assert (whole, more[0]) == ([b"a"], [b"b"])
    assert b"".join([*pieces, *more[1]]) == long + b"end"


def test_the_command_is_one_that_journalctl_accepts(tmp_path: Path) -> None:
    for only_new, since_s in ((False, 0), (True, 0), (True, 1_795_860_000)):
        command = journal_command("", follow=False, only_new=only_new, since_s=since_s)
        try:
            subprocess.run([*command, "-D", tmp_path], check=True, capture_output=True, timeout=60)
        except FileNotFoundError:
            pytest.skip("this machine has no journalctl")


class Run:
    """Runs of the input, with what they put and where they are."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.cursor = ""
        self.saved = ""

    async def put(self, block: RecordBlock) -> None:
        assert isinstance(block.columns, LogColumns)
        self.bodies += block.columns.body.slices()
        self.cursor = block.checkpoints[0].path

    async def save(self, checkpoint: FileCheckpoint) -> None:
        self.saved = checkpoint.path

    async def run(self, stop: asyncio.Event, *, once: bool = True, only_new: bool = False) -> None:
        ports = JournalPorts(put=self.put, save=self.save, clock=SystemClock())
        cursor = self.cursor or self.saved
        await JournalInput(cursor, ports, only_new=only_new, once=once).run(stop)


def test_a_run_begins_after_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journalctl(tmp_path, monkeypatch)
    journal.write_bytes(entry(1) + entry(2))
    run = Run()
    asyncio.run(run.run(asyncio.Event()))
    with journal.open("ab") as file:
        file.write(entry(3))
    asyncio.run(run.run(asyncio.Event()))
    assert run.bodies == [b"message 1", b"message 2", b"message 3"]


def test_only_new_entries_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is stored, so that a stop loses no entry that is written meanwhile."""
    journal = journalctl(tmp_path, monkeypatch)
    journal.write_bytes(entry(1) + entry(2))
    run = Run()
    asyncio.run(run.run(asyncio.Event(), only_new=True))
    assert (run.bodies, run.saved) == ([], "c2")
    with journal.open("ab") as file:
        file.write(entry(3))
    asyncio.run(run.run(asyncio.Event(), only_new=True))
    assert run.bodies == [b"message 3"]


def test_a_journalctl_that_ends_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last entry that was read."""
    monkeypatch.setattr("sluice_agent.inputs.journal.AGAIN_S", (0.01, 0.02))
    journal = journalctl(tmp_path, monkeypatch, fail_after=2)
    journal.write_bytes(b"".join(entry(number) for number in range(5)))
    run, stop = Run(), asyncio.Event()

    async def until_read() -> None:
        running = asyncio.create_task(run.run(stop, once=False))
        while len(run.bodies) < 5:  # noqa: ASYNC110 - the input has no event
            await asyncio.sleep(0.01)
        stop.set()
        await running

    asyncio.run(asyncio.wait_for(until_read(), 60))
    assert run.bodies == [b"message %d" % number for number in range(5)]


def test_new_entries_are_read_after_a_journalctl_that_printed_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of the journal is not the only one that is new by then."""
    monkeypatch.setattr("sluice_agent.inputs.journal.AGAIN_S", (0.01, 0.02))
    journal = journalctl(tmp_path, monkeypatch)
    program = tmp_path / "bin" / "journalctl"
    works = program.read_text()
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit(1)\n")
    new = [
        {"__CURSOR": f"c{number}", "__REALTIME_TIMESTAMP": "8" * 16, "MESSAGE": f"new {number}"}
        for number in range(2)
    ]
    journal.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in new))
    run, stop = Run(), asyncio.Event()

    async def until_read() -> None:
        running = asyncio.create_task(run.run(stop, once=False, only_new=True))
        await asyncio.sleep(0.5)
        program.write_text(works)
        while len(run.bodies) < 2:  # noqa: ASYNC110 - the input has no event
            await asyncio.sleep(0.01)
        stop.set()
        await running

    asyncio.run(asyncio.wait_for(until_read(), 60))
    assert run.bodies == [b"new 0", b"new 1"]
    assert "--since=@7" in journal_command("", follow=True, only_new=True, since_s=7)


def test_a_machine_without_journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadUsage, match="cannot run journalctl"):
        asyncio.run(Run().run(asyncio.Event()))


def test_an_entry_that_cannot_be_stored_ends_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalctl(tmp_path, monkeypatch).write_bytes(entry(1))

    class Full(Run):
        async def put(self, _: RecordBlock) -> None:
            raise SpoolBroken("s", "the spool is closed")

    with pytest.raises(SpoolBroken):
        asyncio.run(Full().run(asyncio.Event()))


@pytest.mark.parametrize("end", ["stop", "failure", "cancellation"])
def test_a_backlog_delays_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The pipe of `journalctl` is full when the agent stops, or its spool cannot be written."""
    journalctl(tmp_path, monkeypatch).write_bytes(b"".join(map(entry, range(20_000))))

    async def until_stopped() -> None:
        stop, has_begun = asyncio.Event(), asyncio.Event()

        class Blocked(Run):
            async def put(self, _: RecordBlock) -> None:
                has_begun.set()
                await asyncio.sleep(0.5 if end == "failure" else 60)
                raise SpoolBroken("s", "the spool is closed")

        running = asyncio.create_task(Blocked().run(stop, once=False))
        await has_begun.wait()
        await asyncio.sleep(0.3)
        if end == "stop":
            stop.set()
        elif end == "cancellation":
            running.cancel()
        await running

    raised = {"failure": SpoolBroken, "cancellation": asyncio.CancelledError}.get(end)
    with pytest.raises(raised) if raised else nullcontext():
        asyncio.run(asyncio.wait_for(until_stopped(), 20))


def test_an_input_that_waits_for_entries_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalctl(tmp_path, monkeypatch).write_bytes(entry(1))

    async def until_cancelled() -> None:
        run = Run()
        running = asyncio.create_task(run.run(asyncio.Event(), once=False))
        while not run.bodies:  # noqa: ASYNC110 - the input has no event
            await asyncio.sleep(0.01)
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(until_cancelled(), 20))


def test_once_ends_with_the_failure_of_journalctl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalctl(tmp_path, monkeypatch, fail_after=1).write_bytes(entry(1) + entry(2))
    with pytest.raises(BadUsage, match="journalctl failed, exit_code="):
        asyncio.run(Run().run(asyncio.Event()))
