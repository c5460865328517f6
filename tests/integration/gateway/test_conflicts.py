"""Conflicts over HTTP and on the command line, and the effect of a quarantine."""

import asyncio
import json
import time
from pathlib import Path

import aiohttp
from support.commands import sluice
from support.gateway import (
    Client,
    Running,
    TestKey,
    frame_of,
    gateways,
    identity,
    run,
    running,
)

HOST = TestKey("host-1", ("host-1",))
OTHER = TestKey("host-2", ("host-2",))
OPS = TestKey("ops", (), roles=("operator",))


async def make_conflict(served: Running, key: TestKey = HOST, seq: int = 0) -> str:
    """Upload two frames under one identity and return the id of the conflict."""
    client = Client(served.client.session, served.port, key)
    who = identity(key.agents[0], seq=seq, count=3)
    assert (await client.upload(frame_of(who, "mine"))).status == 200
    answer = await client.upload(frame_of(who, "theirs"))
    assert answer.status == 409
    listed = await client.get_signed("/v1/conflicts", "limit=100")
    found = [
        item["id"]
        for item in listed.body["conflicts"]
        if item["quarantine_key"] == answer.body["quarantine_key"]
    ]
    return str(found[0])


async def test_conflict_is_listed_and_shown(tmp_path: Path) -> None:
    """The list is read from the keys; one conflict shows both sides and the first record that
    differs.
    """
    async with running(tmp_path, HOST, OTHER, OPS) as served:
        conflict_id = await make_conflict(served)
        view = (await served.client.get_signed(f"/v1/conflicts/{conflict_id}")).body
        assert view["conflict"]["state"] == "open"
        assert view["accepted"]["agent_id"] == "host-1"
        difference = view["difference"]
        assert (difference["accepted_count"], difference["differing_count"]) == (3, 3)
        assert difference["first_seq"] == 0
        assert "mine 0" in difference["accepted_record"]
        assert "theirs 0" in difference["submitted_record"]


async def test_conflicts_are_paged_and_scoped(tmp_path: Path) -> None:
    """An agent sees its own conflicts only; an operator sees all of them, each on one page."""
    async with running(tmp_path, HOST, OTHER, OPS) as served:
        for seq in (0, 10, 20):
            await make_conflict(served, HOST, seq)
        foreign = await make_conflict(served, OTHER)
        own = await served.client.get_signed("/v1/conflicts")
        assert {item["agent_id"] for item in own.body["conflicts"]} == {"host-1"}
        assert (await served.client.get_signed(f"/v1/conflicts/{foreign}")).status == 403
        assert (await served.client.get_signed("/v1/conflicts", "agent=host-2")).status == 403
        ops = Client(served.client.session, served.port, OPS)
        seen: list[str] = []
        query = "limit=2"
        while True:
            page = (await ops.get_signed("/v1/conflicts", query)).body
            seen += [item["id"] for item in page["conflicts"]]
            if page["next_after"] is None:
                break
            query = f"limit=2&after={page['next_after']}"
        assert len(seen) == len(set(seen)) == 4
        assert seen == sorted(seen)
        assert (await ops.get_signed("/v1/conflicts/nonsense")).status == 400
        assert (await ops.get_signed("/v1/conflicts", "limit=0")).status == 400
        async with served.client.session.get(
            f"http://127.0.0.1:{served.port}/v1/conflicts"
        ) as unsigned:
            assert unsigned.status == 401


async def test_resolve_is_for_operators(tmp_path: Path) -> None:
    """`accept_existing` closes a conflict; an agent cannot decide, and an invalid body changes
    nothing.
    """
    async with running(tmp_path, HOST, OPS) as served:
        conflict_id = await make_conflict(served)
        path = f"/v1/conflicts/{conflict_id}/resolve"
        ops = Client(served.client.session, served.port, OPS)
        assert (await served.client.post_signed(path, {"action": "accept_existing"})).status == 403
        assert (await ops.post_signed(path, {"action": "delete_all"})).status == 400
        assert (await ops.post_signed(path, {"action": "accept_existing", "x": "y"})).status == 400
        missing = f"/v1/conflicts/{conflict_id[:-1]}{(int(conflict_id[-1], 16) + 1) % 16:x}"
        assert (
            await ops.post_signed(missing + "/resolve", {"action": "accept_existing"})
        ).status == 404
        done = await ops.post_signed(path, {"action": "accept_existing", "note": "seen"})
        assert (done.status, done.body["decided_by"]) == (200, "ops")
        view = (await ops.get_signed(f"/v1/conflicts/{conflict_id}")).body
        assert view["conflict"]["state"] == "accept_existing"
        assert (await served.client.upload(frame_of(identity(seq=50)))).status == 200


def test_quarantine_shuts_out_agent_and_boot_everywhere(tmp_path: Path) -> None:
    """Both gateways respond 403 `identity_quarantined` within 30 s; another boot is accepted."""

    async def main(ports: list[int]) -> None:
        async with aiohttp.ClientSession() as session:
            first, second = (Client(session, port, HOST) for port in ports)
            assert (await first.upload(frame_of(text="a"))).status == 200
            assert (await second.upload(frame_of(text="b"))).status == 409
            conflict_id = (await first.get_signed("/v1/conflicts")).body["conflicts"][0]["id"]
            ops = Client(session, ports[0], OPS)
            path = f"/v1/conflicts/{conflict_id}/resolve"
            done = await ops.post_signed(path, {"action": "quarantine_identity"})
            assert done.status == 200
            started = time.monotonic()
            status = 0
            while status != 403 and time.monotonic() - started < 30:
                answer = await second.upload(frame_of(text="a"))
                status = answer.status
                await asyncio.sleep(0.2)
            assert answer.body["code"] == "identity_quarantined"
            assert (await first.upload(frame_of(text="a"))).status == 403
            fresh = frame_of(identity(boot="b2"))
            assert (await second.upload(fresh)).status == 200

    with gateways(tmp_path, HOST, OPS, count=2) as servers:
        asyncio.run(main([server.port for server in servers]))


def test_conflicts_on_the_command_line(tmp_path: Path) -> None:
    """`sluice conflicts` reads the store: list, show, resolve; exit code 0 when none is open."""

    async def main() -> None:
        async with running(tmp_path, HOST) as served:
            await make_conflict(served)

    run(main())

    def conflicts(*words: str) -> tuple[int, str]:
        done = sluice("conflicts", *words, "--store", f"file://{tmp_path}/store")
        return done.returncode, done.stdout + done.stderr

    code, out = conflicts("list", "--json")
    conflict = json.loads(out)["conflicts"][0]
    assert (code, conflict["state"]) == (1, "open")
    code, out = conflicts("show", conflict["id"])
    assert code == 0
    assert "3 differ, first at sequence 0" in out
    code, out = conflicts("resolve", conflict["id"], "quarantine_identity")
    assert code == 2
    assert out.count("\n") == 1
    assert "agent `host-1`, boot `" in out
    assert f"`sluice conflicts show {conflict['id']}`, then use --yes" in out
    assert json.loads(conflicts("list", "--json")[1])["conflicts"][0]["state"] == "open"
    assert conflicts("resolve", conflict["id"], "accept_existing")[0] == 0
    code, out = conflicts("list")
    assert (code, "accept_existing" in out) == (0, True)
