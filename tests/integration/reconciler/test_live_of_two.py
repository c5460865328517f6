"""Live records of two reconcilers that share one store, over HTTP."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from support.reconciler_seed import accept_logs

from sluice_protocol.authority import Authority
from sluice_reconciler.app import make_operator_app
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore


def client_of(store: ObjectStore, pass_interval_s: float) -> TestClient[Any, Any]:
    settings = ReconcilerSettings(
        pass_interval_s=pass_interval_s,
        share_lanes=False,
        takeover_after_s=3600,
        scan_interval_s=3600,
        live_bytes_max=1 << 20,
    )
    authority = Authority(authority_id="A", lanes=1)
    return TestClient(
        TestServer(make_operator_app(Reconciler(store, authority, settings=settings)))
    )


async def live(client: TestClient[Any, Any], after: str = "") -> tuple[list[int], dict[str, Any]]:
    response = await client.get(f"/v1/live?after={after}" if after else "/v1/live")
    *lines, last = [json.loads(line) for line in (await response.read()).splitlines()]
    return [line["seq"] for line in lines], last["summary"]


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await check():  # noqa: ASYNC110 - it polls over a socket
            await asyncio.sleep(0.02)


async def test_second_reconciler_reports_what_only_the_first_one_received(tmp_path: Path) -> None:
    """The first one enqueues every batch between two passes of the second one."""
    async with (
        open_local_store(tmp_path) as store,
        client_of(store, 0.05) as first,
        client_of(store, 4.0) as second,
    ):

        async def both_ready() -> bool:
            return all([(await one.get("/readyz")).status == 200 for one in (first, second)])

        await until(both_ready)
        cursors = [(await live(one))[1]["next"] for one in (first, second)]
        for seq in range(0, 50, 10):
            at_ns = time.time_ns()
            await accept_logs(store, [str(seq + n) for n in range(10)], seq=seq, at_ns=at_ns)

        async def first_has_all() -> bool:
            found, summary = await live(first, cursors[0])
            return found == list(range(50)) and not summary["partial"]

        async def second_knows_that_it_has_none() -> bool:
            found, summary = await live(second, cursors[1])
            assert found == []
            return "another reconciler" in " ".join(summary["reasons"])

        await until(first_has_all)
        await until(second_knows_that_it_has_none)
        assert (await live(first, cursors[0]))[1]["partial"] is False
