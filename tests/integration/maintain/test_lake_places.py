"""Where a batch is in the lake and which rollups contain it, over real tables and a real queue."""

import asyncio
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.query_lake import DAY0_NS, MINUTE_NS, deployment, log_batch, metric_batch
from support.query_rollups import LakeRollups
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally

from sluice_lake.source_ranges import source_range_key
from sluice_maintain.lake_state import make_lake_reader
from sluice_protocol.batch_in_lake import BatchInLake, LakeState, RollupState
from sluice_protocol.distribution import install_command
from sluice_reconciler.explain import read_batch_paths
from sluice_store import open_store

HOUR_NS = 60 * MINUTE_NS


@dataclass
class Place:
    deployment: Deployment
    rollups: LakeRollups

    def read(self, batch: Sent) -> BatchInLake:
        """Return what `sluice explain` and the console show."""

        async def read() -> BatchInLake:
            async with open_store(self.deployment.url) as store:
                reader = make_lake_reader(store, self.deployment.url)
                (path,) = await read_batch_paths(store, batch.manifest.identity, reader)
                assert path.lake is not None
                return path.lake

        return asyncio.run(read())

    def deliver(self, batch: Sent) -> Sent:
        self.deployment.deliver([batch])
        return batch

    def ingest(self) -> None:
        ingest_locally(self.deployment.url)

    def file(self, key: str) -> Path:
        return self.deployment.root / key


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = deployment(tmp_path)
    return Place(deployment=made, rollups=LakeRollups(place=made))


def test_a_batch_of_metrics_from_the_queue_to_its_windows(place: Place) -> None:
    # 400 s from 12:53:20: the samples touch eight minutes and two hours.
    first = place.deliver(
        metric_batch(range(41), from_ns=DAY0_NS // HOUR_NS * HOUR_NS + 3400 * 10**9)
    )
    waiting = place.read(first)
    assert (waiting.state, waiting.row, waiting.rollup.state) == (
        LakeState.NOT_YET, None, RollupState.NOT_YET,
    )  # fmt: skip
    place.ingest()
    stored = place.read(first)
    assert (stored.state, stored.table) == (LakeState.IN_LAKE, "lake/v1/metrics/")
    assert stored.row is not None
    assert stored.row.sequence == 1
    assert place.file(stored.row.key).stat().st_size == stored.row.size_bytes
    assert stored.rollup.state is RollupState.NO_ROLLUPS
    place.rollups.run()
    done = place.read(first).rollup
    assert (done.state, done.source and done.source.number) == (RollupState.ROLLED_UP, 1)
    assert [(one.window, one.count) for one in done.windows] == [("1m", 8), ("1h", 2)]
    start_ns = DAY0_NS // HOUR_NS * HOUR_NS + 3360 * 10**9
    assert done.windows[0].first_start_unix_ns == start_ns
    assert done.windows[1].last_start_unix_ns == DAY0_NS // HOUR_NS * HOUR_NS + HOUR_NS
    assert done.source is not None
    assert done.source.key == source_range_key(1)
    assert done.source.size_bytes == place.file(done.source.key).stat().st_size
    assert done.source.last_modified_unix_ns is not None


def test_each_batch_is_in_the_source_range_that_contains_its_entry(place: Place) -> None:
    batches = []
    for number in range(6):
        batches.append(place.deliver(metric_batch([1.0], start=number)))
        place.ingest()
        place.rollups.run()
    late = place.deliver(metric_batch([1.0], start=100))
    place.ingest()
    place.rollups.run(crash=True)  # the range exists, and its rows were never committed
    found = [place.read(one).rollup.source for one in batches]
    assert [one and one.number for one in found] == [1, 2, 3, 4, 5, 6]
    waiting = place.read(late).rollup
    assert (waiting.state, waiting.source) == (RollupState.NOT_YET, None)
    assert "up to entry 6; the batch is in entry 7" in waiting.reason
    for number in (1, 2):
        place.file(source_range_key(number)).unlink()
    found = [place.read(one).rollup.source for one in batches]
    assert [one and one.number for one in found] == [None, None, 3, 4, 5, 6]
    assert {place.read(one).rollup.state for one in batches} == {RollupState.ROLLED_UP}


def test_logs_and_dead_letters_are_not_rolled_up(place: Place) -> None:
    logs = place.deliver(log_batch(["a", "b"]))
    lost = metric_batch([1.0], start=10)
    place.deployment.accept([lost], blobs=False)
    place.deployment.enqueue([lost])
    place.ingest()
    found = place.read(logs)
    assert (found.state, found.table, found.rollup.state) == (
        LakeState.IN_LAKE, "lake/v1/logs/", RollupState.OTHER_KIND,
    )  # fmt: skip
    dead = place.read(lost)
    assert (dead.state, dead.row) == (LakeState.DEAD_LETTER, None)
    assert dead.problem.startswith("missing: ")
    assert "dead letter" in dead.rollup.reason


@pytest.mark.long
def test_only_the_file_of_the_hour_and_the_agent_is_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deliver(log_batch(["b"], agent="other", at_ns=DAY0_NS))
    place.ingest()
    batches = [
        place.deliver(
            log_batch(["a"], agent=f"host-{agent}", start=hour, at_ns=DAY0_NS + hour * HOUR_NS)
        )
        for hour in range(3)
        for agent in ("a", "b")
    ]
    place.ingest()
    opened: list[str] = []
    read_table = pq.read_table

    def record(path: str, **wanted: Any) -> Any:
        opened.append(path)
        return read_table(path, **wanted)

    monkeypatch.setattr(pq, "read_table", record)
    for batch in batches:
        opened.clear()
        assert place.read(batch).state is LakeState.IN_LAKE
        assert len(opened) == 1, opened


def test_tables_that_cannot_be_read_are_named(place: Place) -> None:
    batch = place.deliver(metric_batch([1.0]))
    logs = place.deliver(log_batch(["a"], agent="host-2"))
    place.ingest()
    place.rollups.run()
    record = place.file(source_range_key(1))
    good = record.read_bytes()
    record.chmod(0o600)
    record.write_bytes(b"{")
    found = place.read(batch)
    assert (found.state, found.rollup.state) == (LakeState.UNREADABLE, RollupState.UNREADABLE)
    assert "not valid" in found.problem
    record.unlink()
    assert "but it is missing" in place.read(batch).problem
    record.write_bytes(good)
    row = place.read(batch).row
    assert row is not None
    file = place.file(row.key)
    ledger = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(b"damaged")
    assert place.read(batch).state is LakeState.UNREADABLE
    file.write_bytes(ledger)
    assert place.read(batch).state is LakeState.IN_LAKE
    table = place.file("lake/v1/batches")
    shutil.rmtree(table / "_delta_log")
    found = place.read(logs)
    assert "not a Delta table" in found.problem
    assert found.rollup.state is RollupState.OTHER_KIND, "what is known of the kind remains"


def test_without_the_packages_of_the_lake_the_extra_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = place.deliver(metric_batch([1.0]))
    monkeypatch.setitem(sys.modules, "sluice_maintain.lake_places", None)
    found = place.read(batch)
    assert (found.state, install_command("query") in found.problem) == (LakeState.UNREADABLE, True)
