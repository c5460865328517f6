"""What a source range reads while another job works. No test here starts a JVM."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.spark_lake import T0_NS, Deployment, make_batch
from support.spark_local import ingest_locally

from sluice_lake.data_files import list_files
from sluice_lake.delta import open_or_create_table
from sluice_lake.tables import METRICS
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_spark.commits import replace_files
from sluice_spark.compaction.file_selection import MaintenanceInput, read_maintenance_input
from sluice_spark.rollups import inputs as rollup_input
from sluice_spark.rollups.inputs import RollupInputReader
from sluice_store import open_store
from sluice_store.port import ObjectStore

DAY_NS = 86_400 * 10**9


async def put_delete(store: ObjectStore, letter: str, **conditions: Any) -> None:
    record = DeleteRecord(
        delete_id="01" + letter * 24,
        kind="metrics",
        accepted_until_unix_ns=T0_NS + DAY_NS,
        **conditions,
    )
    await store.create(delete_key(record.delete_id), encode_record(record))


@pytest.mark.parametrize("at", [1, 2], ids=["after the first read", "after the second read"])
def test_retention_during_a_run_is_known_or_has_removed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Hours are aggregated again only from files that contain all of their points.

    A retention is created and applied after a read of the deletes. The job must either know it or
    use the files of before.
    """
    place = Deployment(tmp_path, lanes=1).init()
    place.deliver([make_batch(0, 40, kind="metrics")])
    ingest_locally(place.url)
    assert RollupInputReader(store_url=place.url).next_range(0) is not None
    reads = 0

    async def read(store: ObjectStore) -> MaintenanceInput:
        nonlocal reads
        reads += 1
        found = await read_maintenance_input(store)
        if reads == at:
            await put_delete(store, "B", to_unix_ns=T0_NS + DAY_NS)
            await asyncio.to_thread(remove_everything)
        return found

    def remove_everything() -> None:
        files = list_files(open_or_create_table(place.url, METRICS), METRICS)
        replace_files(place.url, METRICS, files, (), data_change=True)

    async def delete_one() -> None:
        async with open_store(place.url) as store:
            await put_delete(store, "A", contains="m.2")

    asyncio.run(delete_one())
    monkeypatch.setattr(rollup_input, "read_maintenance_input", read)
    reader = RollupInputReader(store_url=place.url)
    source = reader.next_range(1)
    assert source is not None
    found = reader.read_input(source)
    assert [one.contains for one in found.new_deletes] == ["m.2"]
    assert reads >= at
    samples = sum(one.records or 0 for one in found.files)
    assert (samples, found.retention_cut_ns) == ((0, T0_NS + DAY_NS) if at == 1 else (40, None))
