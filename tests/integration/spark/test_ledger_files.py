"""Merging the ledger's files between rounds of ingestion, without a JVM."""

from pathlib import Path

import pytest
from support.spark_lake import Deployment, assert_lake_holds, make_batch
from support.spark_local import ingest_locally

from sluice_lake.tables import BATCHES, DEAD_LETTERS
from sluice_spark.compaction import file_merges
from sluice_spark.compaction.file_merges import MergeResult, merge_hours
from sluice_spark.errors import never_stop
from sluice_spark.failpoints import FailPoint, read_failpoint
from sluice_spark.settings import CompactSettings

OPEN = CompactSettings(open_partitions=True)


def merge(place: Deployment, failpoint: FailPoint | None = None) -> MergeResult:
    point = failpoint if failpoint is not None else read_failpoint()
    return merge_hours(place.url, BATCHES, OPEN, 0, failpoint=point, stop=never_stop)


def rounds(place: Deployment, first: int, count: int) -> None:
    for number in range(first, first + count):
        place.deliver([make_batch(number * 10, agent=f"host-{one}") for one in (2, 1)])
        ingest_locally(place.url)


def test_merged_ledger_has_the_same_rows_and_ingestion_continues(tmp_path: Path) -> None:
    place = Deployment(root=tmp_path).init()
    rounds(place, 0, 4)
    key = ("agent_id", "seq_start")
    before = sorted(place.rows("batches"), key=lambda row: [row[name] for name in key])
    assert len(place.table("batches").file_uris()) == 4
    assert merge(place) == MergeResult(files=4)
    assert len(place.table("batches").file_uris()) == 1
    assert place.rows("batches") == before
    # A batch that is enqueued again is still recognised by the merged ledger.
    place.enqueue(place.sent[:2])
    ingest_locally(place.url)
    rounds(place, 4, 2)
    assert_lake_holds(place, place.sent)
    assert len(place.rows("batches")) == len(place.sent) == 12
    assert merge(place).files == len(place.table("batches").file_uris()) + 2
    dead = merge_hours(
        place.url, DEAD_LETTERS, OPEN, 0, failpoint=read_failpoint(), stop=never_stop
    )
    assert dead == MergeResult()


def test_a_merge_whose_files_were_replaced_meanwhile_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the rows would be in the table twice."""
    place = Deployment(root=tmp_path).init()
    rounds(place, 0, 2)
    real = file_merges.replace_files

    def after_a_rival(*args: object, **how: bool) -> None:
        monkeypatch.setattr(file_merges, "replace_files", real)
        assert merge(place).files == 2
        real(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(file_merges, "replace_files", after_a_rival)
    assert merge(place) == MergeResult(conflicts=1)
    assert len(place.rows("batches")) == 4
