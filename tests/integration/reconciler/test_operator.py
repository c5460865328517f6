"""The operator API over stored conflicts, audits and deletion plans."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from support.gc_world import HORIZON_S, GcWorld, open_world

from sluice_protocol.authority import Authority
from sluice_protocol.keys import AUDIT_CHAIN, GC_PLANS
from sluice_protocol.units import ObjectKey
from sluice_reconciler.app import make_operator_app
from sluice_reconciler.service import Reconciler
from sluice_store.conflicts import DecisionsReader

Client = TestClient[Any, Any]


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[GcWorld, Client]]:
    async with open_world(folder) as world:
        reconciler = Reconciler(world.store, Authority(authority_id="A", lanes=1))
        async with TestClient(TestServer(make_operator_app(reconciler))) as client:
            yield world, client


async def get(client: Client, path: str, status: int = 200) -> Any:
    response = await client.get(path)
    assert response.status == status, await response.text()
    return json.loads(await response.read())


async def test_conflicts_are_listed_shown_and_resolved(tmp_path: Path) -> None:
    """Pages, both sides of a conflict, and a decision that every reader of the store sees."""
    async with served(tmp_path / "store") as (world, client):
        for start in (0, 10, 20):
            await world.accept(start)
            await world.quarantine(start, salt="other bytes")
        stray = ObjectKey("quarantine/v1/identity-conflict/agent=zz/x.json")
        await world.store.create(stray, b"{}")
        first = await get(client, "/v1/conflicts?limit=2")
        assert [one["seq_start"] for one in first["conflicts"]] == [0, 10]
        rest = await get(client, f"/v1/conflicts?limit=2&after={first['next_after']}")
        assert [one["seq_start"] for one in rest["conflicts"]] == [20]
        assert rest["next_after"] is None
        name = rest["conflicts"][0]["id"]
        shown = await get(client, f"/v1/conflicts/{name}")
        assert shown["conflict"]["state"] == "open"
        assert shown["accepted"]["frame_sha256"] != shown["quarantine"]["submitted_frame_sha256"]
        place = f"/v1/conflicts/{name}/resolve"
        response = await client.post(place, json={"action": "accept_existing", "note": "seen"})
        assert response.status == 200
        assert json.loads(await response.read())["decided_by"] == "operator:reconciler-api"
        found = await get(client, "/v1/conflicts?agent=" + shown["conflict"]["agent_id"])
        states = {one["id"]: one["state"] for one in found["conflicts"]}
        assert states[name] == "accept_existing"
        decisions = await DecisionsReader(world.store).refresh()
        assert decisions.by_conflict[name].note == "seen"
        assert (await get(client, "/v1/conflicts?agent=unknown"))["conflicts"] == []
        unknown = name[:-64] + "0" * 64
        assert (await get(client, f"/v1/conflicts/{unknown}", 404))["code"] == "not_found"
        for path in ("/v1/conflicts/x", "/v1/conflicts?limit=501", "/v1/conflicts?after=x"):
            assert (await get(client, path, 400))["code"] == "bad_request"
        for body in (b"{", b'{"action":"x"}', b'{"action":"accept_existing","more":1}'):
            headers = {"Content-Type": "application/json"}
            assert (await client.post(place, data=body, headers=headers)).status == 400
        assert (await client.post(place, data=b"{}")).status == 415
        gone = f"/v1/conflicts/{unknown}/resolve"
        response = await client.post(gone, json={"action": "accept_existing"})
        assert response.status == 404


async def test_audits_and_plans_are_listed_in_pages(tmp_path: Path) -> None:
    """A damaged and an unfinished record are reported and hide no other record."""
    async with served(tmp_path / "store") as (world, client):
        assert await get(client, "/v1/audits") == {"items": [], "next": None}
        assert await get(client, "/v1/gc/plans") == {"items": [], "next": None}
        await world.accept(0)
        await world.orphan(10)
        world.clock.pass_s(HORIZON_S + 1)
        report = await world.cycle()
        await world.audit()
        plan = await world.plan()
        await world.store.create(ObjectKey(f"{AUDIT_CHAIN}{'9' * 20}.json"), b"{broken")
        await world.store.create(ObjectKey(f"{GC_PLANS}ZZ/candidates-00.parquet"), b"x")
        first = await get(client, "/v1/audits?limit=1")
        (audit,) = first["items"]
        assert (audit["chain_index"], audit["counts"]["orphans"]) == (0, 1)
        assert audit["evidence_files"] > 0
        rest = await get(client, f"/v1/audits?after={first['next']}")
        assert [one.get("chain_index") for one in rest["items"]] == [1, None]
        assert rest["items"][1]["unreadable"]
        assert rest["next"] is None
        first = await get(client, "/v1/gc/plans?limit=1")
        (done,) = first["items"]
        assert (done["plan_id"], done["state"]) == (report.plan_id, "finished")
        assert done["orphans"]["incarnations"] == 1
        rest = await get(client, f"/v1/gc/plans?after={first['next']}")
        assert [one.get("plan_id") for one in rest["items"]] == [plan.plan_id, None]
        assert rest["items"][0]["state"] == "planned"
        for path in ("/v1/audits?limit=0", "/v1/gc/plans?after=x", "/v1/audits?limit=101"):
            await get(client, path, 400)
