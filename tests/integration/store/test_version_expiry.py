"""Noncurrent versions expire on a real versioned server and in a directory."""

import asyncio
from pathlib import Path

import pytest
from support.store_buckets import make_bucket
from support.store_versitygw import CREDENTIALS, versitygw

from sluice_cli.main import run
from sluice_protocol import keys
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store import StoreMode, open_store
from sluice_store.s3.sdk import open_sdk
from sluice_store.s3.settings import S3Settings
from sluice_store.version_expiry import ExpirySettings, expire_versions

NOW = ExpirySettings(retention_s=0)
SWAPS = 30
NEXT_SECOND_S = 2.1
"""A server rounds the times of versions up and its clock down to whole seconds: only after this
time a version counts as superseded."""


async def scenario(url: str) -> None:
    lane, blob = ObjectKey(f"{keys.QUEUE}spark.00/manifest"), ObjectKey(f"{keys.RAW_BLOBS}x")
    async with open_store(url, StoreMode.CREATE) as store:
        for number in range(SWAPS):
            for key in (lane, blob):
                await store.overwrite(key, f"state {number}".encode())
        await asyncio.sleep(NEXT_SECOND_S)
        report = await expire_versions(store, NOW)
        assert report.deleted == {keys.QUEUE: SWAPS - 1}
        assert (await expire_versions(store, NOW)).deleted == {}
        for key, count in ((lane, 1), (blob, SWAPS)):
            pages = [page async for page in store.list_incarnations(key)]
            assert sum(len(page.incarnations) for page in pages) == count
            got = await store.get(key)
            assert isinstance(got, Found)
            assert got.body == f"state {SWAPS - 1}".encode()


def test_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--store", f"file://{tmp_path}"]) == 0
    asyncio.run(scenario(f"file://{tmp_path}"))
    assert run(["gc", "noncurrent", "--store", f"file://{tmp_path}", "--dry-run"]) == 0
    assert "0 of 1 versions to delete" in capsys.readouterr().out


@pytest.mark.s3
def test_a_real_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete without a version id, as a table's vacuum sends it, leaves a marker to remove."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)

    async def vacuum(endpoint: str) -> None:
        settings = S3Settings(bucket="expiry", endpoint=endpoint, region="us-east-1")
        async with open_sdk(settings) as session:
            for number in range(3):
                where = {"Bucket": "expiry", "Key": f"{keys.LAKE}records/{number}.parquet"}
                await session.client.put_object(**where, Body=b"rows")
                await session.client.delete_object(**where)

    with versitygw(tmp_path) as server:
        url = server.url("expiry")
        asyncio.run(make_bucket(url))
        asyncio.run(scenario(url))
        asyncio.run(vacuum(server.endpoint))

        async def again() -> None:
            async with open_store(url) as store:
                await asyncio.sleep(NEXT_SECOND_S)
                assert (await expire_versions(store, NOW)).deleted == {keys.LAKE: 6}
                pages = [page async for page in store.list_incarnations(keys.LAKE)]
                assert [page.incarnations for page in pages] == [()]

        asyncio.run(again())
