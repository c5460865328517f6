"""Fluent's forward protocol over real sockets: acks, batches, refused chunks, trouble.

Its handshake, TLS and limits are tested in the files next to this one.
"""

import asyncio
import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from fluent.sender import FluentSender
from structlog.testing import capture_logs
from support.door_bodies import FORWARD, STREAM, S, pack
from support.door_client import accepted_frames
from support.forward_door import (
    HOST,
    SHOP,
    SharedDoor,
    bodies,
    connect,
    frames_of,
    serving,
    shared_door,
)
from support.gateway import Running, running

from sluice_doors.forward import server as forward_server
from sluice_gateway.process.worker import serving_forward_port
from sluice_store import read_authority


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDoor]:
    with shared_door(tmp_path_factory.mktemp("gateway")) as one:
        yield one


@pytest.mark.parametrize("mode", FORWARD)
async def test_an_ack_follows_acceptance_and_a_retry_adds_nothing(
    tmp_path: Path, mode: str
) -> None:
    async with serving(tmp_path) as (served, port):
        for _ in range(2):
            client = await connect(port)
            await client.send(FORWARD[mode])
            answer = await client.receive()
            assert answer["ack"] in ("c1", b"c1")
            assert isinstance(answer["ack"], bytes) == (mode == "packed")
            client.close()
        [frame] = await accepted_frames(served.store.inner)
        assert frame.envelope.count == (1 if mode == "message" else 6)
        assert frame.identity.agent_id.startswith("door:shop:")
        assert served.count("sluice_door_requests_total", door="forward", outcome="duplicate") == 1


async def test_the_same_chunk_through_two_gateways_is_accepted_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, port):
        client = await connect(port)
        await client.send(FORWARD["forward"])
        await client.receive()
        again = running(
            tmp_path / "b", HOST, SHOP, doors=("forward",), store=served.store.inner,
            forward_listen="127.0.0.1:0", forward_principal="shop",
            authority=await read_authority(served.store.inner),
        )  # fmt: skip
        async with again as second, serving_forward_port(second.gateway) as other_port:
            client = await connect(other_port)
            packed = pack(["app.access", gzip.compress(STREAM),
                           {"chunk": "c1", "compressed": "gzip"}])  # fmt: skip
            await client.send(packed)
            assert await client.receive() == {"ack": "c1"}
        assert len(await accepted_frames(served.store.inner)) == 1


async def test_chunks_of_many_connections_share_a_batch(tmp_path: Path) -> None:
    """Each ack follows the acceptance of the shared batch."""
    async with serving(tmp_path, door_own_frame_bytes=64 * 1024, door_flush_ms=1000) as (
        served,
        port,
    ):
        clients = [await connect(port) for _ in range(5)]
        for place, client in enumerate(clients):
            chunk = {"chunk": f"c{place}"}
            await client.send(pack(["t", [[S, {"log": str(place)}]], chunk]))
        acks = sorted([(await client.receive())["ack"] for client in clients])
        assert acks == [f"c{place}" for place in range(5)]
        frames = await accepted_frames(served.store.inner)
        assert len(frames) < 5
        assert bodies(frames) == [str(place) for place in range(5)]


async def test_chunks_of_one_connection_share_a_batch(tmp_path: Path) -> None:
    """They wait together, and not one after the other."""
    async with serving(tmp_path, door_own_frame_bytes=64 * 1024, door_flush_ms=100) as (
        served,
        port,
    ):
        client = await connect(port)
        names = [f"c{place:02}" for place in range(40)]
        await client.send(
            b"".join(pack(["t", [[S, {"log": name}]], {"chunk": name}]) for name in names)
        )
        acks = [(await client.receive())["ack"] for _ in names]
        assert sorted(acks) == names
        frames = await accepted_frames(served.store.inner)
        assert bodies(frames) == names
        assert len(frames) <= 20


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_chunk_that_is_refused_has_no_ack_and_others_have(door: SharedDoor, place: int) -> None:
    names = [f"{place} a", f"{place} b"]
    bomb = gzip.compress(bytes(20_000_000))
    sent = [pack(["t", [[S, {"log": name}]], {"chunk": name}]) for name in names]
    sent.insert(place, pack(["t", bomb, {"chunk": f"bomb{place}", "compressed": "gzip"}]))

    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        await client.send(b"".join(sent))
        acks = sorted([(await client.receive())["ack"] for _ in range(2)])
        assert (acks, await client.receive()) == (names, None)
        assert bodies(await accepted_frames(served.store.inner), f"{place} ") == names
        assert served.gateway.uploads.budget.held_bytes == 0

    door.check(body)


async def test_messages_without_a_name_follow_the_chunks_before_them(tmp_path: Path) -> None:
    """Also when their chunk waits for others."""
    async with serving(tmp_path, door_own_frame_bytes=64 * 1024, door_flush_ms=500) as (
        served,
        port,
    ):
        client = await connect(port)
        await client.send(pack(["t", [[S, {"log": "named"}]], {"chunk": "c"}]))
        await client.send(pack(["t", S, {"log": "unnamed"}]))
        assert await client.receive() == {"ack": "c"}
        assert bodies(await accepted_frames(served.store.inner)) == ["named"]
        assert bodies(await frames_of(served, 2)) == ["named", "unnamed"]


async def test_messages_behind_a_chunk_that_is_refused_are_reported_as_lost(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(20_000_000))

    async with serving(tmp_path) as (served, port):
        client = await connect(port)
        with capture_logs() as logs:
            await client.send(pack(["t", bomb, {"chunk": "bomb", "compressed": "gzip"}]))
            await client.send(pack(["t", S, {"log": "unnamed"}]))
            assert await client.receive() is None
        [lost] = [one for one in logs if one["event"] == "forward_messages_lost"]
        assert (lost["messages"], await accepted_frames(served.store.inner)) == (1, [])


def test_many_chunks_and_heartbeats_on_one_connection(door: SharedDoor) -> None:
    names = [f"beat {place}" for place in range(10)]

    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        stream = b"".join(
            b"\xc0" + pack(["t", S, {"log": name}, {"chunk": name}]) for name in names
        )
        for start in range(0, len(stream), 7):
            await client.send(stream[start : start + 7])
        acks = sorted([(await client.receive())["ack"] for _ in range(10)])
        assert acks == names
        assert bodies(await accepted_frames(served.store.inner), "beat ") == names

    door.check(body)


async def test_the_real_client_sends_without_names(tmp_path: Path) -> None:
    """`fluent-logger` waits for nothing; its messages are accepted together."""
    async with serving(tmp_path) as (served, port):

        def send() -> None:
            sender = FluentSender("app", port=port, nanosecond_precision=True)
            for place in range(500):
                assert sender.emit("log", {"message": f"line {place:03}", "n": place})
            sender.close()

        await asyncio.to_thread(send)
        frames = await frames_of(served, 500)
        assert bodies(frames) == [f"line {place:03}" for place in range(500)]
        assert len(frames) < 50
        assert dict(frames[0].envelope.resource)["fluent.tag"] == "app.log"


async def test_equal_messages_without_a_name_are_stored_each_time(tmp_path: Path) -> None:
    """Their client sends nothing again, and a time in whole seconds is often equal."""
    async with serving(tmp_path) as (served, port):
        for count in (1, 2, 3):
            client = await connect(port)
            await client.send(pack(["t", S, {"log": "tick"}]))
            assert bodies(await frames_of(served, count)) == ["tick"] * count


async def test_a_client_without_names_waits_while_the_store_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_server, "PAUSE_S_MIN", 0.02)

    async with serving(tmp_path) as (served, port):
        served.gateway.uploads.mode.switched = True
        client = await connect(port)
        await client.send(pack(["t", S, {"log": "kept"}]))
        labels = {"door": "forward", "outcome": "store_unavailable"}
        for _ in range(1_000):
            if served.count("sluice_door_requests_total", **labels) >= 3:
                break
            await asyncio.sleep(0.01)
        assert await accepted_frames(served.store.inner) == []
        served.gateway.uploads.mode.switched = False
        assert bodies(await frames_of(served)) == ["kept"]


def test_trouble_closes_the_connection_of_a_client_that_waits(door: SharedDoor) -> None:
    """It sends the same chunk again, perhaps to another gateway."""
    sent = pack(["t", S, {"log": "again"}, {"chunk": "again"}])

    async def body(served: Running, port: int) -> None:
        served.gateway.uploads.mode.switched = True
        client = await connect(port)
        await client.send(sent)
        assert await client.receive() is None
        served.gateway.uploads.mode.switched = False
        client = await connect(port)
        await client.send(sent)
        assert await client.receive() == {"ack": "again"}

    door.check(body)


async def test_a_draining_gateway_closes_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, port):
        client = await connect(port)
        served.gateway.uploads.running.drain()
        await client.send(FORWARD["message"])
        assert await client.receive() is None
