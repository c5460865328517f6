"""The conflicts API over a real socket and a directory, with a sender of limited access."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from support.gc_world import open_world

from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.conflicts import DecisionsReader, StoredConflicts
from sluice_web.application import make_application
from sluice_web.conflicts import ConflictAccess, ConflictsApi
from sluice_web.problems import problem_middleware

Client = TestClient[Any, Any]


def access(request: web.Request) -> ConflictAccess:
    """The header `Role` selects what the sender may do."""
    match request.headers["Role"]:
        case "operator":
            return ConflictAccess(principal="ops", agents=None, may_resolve=True)
        case agent:
            return ConflictAccess(principal=agent, agents=frozenset({agent}), may_resolve=False)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Client]:
    async with open_world(folder) as world:
        await world.accept(0)
        await world.quarantine(0, salt="other bytes")
        conflicts = StoredConflicts(
            world.store, DecisionsReader(world.store), clock=SystemClock(), ids=SystemIds()
        )
        api = ConflictsApi(conflicts, access=access, read_body=lambda request: request.read())
        app = make_application(api.endpoints(), middlewares=[problem_middleware()])
        async with TestClient(TestServer(app)) as client:
            yield client


async def get(client: Client, path: str, role: str = "operator") -> tuple[int, Any]:
    response = await client.get(path, headers={"Role": role})
    return response.status, json.loads(await response.read())


async def test_access_decides_who_sees_and_who_resolves(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        (conflict,) = (await get(client, "/v1/conflicts"))[1]["conflicts"]
        path = f"/v1/conflicts/{conflict['id']}"
        assert (await get(client, "/v1/conflicts", "stranger"))[1]["conflicts"] == []
        assert (await get(client, path, "stranger"))[0] == 403
        assert (await get(client, path, conflict["agent_id"]))[0] == 200
        decision = {"action": "accept_existing"}
        for role, status in ((conflict["agent_id"], 403), ("operator", 200)):
            response = await client.post(f"{path}/resolve", json=decision, headers={"Role": role})
            assert response.status == status
        assert (await get(client, path))[1]["decision"]["decided_by"] == "ops"


async def test_a_decision_is_sent_as_json(tmp_path: Path) -> None:
    """What a form sends is 403, another media type 415, other JSON 400, an unknown conflict 404."""
    async with served(tmp_path) as client:
        (conflict,) = (await get(client, "/v1/conflicts"))[1]["conflicts"]
        unknown = conflict["id"][:-64] + "0" * 64
        for name, kind, body, status in (
            (conflict["id"], "text/plain", b'{"action":"accept_existing"}', 403),
            (conflict["id"], "application/xml", b'{"action":"accept_existing"}', 415),
            (conflict["id"], "application/json", b"{", 400),
            (conflict["id"], "application/json", b'{"action":"x"}', 400),
            (unknown, "application/json", b'{"action":"accept_existing"}', 404),
        ):
            response = await client.post(
                f"/v1/conflicts/{name}/resolve",
                data=body,
                headers={"Role": "operator", "Content-Type": kind},
            )
            assert response.status == status, body
