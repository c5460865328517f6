"""Queries over what real gateway processes journal, while no reconciler runs."""

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest
from support.constants import settings_with
from support.gateway import Client, GatewayProcess, TestKey, frame_of, gateways, identity
from support.query_lake import bodies, make_query, run_query
from support.spark_lake import Deployment

from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import UnixNs
from sluice_query.result import QueryResult
from sluice_query.settings import QuerySettings
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import open_store

HOST = TestKey("host-1", ("host-1",))
EVERYTHING = make_query(from_ns=UnixNs(0), to_ns=UnixNs(2**62))
LARGE = settings_with(QuerySettings, threads=2, accepted_list_max=0)
VISIBLE_S = 3.0


async def upload(server: GatewayProcess, seq: int) -> None:
    async with aiohttp.ClientSession() as session:
        frame = frame_of(identity(seq=seq, count=1), f"batch {seq}")
        assert (await Client(session, server.port, HOST).upload(frame)).status == 200


async def reconcile_until_journals_decide(url: str) -> None:
    async with open_store(url) as store, asyncio.timeout(60):
        service = await Reconciler.of(store, settings=ReconcilerSettings(pass_interval_s=0.1))
        running = asyncio.create_task(service.run())
        while service.discovery.record.journaled_since_unix_ns is None:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait({running})


def search(folder: Path) -> QueryResult:
    return run_query(Deployment(root=folder / "store"), EVERYTHING, LARGE)


def test_an_accepted_batch_is_visible_within_seconds_without_a_reconciler(tmp_path: Path) -> None:
    with gateways(tmp_path, HOST) as (server,):
        asyncio.run(upload(server, 0))
        asyncio.run(reconcile_until_journals_decide(f"file://{tmp_path}/store"))
        time.sleep(VISIBLE_S + 0.5)  # the reconciler's report is not recent any more
        took = []
        for seq in range(1, 4):
            asyncio.run(upload(server, seq))
            accepted_at = time.monotonic()
            while f"batch {seq} 0" not in bodies(found := search(tmp_path)):
                assert time.monotonic() < accepted_at + 30, found.summary
                time.sleep(0.1)
            took.append(time.monotonic() - accepted_at)
        assert sorted(took)[1] < VISIBLE_S, took
        assert sorted(map(str, bodies(found))) == [f"batch {seq} 0" for seq in range(4)]
        assert not found.summary.partial, found.summary.reasons
        assert (found.summary.complete_now, found.summary.held_by) == (False, None)


@pytest.mark.parametrize("signal", ["kill", "stop"])
def test_a_gateway_that_ended_holds_the_time_back_only_if_it_was_killed(
    tmp_path: Path, signal: str
) -> None:
    with gateways(tmp_path, HOST) as (server,):
        asyncio.run(upload(server, 0))
        asyncio.run(reconcile_until_journals_decide(f"file://{tmp_path}/store"))
        asyncio.run(upload(server, 1))
        getattr(server, signal)()
        ended_ns = UnixNs(time.time_ns())
        time.sleep(VISIBLE_S + 0.5)
        summary = search(tmp_path).summary
        assert summary.accepted_until is not None
        until_ns = parse_rfc3339(summary.accepted_until)
        if signal == "kill":
            assert until_ns < ended_ns
            assert not summary.complete_now
        else:
            assert until_ns > ended_ns
            assert summary.complete_now
            assert summary.results == 2
