"""The conformance suite over moto's server: a mock that calibrates the client, not a reference."""

import asyncio
import sys
from collections.abc import Iterator

import pytest
from support.store_buckets import make_bucket
from support.store_conformance import assert_conforms
from support.store_slow_put import assert_dated_when_complete, put_slowly
from support.store_versitygw import CREDENTIALS, Server, free_port, running

from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store import open_store
from sluice_store.conformance import CHECKS, Check


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    port = free_port()
    with running([sys.executable, "-m", "moto.server", "-p", str(port)], port) as started:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in CREDENTIALS.items():
                patch.setenv(name, value)
            asyncio.run(make_bucket(started.url("bucket")))
        yield started


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
