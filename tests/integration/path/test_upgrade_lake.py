"""A store with tables of the previous release is maintained, queried and audited by this one.

The steps of a rolling upgrade: the previous release alone, half of the fleet, this version alone.
In each step `sluice maintain` runs the tasks, with its worker processes and their JVMs.
"""

import json
import re
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from support.versions import (
    NEW,
    Version,
    found_lines,
    init_store,
    send_line,
    start_services,
    stop_services,
    wait_for_value,
    wait_ready,
)

from sluice_lake.delta import find_table
from sluice_lake.tables import LOGS, METRICS, ROLLUPS, Table
from sluice_maintain.tasks import TaskName

SETTINGS = """
[maintain]
master = "local[1]"
driver_memory = "512m"
[maintain.ingest]
backoff_s = 1
backoff_max_s = 1
[maintain.rollup]
every_s = 1
backoff_s = 1
backoff_max_s = 1
[maintain.compact]
every_s = 1
backoff_s = 1
backoff_max_s = 1
open_partitions = true
grace_s = 0
[maintain.index]
every_s = 1
backoff_s = 1
backoff_max_s = 1
[maintain.queue]
every_s = 1
[maintain.audit]
every_s = 1
shards = 4
deep = 1.0
key_file = "auditor.pem"
"""
AUDITOR = ("--key-file", "auditor.pem")
STARVED = "worker_not_started"
"""The reason of a run whose Python worker needed more than ten seconds to start, which is a
constant of Spark. `sluice maintain` repeats such a run after a pause."""

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(7200)]


class Fleet:
    """The store and what was sent to it.

    Attributes:
        folder: The working directory, with the store.
        lines: Every accepted line.
        points: The number of accepted samples.
        pending: The number of accepted batches that no job has ingested.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: set[str] = set()
        self.points = 0
        self.pending = 0

    def send(self, version: Version, gateway: str, name: str, *options: str) -> None:
        """Send a line and a sample with the programs of a version; options are about frames."""
        line = f"line-{name}-end"
        send_line(version, self.folder, gateway, line, *options)
        self.lines.add(line)
        frame = f"{name}.lmbatch"
        version.run(
            self.folder,
            *("frame", "encode", "--agent", "sender", "--boot", name, "--seq-start", "0"),
            *("--kind", "metrics", "--out", frame, *options),
            stdin=json.dumps({"ts": time.time_ns(), "name": "queue_length", "value": 1.0}),
        )
        version.run(
            self.folder,
            *("upload", frame, "--gateway", f"http://{gateway}", "--key", "k.pem"),
        )
        self.points += 1
        self.pending += 2

    def maintain(self, version: Version, *tasks: TaskName) -> None:
        """Run `sluice maintain --once` of a version with some of its tasks; each must succeed.

        On a machine without free processors it is repeated, as the process itself would do.
        """
        left = set(tasks)
        while left:
            since_ns = time.time_ns()
            chosen = (f"--{one}.{'' if one in left else 'no-'}enabled" for one in TaskName)
            done = version.call(self.folder, "maintain", "--once", "--json", *chosen)
            assert done.stdout, done.stderr
            shown = {one["task"]: one for one in json.loads(done.stdout)["tasks"]}
            for task in sorted(left):
                (*_, run) = shown[task]["runs"]
                assert run["started_at_unix_ns"] > since_ns, (shown[task], done.stderr)
                if run["outcome"] == "done":
                    left.remove(task)
                else:
                    assert STARVED in run["reason"], (run, done.stderr)

    def enqueued(self, version: Version) -> int:
        """Return the number of batches that are enqueued and not acknowledged."""
        shown = version.run(self.folder, "queue", "status", "--json")
        return sum(map(int, re.findall(r'"waiting_batches":\s*(\d+)', shown)))

    def ingest(self, version: Version, *further: TaskName) -> None:
        """Ingest everything with the maintenance of a version, and run further tasks."""
        wait_for_value(
            lambda: self.enqueued(version), self.pending, f"the backlog that {version.name} finds"
        )
        self.maintain(version, TaskName.INGEST, *further)
        self.pending = 0
        assert self.enqueued(version) == 0

    def check(self, *readers: Version) -> None:
        """Check that the tables have every record once, and that each version finds it."""
        assert self.rows(LOGS) == len(self.lines)
        assert self.rows(METRICS) == self.points
        for reader in readers:
            assert found_lines(reader, self.folder) == sorted(self.lines)
            assert self.counted(reader) == self.points

    def counted(self, reader: Version) -> float:
        """Return the number of samples that a series of a version is computed from."""
        words = ("--metric", "queue_length", "--from", "1h", "--step", "1h", "--agg", "count")
        shown = reader.run(self.folder, "query", *words, "--json")
        steps = (json.loads(line) for line in shown.splitlines())
        return float(sum(one["value"] for one in steps if "value" in one))

    def opened(self, table: Table) -> DeltaTable:
        """Open a table of the lake."""
        found = find_table(f"file://{self.folder}/.sluice", table)
        assert found is not None
        return found

    def rows(self, table: Table) -> int:
        """Return the number of rows of a table."""
        files = pa.table(self.opened(table).get_add_actions(flatten=True))
        return sum(files.column("num_records").to_pylist())

    def aggregated(self) -> int:
        """Return the number of samples that the rollups of hours contain."""
        rollups = self.opened(ROLLUPS).to_pyarrow_table(columns=["window", "count"])
        hours = rollups.filter(pc.equal(rollups.column("window"), "1h"))
        return sum(hours.column("count").to_pylist())


def test_the_lake_survives_an_upgrade(tmp_path: Path, old: Version) -> None:
    init_store(old, tmp_path)
    (tmp_path / "sluice.toml").write_text(SETTINGS)
    fleet = Fleet(tmp_path)
    running: list[subprocess.Popen[bytes]] = []
    try:
        # The previous release alone: it makes the tables, and certifies the store.
        old_gateway, old_reconciler, started = start_services(old, tmp_path)
        running += started
        wait_ready([old_gateway, old_reconciler], running, tmp_path)
        fleet.send(old, old_gateway, "before")
        fleet.ingest(old, TaskName.AUDIT)
        fleet.check(old, NEW)

        # Half of the fleet: each version sends to the other's gateway, and the new one ingests
        # what the old one then aggregates.
        new_gateway, new_reconciler, started = start_services(NEW, tmp_path)
        running += started
        wait_ready([new_gateway, new_reconciler], running, tmp_path)
        fleet.send(old, new_gateway, "half-old")
        fleet.send(NEW, old_gateway, "half-new")
        fleet.send(NEW, new_gateway, "half-two", "--frame-version", "2")
        fleet.ingest(NEW)
        fleet.maintain(old, TaskName.ROLLUP)
        assert fleet.aggregated() == fleet.points
        fleet.check(old, NEW)

        # This version alone.
        stop_services(running[:2])
        fleet.send(NEW, new_gateway, "after")
        fleet.send(NEW, new_gateway, "after-two", "--frame-version", "2")
        fleet.ingest(NEW)
        files = len(fleet.opened(LOGS).file_uris())
        fleet.maintain(
            *(NEW, TaskName.ROLLUP, TaskName.COMPACT, TaskName.INDEX),
            *(TaskName.QUEUE, TaskName.AUDIT),
        )
        assert fleet.aggregated() == fleet.points
        assert len(fleet.opened(LOGS).file_uris()) < files
        fleet.check(old, NEW)
        for version in (old, NEW):
            version.run(tmp_path, "audit", "verify", *AUDITOR)
    finally:
        for process in running:
            process.kill()
            process.wait()
    for version in (old, NEW):
        assert "0 differences" in version.run(tmp_path, "rebuild", "--verify")
