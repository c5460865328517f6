"""The handshake of the forward protocol, and who may send without one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.door_bodies import FORWARD, S, pack
from support.door_client import accepted_frames
from support.forward_door import HOST, KEY, SharedDoor, bodies, connect, serving, shared_door
from support.gateway import Running


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDoor]:
    with shared_door(tmp_path_factory.mktemp("gateway"), forward_principal="") as one:
        yield one


@pytest.mark.parametrize(
    ("login", "accepted"),
    [
        ({"shared_key": KEY}, True),
        ({"shared_key": KEY, "username": "u", "password": "wrong"}, True),
        ({"shared_key": "key-with-a-user-00000", "username": "u", "password": "p"}, True),
        ({"shared_key": "key-with-a-user-00000", "username": "u", "password": "q"}, False),
        ({"shared_key": "key-with-a-user-00000", "username": "v", "password": "p"}, False),
        ({"shared_key": "key-with-a-user-00000"}, False),
        ({"shared_key": "key-that-is-expired-0"}, False),
        ({"shared_key": "wrong"}, False),
        ({"shared_key": "wrong", "username": "u", "password": "p"}, False),
        ({"shared_key": ""}, False),
    ],
)
def test_a_handshake_proves_the_shared_key(
    door: SharedDoor, login: dict[str, str], accepted: bool, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    message = pack(["t", S, {"log": name}, {"chunk": name}])

    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        pong = await client.log_in(**login)
        assert pong is not None
        assert (pong[0], pong[1]) == ("PONG", accepted)
        await client.send(message)
        answer = await client.receive()
        assert answer == ({"ack": name} if accepted else None)
        found = bodies(await accepted_frames(served.store.inner))
        assert found.count(name) == int(accepted)

    door.check(body)


def test_records_before_the_handshake_are_not_accepted(door: SharedDoor) -> None:
    async def body(served: Running, port: int) -> None:
        before = bodies(await accepted_frames(served.store.inner))
        for data in (FORWARD["message"], b"\xdc" + bytes(20_000), b"GET / HTTP/1.1\r\n\r\n"):
            client = await connect(port)
            assert (await client.receive())[0] == "HELO"
            await client.send(data)
            assert await client.receive() is None
        assert bodies(await accepted_frames(served.store.inner)) == before

    door.check(body)


async def test_a_removed_key_ends_its_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, forward_principal="") as (served, port):
        client = await connect(port)
        await client.log_in(KEY)
        principals = served.gateway.uploads.principals
        principals._path.write_text(HOST.entry, encoding="utf-8")
        assert [principals.reload() for _ in range(2)] == [False, True]
        await client.send(FORWARD["message"])
        assert await client.receive() is None
        assert await accepted_frames(served.store.inner) == []


async def test_a_principal_without_the_door_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, forward_principal="other") as (served, port):
        client = await connect(port)
        await client.send(FORWARD["message"])
        assert await client.receive() is None
        assert await accepted_frames(served.store.inner) == []
