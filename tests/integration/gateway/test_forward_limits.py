"""Damaged, slow, idle and greedy clients of the forward protocol."""

import asyncio
import gzip
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.door_bodies import FORWARD, S, pack
from support.forward_door import SharedDoor, connect, serving, shared_door
from support.gateway import Running
from support.otlp_requests import damaged


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDoor]:
    with shared_door(tmp_path_factory.mktemp("gateway")) as one:
        yield one


def test_what_cannot_be_read_ends_the_connection(door: SharedDoor) -> None:
    bomb = gzip.compress(bytes(20_000_000))
    unreadable = {
        "http": b"GET / HTTP/1.1\r\n\r\n",
        "damaged": b"\x93\xc1",
        "deep": b"\x91" * 5000,
        "large": pack(["t", b"x" * 2_000_000, {"chunk": "c"}]),
        "bomb": pack(["t", bomb, {"chunk": "c", "compressed": "gzip"}]),
    }

    async def body(served: Running, port: int) -> None:
        for name, data in unreadable.items():
            client = await connect(port)
            await client.send(data)
            assert await client.receive() is None, name
            assert served.gateway.uploads.budget.held_bytes == 0, name

    door.check(body)


async def test_a_slow_message_and_a_slow_handshake_are_ended(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", body_grace_s=0.3) as (_, port):
        client = await connect(port)
        await client.send(FORWARD["forward"][:-1])
        assert await client.receive(10) is None

    async with serving(tmp_path / "b", forward_principal="", head_timeout_s=0.5) as (_, port):
        client = await connect(port)
        assert (await client.receive())[0] == "HELO"
        assert await client.receive(10) is None


async def test_a_connection_with_a_running_chunk_is_not_idle(tmp_path: Path) -> None:
    options = {"door_own_frame_bytes": 64 * 1024, "door_flush_ms": 1000}
    async with serving(tmp_path, forward_idle_timeout_s=0.4, **options) as (served, port):
        client = await connect(port)
        for name in ("c1", "c2"):
            await client.send(pack(["t", [[S, {"log": name}]], {"chunk": name}]))
            assert await client.receive() == {"ack": name}
        assert await client.receive(10) is None  # idle afterwards
        assert served.gateway.metrics.closed.labels("idle")._value.get() == 1


async def test_an_idle_connection_is_closed_and_the_number_is_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, forward_idle_timeout_s=1.0, connections_max=1) as (_, port):
        first = await connect(port)
        await first.send(FORWARD["message"])
        assert await first.receive() == {"ack": "c1"}
        second = await connect(port)
        assert await second.receive(5) is None
        assert await first.receive(10) is None


async def test_memory_of_incomplete_messages_is_limited(tmp_path: Path) -> None:
    """Beyond the budget a connection is closed; the others continue."""
    async with serving(
        tmp_path, inflight_bytes_max=4 << 20, frame_bytes_max=1 << 20, body_grace_s=30.0
    ) as (served, port):
        clients = [await connect(port) for _ in range(8)]
        part = pack(["t", b"x" * 1_000_000])[:900_000]
        for client in clients:
            await client.send(part)
        ended = 0
        for client in clients:
            try:
                ended += await client.receive(1.0) is None
            except TimeoutError:
                continue
        assert 0 < ended < len(clients)
        held = served.gateway.uploads.budget.held_bytes
        assert held <= 4 << 20
        for client in clients:
            client.close()


async def test_a_client_without_names_is_stopped_while_nothing_is_accepted(tmp_path: Path) -> None:
    """The gateway stops reading; nothing piles up in its memory."""
    async with serving(tmp_path) as (served, port):
        client = await connect(port)
        served.gateway.uploads.mode.switched = True
        flood = pack(["t", b"x" * 200_000])
        for _ in range(1_000):
            try:
                async with asyncio.timeout(2):
                    await client.send(flood)
            except TimeoutError:
                break
        else:
            raise AssertionError("the gateway reads without limit")
        client.writer.transport.abort()


def packed(text: str, count: int) -> bytes:
    """A message without a name whose entries are large after decompression."""
    entries = b"".join(pack([S, {"log": text, "n": number}]) for number in range(count))
    return pack(["t", gzip.compress(entries), {"compressed": "gzip"}])


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("messages", "count", "lost"),
    [
        ([pack(["t", S, {"log": "a" * 200_000}])] * 11, 11, 0),
        ([pack(["t", S, {"log": "a"}]), pack(["t", S, {"log": "a" * 1_000_000}])] * 3, 6, 0),
        ([packed("a" * 100_000, 8)] * 5, 40, 0),
        ([packed("a" * 10, 3), packed("a" * 100_000, 20), packed("a" * 10, 3)] * 2, 12, 2),
        ([pack(["t", S, {"log": "a"}])] * 2_500, 2_500, 0),
    ],
    ids=["many", "near the limit", "compressed", "one is too large", "tiny"],
)
def test_messages_that_are_good_alone_are_not_lost_together(
    door: SharedDoor, messages: list[bytes], count: int, lost: int
) -> None:
    """Messages that arrive at the same time are accepted together; limits apply to each."""

    async def body(served: Running, port: int) -> None:
        labels = {"door": "forward", "outcome": "too_large"}
        before = served.count("sluice_door_requests_total", **labels)
        records = served.count("sluice_door_records_total", door="forward")
        client = await connect(port)
        client.writer.write(b"".join(messages))
        await client.send(pack(["t", S, {"log": "last"}, {"chunk": "last"}]))
        assert await client.receive(60) == {"ack": "last"}
        for _ in range(600):
            found = served.count("sluice_door_records_total", door="forward") - records
            if found >= count + 1:
                break
            await asyncio.sleep(0.05)
        assert found == count + 1
        # Groups of several are divided without a response, so only lost messages are counted.
        assert served.count("sluice_door_requests_total", **labels) - before == lost

    door.check(body)


def test_damaged_messages_never_end_the_server(door: SharedDoor) -> None:
    async def body(served: Running, port: int) -> None:
        for data in damaged(random.Random(23), list(FORWARD.values()), 150):
            client = await connect(port)
            await client.send(data)
            client.writer.write_eof()
            client.close()
        client = await connect(port)
        await client.send(pack(["t", S, {"log": "last"}, {"chunk": "last"}]))
        assert await client.receive(60) == {"ack": "last"}
        labels = {"door": "forward", "outcome": "internal"}
        assert served.count("sluice_door_requests_total", **labels) == 0

    door.check(body)
