"""Merging of rollup files by compaction, and what the rollup job reads."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.constants import settings_with
from support.query_lake import make_query, put_delete, run_query
from support.query_rollups import expected, merged
from support.spark_lake import T0_NS, Deployment, make_batch
from support.spark_local import ingest_locally, merge_locally

from sluice_lake.source_ranges import SOURCE_RANGES_PREFIX
from sluice_lake.tables import METRICS
from sluice_protocol.batch_in_lake import ROLLUP_WINDOWS
from sluice_protocol.keys import lane_of
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.request import Aggregate, RecordField, Series
from sluice_query.result import SeriesPoint
from sluice_spark.compaction.file_merges import MergeResult, RollupMerger
from sluice_spark.compaction.job import run_compact
from sluice_spark.errors import never_stop
from sluice_spark.failpoints import FailPoint
from sluice_spark.rollups import job as rollup
from sluice_spark.rollups.job import RollupReport, run_rollup
from sluice_spark.settings import CompactSettings

pytestmark = pytest.mark.spark

AGENTS = ("h-0", "h-1")
MINUTE_NS = 60 * NS_PER_S
DAY_NS = 86_400 * NS_PER_S
OPEN = CompactSettings(open_partitions=True)


def deliver(
    deployment: Deployment, minutes: list[int], first: int = 0, agents: tuple[str, ...] = AGENTS
) -> None:
    """Deliver some samples of two agents; the start of a batch is its time in milliseconds."""
    deployment.deliver(
        [
            make_batch(minute * 60_000 + first, 10, agent=agent, kind="metrics")
            for minute in minutes
            for agent in agents
        ]
    )
    ingest_locally(deployment.url)


COMPARED = (
    (Aggregate.AVG, MINUTE_NS),
    (Aggregate.COUNT, 60 * MINUTE_NS),
    (Aggregate.LAST, 60 * MINUTE_NS),
)


def series(
    deployment: Deployment, compared: tuple[tuple[Aggregate, int], ...] = COMPARED[:1]
) -> dict[str, list[SeriesPoint]]:
    """Return some series, each after a comparison with that of the samples."""
    found = {}
    for aggregate, step_ns in compared:
        wanted = Series(
            metric="m.2", step_ns=step_ns, aggregate=aggregate, by=(RecordField("agent_id"),)
        )
        query = make_query(
            kind="metrics",
            from_ns=UnixNs(T0_NS - T0_NS % DAY_NS),
            to_ns=UnixNs(T0_NS + 2 * DAY_NS),
            series=wanted,
        )
        result = run_query(deployment, query)
        control = run_query(deployment, replace(query, series=replace(wanted, raw=True)))
        assert result.summary.rollup_segments_read > 0
        assert not result.summary.partial
        assert [(one.step_ns, one.by) for one in result.points] == [
            (one.step_ns, one.by) for one in control.points
        ]
        assert [one.value for one in result.points] == pytest.approx(
            [one.value for one in control.points]
        )
        found[aggregate.value] = result.points
    return found


def rollup_files(deployment: Deployment) -> int:
    return len(deployment.table("rollups").file_uris())


def merge(spark: Any, deployment: Deployment, failpoint: FailPoint | None = None) -> MergeResult:
    merger = RollupMerger(
        spark=spark,
        store_url=deployment.url,
        settings=OPEN,
        failpoint=failpoint or FailPoint(),
        stop=never_stop,
    )
    return merger.run(T0_NS)


class Watched(FailPoint):
    """Compares series at each step of a merge, and crashes at one of the steps."""

    def __init__(self, deployment: Deployment, crash_at: int = 0) -> None:
        super().__init__()
        self.deployment, self.crash_at = deployment, crash_at
        self.steps: list[str] = []

    def reach(self, step: str) -> None:
        series(self.deployment)
        self.steps.append(step)
        if len(self.steps) == self.crash_at:
            raise KeyboardInterrupt


def assert_rolled(deployment: Deployment) -> None:
    for window, size_s in ROLLUP_WINDOWS:
        assert merged(deployment.rows("rollups"), window) == expected(deployment, size_s)


def test_a_series_is_equal_at_every_step_of_a_merge(spark: Any, tmp_path: Path) -> None:
    """Samples of two days, late ones too; a crash at each step, then a whole merge."""
    deployment = Deployment(tmp_path).init()
    for turn, minutes in enumerate(([0, 700, 1400], [0, 350, 1050])):
        deliver(deployment, minutes, first=turn * 20)
        run_rollup(spark, deployment.url)
    before = series(deployment, COMPARED)
    files, rows = rollup_files(deployment), len(deployment.rows("rollups"))
    days = {row["window_date"] for row in deployment.rows("rollups")}
    for crash_at in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            merge(spark, deployment, Watched(deployment, crash_at))
    watched = Watched(deployment)
    done = merge(spark, deployment, watched)
    assert (done.conflicts, watched.steps) == (0, ["compact_after_write", "compact_after_commit"])
    assert (rollup_files(deployment), len(days)) == (2, 2)
    assert files > 2 * len(days)
    assert len(deployment.rows("rollups")) < rows
    assert series(deployment, COMPARED) == before
    assert_rolled(deployment)
    sketches = spark.createDataFrame(deployment.table("rollups").to_pyarrow_table()).selectExpr(
        "kll_sketch_get_n_double(kll_merge_agg_double(sketch)) AS n"
    )
    assert sketches.first().n == 2 * sum(count for count, _ in expected(deployment, 60).values())


@pytest.mark.long
def test_a_delete_applies_to_merged_rollups(spark: Any, tmp_path: Path) -> None:
    """A compaction merges them and removes an old source range; the rollup job continues."""
    deployment = Deployment(tmp_path).init()
    for turn in range(3):
        deliver(deployment, [turn * 10])
        run_rollup(spark, deployment.url)
    source_ranges = tmp_path / SOURCE_RANGES_PREFIX
    for path in source_ranges.glob("*.json"):
        os.utime(path, (1, 1))
    put_delete(deployment, delete("A", agent_id="h-1", to_unix_ns=T0_NS + 100 * MINUTE_NS))
    files = rollup_files(deployment)
    report = run_compact(spark, deployment.url, OPEN)
    assert (report.conflicts, report.source_ranges_removed) == (0, 1)
    assert {int(path.stem) for path in source_ranges.glob("*.json")} == {2, 3}
    assert rollup_files(deployment) < files
    assert run_rollup(spark, deployment.url).revised == 1
    series(deployment, COMPARED)
    assert merge(spark, deployment).files > 0
    series(deployment, COMPARED)


def delete(letter: str, **conditions: Any) -> DeleteRecord:
    return DeleteRecord(
        delete_id="01" + letter * 24,
        kind="metrics",
        accepted_until_unix_ns=T0_NS + DAY_NS,
        **conditions,
    )


def run_once(pending: list[Any]) -> None:
    if pending:
        pending.pop()()


@pytest.mark.long
@pytest.mark.parametrize("merge_first", [True, False])
def test_a_merge_and_a_revision_of_the_same_files_double_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge_first: bool
) -> None:
    """One of them commits while the other has written its files: the other one's is refused."""
    deployment = Deployment(tmp_path, lanes=1).init()
    for turn in range(2):
        deliver(deployment, [turn])
        run_rollup(spark, deployment.url)
    put_delete(deployment, delete("A", agent_id="h-1"))
    run_compact(
        spark, deployment.url, settings_with(CompactSettings, open_partitions=True, target_bytes=1)
    )
    merges: list[MergeResult] = []
    revisions: list[RollupReport] = []

    def merge_once(failpoint: FailPoint | None = None) -> None:
        merges.append(merge(spark, deployment, failpoint))

    def revise(failpoint: FailPoint | None = None) -> None:
        monkeypatch.setattr(rollup, "read_failpoint", lambda: failpoint or FailPoint())
        revisions.append(run_rollup(spark, deployment.url))

    if merge_first:
        pending = [merge_once]
        revise(FailPoint(step="rollup_after_write", action=lambda: run_once(pending)))
    else:
        pending = [revise]
        merge_once(FailPoint(step="compact_after_write", action=lambda: run_once(pending)))
    assert [one.revised for one in revisions] == [1]
    assert [one.conflicts for one in merges] == [0 if merge_first else 1]
    for window, size_s in ROLLUP_WINDOWS:
        kept = expected(deployment, size_s, lambda row: row[0] != "h-1")
        assert merged(deployment.rows("rollups"), window) == kept
    series(deployment)


def check_files_read(
    deployment: Deployment, compact: Callable[[], object], roll_up: Callable[[], RollupReport]
) -> None:
    """Check it also after a compaction of everything, and after the log lost the last version.

    One lane is ahead, so the sequences of its files are those that follow in the other lane.
    """
    ahead, behind = AGENTS
    assert lane_of(ahead, deployment.lanes) != lane_of(behind, deployment.lanes)
    for turn in range(4):
        deliver(deployment, [turn * 30], agents=AGENTS if turn < 2 else (ahead,))
    first = roll_up()
    everything = len(deployment.table("metrics").file_uris())
    assert first.files_read == everything >= 4
    deliver(deployment, [300])
    added = len(deployment.table("metrics").file_uris()) - everything
    assert roll_up().files_read == added
    compact()
    assert len(deployment.table("metrics").file_uris()) < everything
    deliver(deployment, [400])
    assert roll_up().files_read == added + 1, "the merged file is new"
    assert roll_up().files_read == 0
    version = max((deployment.root / "lake/v1/metrics/_delta_log").glob("*.json"))
    deployment.table("metrics").create_checkpoint()
    deliver(deployment, [500])
    version.unlink()
    assert roll_up().covers == 1


@pytest.mark.long
def test_a_run_reads_only_files_that_were_added_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollup job without what it writes, so that no JVM is needed; the long test has all."""
    deployment = Deployment(tmp_path).init()
    monkeypatch.setattr(rollup, "_write_rows", lambda *_: [])
    check_files_read(
        deployment,
        lambda: merge_locally(deployment.url, METRICS),
        lambda: run_rollup(None, deployment.url),
    )


@pytest.mark.long
def test_runs_that_read_only_added_files_count_every_sample(spark: Any, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path).init()
    check_files_read(
        deployment,
        lambda: run_compact(spark, deployment.url, OPEN),
        lambda: run_rollup(spark, deployment.url),
    )
    assert_rolled(deployment)
