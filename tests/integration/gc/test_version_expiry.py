"""Noncurrent versions expire on a real versioned server and in a directory."""

import asyncio
from pathlib import Path

import pytest
from support.store_versitygw import CREDENTIALS, NEXT_SECOND_S, Server, make_bucket, versitygw

from sluice_cli.main import run
from sluice_gc import version_expiry
from sluice_gc.settings import ExpirySettings
from sluice_gc.version_expiry import expire_versions
from sluice_protocol import keys
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store import StoreMode, open_store
from sluice_store.s3.sdk import open_sdk
from sluice_store.s3.settings import parse_s3_url

NOW = ExpirySettings(retention_s=0)
SWAPS = 30


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


def on_server(server: Server) -> None:
    """Expire registers, and the markers that deletes of a table's vacuum leave."""
    url = server.url("expiry")

    async def vacuum() -> None:
        async with open_sdk(parse_s3_url(url)) as session:
            for number in range(3):
                where = {"Bucket": "expiry", "Key": f"{keys.LAKE}records/{number}.parquet"}
                await session.client.put_object(**where, Body=b"rows")
                await session.client.delete_object(**where)

    async def run() -> None:
        await make_bucket(url)
        await scenario(url)
        await vacuum()
        async with open_store(url) as store:
            await asyncio.sleep(NEXT_SECOND_S)
            assert (await expire_versions(store, NOW)).deleted == {keys.LAKE: 6}
            pages = [page async for page in store.list_incarnations(keys.LAKE)]
            assert [page.incarnations for page in pages] == [()]

    asyncio.run(run())


@pytest.mark.long
def test_moto(
    moto: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of concurrent deletes of versions of one key, moto loses some: it copies the list of them.
    monkeypatch.setattr(version_expiry, "CONCURRENT_REQUESTS", 1)
    on_server(moto)
    url = moto.url("expiry")
    assert run(["init", "--store", url]) == 0
    assert run(["gc", "noncurrent", "--store", url, "--dry-run"]) == 0
    assert "0 of 1 versions to delete" in capsys.readouterr().out


@pytest.mark.s3
def test_a_real_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with versitygw(tmp_path) as server:
        on_server(server)
