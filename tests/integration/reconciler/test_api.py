"""The operator API over real sockets and the embedded store."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp.test_utils import TestClient, TestServer
from support.reconciler_seed import accept, accept_logs, enqueued

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import accepted_key, high_water_key
from sluice_protocol.manifests import HighWaterMark, encode_record
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import ObjectKey
from sluice_reconciler.app import make_operator_app, serve_reconciler
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import StoreMode, create_authority, open_store
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore

Client = TestClient[Any, Any]


@asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[tuple[ObjectStore, Client]]:
    async with open_local_store(folder) as store:
        reconciler = Reconciler(
            store,
            Authority(authority_id="A", lanes=2),
            settings=ReconcilerSettings(**settings),
        )
        async with TestClient(TestServer(make_operator_app(reconciler))) as client:
            yield store, client


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await check():  # noqa: ASYNC110 - it polls over a socket
            await asyncio.sleep(0.02)


async def ready(client: Client) -> None:
    async def check() -> bool:
        async with client.get("/readyz") as response:
            return response.status == 200

    await until(check)


async def body(response: Any) -> Any:
    return json.loads(await response.read())


async def test_api_reports_agents_gaps_queue_and_live_window(tmp_path: Path) -> None:
    """One pass after the start, every accepted batch is reported."""
    async with served(tmp_path, pass_interval_s=0.05) as (store, client):
        for seq in (0, 10, 30):
            await accept(store, seq)
        await accept(store, 0, agent="host-2")
        reported = HighWaterMark(agent_id="host-2", boot_id="b1", seq_end=14)
        await store.create(high_water_key("host-2", "b1"), encode_record(reported))
        await store.create(high_water_key("host-1", "b1"), b"{broken")

        # A pass that began before the high-water mark was written does not report its gap.
        async def all_there() -> bool:
            return len((await body(await client.get("/v1/gaps")))["boots"]) == 2

        await ready(client)
        await until(all_there)
        listed = await body(await client.get("/v1/gaps"))
        gaps = listed["boots"]
        through_ns = parse_rfc3339(listed["complete_through"])
        assert time.time_ns() - 600 * 10**9 < through_ns < time.time_ns()
        assert [gap["seq_start"] for gap in gaps[0]["gaps"]] == [20]
        tails = [(gap["seq_start"], gap["seq_end"], gap["tail"]) for gap in gaps[1]["gaps"]]
        assert (tails, gaps[1]["high_water"]) == ([(10, 14, True)], 14)
        assert (await client.get("/livez")).status == 200
        lanes = (await body(await client.get("/v1/queue?queue=spark")))["lanes"]
        assert sum(lane["waiting_batches"] for lane in lanes) == 4
        live = await body(await client.get("/v1/live?agent=host-2"))
        assert live["summary"]["reasons"] == ["the live state is off: set live_bytes_max"]
        text = await (await client.get("/metrics")).text()
        assert 'sluice_reconciler_enqueued_total{queue="spark"} 4.0' in text
        assert "sluice_reconciler_tail_missing_records 5.0" in text
        for stage in ("indexed", "enqueued"):
            assert f'sluice_reconciler_lag_seconds{{stage="{stage}"}}' in text
        for stage in ("index", "enqueue"):
            name = f'sluice_reconciler_oldest_waiting_seconds{{stage="{stage}"}}'
            assert f"{name} 0.0" in text
        assert 'sluice_queue_entries_total{queue="spark"}' in text
        assert "/v1/queue/next" in (await body(await client.get("/openapi.json")))["paths"]


async def test_events_of_every_shape_enqueue_each_batch_once(tmp_path: Path) -> None:
    """Events may be encoded, wrapped, repeated, out of order or foreign: each batch is enqueued
    once.
    """
    async with served(tmp_path, pass_interval_s=3600) as (store, client):
        await ready(client)
        keys = [accepted_key((await accept(store, seq)).identity) for seq in range(0, 50, 10)]
        s3 = {"Records": [_record(quote(keys[1])), _record(f"prod/{keys[0]}")]}
        shapes: list[Any] = [
            s3,
            s3,
            {"Type": "Notification", "Message": json.dumps({"Records": [_record(keys[2])]})},
            {
                "detail-type": "Object Created",
                "detail": {"object": {"key": keys[3]}, "reason": "PutObject"},
            },
            {"EventName": "x", "Key": "b/k", "Records": [_record(quote(keys[4], safe=""))]},
            {"Service": "Amazon S3", "Event": "s3:TestEvent"},
            {"Records": [_record("raw-blobs/v1/x"), _record(keys[0], "ObjectRemoved:Delete")]},
        ]
        taken = [await body(await client.post("/v1/events", json=one)) for one in shapes]
        assert [one["taken"] for one in taken] == [2, 2, 1, 1, 1, 0, 0]
        assert taken[-1]["foreign"] == 2

        async def all_there() -> bool:
            return len(await enqueued(store)) == 5

        await until(all_there)
        assert len({one.identity for one in await enqueued(store)}) == 5
        for bad in (b"{", b"[]", b"{}", b'{"Message": "no"}'):
            response = await client.post("/v1/events", data=bad)
            assert response.status == 400
            assert (await body(response))["code"] == "bad_request"


def _record(key: str, name: str = "ObjectCreated:Put") -> dict[str, Any]:
    return {"eventName": name, "s3": {"bucket": {"name": "b"}, "object": {"key": key}}}


async def test_http_consumers_share_a_queue_under_leases(tmp_path: Path) -> None:
    """A claim is exclusive until its lease expires; then the entry is claimed again, committed
    once.
    """
    settings = {"pass_interval_s": 0.05, "http_queues": "sink", "lease_s": 0.3}
    async with served(tmp_path, list_batches_max=1, **settings) as (store, client):
        for seq in range(0, 40, 10):
            await accept(store, seq)

        async def waiting() -> bool:
            lanes = (await body(await client.get("/v1/queue?queue=sink")))["lanes"]
            return sum(lane["waiting"] for lane in lanes) == 4

        await until(waiting)
        first = (await body(await client.get("/v1/queue/next?max=2")))["entries"]
        second = (await body(await client.get("/v1/queue/next?max=9")))["entries"]
        assert [one["sequence"] for one in first + second] == [1, 2, 3, 4]
        assert (await body(await client.get("/v1/queue/next")))["entries"] == []
        beat = await client.post("/v1/queue/heartbeat", json={"lease_ids": [first[1]["lease_id"]]})
        assert beat.status == 200
        done = await client.post(
            "/v1/queue/commit", json={"lease_ids": [one["lease_id"] for one in second]}
        )
        assert await body(done) == {"committed": 2}
        failed = await client.post("/v1/queue/failed", json={"lease_ids": [first[1]["lease_id"]]})
        assert failed.status == 200
        again = (await body(await client.get("/v1/queue/next")))["entries"]
        assert [(one["sequence"], one["attempts"]) for one in again] == [(2, 1)]
        await asyncio.sleep(0.4)
        late = (await body(await client.get("/v1/queue/next?max=9")))["entries"]
        assert [(one["sequence"], one["attempts"]) for one in late] == [(1, 1), (2, 2)]
        lost = await client.post("/v1/queue/commit", json={"lease_ids": [first[0]["lease_id"]]})
        assert lost.status == 404
        await client.post("/v1/queue/commit", json={"lease_ids": [one["lease_id"] for one in late]})
        lanes = (await body(await client.get("/v1/queue?queue=sink")))["lanes"]
        assert sum(lane["waiting"] for lane in lanes) == 0
        assert len(await enqueued(store, "spark")) == 4
        for path in ("/v1/queue/next?max=0", "/v1/queue/next?max=x", "/v1/queue/next?queue=y"):
            assert (await client.get(path)).status == 400


async def test_api_token_is_required_for_v1_and_for_other_than_loopback(tmp_path: Path) -> None:
    """With a token, `/v1/` requires it; without one, only a loopback address is accepted."""
    async with served(tmp_path, api_token="secret") as (_, client):
        assert (await client.get("/v1/agents")).status == 401
        headers = {"Authorization": "Bearer secret"}
        assert (await client.get("/v1/agents", headers=headers)).status == 200
        assert (await client.get("/livez")).status == 200
    with pytest.raises(BadUsage):
        await serve_reconciler(tmp_path.as_uri(), ReconcilerSettings(listen="0.0.0.0:0"))


async def test_live_records_are_followed_over_http(tmp_path: Path) -> None:
    """The newest records first, then each new record once."""

    async def lines(client: Client, query: str) -> list[Any]:
        response = await client.get(f"/v1/live?{query}")
        assert response.content_type == "application/x-ndjson"
        return [json.loads(line) for line in (await response.text()).splitlines()]

    settings = {"pass_interval_s": 0.05, "live_bytes_max": 1 << 20}
    async with served(tmp_path, **settings) as (store, client):
        await ready(client)
        now_ns = (await store.head(ObjectKey("x"))).date_ns
        await accept_logs(store, ["one", "two"], seq=0, at_ns=now_ns)
        *records, last = await lines(client, "agent=host-1&wait=20")
        assert [(one["seq"], one["body"]) for one in records] == [(0, "one"), (1, "two")]
        assert "watched" in last["summary"]["reasons"][0]
        after = last["summary"]["next"]
        assert (await lines(client, f"after={after}"))[:-1] == []
        follow = asyncio.create_task(lines(client, f"after={after}&wait=20"))
        await accept_logs(store, ["three"], seq=2, at_ns=now_ns)
        *records, last = await follow
        assert [one["body"] for one in records] == ["three"]
        assert last["summary"] == {
            "partial": False,
            "reasons": [],
            "next": last["summary"]["next"],
            "more": False,
            "enabled": True,
            "accepted_until": last["summary"]["accepted_until"],
        }
        assert last["summary"]["accepted_until"] is not None
        assert (await lines(client, f"agent=unknown&after={after}"))[:-1] == []
        *records, last = await lines(client, "after=elsewhere.7&limit=1")
        assert [one["body"] for one in records] == ["three"]
        assert "restarted" in last["summary"]["reasons"][0]
        for query in ("after=x", "limit=0", "limit=10001", "wait=31", "wait=x"):
            assert (await client.get(f"/v1/live?{query}")).status == 400


async def test_errors_of_the_framework_are_problem_documents(tmp_path: Path) -> None:
    """An unknown path, an unknown method, a body that is too large."""
    async with served(tmp_path) as (_, client):
        for method, path, status in (
            ("GET", "/v1/nope", 404),
            ("DELETE", "/v1/queue", 405),
            ("POST", "/v1/events", 413),
        ):
            large = io.BytesIO(b"x" * (5 << 20)) if status == 413 else None
            headers = {"X-Requested-With": "test"}
            response = await client.request(method, path, data=large, headers=headers)
            assert response.status == status
            assert response.content_type == "application/problem+json"
            assert (await body(response))["status"] == status


async def test_health_endpoints_fail_after_the_work_ended(tmp_path: Path) -> None:
    """The process reports that it is neither alive nor ready, so that it is restarted."""
    async with open_local_store(tmp_path) as store:
        reconciler = Reconciler(store, Authority(authority_id="A", lanes=2))
        reconciler._pass_loop = None  # the work fails with an unexpected error
        async with TestClient(TestServer(make_operator_app(reconciler))) as client:

            async def ended() -> bool:
                return (await client.get("/livez")).status == 503

            await until(ended)
            assert (await client.get("/readyz")).status == 503


async def test_address_in_use_is_reported(tmp_path: Path) -> None:
    """The error names the address and what to do."""
    async with served(tmp_path / "a") as (_, client):
        url = f"file://{tmp_path}/b"
        async with open_store(url, StoreMode.CREATE) as store:
            await create_authority(store, Authority(authority_id="B" * 26, lanes=1))
        settings = ReconcilerSettings(listen=f"127.0.0.1:{client.port}")
        with pytest.raises(BadUsage, match="choose another address"):
            await serve_reconciler(url, settings)
