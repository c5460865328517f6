"""The conformance suite over a real S3 server, versitygw 1.8.0, on its posix backend."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.store_conformance import (
    CHECKS,
    assert_conforms,
    assert_dated_when_complete,
    assert_doctor,
    put_slowly,
)
from support.store_versitygw import CREDENTIALS, Server, make_bucket, versitygw
from support.store_worker import assert_exact_races

from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import ObjectKey
from sluice_store import open_store
from sluice_store.conformance import Check, race_create
from sluice_store.doctor import DoctorResult, Need, examine
from sluice_store.s3.sdk import open_sdk
from sluice_store.s3.settings import parse_s3_url

pytestmark = pytest.mark.s3


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("versitygw")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with versitygw(folder) as running:
        yield running


def _bucket(check: str) -> str:
    return check.replace("_", "-")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_versitygw_conforms(check: Check, server: Server) -> None:
    """The server keeps every promise of the port, except for the deviations in the table."""
    url = server.url(_bucket(check.__name__), "some/prefix")

    await make_bucket(url)
    async with open_store(url) as store:
        await assert_conforms("versitygw", check, store, "place/")


def test_versitygw_two_endpoints_are_one_store(server: Server, folder: Path) -> None:
    """Two servers over one directory decide a race together: one of 64 writers wins."""

    async def run(second: Server) -> None:
        await make_bucket(server.url("two-endpoints"))
        async with (
            open_store(server.url("two-endpoints")) as one,
            open_store(second.url("two-endpoints")) as other,
        ):
            await race_create([one, other], ObjectKey("key"), 64)

    with versitygw(folder) as second:
        asyncio.run(run(second))


def test_versitygw_doctor_finds_the_marker(server: Server, folder: Path) -> None:
    """Through two endpoints every promise is kept, except a create over a delete marker."""

    async def run(second: Server) -> DoctorResult:
        urls = [server.url("doctor", "pre"), second.url("doctor", "pre")]
        await make_bucket(urls[0])
        async with open_store(urls[0]) as one, open_store(urls[1]) as other:
            return await examine([one, other], urls, SystemIds())

    with versitygw(folder) as second:
        result = asyncio.run(run(second))
    assert_doctor("versitygw", result)
    assert result.good


def test_versitygw_doctor_finds_suspended_versioning(server: Server) -> None:
    """Without versioning acceptance is allowed, and deletion is not."""

    async def run() -> DoctorResult:
        await make_bucket(server.url("unversioned"), versioning=None)
        async with open_store(server.url("unversioned")) as store:
            return await examine([store], ["s3:"], SystemIds())

    result = asyncio.run(run())
    assert result.good
    assert "versioning" in {one.probe for one in result.broken(Need.DELETION)}


def test_versitygw_doctor_finds_that_a_lock_is_kept(server: Server) -> None:
    """The default retention of a bucket keeps the version that the doctor tries to delete."""
    url = server.url("locked")

    async def run() -> DoctorResult:
        await make_bucket(url, lock=True)
        async with open_sdk(parse_s3_url(url)) as sdk:
            rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
            await sdk.client.put_object_lock_configuration(
                Bucket="locked",
                ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule},
            )
        async with open_store(url) as store:
            return await examine([store], ["s3:"], SystemIds())

    result = asyncio.run(run())
    found = {one.probe: one for one in result.findings}
    assert result.good
    assert found["object-lock"].kept
    assert "not tested" in found["delete-incarnation"].seen


def test_versitygw_races_between_processes_are_exact(server: Server) -> None:
    """64 creates from 4 processes have one winner, and their increments add up."""
    url = server.url("processes")
    asyncio.run(make_bucket(url))
    assert_exact_races(url)


async def test_versitygw_dates_an_object_by_its_application(server: Server) -> None:
    """A body that arrives slowly is dated when it is complete."""
    bucket, key = "slow-put", ObjectKey("slow")

    await make_bucket(server.url(bucket))
    times = await asyncio.to_thread(put_slowly, server.endpoint, bucket, key)
    async with open_store(server.url(bucket)) as store:
        found = await store.head(key)
    assert isinstance(found, ObjectInfo)
    assert_dated_when_complete(found.last_modified_ns, *times)
