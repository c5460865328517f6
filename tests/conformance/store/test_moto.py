"""The S3 adapter on moto, the S3 of ordinary tests: the conformance suite, and what only S3 has."""

import asyncio
import gc
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import ClientResponse
from support.store_conformance import (
    CHECKS,
    MOTO_DEFAULT_RETENTION,
    assert_conforms,
    assert_dated_when_complete,
    assert_doctor,
    put_slowly,
)
from support.store_versitygw import NEXT_SECOND_S, Server, make_bucket

from sluice_gc.settings import ExpirySettings
from sluice_gc.version_expiry import expire_versions
from sluice_protocol.errors import StoreDenied, StoreMisconfigured
from sluice_protocol.keys import QUEUE
from sluice_protocol.outcomes import Applied, Found, Mismatch, NotFound, ObjectInfo
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import ObjectKey, ObjectVersion
from sluice_store import StoreMode, open_store
from sluice_store.administration import Trial, open_administration
from sluice_store.conformance import Check, collect_incarnations, collect_keys
from sluice_store.doctor import DoctorResult, examine
from sluice_store.s3.sdk import open_sdk
from sluice_store.s3.settings import parse_s3_url
from sluice_store.s3.store import S3Store


@pytest.fixture(scope="module")
def server(moto: Server) -> Server:
    asyncio.run(make_bucket(moto.url("bucket")))
    return moto


DEAR = ("check_list_pages", "check_counter")
"""Thousands of requests. `test_pages_of_three` lists pages daily, and the model counts daily."""


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    "check",
    [pytest.param(one, marks=[pytest.mark.long] if one.__name__ in DEAR else []) for one in CHECKS],
    ids=lambda check: check.__name__,
)
async def test_moto_conforms(check: Check, server: Server) -> None:
    """The mock keeps every promise of the port, except for the deviations in the table."""
    url = server.url("bucket", check.__name__)

    async with open_store(url) as store:
        await assert_conforms("moto", check, store, "place/")


async def test_moto_dates_an_object_by_its_application(server: Server) -> None:
    """A body that arrives slowly is dated when it is complete."""
    bucket, key = "bucket", ObjectKey("slow")

    times = await asyncio.to_thread(put_slowly, server.endpoint, bucket, key)
    async with open_store(server.url(bucket)) as store:
        found = await store.head(key)
    assert isinstance(found, ObjectInfo)
    assert_dated_when_complete(found.last_modified_ns, *times)


def test_moto_doctor_finds_its_deviations(server: Server) -> None:
    """The doctor of the product reports the table's deviations, and no gateway starts on moto."""

    async def run() -> DoctorResult:
        async with open_store(server.url("bucket", "doctor")) as store:
            return await examine([store], ["s3:"], SystemIds())

    result = asyncio.run(run())
    assert_doctor("moto", result)
    assert not result.good


async def test_pages_of_three(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects, versions and markers are listed once and in order, over pages and within bounds."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    names = [f"{letter}/{number}" for letter in "ab" for number in range(4)]

    async with open_store(server.url("bucket", "pages")) as store:
        assert isinstance(store, S3Store)
        for name in names:
            await store.create(ObjectKey(name), b"first")
            await store.overwrite(ObjectKey(name), b"second")
        await store.delete_current(ObjectKey("a/1"))
        pages = [page async for page in store.list("")]
        assert [len(page.objects) for page in pages] == [3, 3, 1]
        assert [page.last for page in pages] == [False, False, True]
        current = [name for name in names if name != "a/1"]
        assert [one.key for page in pages for one in page.objects] == current
        bounded = await collect_keys(store, "", start_after="a/2", end_at="b/2")
        assert [one.key for one in bounded] == ["a/3", "b/0", "b/1", "b/2"]
        assert [one.key for one in await collect_keys(store, "b/")] == names[4:]
        versions = await collect_incarnations(store, "")
        counts = Counter(one.key for one in versions)
        assert [*counts] == names
        assert counts == Counter([*names, *names, "a/1"])
        assert len({one.incarnation for one in versions}) == len(versions)
        assert [one.key for one in versions if one.current] == names
        assert [(one.key, one.current) for one in versions if one.marker] == [("a/1", True)]


async def test_a_delete_marker_hides_the_versions_and_its_removal_restores_the_last(
    server: Server,
) -> None:
    key = ObjectKey("marked/key")
    async with open_store(server.url("bucket")) as store:
        assert isinstance(store, S3Store)
        for body in (b"first", b"second"):
            await store.overwrite(key, body)
        await store.delete_current(key)
        assert isinstance(await store.get(key), NotFound)
        assert isinstance(await store.head(key), NotFound)
        assert await collect_keys(store, key) == []
        marker, *versions = await collect_incarnations(store, key)
        assert (marker.marker, len(versions)) == (True, 2)
        await store.delete(key, marker.incarnation)
        found = await store.get(key)
        assert isinstance(found, Found)
        assert found.body == b"second"
        await store.delete_current(key)
        assert isinstance(await store.create(key, b"third"), Applied)


async def test_an_object_of_a_multipart_upload_is_like_any_other(server: Server) -> None:
    """The libraries of the lake upload large files in parts; the ETag is then no MD5."""
    key, parts = ObjectKey("lake/large"), [b"x" * 5 * 1024 * 1024, b"tail"]
    url = server.url("bucket")

    async def upload() -> None:
        async with open_sdk(parse_s3_url(url)) as sdk:
            where = {"Bucket": "bucket", "Key": key}
            upload = (await sdk.client.create_multipart_upload(**where))["UploadId"]
            done = []
            for number, part in enumerate(parts, 1):
                sent = await sdk.client.upload_part(
                    **where, UploadId=upload, PartNumber=number, Body=part
                )
                done.append({"PartNumber": number, "ETag": sent["ETag"]})
            await sdk.client.complete_multipart_upload(
                **where, UploadId=upload, MultipartUpload={"Parts": done}
            )

    await upload()
    async with open_store(url) as store:
        found = await store.get(key)
        assert isinstance(found, Found)
        assert found.body == b"".join(parts)
        assert found.info.etag.strip('"').endswith("-2")
        (listed,) = await collect_keys(store, key)
        assert (listed.etag, listed.size_bytes) == (found.info.etag, len(found.body))
        across = await store.get(key, first=len(parts[0]) - 2, last=len(parts[0]) + 1)
        assert isinstance(across, Found)
        assert across.body == b"xxta"
        replaced = await store.replace(key, b"small", if_match=found.info.etag)
        assert isinstance(replaced, Applied)
        assert isinstance(await store.replace(key, b"other", if_match=found.info.etag), Mismatch)


@pytest.mark.daily(1)
@pytest.mark.parametrize("lock", ["retention", "legal hold"])
async def test_a_locked_version_stays_until_the_lock_ends(server: Server, lock: str) -> None:
    """A lock denies the deletion of its version, changes no write, and stops no run of expiry."""
    bucket, lane = lock.replace(" ", "-"), ObjectKey(f"{QUEUE}spark.00/manifest")
    url = server.url(bucket, "pre")
    retention = {"Mode": "COMPLIANCE", "RetainUntilDate": datetime.now(UTC) + timedelta(days=1)}

    async def change(version: ObjectVersion | None, call: str, **state: object) -> None:
        async with open_sdk(parse_s3_url(url)) as sdk:
            where = {"Bucket": bucket, "Key": f"pre/{lane}", "VersionId": version}
            await getattr(sdk.client, call)(**where, **state)

    await make_bucket(url, lock=True)
    async with open_store(url, StoreMode.CREATE) as store:
        first = await store.create(lane, b"first")
        assert isinstance(first, Applied)
        assert first.incarnation is not None
        if lock == "retention":
            await change(first.incarnation, "put_object_retention", Retention=retention)
        else:
            await change(first.incarnation, "put_object_legal_hold", LegalHold={"Status": "ON"})
        assert isinstance(await store.overwrite(lane, b"second"), Applied)
        with pytest.raises(StoreDenied):
            await store.delete(lane, first.incarnation)
        await asyncio.sleep(NEXT_SECOND_S)
        report = await expire_versions(store, ExpirySettings(retention_s=0))
        assert (report.deleted, report.kept) == ({}, {"denied": 1})
        found = await store.get(lane)
        assert isinstance(found, Found)
        assert found.body == b"second"
        if lock == "legal hold":
            state = {"Status": "OFF"}
            await change(first.incarnation, "put_object_legal_hold", LegalHold=state)
            report = await expire_versions(store, ExpirySettings(retention_s=0))
            assert report.deleted == {QUEUE: 1}


async def test_moto_refuses_writes_under_a_default_retention(server: Server) -> None:
    """S3 accepts the checksum of the adapter there; moto requires a header of the SDK."""
    url = server.url("default-retention")
    rule = {"Rule": {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}}

    await make_bucket(url, lock=True)
    async with open_administration(parse_s3_url(url)) as admin:
        await admin.write("object-lock", {"ObjectLockEnabled": "Enabled", **rule})
    async with open_store(url, StoreMode.CREATE) as store:
        with pytest.raises(StoreMisconfigured, match=MOTO_DEFAULT_RETENTION):
            await store.create(ObjectKey("key"), b"x")


def test_a_trial_that_may_read_leaves_no_connection_in_use(server: Server) -> None:
    """The SDK keeps an unread response in a cycle of references, with its connection."""
    url, key = server.url("bucket", "trial"), ObjectKey("large")

    async def run() -> list[object]:
        async with open_store(url) as store:
            await store.create(key, b"x" * 2**20)
        async with open_administration(parse_s3_url(url)) as admin:
            gc.collect()
            response = await admin.attempt(Trial.GET, f"trial/{key}", {})
            assert (response.status, response.refused) == (200, False)
            found = [one for one in gc.get_objects() if issubclass(type(one), ClientResponse)]
            return [one for one in found if one.connection is not None]

    gc.disable()
    try:
        assert asyncio.run(run()) == []
    finally:
        gc.enable()
