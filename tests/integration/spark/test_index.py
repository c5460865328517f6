import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.spark_lake import Deployment, make_batch
from support.spark_local import ingest_locally

from sluice_protocol.index_chunk import FileIndex, decode_chunk
from sluice_protocol.keys import INDEX
from sluice_protocol.outcomes import Found
from sluice_spark.compact import run_compact
from sluice_spark.index_chunks import run_index
from sluice_spark.settings import CompactSettings
from sluice_store import open_store

pytestmark = pytest.mark.spark


def read_chunks(deployment: Deployment) -> dict[str, FileIndex]:
    async def read() -> dict[str, FileIndex]:
        found = {}
        async with open_store(deployment.url) as store:
            async for page in store.list(f"{INDEX}date="):
                for listed in page.objects:
                    answer = await store.get(listed.key)
                    assert isinstance(answer, Found)
                    for one in decode_chunk(listed.key, answer.body):
                        found[one.file.path] = one
        return found

    return asyncio.run(read())


def test_index_contains_every_file_once_and_matches_every_line(spark: Any, tmp_path: Path) -> None:
    """Each file has one entry; new files get new chunks; filters match every line."""
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
    for one in deployment.sent:
        assert all(whole.may_contain(row[4].encode()) for row in one.rows)
    assert whole.file.agents == ("host-0", "host-1")
    assert not whole.may_contain(b"no such text anywhere")
    assert sum(one.may_contain(b"host-0 line 5") for one in first.values()) == 1


def test_a_run_reads_no_chunk_of_files_that_were_indexed_before(spark: Any, tmp_path: Path) -> None:
    """The recorded state of the table decides. A state of another table, or none, does not."""
    deployment = Deployment(tmp_path, lanes=1).init()
    deployment.deliver([make_batch(0)])
    ingest_locally(deployment.url)
    assert run_index(spark, deployment.url).indexed == 1
    (chunk,) = tmp_path.rglob("*.lmindex.zst")
    chunk.write_bytes(b"damaged")
    assert run_index(spark, deployment.url).indexed == 0
    deployment.deliver([make_batch(10)])
    ingest_locally(deployment.url)
    assert run_index(spark, deployment.url).indexed == 1
    (record,) = tmp_path.rglob("index/v1/progress.json")
    record.write_bytes(record.read_bytes().replace(b'"table_id":"', b'"table_id":"0'))
    assert run_index(spark, deployment.url).indexed == 1
    record.unlink()
    assert run_index(spark, deployment.url).indexed == 1
