import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.query_lake import bodies, make_query, run_query
from support.spark_lake import Deployment, age, files, make_batch
from support.spark_local import ingest_locally

from sluice_lake.data_files import list_files
from sluice_lake.tables import LOGS
from sluice_protocol.index_chunk import IndexedFile, decode_chunk_head
from sluice_protocol.keys import INDEX, index_progress_key
from sluice_protocol.outcomes import Found
from sluice_spark import index
from sluice_spark.commits import replace_files
from sluice_spark.compaction.job import run_compact
from sluice_spark.failpoints import FailPoint
from sluice_spark.index import run_index
from sluice_spark.settings import CompactSettings
from sluice_store import open_store

pytestmark = pytest.mark.spark


def read_chunks(deployment: Deployment) -> dict[str, IndexedFile]:
    async def read() -> dict[str, IndexedFile]:
        found = {}
        async with open_store(deployment.url) as store:
            async for page in store.list(f"{INDEX}logs/date="):
                for listed in page.objects:
                    answer = await store.get(listed.key)
                    assert isinstance(answer, Found)
                    for one in decode_chunk_head(listed.key, answer.body).files:
                        found[one.path] = one
        return found

    return asyncio.run(read())


def test_index_contains_every_file_once_and_matches_every_line(spark: Any, tmp_path: Path) -> None:
    """Each file has one entry; new files get new chunks; every line is found."""
    deployment = Deployment(tmp_path, lanes=1).init()
    for n in range(2):
        deployment.deliver([make_batch(n * 10, agent=f"host-{n}")])
        ingest_locally(deployment.url)
    assert run_index(spark, deployment.url).chunks == 1
    assert run_index(spark, deployment.url).chunks == 0
    first = read_chunks(deployment)
    run_compact(spark, deployment.url, CompactSettings(open_partitions=True))
    assert run_index(spark, deployment.url).chunks == 1
    chunks = read_chunks(deployment)
    assert len(first) == 2
    assert len(chunks) == 3
    (whole,) = (one for path, one in chunks.items() if path not in first)
    assert sum(whole.groups) == sum(len(one.rows) for one in deployment.sent)
    for line in (row[4] for one in deployment.sent for row in one.rows):
        assert line in lines_with(deployment, line)
    nowhere = run_query(deployment, make_query(text="no such text", from_ns=0))
    assert (nowhere.records, nowhere.summary.segments_read) == ([], 0)


@pytest.mark.long
def test_a_run_reads_no_chunk_of_files_that_were_indexed_before(spark: Any, tmp_path: Path) -> None:
    """The recorded state of the table decides. A state of another table, or none, does not."""
    deployment = Deployment(tmp_path, lanes=1).init()
    deployment.deliver([make_batch(0)])
    ingest_locally(deployment.url)
    assert run_index(spark, deployment.url).indexed == 1
    (chunk,) = tmp_path.rglob("*.lmindex")
    chunk.write_bytes(b"damaged")
    assert run_index(spark, deployment.url).indexed == 0
    deployment.deliver([make_batch(10)])
    ingest_locally(deployment.url)
    assert run_index(spark, deployment.url).indexed == 1
    (record,) = tmp_path.rglob("index/v1/logs/progress.json")
    record.write_bytes(record.read_bytes().replace(b'"table_id":"', b'"table_id":"0'))
    assert run_index(spark, deployment.url).indexed == 1
    record.unlink()
    assert run_index(spark, deployment.url).indexed == 1


OPEN = CompactSettings(open_partitions=True)
LONG_AGO_H = 10_000


def ingest(deployment: Deployment, start: int) -> None:
    deployment.deliver([make_batch(start)])
    ingest_locally(deployment.url)


def with_two_indexed_files(spark: Any, root: Path) -> tuple[Deployment, set[Path]]:
    deployment = Deployment(root, lanes=1).init()
    for start in (0, 10):
        ingest(deployment, start)
    run_index(spark, deployment.url)
    return deployment, files(deployment, LOGS)


def vacuum(deployment: Deployment, spark: Any, replaced: set[Path]) -> None:
    """Remove replaced files, as compaction does after the retry horizon and a day."""
    age(deployment, LOGS, replaced, LONG_AGO_H)
    run_compact(spark, deployment.url, OPEN)
    assert not any(path.exists() for path in replaced)


def lines_with(deployment: Deployment, text: str) -> list[object]:
    return bodies(run_query(deployment, make_query(text=text, from_ns=0)))


def make_due(deployment: Deployment) -> list[str]:
    """Make every waiting date due, and return them."""
    path = deployment.root / index_progress_key("logs")
    record = json.loads(path.read_bytes())
    for entry in record["waiting"]:
        entry["due_unix_ns"] = 0
    path.write_text(json.dumps(record))
    return [entry["date"] for entry in record["waiting"]]


def test_chunks_of_replaced_files_are_removed_after_their_files(spark: Any, tmp_path: Path) -> None:
    """Before the vacuum a reader of an older state may need them; searches find the same lines."""
    deployment, replaced = with_two_indexed_files(spark, tmp_path)
    first = set(read_chunks(deployment))
    run_compact(spark, deployment.url, OPEN)
    assert run_index(spark, deployment.url).chunks_removed == 0
    assert len(make_due(deployment)) == 1
    assert run_index(spark, deployment.url).chunks_removed == 0
    assert first < set(read_chunks(deployment))
    vacuum(deployment, spark, replaced)
    assert run_index(spark, deployment.url).chunks_removed == 0, "the date is not due"
    assert len(make_due(deployment)) == 1
    found = lines_with(deployment, "host-1 line 5")
    assert len(found) == 1
    assert run_index(spark, deployment.url).chunks_removed == 1
    assert {deployment.root / "lake/v1/logs" / path for path in read_chunks(deployment)} == files(
        deployment, LOGS
    )
    assert make_due(deployment) == []
    assert lines_with(deployment, "host-1 line 5") == found
    for path in tmp_path.rglob("*.lmindex"):
        path.unlink()
    assert lines_with(deployment, "host-1 line 5") == found


@pytest.mark.long
def test_chunks_of_files_without_a_successor_are_removed(spark: Any, tmp_path: Path) -> None:
    """Retention removes files and adds none; also after an index run that stopped halfway."""
    deployment = Deployment(tmp_path, lanes=1).init()
    ingest(deployment, 0)
    run_index(spark, deployment.url)
    ingest(deployment, 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "read_failpoint", stopped_after_chunks)
        with pytest.raises(KeyboardInterrupt):
            run_index(spark, deployment.url)
    assert len(read_chunks(deployment)) == 2
    removed = files(deployment, LOGS)
    opened = deployment.table("logs")
    replace_files(deployment.url, LOGS, list_files(opened, LOGS), (), data_change=True)
    assert run_index(spark, deployment.url).indexed == 0
    vacuum(deployment, spark, removed)
    assert len(make_due(deployment)) == 1
    assert run_index(spark, deployment.url).chunks_removed == 2
    assert read_chunks(deployment) == {}
    assert make_due(deployment) == []


@pytest.mark.long
def test_a_chunk_of_an_interrupted_run_is_found_although_no_state_names_its_file(
    spark: Any, tmp_path: Path
) -> None:
    """The file was added and removed between two recorded states."""
    deployment = Deployment(tmp_path, lanes=1).init()
    ingest(deployment, 0)
    run_index(spark, deployment.url)
    (kept,) = list_files(deployment.table("logs"), LOGS)
    ingest(deployment, 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "read_failpoint", stopped_after_chunks)
        with pytest.raises(KeyboardInterrupt):
            run_index(spark, deployment.url)
    (new,) = [one for one in list_files(deployment.table("logs"), LOGS) if one != kept]
    replace_files(deployment.url, LOGS, [new], (), data_change=True)
    run_index(spark, deployment.url)
    vacuum(deployment, spark, {deployment.root / "lake/v1/logs" / new.path})
    make_due(deployment)
    assert run_index(spark, deployment.url).chunks_removed == 1
    assert set(read_chunks(deployment)) == {kept.path}


@pytest.mark.long
def test_without_a_record_every_date_with_chunks_is_checked(spark: Any, tmp_path: Path) -> None:
    """A record of another version counts as none."""
    deployment, replaced = with_two_indexed_files(spark, tmp_path)
    run_compact(spark, deployment.url, OPEN)
    run_index(spark, deployment.url)
    vacuum(deployment, spark, replaced)
    path = deployment.root / index_progress_key("logs")
    path.write_bytes(path.read_bytes().replace(b"index_progress.v3", b"index_progress.v2"))
    assert run_index(spark, deployment.url).chunks_removed == 1
    assert run_index(spark, deployment.url).chunks_removed == 0
    path.unlink()
    assert run_index(spark, deployment.url).chunks_removed == 0
    assert len(read_chunks(deployment)) == 1


def stopped_after_chunks() -> FailPoint:
    def stop() -> None:
        raise KeyboardInterrupt

    return FailPoint(step="index_after_chunks", action=stop)
