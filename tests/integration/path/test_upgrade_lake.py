"""A store with tables of the previous release is ingested, compacted, queried and audited.

The steps of a rolling upgrade: the previous release alone, half of the fleet, this version alone.
Every job of Spark runs in a JVM, as in production.
"""

import json
import re
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest
from support.versions import (
    NEW,
    Version,
    found_lines,
    init_store,
    send_line,
    start_services,
    stop_services,
    wait_ready,
)

from sluice_lake.delta import find_table
from sluice_lake.tables import LOGS, METRICS, Table

JOB_S = 300
"""Longest time of one job of Spark, with its JVM, on a loaded machine."""
COMPACT = ("spark", "compact", "--open-partitions", "--grace-s", "0")
AUDITOR = ("--key-file", "auditor.pem")

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(2400)]


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

    def send(self, version: Version, gateway: str, name: str) -> None:
        """Send a line and a sample with the programs of a version."""
        line = f"line-{name}-end"
        send_line(version, self.folder, gateway, line)
        self.lines.add(line)
        frame = f"{name}.lmbatch"
        version.run(
            self.folder,
            *("frame", "encode", "--agent", "sender", "--boot", name, "--seq-start", "0"),
            *("--kind", "metrics", "--out", frame),
            stdin=json.dumps({"ts": time.time_ns(), "name": "queue_length", "value": 1.0}),
        )
        version.run(
            self.folder,
            *("upload", frame, "--gateway", f"http://{gateway}", "--key", "k.pem"),
        )
        self.points += 1
        self.pending += 2

    def job(self, version: Version, *words: str) -> str:
        """Run a job to its end."""
        return version.run(self.folder, *words, limit_s=JOB_S)

    def wait_enqueued(self, version: Version) -> None:
        """Wait until the queue has every batch that is not ingested."""
        end_s = time.monotonic() + 60
        while (found := self.enqueued(version)) != self.pending:
            assert time.monotonic() < end_s, f"{version.name} finds {found}, not {self.pending}"
            time.sleep(0.5)

    def enqueued(self, version: Version) -> int:
        """Return the number of batches that are enqueued and not acknowledged."""
        shown = version.run(self.folder, "queue", "status", "--json")
        return sum(map(int, re.findall(r'"waiting_batches":\s*(\d+)', shown)))

    def ingest(self, version: Version) -> None:
        """Ingest everything with a job of a version."""
        self.wait_enqueued(version)
        self.job(version, "spark", "ingest", "--once")
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
        shown = self.job(reader, "query", *words, "--json")
        steps = (json.loads(line) for line in shown.splitlines())
        return float(sum(one["value"] for one in steps if "value" in one))

    def rows(self, table: Table) -> int:
        """Return the number of rows of a table in the lake."""
        opened = find_table(f"file://{self.folder}/.sluice", table)
        assert opened is not None
        files = pa.table(opened.get_add_actions(flatten=True))
        return sum(files.column("num_records").to_pylist())


def test_the_lake_survives_an_upgrade(tmp_path: Path, old: Version) -> None:
    init_store(old, tmp_path)
    fleet = Fleet(tmp_path)
    running: list[subprocess.Popen[bytes]] = []
    try:
        # The previous release alone: it makes the tables, and certifies the store.
        old_gateway, old_reconciler, started = start_services(old, tmp_path)
        running += started
        wait_ready([old_gateway, old_reconciler], tmp_path)
        fleet.send(old, old_gateway, "before")
        fleet.ingest(old)
        fleet.job(old, "audit", "run", *AUDITOR)
        fleet.check(old, NEW)

        # Half of the fleet: the old version sends to a new gateway, and the new one ingests.
        new_gateway, new_reconciler, started = start_services(NEW, tmp_path)
        running += started
        wait_ready([new_gateway, new_reconciler], tmp_path)
        fleet.send(old, new_gateway, "half-old")
        fleet.send(NEW, old_gateway, "half-new")
        fleet.ingest(NEW)
        fleet.check(old, NEW)

        # This version alone.
        stop_services(running[:2])
        fleet.send(NEW, new_gateway, "after")
        fleet.ingest(NEW)
        fleet.job(NEW, *COMPACT)
        fleet.check(old, NEW)
        fleet.job(NEW, "audit", "run", "--deep", "1.0", *AUDITOR)
        for version in (old, NEW):
            fleet.job(version, "audit", "verify", *AUDITOR)
    finally:
        for process in running:
            process.kill()
            process.wait()
    for version in (old, NEW):
        assert "0 differences" in fleet.job(version, "rebuild", "--verify")
