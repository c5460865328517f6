"""Real gateways and a reconciler whose full pass is a day away."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from support.gateway import Client, GatewayProcess, TestKey, frame_of, gateways, identity
from support.reconciler_seed import enqueued

from sluice_protocol.journals import DISCOVERY, LATE_S, DiscoveryRecord
from sluice_protocol.keys import GATEWAY_JOURNALS
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.app import make_operator_app
from sluice_reconciler.passes.progress import PASS, PassRecord
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.port import ObjectStore
from sluice_store.url import StoreMode, open_store

HOST = TestKey("host-1", ("host-1",))
DAY_S = 86_400.0


async def upload(port: int, seq: int) -> None:
    async with aiohttp.ClientSession() as session:
        assert (await Client(session, port, HOST).upload(frame_of(identity(seq=seq)))).status == 200


@asynccontextmanager
async def reconciling(
    folder: Path,
) -> AsyncIterator[tuple[ObjectStore, Reconciler, TestClient[Any, Any]]]:
    """Run a reconciler as `sluice reconciler` does; a second full pass is a day away."""
    url = f"file://{folder}/store"
    async with open_store(url, StoreMode.CREATE) as store:
        settings = ReconcilerSettings(
            pass_interval_s=0.5, journaled_pass_interval_s=DAY_S, scan_interval_s=DAY_S
        ).on(url)
        subject = await Reconciler.of(store, settings=settings)
        async with TestClient(TestServer(make_operator_app(subject))) as client:
            await until(lambda: _decides(store), 60)
            yield store, subject, client


async def _decides(store: ObjectStore) -> bool:
    """Return True once journals decide, and the full pass has ended that then begins."""
    record = await read_record(store)
    if record is None or record.journaled_since_unix_ns is None:
        return False
    read = await store.get(PASS)
    return isinstance(read, Found) and decode_record(PASS, read.body, PassRecord).ended


async def read_record(store: ObjectStore) -> DiscoveryRecord | None:
    read = await store.get(DISCOVERY)
    if not isinstance(read, Found):
        return None
    return decode_record(DISCOVERY, read.body, DiscoveryRecord)


async def until(check: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await check():  # noqa: ASYNC110 - it polls over a socket
            await asyncio.sleep(0.05)


async def enqueued_seqs(store: ObjectStore) -> list[int]:
    return sorted(one.identity.seq_start for one in await enqueued(store))


@pytest.mark.parametrize("idle", [False, pytest.param(True, marks=pytest.mark.long)])
def test_batches_are_enqueued_by_journals_alone_and_the_time_follows(
    tmp_path: Path, idle: bool
) -> None:
    """A gateway without further uploads names the time in its next heartbeat, seconds later."""

    async def run(ports: list[int]) -> None:
        async with reconciling(tmp_path) as (store, subject, client):
            for seq in range(6):
                await upload(ports[seq % 2], seq)
            last_ns = time.time_ns()

            async def all_enqueued() -> bool:
                return await enqueued_seqs(store) == list(range(6))

            async def time_follows() -> bool:
                record = await read_record(store)
                return record is not None and record.complete_through_unix_ns > last_ns

            await until(all_enqueued, 30)
            for seq in () if idle else (6, 7):
                await upload(ports[seq % 2], seq)
            await until(time_follows, 60)
            assert subject.whole_pass is None or subject.whole_pass.listed == 0
            assert subject.metrics.missed_by_journals._value.get() == 0
            status = await (await client.get("/v1/discovery")).json()
            assert status["journaled"]
            assert [one["state"] for one in status["processes"]] == ["open", "open"]
            ready = await (await client.get("/readyz")).json()
            assert ready["rounds"] > 0

    with gateways(tmp_path, HOST, count=2) as servers:
        asyncio.run(run([server.port for server in servers]))


@pytest.mark.long
def test_a_killed_gateway_holds_the_time_until_a_full_pass_found_what_it_did_not_name(
    tmp_path: Path,
) -> None:
    """The pass begins as soon as the gateway is late, before the next regular one."""

    async def run(server: GatewayProcess) -> None:
        async with reconciling(tmp_path) as (store, _, _):
            await upload(server.port, 0)

            async def first_enqueued() -> bool:
                return await enqueued_seqs(store) == [0]

            await until(first_enqueued, 30)
            await upload(server.port, 1)
            server.kill()
            killed_ns = time.time_ns()
            await drop_journal_of(store, 1)

            async def passed() -> bool:
                record = await read_record(store)
                assert record is not None
                began_ns = record.pass_began_unix_ns or 0
                assert record.complete_through_unix_ns <= max(killed_ns, began_ns)
                return record.complete_through_unix_ns > killed_ns

            await until(passed, 120)
            record = await read_record(store)
            assert record is not None
            assert record.pass_began_unix_ns is not None
            assert record.pass_began_unix_ns < killed_ns + (LATE_S + 20) * NS_PER_S
            assert await enqueued_seqs(store) == [0, 1]

    async def drop_journal_of(store: ObjectStore, seq: int) -> None:
        """Remove the object that names a batch, if the kill came after it was written."""
        async for page in store.list(GATEWAY_JOURNALS):
            for one in page.objects:
                read = await store.get(one.key)
                assert isinstance(read, Found)
                lines = [json.loads(line) for line in read.body.splitlines()[1:]]
                if any(line["seq_start"] == seq for line in lines):
                    assert read.info.incarnation is not None
                    await store.delete(one.key, read.info.incarnation)

    with gateways(tmp_path, HOST) as (server,):
        asyncio.run(run(server))
