"""Fluent's forward protocol over real sockets: handshake, acks, damage, slow clients, trouble."""

import asyncio
import gzip
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fluent.sender import FluentSender
from structlog.testing import capture_logs
from support.door_client import TestSender, accepted_frames
from support.event_bodies import FORWARD, STREAM, S, pack
from support.forward_client import ForwardClient, close_clients, connect
from support.gateway import Running, TestKey, run, running
from support.gateway_tls import SERVER, TestAuthority
from support.otlp_requests import damaged

from sluice_gateway.app import serving_forward_port
from sluice_gateway.doors import forward_server
from sluice_protocol.columns import LogColumns
from sluice_protocol.frame import Frame

KEY = "a-shared-key-of-32-characters-00"


class _Fluent(TestSender):
    """A principal with shared keys; the second one needs a user."""

    @property
    def entry(self) -> str:
        made = super().entry.partition("forward = ")[0]
        return made + (
            f'forward = [{{ id = "f1", shared_key = "{KEY}" }},\n'
            '  { id = "f2", shared_key = "key-with-a-user-00000", username = "u", password = "p" }'
            ',\n  { id = "f3", shared_key = "key-that-is-expired-0", '
            "not_after = 2020-01-01T00:00:00Z }]\n"
            'spiffe = "spiffe://td/fluent"\n'
        )


HOST = TestKey("host-1", ("host-1",))
SHOP = _Fluent("shop", (), doors=("forward",))
OTHER = TestSender("other", (), doors=("json",))


@asynccontextmanager
async def serving(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Running, int]]:
    options = {"forward_principal": "shop", "door_body_bytes_max": 1 << 20, **settings}
    async with (
        running(
            tmp_path, HOST, SHOP, OTHER, doors=("forward",), forward_listen="127.0.0.1:0", **options
        ) as served,
        serving_forward_port(served.gateway) as port,
    ):
        try:
            yield served, port
        finally:
            await close_clients()


def check(tmp_path: Path, body: Callable[[Running, int], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with serving(tmp_path, **settings) as (served, port):
            await body(served, port)

    run(main())


async def frames_of(served: Running, count: int = 1) -> list[Frame]:
    """Return the accepted frames, when there are that many records."""
    for _ in range(600):
        found = await accepted_frames(served.store.inner)
        if sum(frame.envelope.count for frame in found) >= count:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("the records were not accepted")


def bodies(frames: list[Frame]) -> list[str]:
    found: list[str] = []
    for frame in frames:
        assert isinstance(frame.columns, LogColumns)
        found += [body.decode() for body in frame.columns.body.slices()]
    return sorted(found)


@pytest.mark.parametrize("mode", FORWARD)
def test_an_ack_follows_acceptance_and_a_retry_adds_nothing(tmp_path: Path, mode: str) -> None:
    async def body(served: Running, port: int) -> None:
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
        counted = served.gateway.metrics.door_requests.labels("forward", "duplicate")
        assert counted._value.get() == 1

    check(tmp_path, body)


def test_the_same_chunk_through_two_gateways_is_accepted_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (served, port):
            client = await connect(port)
            await client.send(FORWARD["forward"])
            await client.receive()
            again = running(
                tmp_path / "b", HOST, SHOP, doors=("forward",), store=served.store.inner,
                forward_listen="127.0.0.1:0", forward_principal="shop",
                authority=served.gateway.uploads.acceptor._authority,
            )  # fmt: skip
            async with again as second, serving_forward_port(second.gateway) as other_port:
                client = await connect(other_port)
                packed = pack(["app.access", gzip.compress(STREAM),
                               {"chunk": "c1", "compressed": "gzip"}])  # fmt: skip
                await client.send(packed)
                assert await client.receive() == {"ack": "c1"}
            assert len(await accepted_frames(served.store.inner)) == 1

    run(main())


def test_chunks_of_many_connections_share_a_batch(tmp_path: Path) -> None:
    """Each ack follows the acceptance of the shared batch."""

    async def body(served: Running, port: int) -> None:
        clients = [await connect(port) for _ in range(5)]
        for place, client in enumerate(clients):
            chunk = {"chunk": f"c{place}"}
            await client.send(pack(["t", [[S, {"log": str(place)}]], chunk]))
        acks = sorted([(await client.receive())["ack"] for client in clients])
        assert acks == [f"c{place}" for place in range(5)]
        frames = await accepted_frames(served.store.inner)
        assert len(frames) < 5
        assert bodies(frames) == [str(place) for place in range(5)]

    check(tmp_path, body, door_own_frame_bytes=64 * 1024, door_flush_ms=1000)


def test_chunks_of_one_connection_share_a_batch(tmp_path: Path) -> None:
    """They wait together, and not one after the other."""

    async def body(served: Running, port: int) -> None:
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

    check(tmp_path, body, door_own_frame_bytes=64 * 1024, door_flush_ms=100)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_chunk_that_is_refused_has_no_ack_and_others_have(tmp_path: Path, place: int) -> None:
    bomb = gzip.compress(bytes(20_000_000))
    sent = [pack(["t", [[S, {"log": name}]], {"chunk": name}]) for name in ("a", "b")]
    sent.insert(place, pack(["t", bomb, {"chunk": "bomb", "compressed": "gzip"}]))

    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        await client.send(b"".join(sent))
        acks = sorted([(await client.receive())["ack"] for _ in range(2)])
        assert (acks, await client.receive()) == (["a", "b"], None)
        assert bodies(await accepted_frames(served.store.inner)) == ["a", "b"]
        assert served.gateway.uploads.budget.held_bytes == 0

    check(tmp_path, body)


def test_messages_without_a_name_follow_the_chunks_before_them(tmp_path: Path) -> None:
    """Also when their chunk waits for others."""

    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        await client.send(pack(["t", [[S, {"log": "named"}]], {"chunk": "c"}]))
        await client.send(pack(["t", S, {"log": "unnamed"}]))
        assert await client.receive() == {"ack": "c"}
        assert bodies(await accepted_frames(served.store.inner)) == ["named"]
        assert bodies(await frames_of(served, 2)) == ["named", "unnamed"]

    check(tmp_path, body, door_own_frame_bytes=64 * 1024, door_flush_ms=500)


def test_messages_behind_a_chunk_that_is_refused_are_reported_as_lost(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(20_000_000))

    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        with capture_logs() as logs:
            await client.send(pack(["t", bomb, {"chunk": "bomb", "compressed": "gzip"}]))
            await client.send(pack(["t", S, {"log": "unnamed"}]))
            assert await client.receive() is None
        [lost] = [one for one in logs if one["event"] == "forward_messages_lost"]
        assert (lost["messages"], await accepted_frames(served.store.inner)) == (1, [])

    check(tmp_path, body)


def test_a_connection_with_a_running_chunk_is_not_idle(tmp_path: Path) -> None:
    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        for name in ("c1", "c2"):
            await client.send(pack(["t", [[S, {"log": name}]], {"chunk": name}]))
            assert await client.receive() == {"ack": name}
        assert await client.receive(10) is None  # idle afterwards
        assert served.gateway.metrics.closed.labels("idle")._value.get() == 1

    options = {"door_own_frame_bytes": 64 * 1024, "door_flush_ms": 1000}
    check(tmp_path, body, forward_idle_timeout_s=0.4, **options)


def test_many_chunks_and_heartbeats_on_one_connection(tmp_path: Path) -> None:
    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        stream = b"".join(
            b"\xc0" + pack(["t", S, {"log": str(place)}, {"chunk": str(place)}])
            for place in range(10)
        )
        for start in range(0, len(stream), 7):
            await client.send(stream[start : start + 7])
        acks = sorted([(await client.receive())["ack"] for _ in range(10)])
        assert acks == [str(place) for place in range(10)]
        assert len(bodies(await accepted_frames(served.store.inner))) == 10

    check(tmp_path, body)


def test_the_real_client_sends_without_names(tmp_path: Path) -> None:
    """`fluent-logger` waits for nothing; its messages are accepted together."""

    async def body(served: Running, port: int) -> None:
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

    check(tmp_path, body)


def test_a_client_without_names_waits_while_the_store_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_server, "PAUSE_S_MIN", 0.02)

    async def body(served: Running, port: int) -> None:
        served.gateway.uploads.mode.switched = True
        client = await connect(port)
        await client.send(pack(["t", S, {"log": "kept"}]))
        refused = served.gateway.metrics.door_requests.labels("forward", "store_unavailable")
        for _ in range(1_000):
            if refused._value.get() >= 3:
                break
            await asyncio.sleep(0.01)
        assert await accepted_frames(served.store.inner) == []
        served.gateway.uploads.mode.switched = False
        assert bodies(await frames_of(served)) == ["kept"]

    check(tmp_path, body)


def test_trouble_closes_the_connection_of_a_client_that_waits(tmp_path: Path) -> None:
    """It sends the same chunk again, perhaps to another gateway."""

    async def body(served: Running, port: int) -> None:
        served.gateway.uploads.mode.switched = True
        client = await connect(port)
        await client.send(FORWARD["message"])
        assert await client.receive() is None
        served.gateway.uploads.mode.switched = False
        client = await connect(port)
        await client.send(FORWARD["message"])
        assert await client.receive() == {"ack": "c1"}

    check(tmp_path, body)


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
    tmp_path: Path, login: dict[str, str], accepted: bool
) -> None:
    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        pong = await client.log_in(**login)
        assert pong is not None
        assert (pong[0], pong[1]) == ("PONG", accepted)
        await client.send(FORWARD["message"])
        answer = await client.receive()
        assert answer == ({"ack": "c1"} if accepted else None)
        assert len(await accepted_frames(served.store.inner)) == int(accepted)

    check(tmp_path, body, forward_principal="")


def test_records_before_the_handshake_are_not_accepted(tmp_path: Path) -> None:
    async def body(served: Running, port: int) -> None:
        for data in (FORWARD["message"], b"\xdc" + bytes(20_000), b"GET / HTTP/1.1\r\n\r\n"):
            client = await connect(port)
            assert (await client.receive())[0] == "HELO"
            await client.send(data)
            assert await client.receive() is None
        assert await accepted_frames(served.store.inner) == []

    check(tmp_path, body, forward_principal="")


def test_a_removed_key_ends_its_connections(tmp_path: Path) -> None:
    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        await client.log_in(KEY)
        principals = served.gateway.uploads.principals
        principals._path.write_text(HOST.entry, encoding="utf-8")
        assert principals.reload()
        await client.send(FORWARD["message"])
        assert await client.receive() is None
        assert await accepted_frames(served.store.inner) == []

    check(tmp_path, body, forward_principal="")


def test_a_principal_without_the_door_is_refused(tmp_path: Path) -> None:
    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        await client.send(FORWARD["message"])
        assert await client.receive() is None
        assert await accepted_frames(served.store.inner) == []

    check(tmp_path, body, forward_principal="other")


def test_a_client_certificate_needs_no_handshake(tmp_path: Path) -> None:
    async def main() -> None:
        authority = TestAuthority(tmp_path / "ca")
        server = authority.issue("server", usage=SERVER)
        tls = {
            "tls_certificate": server.certificate, "tls_key": server.key,
            "tls_client_ca": authority.path, "forward_principal": "",
        }  # fmt: skip
        async with serving(tmp_path, **tls) as (served, port):
            known = authority.issue("fluent", "spiffe://td/fluent")
            client = await connect(port, authority.client_context(known))
            await client.send(FORWARD["message"])
            assert await client.receive() == {"ack": "c1"}
            unknown = authority.issue("what", "spiffe://td/what")
            client = await connect(port, authority.client_context(unknown))
            await client.send(FORWARD["forward"])
            assert await client.receive() is None
            client = await connect(port, authority.client_context(None))
            assert (await client.log_in(KEY) or [])[1] is True
            assert len(await accepted_frames(served.store.inner)) == 1

    run(main())


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x93\xc1",
        b"\x91" * 5000,
        pack(["t", b"x" * 2_000_000, {"chunk": "c"}]),
        pack(["t", gzip.compress(bytes(20_000_000)), {"chunk": "c", "compressed": "gzip"}]),
    ],
    ids=["http", "damaged", "deep", "large", "bomb"],
)
def test_what_cannot_be_read_ends_the_connection(tmp_path: Path, data: bytes) -> None:
    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        await client.send(data)
        assert await client.receive() is None
        assert served.gateway.uploads.budget.held_bytes == 0

    check(tmp_path, body)


def test_a_slow_message_and_a_slow_handshake_are_ended(tmp_path: Path) -> None:
    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        await client.send(FORWARD["forward"][:-1])
        assert await client.receive(10) is None

    check(tmp_path / "a", body, body_grace_s=0.3)

    async def silent(served: Running, port: int) -> None:
        client = await connect(port)
        assert (await client.receive())[0] == "HELO"
        assert await client.receive(10) is None

    check(tmp_path / "b", silent, forward_principal="", head_timeout_s=0.5)


def test_an_idle_connection_is_closed_and_the_number_is_limited(tmp_path: Path) -> None:
    async def body(served: Running, port: int) -> None:
        first = await connect(port)
        await first.send(FORWARD["message"])
        assert await first.receive() == {"ack": "c1"}
        second = await connect(port)
        assert await second.receive(5) is None
        assert await first.receive(10) is None

    check(tmp_path, body, forward_idle_timeout_s=1.0, connections_max=1)


def test_memory_of_incomplete_messages_is_limited(tmp_path: Path) -> None:
    """Beyond the budget a connection is closed; the others continue."""

    async def body(served: Running, port: int) -> None:
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

    check(tmp_path, body, inflight_bytes_max=4 << 20, frame_bytes_max=1 << 20, body_grace_s=30.0)


def test_a_client_that_reads_no_acks_is_stopped(tmp_path: Path) -> None:
    """The gateway stops reading; nothing piles up in its memory."""

    async def body(served: Running, port: int) -> None:
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

    check(tmp_path, body)


def test_damaged_messages_never_end_the_server(tmp_path: Path) -> None:
    async def body(served: Running, port: int) -> None:
        for data in damaged(random.Random(23), list(FORWARD.values()), 150):
            client = await connect(port)
            await client.send(data)
            client.writer.write_eof()
            client.close()
        client = await connect(port)
        await client.send(pack(["t", S, {"log": "last"}, {"chunk": "last"}]))
        assert await client.receive(60) == {"ack": "last"}
        internal = served.gateway.metrics.door_requests.labels("forward", "internal")
        assert internal._value.get() == 0

    check(tmp_path, body)


async def drained(client: ForwardClient) -> Any:
    await client.send(FORWARD["message"])
    return await client.receive()


def test_a_draining_gateway_closes_the_connection(tmp_path: Path) -> None:
    async def body(served: Running, port: int) -> None:
        client = await connect(port)
        served.gateway.uploads.running.drain()
        assert await drained(client) is None

    check(tmp_path, body)
