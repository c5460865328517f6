"""The conformance suite over moto's server: a mock that calibrates the client, not a reference."""

import asyncio

import pytest
from support.store_buckets import make_bucket
from support.store_conformance import assert_conforms
from support.store_slow_put import assert_dated_when_complete, put_slowly
from support.store_versitygw import Server

from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store import open_store
from sluice_store.conformance import CHECKS, Check


@pytest.fixture(scope="module")
def server(moto: Server) -> Server:
    asyncio.run(make_bucket(moto.url("bucket")))
    return moto


DEAR = ("check_list_pages", "check_counter")
"""Thousands of requests, which the mock answers slowly; the memory server answers them daily."""


@pytest.mark.parametrize(
    "check",
    [pytest.param(one, marks=[pytest.mark.long] if one.__name__ in DEAR else []) for one in CHECKS],
    ids=lambda check: check.__name__,
)
def test_moto_conforms(check: Check, server: Server) -> None:
    """The mock keeps every promise of the port, except for the deviations in the table."""
    url = server.url("bucket", check.__name__)

    async def run() -> None:
        async with open_store(url) as store:
            await assert_conforms("moto", check, store, "place/")

    asyncio.run(run())


def test_moto_dates_an_object_by_its_application(server: Server) -> None:
    """A body that arrives slowly is dated when it is complete."""
    bucket, key = "bucket", ObjectKey("slow")

    async def run() -> None:
        times = await asyncio.to_thread(put_slowly, server.endpoint, bucket, key)
        async with open_store(server.url(bucket)) as store:
            found = await store.head(key)
        assert isinstance(found, ObjectInfo)
        assert_dated_when_complete(found.last_modified_ns, *times)

    asyncio.run(run())
