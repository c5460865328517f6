"""Queues over HTTP: data without access to the store, fencing, and lanes of other reconcilers."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from support.reconciler_seed import accept_logs

from sluice_protocol.authority import Authority
from sluice_protocol.frame import decode_frame
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import Digest, ObjectKey
from sluice_queue.consumer import Consumer
from sluice_queue.lane import list_lanes
from sluice_reconciler.app import make_operator_app
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore

BATCHES = 3
Client = TestClient[Any, Any]


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[tuple[ObjectStore, Client, Reconciler]]:
    """Serve a queue with one entry per batch."""
    async with open_local_store(tmp_path) as store:
        settings = ReconcilerSettings(
            pass_interval_s=0.05, http_queues="sink", list_batches_max=1, lease_s=60
        )
        reconciler = Reconciler(store, Authority(authority_id="A", lanes=1), settings=settings)
        async with TestClient(TestServer(make_operator_app(reconciler))) as client:
            for seq in range(0, 10 * BATCHES, 10):
                await accept_logs(store, [f"line {seq}", "ü"], seq=seq, at_ns=1_000 + seq)
            waiting = 0
            async with asyncio.timeout(30):
                while waiting < BATCHES:
                    lanes = (await (await client.get("/v1/queue?queue=sink")).json())["lanes"]
                    waiting = sum(lane["waiting"] for lane in lanes)
                    await asyncio.sleep(0.05)
            yield store, client, reconciler


async def lines(client: Client, form: str, count: int = 10) -> list[dict[str, Any]]:
    response = await client.get(f"/v1/queue/next?max={count}&data={form}")
    assert response.content_type == "application/x-ndjson"
    return [json.loads(line) for line in (await response.text()).splitlines()]


async def blob(store: ObjectStore, digest: str) -> bytes:
    found = await store.get(blob_key(Digest(digest)))
    assert isinstance(found, Found)
    return found.body


async def test_a_consumer_receives_frames_or_records(tmp_path: Path) -> None:
    """The frames are the stored bytes; the records are those of `sluice frame inspect`."""

    async with served(tmp_path) as (store, client, _):
        framed = await lines(client, "frame", 1)
        assert [next(iter(one)) for one in framed] == ["entry", "batch", "summary"]
        digest = framed[1]["batch"]["frame_sha256"]
        body = base64.b64decode(framed[1]["frame"])
        assert digest_of(body) == digest
        assert body == await blob(store, digest)

        read = await lines(client, "records")
        assert [one["entry"]["sequence"] for one in read if "entry" in one] == [2, 3]
        expected = [
            json.loads(record)
            for one in read
            if "batch" in one
            for record in ndjson_from_columns(
                decode_frame(await blob(store, one["batch"]["frame_sha256"])).columns
            )
        ]
        records = [one["record"] for one in read if "record" in one]
        assert records == expected
        assert [(one["ts"], one["body"]) for one in records] == [
            (f"1970-01-01T00:00:00.0000010{seq + n:02d}Z", body)
            for seq in (10, 20)
            for n, body in enumerate((f"line {seq}", "ü"))
        ]
        summary = {"entries": 2, "batches": 2, "records": len(records)}
        assert read[-1] == {"summary": summary}
        ids = [one["entry"]["lease_id"] for one in framed + read if "entry" in one]
        done = await client.post("/v1/queue/commit", json={"lease_ids": ids})
        assert (done.status, await done.json()) == (200, {"committed": BATCHES})
        assert await lines(client, "records") == [
            {"summary": {"entries": 0, "batches": 0, "records": 0}}
        ]
        assert (await client.get("/v1/queue/next?data=rows")).status == 400


async def test_a_response_that_cannot_be_completed_has_an_error_and_no_summary(
    tmp_path: Path,
) -> None:
    """The entries that were not sent completely are returned to the queue."""

    async with served(tmp_path) as (store, client, _):
        claims = (await (await client.get("/v1/queue/next?max=3")).json())["entries"]
        ids = [one["lease_id"] for one in claims]
        key = ObjectKey(claims[1]["batches"][0]["raw_blob_key"])
        await client.post("/v1/queue/failed", json={"lease_ids": ids})
        info = await store.head(key)
        assert isinstance(info, ObjectInfo)
        assert info.incarnation is not None
        await store.delete(key, info.incarnation)
        read = await lines(client, "records")
        assert "summary" not in read[-1]
        assert read[-1]["error"]["code"] == "corrupt_object"
        again = (await (await client.get("/v1/queue/next?max=3")).json())["entries"]
        assert [one["sequence"] for one in again] == [2, 3]


def test_a_commit_after_fencing_is_409(tmp_path: Path) -> None:
    """In order or not, nothing is acknowledged, and every later use of the lease is refused."""

    async def run(first: int) -> None:
        async with served(tmp_path / str(first)) as (store, client, reconciler):
            claims = (await (await client.get("/v1/queue/next?max=3")).json())["entries"]
            runtime = reconciler.http_queues["sink"]._runtime
            other = await Consumer.open(
                store, queue="sink", lane=claims[0]["lane"], runtime=runtime
            )
            for _ in range(2):
                body = {"lease_ids": [claims[first]["lease_id"]]}
                refused = await client.post("/v1/queue/commit", json=body)
                problem = await refused.json()
                assert (refused.status, problem["code"]) == (409, "fenced")
                assert "delivered again" in problem["detail"]
            assert other.acked_through == 0
            assert len(await other.next_descriptors(10)) == BATCHES

    asyncio.run(run(0))
    asyncio.run(run(1))


def elsewhere(lane: int) -> str:
    """Every lane belongs to another process."""
    del lane
    return "https://other.example:8443/"


async def test_requests_about_the_lane_of_another_reconciler_are_redirected(tmp_path: Path) -> None:
    """307 keeps method, path, query and body; without a lane only own lanes are read."""

    async with served(tmp_path) as (store, client, reconciler):
        lane = (await list_lanes(store, "sink"))[0].lane
        claims = (await (await client.get("/v1/queue/next?max=1")).json())["entries"]
        reconciler.http_queues["sink"].owner_url = elsewhere
        path = f"/v1/queue/next?lane={lane}&data=records"
        response = await client.get(path, allow_redirects=False)
        assert response.status == 307
        assert response.headers["Location"] == f"https://other.example:8443{path}"
        for name in ("commit", "failed", "heartbeat"):
            body = {"lease_ids": [claims[0]["lease_id"]]}
            moved = await client.post(f"/v1/queue/{name}", json=body, allow_redirects=False)
            assert moved.status == 307
            assert moved.headers["Location"].endswith(f":8443/v1/queue/{name}")
        own = await client.get("/v1/queue/next")
        assert (await own.json())["entries"] == []


async def test_leases_are_listed_by_consumer_and_a_fenced_lane_has_another_id(
    tmp_path: Path,
) -> None:

    async with served(tmp_path) as (store, client, reconciler):
        assert await consumers(client) == []
        for name, count in (("worker-a", 2), ("", 1)):
            await client.get(f"/v1/queue/next?max={count}&consumer={name}")
        (lane,) = await consumers(client)
        (shown,) = [
            one
            for one in (await (await client.get("/v1/queue")).json())["lanes"]
            if one["queue"] == "sink"
        ]
        assert (lane["queue"], lane["lane"], lane["epoch"]) == ("sink", 0, 1)
        assert lane["consumer_id"] == shown["consumer_id"] != "0" * 32
        assert shown["ownership"]["state"] == "owned"
        assert shown["ownership"]["owners"][0]["member"] == reconciler.share.member
        holders = {one["consumer"]: one for one in lane["holders"]}
        assert {name: one["entries"] for name, one in holders.items()} == {"worker-a": 2, "": 1}
        first = holders["worker-a"]
        assert 0 <= first["oldest_s"] < 30
        assert 30 < first["ends_s"] <= 60
        assert lane["holders"][0] == first, "the oldest claim is first"
        runtime = reconciler.http_queues["sink"]._runtime
        await Consumer.open(store, queue="sink", lane=0, runtime=runtime)
        (shown,) = (await (await client.get("/v1/queue?queue=sink")).json())["lanes"]
        (lane,) = await consumers(client)
        assert (shown["epoch"], lane["epoch"]) == (2, 1)
        assert shown["consumer_id"] != lane["consumer_id"]


async def consumers(client: Client) -> list[dict[str, Any]]:
    response = await client.get("/v1/queue/consumers")
    assert response.status == 200
    lanes: list[dict[str, Any]] = (await response.json())["lanes"]
    return lanes
