"""What maintenance may remove: old files, old source ranges, and samples by retention.

No test needs a JVM.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, Transaction
from structlog.testing import capture_logs
from support.query_lake import put_delete
from support.query_rollups import LakeRollups
from support.spark_lake import T0_NS, Deployment, age, files, folder, make_batch
from support.spark_local import ingest_locally

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import open_or_create_table
from sluice_lake.errors import CommitConflict
from sluice_lake.source_ranges import SOURCE_RANGES_PREFIX, source_range_key
from sluice_lake.tables import BATCHES, LOGS, METRICS, TABLES, Table
from sluice_protocol.authority import Authority
from sluice_protocol.keys import lane_of, rollup_key
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_spark.commits import commit_from_state, replace_files
from sluice_spark.compaction.file_merges import merge_hours
from sluice_spark.compaction.job import CompactReport, Vacuum, _Compactor, _read_input
from sluice_spark.errors import never_stop
from sluice_spark.failpoints import FailPoint
from sluice_spark.settings import CompactSettings

OPEN = CompactSettings(open_partitions=True)
HORIZON_H = -(-Authority(authority_id="A" * 26).retry_horizon_s // 3600)
KEPT_H = HORIZON_H + OPEN.vacuum_hours
DAY_NS = 86_400 * NS_PER_S


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "store", lanes=1).init()


def vacuum(place: Deployment, settings: CompactSettings = OPEN) -> Vacuum:
    found = _read_input(place.url)
    return Vacuum(store_url=place.url, settings=settings, input=found, stop=never_stop)


def ingest(place: Deployment, start: int, kind: str = "logs", agent: str = "host-1") -> None:
    place.deliver([make_batch(start, kind=kind, agent=agent)])
    ingest_locally(place.url)


def merge(place: Deployment) -> set[Path]:
    """Merge the files of the ledger; return the replaced ones."""
    before = files(place, BATCHES)
    now_ns = SystemClock().now_ns()
    merge_hours(place.url, BATCHES, OPEN, now_ns, failpoint=FailPoint(), stop=never_stop)
    return before - files(place, BATCHES)


def stray(place: Deployment, table: Table, name: str) -> Path:
    path = folder(place, table) / f"{table.partition_column}=2026-09-21" / f"{name}.parquet"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"x")
    return path


def test_a_file_goes_an_hour_after_the_horizon_and_never_before(place: Deployment) -> None:
    """Replaced and uncommitted files; a file of the newest state stays, however old it is."""
    for start in (0, 10):
        ingest(place, start)
    long_ago = merge(place)
    ingest(place, 20)
    lately = merge(place)
    ingest(place, 30)
    live = files(place, BATCHES)
    old, new = stray(place, BATCHES, "old"), stray(place, BATCHES, "new")
    assert (len(long_ago), len(lately)) == (2, 2)
    age(place, BATCHES, {*long_ago, old}, KEPT_H + 0.1)
    age(place, BATCHES, {*lately, new}, KEPT_H - 0.1)
    age(place, BATCHES, live, 10 * KEPT_H)
    assert vacuum(place, replace(OPEN, dry_run=True)).remove_files() == 3
    assert vacuum(place, replace(OPEN, vacuum_hours=-1)).remove_files() == 0
    assert all(path.exists() for path in (*long_ago, old))
    assert vacuum(place).remove_files() == 3
    assert not any(path.exists() for path in (*long_ago, old))
    assert all(path.exists() for path in (*lately, *live, new))
    assert len(place.rows("batches")) == 4


def test_a_part_of_an_hour_of_the_horizon_counts_as_an_hour(place: Deployment) -> None:
    """delta-rs accepts whole hours only; rounding down would remove a file too early."""
    ingest(place, 0)
    one = vacuum(place)
    longer = replace(one, input=replace(one.input, retry_horizon_s=HORIZON_H * 3600 + 1))
    path = stray(place, BATCHES, "old")
    age(place, BATCHES, {path}, KEPT_H + 0.5)
    assert longer.remove_files() == 0
    assert one.remove_files() == 1


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_table_is_vacuumed(place: Deployment, table: Table) -> None:
    open_or_create_table(place.url, table)
    path = stray(place, table, "old")
    age(place, table, {path}, KEPT_H + 1)
    assert vacuum(place).remove_files() == 1
    assert not path.exists()


def data_files(place: Deployment, table: Table) -> list[DataFile]:
    return list_files(place.table(table.name), table)


def test_a_commit_in_between_is_not_passed_over(place: Deployment) -> None:
    """delta-rs would rebase the second replacement, and the rows would exist twice."""
    ingest(place, 0)
    found = data_files(place, LOGS)

    def replaced_meanwhile(opened: DeltaTable) -> Transaction:
        replace_files(place.url, LOGS, found, (), data_change=True)
        return Transaction("test", (opened.transaction_version("test") or 0) + 1)

    with pytest.raises(CommitConflict, match="already replaced"):
        commit_from_state(place.url, LOGS, found, (), data_change=True, advance=replaced_meanwhile)
    assert place.table("logs").transaction_version("test") is None


def test_a_commit_is_based_on_the_state_that_was_checked(place: Deployment) -> None:
    """Batches that were added meanwhile cause another attempt; delta-rs would pass over them."""
    ingest(place, 0)
    found = data_files(place, LOGS)
    versions: list[int] = []

    def added_meanwhile(opened: DeltaTable) -> Transaction:
        versions.append(opened.version())
        if len(versions) == 1:
            ingest(place, 10)
        return Transaction("test", 1)

    commit_from_state(place.url, LOGS, found, (), data_change=True, advance=added_meanwhile)
    assert len(versions) == 2
    assert versions[1] > versions[0]
    assert place.table("logs").version() == versions[1] + 1


@pytest.mark.long
def test_source_ranges_go_when_they_are_as_old_as_vacuumed_files(place: Deployment) -> None:
    """Those of the table's newest state and the one before stay, however old they are."""
    rollups = LakeRollups(place=place)
    for start in range(5):
        ingest(place, start * 10, kind="metrics")
        rollups.run()

    def stored() -> list[int]:
        return sorted(int(path.stem) for path in (place.root / SOURCE_RANGES_PREFIX).glob("*.json"))

    def make_older(numbers: range, hours: float) -> None:
        for number in numbers:
            path = place.root / source_range_key(number)
            older_s = path.stat().st_mtime - hours * 3600
            os.utime(path, (older_s, older_s))

    assert vacuum(place).remove_source_ranges() == 0
    make_older(range(1, 3), KEPT_H + 0.1)
    make_older(range(3, 4), KEPT_H - 0.1)
    assert vacuum(place, replace(OPEN, dry_run=True)).remove_source_ranges() == 0
    assert vacuum(place, replace(OPEN, vacuum_hours=-1)).remove_source_ranges() == 0
    assert vacuum(place).remove_source_ranges() == 2
    assert stored() == [3, 4, 5]
    make_older(range(3, 6), 10 * KEPT_H)
    assert vacuum(place).remove_source_ranges() == 1
    assert stored() == [4, 5]
    rollups.run(crash=True)
    assert stored() == [4, 5, 6]


def test_rollup_chunks_go_at_an_age_when_the_table_has_their_rows(place: Deployment) -> None:
    rollups = LakeRollups(place=place)
    for start in range(2):
        ingest(place, start * 10, kind="metrics")
        rollups.run()
    now_ns = SystemClock().now_ns()

    def chunk(window: str, days: float, chunk_id: str, written_days: float | None = None) -> Path:
        key = rollup_key(window, "cpu", UnixNs(int(now_ns - days * DAY_NS)), chunk_id)
        path = place.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"chunk")
        at_s = now_ns / NS_PER_S - (days if written_days is None else written_days) * 86_400
        os.utime(path, (at_s, at_s))
        return path

    first, second, third = (f"{number:020d}" for number in (1, 2, 3))
    gone = [chunk("1m", 40, first), chunk("1h", 40, f"{second}-all"), chunk("1h", 32, second)]
    kept = [
        chunk("1m", 40, third),  # the table does not contain this source range
        chunk("1m", 40, second, written_days=1),  # late samples
        chunk("1m", 28, first),
        chunk("1m", 40, "foreign"),
    ]
    for settings in (replace(OPEN, dry_run=True), replace(OPEN, chunk_days=0)):
        assert vacuum(place, settings).remove_chunks() == 0
    assert vacuum(place).remove_chunks() == len(gone)
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)
    assert vacuum(place, replace(OPEN, chunk_days=20)).remove_chunks() == 1
    assert not kept[2].exists()


def drop_deleted(place: Deployment, settings: CompactSettings = OPEN) -> CompactReport:
    """Apply the deletes of metrics; only whole files, so that no JVM is needed."""
    report = CompactReport()
    compactor = _Compactor(
        spark=None,  # type: ignore[arg-type]
        store_url=place.url,
        settings=settings,
        input=_read_input(place.url),
        overlaps={},
        report=report,
        failpoint=FailPoint(),
        stop=never_stop,
    )
    compactor._drop_deleted("metrics", METRICS)
    return report


def retain(place: Deployment, letter: str = "A", **more: object) -> None:
    put_delete(
        place,
        DeleteRecord(
            delete_id="01" + letter * 24,
            kind="metrics",
            accepted_until_unix_ns=T0_NS + 2 * DAY_NS,
            to_unix_ns=T0_NS + DAY_NS,
            **more,  # type: ignore[arg-type]
        ),
    )


def test_retention_waits_until_rollups_contain_the_samples(place: Deployment) -> None:
    ingest(place, 0, kind="metrics")
    rollups = LakeRollups(place=place)
    rollups.run()
    ingest(place, 10, kind="metrics")
    retain(place)
    with capture_logs() as logs:
        report = drop_deleted(place)
    assert (report.dropped_rows, report.waiting_for_rollups) == (10, 1)
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == [
        "retention_waits_for_rollups"
    ]
    assert {row["seq"] for row in place.rows("metrics")} == set(range(10, 20))
    rollups.run()
    report = drop_deleted(place)
    assert (report.dropped_rows, report.waiting_for_rollups) == (10, 0)
    assert place.rows("metrics") == []


def test_retention_does_not_wait_without_rollups_or_if_it_is_off(place: Deployment) -> None:
    ingest(place, 0, kind="metrics")
    retain(place)
    assert drop_deleted(place).dropped_rows == 10
    LakeRollups(place=place).run()
    ingest(place, 10, kind="metrics")
    assert drop_deleted(place, replace(OPEN, await_rollups=False)).dropped_rows == 10


def test_retention_keeps_every_sample_if_the_source_range_is_missing(place: Deployment) -> None:
    ingest(place, 0, kind="metrics")
    LakeRollups(place=place).run()
    (place.root / source_range_key(1)).unlink()
    retain(place)
    assert drop_deleted(place).waiting_for_rollups == 1


@pytest.mark.long
def test_retention_waits_only_for_files_that_are_new_since_the_rollups(tmp_path: Path) -> None:
    """Sequences of lanes overlap, so the sequences of a file alone do not show that it is old."""
    place = Deployment(tmp_path / "store", lanes=2).init()
    assert lane_of("host-1", 2) != lane_of("host-2", 2)
    for start in (0, 10, 20):
        ingest(place, start, kind="metrics")
    ingest(place, 0, kind="metrics", agent="host-2")
    LakeRollups(place=place).run()
    ingest(place, 10, kind="metrics", agent="host-2")
    retain(place)
    report = drop_deleted(place)
    assert (report.dropped_rows, report.waiting_for_rollups) == (40, 1)


def test_a_delete_that_is_no_retention_does_not_wait_for_rollups(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(place, 0, kind="metrics")
    LakeRollups(place=place).run()
    ingest(place, 10, kind="metrics")
    retain(place)
    retain(place, "B", from_unix_ns=1)
    searched: list[tuple[list[int], list[str]]] = []

    def record(
        self: object, table: Table, some: list[DataFile], deletes: list[DeleteRecord]
    ) -> list[DataFile]:
        del self, table
        sequences = [one.sequences[0] for one in some if one.sequences]
        searched.append((sequences, [one.delete_id[-1] for one in deletes]))
        return []

    monkeypatch.setattr(_Compactor, "_find_deleted", record)
    assert drop_deleted(place).dropped_rows == 10
    assert searched == [([2], ["B"])]
