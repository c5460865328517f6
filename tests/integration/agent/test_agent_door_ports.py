"""OTLP over gRPC and Fluent's forward protocol at a running agent: success means durable."""

import asyncio
import gzip
import hashlib
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from fluent.sender import FluentSender
from grpc import aio
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from support.agent_doors import Client, served, settings, spooled, with_ports
from support.agent_gateway import GatewayDouble
from support.door_client import otlp_logs
from support.event_bodies import FORWARD, S, pack
from support.forward_client import connect
from support.gateway_tls import SERVER, TestAuthority
from support.slow_grpc import PREFACE, SETTINGS, frame
from support.store_versitygw import free_port

from sluice_agent import door_servers
from sluice_agent.app import run_agent
from sluice_agent.batching import Batcher
from sluice_agent.settings import AgentSettings, WhenFull
from sluice_agent.spool import Spool
from sluice_protocol.errors import BadUsage

LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
BODY = otlp_logs("one", "two")
PROTOBUF = {"Content-Type": "application/x-protobuf"}
KEY = "a-shared-key-of-32-characters-00"
TOKENS = f"shop={hashlib.sha256(b'secret').hexdigest()}"


async def export(
    client: Client,
    body: bytes = BODY,
    token: str = "",
    credentials: grpc.ChannelCredentials | None = None,
) -> tuple[grpc.StatusCode, bytes]:
    address = f"127.0.0.1:{client.grpc_port}"
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    options = [("grpc.use_local_subchannel_pool", 1)]
    opened = (
        aio.insecure_channel(address, options=options)
        if credentials is None
        else aio.secure_channel(address, credentials, options=options)
    )
    async with opened as channel:
        try:
            answer = await channel.unary_unary(LOGS)(body, metadata=metadata, timeout=20)
        except aio.AioRpcError as error:
            return error.code(), (error.details() or "").encode()
    return grpc.StatusCode.OK, answer


def chunk(name: str, **options: Any) -> bytes:
    return pack(["t", [[S, {"log": name}]], {"chunk": name, **options}])


# -- success is durable ------------------------------------------------------------------


@pytest.mark.parametrize("mode", FORWARD)
def test_an_ack_is_durable_and_a_chunk_that_is_sent_again_adds_nothing(
    tmp_path: Path, mode: str
) -> None:
    """Also when the agent was restarted in between."""
    counts = []

    async def check(client: Client) -> None:
        for _ in range(2):
            fluent = await connect(client.forward_port)
            await fluent.send(FORWARD[mode])
            assert (await fluent.receive())["ack"] in ("c1", b"c1")

    for _ in range(2):
        served(tmp_path, check, **with_ports())
        counts.append(spooled(tmp_path))
    assert counts == ([1, 1] if mode == "message" else [6, 6])


def test_an_ok_is_durable_and_a_retry_over_either_transport_adds_nothing(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        for _ in range(2):
            code, answer = await export(client)
            assert code is grpc.StatusCode.OK
            assert ExportLogsServiceResponse.FromString(answer) == ExportLogsServiceResponse()
        assert (await client.post("/v1/logs", BODY, PROTOBUF)).status == 200

    for _ in range(2):
        served(tmp_path, check, **with_ports())
        assert spooled(tmp_path) == 2


def test_neither_is_answered_before_its_batch_is_durable(tmp_path: Path) -> None:
    """The batch is committed when the test allows it."""
    allowed = asyncio.Event()
    commit = Batcher._commit

    async def delayed(self: Batcher, sealed: Any) -> Any:
        await allowed.wait()
        return await commit(self, sealed)

    async def check(client: Client) -> None:
        call = asyncio.create_task(export(client))
        fluent = await connect(client.forward_port)
        await fluent.send(chunk("c"))
        acked = asyncio.create_task(fluent.receive())
        await asyncio.wait((call, acked), timeout=0.5)
        assert not call.done()
        assert not acked.done()
        allowed.set()
        assert (await call)[0] is grpc.StatusCode.OK
        assert await acked == {"ack": "c"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batcher, "_commit", delayed)
        served(tmp_path, check, **with_ports())


def test_equal_messages_without_a_chunk_are_stored_each_time(tmp_path: Path) -> None:
    """Their client sends nothing again; a time of whole seconds does not tell them apart."""
    message = pack(["t", S, {"log": "tick"}])

    async def check(client: Client) -> None:
        for count in (1, 2, 3):
            fluent = await connect(client.forward_port)
            await fluent.send(message)
            for _ in range(200):
                if gateway.bodies().count(b"tick") == count:
                    break
                await asyncio.sleep(0.05)
            assert gateway.bodies().count(b"tick") == count

    with GatewayDouble() as gateway:
        served(tmp_path, check, **with_ports(gateway=gateway.url))


# -- later -------------------------------------------------------------------------------


def test_a_full_spool_is_later_in_the_form_of_each_protocol(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        code, detail = await export(client)
        assert (code, b"spool is full" in detail) == (grpc.StatusCode.UNAVAILABLE, True)
        fluent = await connect(client.forward_port)
        await fluent.send(chunk("c"))
        assert await fluent.receive() is None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "fits", lambda *_: False)
        served(tmp_path, check, **with_ports(when_full=WhenFull.DROP_NEWEST))
    assert spooled(tmp_path) == 0


def test_messages_without_a_chunk_wait_for_room(tmp_path: Path) -> None:
    has_room = False

    async def check(client: Client) -> None:
        nonlocal has_room
        fluent = await connect(client.forward_port)
        await fluent.send(pack(["t", S, {"log": "line 0"}]))  # there is no room for its batch
        for _ in range(200):
            if (await export(client))[0] is grpc.StatusCode.UNAVAILABLE:
                break
        other = await connect(client.forward_port)
        await other.send(pack(["t", S, {"log": "line 1"}]))  # refused until there is room
        await asyncio.sleep(1.0)
        assert not fluent.reader.at_eof()
        assert not other.reader.at_eof()
        has_room = True
        for _ in range(200):
            if {b"line 0", b"line 1"} <= {*gateway.bodies()}:
                break
            await asyncio.sleep(0.05)
        assert Counter(gateway.bodies())[b"line 0"] == Counter(gateway.bodies())[b"line 1"] == 1

    with pytest.MonkeyPatch.context() as patch, GatewayDouble() as gateway:
        patch.setattr(Spool, "fits", lambda *_: has_room)
        served(tmp_path, check, **with_ports(gateway=gateway.url))


def test_a_chunk_that_is_sent_again_while_the_spool_is_full_joins_the_first(
    tmp_path: Path,
) -> None:
    has_room = False

    async def check(client: Client) -> None:
        nonlocal has_room
        first = await connect(client.forward_port)
        await first.send(chunk("c"))
        await asyncio.sleep(0.3)  # there is no room for its batch
        first.writer.transport.abort()
        second = await connect(client.forward_port)
        await second.send(chunk("c"))
        assert await second.receive() is None
        has_room = True
        for _ in range(100):
            third = await connect(client.forward_port)
            await third.send(chunk("c"))
            if await third.receive() == {"ack": "c"}:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("no ack")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "fits", lambda *_: has_room)
        served(tmp_path, check, **with_ports())
    assert spooled(tmp_path) == 1


# -- who may send ------------------------------------------------------------------------


def test_a_handshake_proves_a_key_of_the_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# clients\n\nother=another-key-of-32-characters\nshop={KEY}\n")

    async def check(client: Client) -> None:
        fluent = await connect(client.forward_port)
        assert (await fluent.log_in(KEY) or [])[1] is True
        await fluent.send(chunk("known"))
        assert await fluent.receive() == {"ack": "known"}
        stranger = await connect(client.forward_port)
        pong = await stranger.log_in("a-key-that-is-not-in-the-file")
        assert (pong or [])[1:3] == [False, "shared key, user or password is not known"]
        await stranger.send(chunk("unknown"))
        assert await stranger.receive() is None
        silent = await connect(client.forward_port)
        await silent.receive()
        await silent.send(chunk("no handshake"))
        assert await silent.receive() is None

    served(tmp_path, check, **with_ports(forward_keys=keys))
    assert spooled(tmp_path) == 1


def test_a_call_needs_a_token_if_there_are_any(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        for token in ("", "wrong"):
            code, detail = await export(client, token=token)
            assert (code, detail) == (
                grpc.StatusCode.UNAUTHENTICATED, b"the sender is not known",
            )  # fmt: skip
        assert (await export(client, token="secret"))[0] is grpc.StatusCode.OK

    served(tmp_path, check, **with_ports(door_tokens=TOKENS))
    assert spooled(tmp_path) == 2


def test_each_door_uses_the_certificate(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "ca")
    server = authority.issue("server", usage=SERVER)

    async def check(client: Client) -> None:
        credentials = grpc.ssl_channel_credentials(authority.path.read_bytes())
        assert (await export(client, credentials=credentials))[0] is grpc.StatusCode.OK
        assert (await export(client))[0] is grpc.StatusCode.UNAVAILABLE
        context = authority.client_context(None)
        fluent = await connect(client.forward_port, context)
        await fluent.send(chunk("c"))
        assert await fluent.receive() == {"ack": "c"}
        url = f"https://127.0.0.1:{client.port}/v1/logs"
        async with client.session.post(url, data=BODY, headers=PROTOBUF, ssl=context) as answer:
            assert answer.status == 200

    how = {"door_tls_cert": server.certificate, "door_tls_key": server.key}
    served(tmp_path, check, **with_ports(**how))
    assert spooled(tmp_path) == 3


# -- limits ------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["grpc", "forward"])
def test_connections_above_the_limit_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    monkeypatch.setattr(door_servers, "CONNECTIONS_MAX", 3)
    begun = {"grpc": PREFACE + frame(SETTINGS, 0, 0, b""), "forward": b""}[door]

    async def check(client: Client) -> None:
        port = {"grpc": client.grpc_port, "forward": client.forward_port}[door]
        await asyncio.sleep(0.2)  # the connection that found the port open has ended
        kept = [await connect(port) for _ in range(3)]
        for one in kept:
            await one.send(begun)
        await asyncio.sleep(0.2)
        further = await connect(port)
        await further.send(begun)
        with suppress(ConnectionError):
            while await asyncio.wait_for(further.reader.read(4096), 5):
                pass
        assert not any(one.reader.at_eof() for one in kept)
        kept[0].close()
        for _ in range(100):
            if await works(client):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("a connection that ended makes no room")

    async def works(client: Client) -> bool:
        if door == "grpc":
            return (await export(client))[0] is grpc.StatusCode.OK
        fluent = await connect(client.forward_port)
        try:
            await fluent.send(chunk("c"))
            return bool(await fluent.receive() == {"ack": "c"})
        except ConnectionError:
            return False

    served(tmp_path, check, **with_ports())


def test_what_is_too_large_or_cannot_be_read_is_never_accepted(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        code, _ = await export(client, bytes(2_000_000))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await export(client, b"\xff\xff"))[0] is grpc.StatusCode.INVALID_ARGUMENT
        bomb = pack(["t", gzip.compress(bytes(20_000_000)), {"chunk": "b", "compressed": "gzip"}])
        for data in (
            pack(["t", b"x" * 2_000_000, {"chunk": "c"}]),
            bomb,
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            fluent = await connect(client.forward_port)
            with suppress(ConnectionError):  # it is closed with unread bytes
                await fluent.send(data)
                assert await fluent.receive() is None
        fluent = await connect(client.forward_port)
        await fluent.send(chunk("c"))
        assert await fluent.receive() == {"ack": "c"}

    served(tmp_path, check, **with_ports(door_body_bytes=1_000_000))
    assert spooled(tmp_path) == 1


# -- settings, metrics, the end ----------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"doors": ("json",), "otlp_grpc_listen": "127.0.0.1:1"}, "needs otlp in doors"),
        ({"doors": ("json",), "forward_listen": "127.0.0.1:1"}, "needs forward in doors"),
        ({"doors": ("forward",)}, "set forward_listen"),
        ({"doors": ("otlp",), "forward_keys": Path("k")}, "forward_keys needs forward_listen"),
        ({"doors": ("otlp",), "door_tls_key": Path("k")}, "door_tls_key needs door_tls_cert"),
        ({"doors": ("otlp",), "otlp_grpc_listen": "0.0.0.0:1"}, "set door_tokens .*otlp_grpc_l"),
        ({"doors": ("forward",), "forward_listen": "[::]:1"}, "set forward_keys .*forward_l"),
        ({"doors": ("forward",), "forward_listen": "nowhere"}, "HOST:PORT"),
        ({"doors": ("otlp",), "otlp_grpc_listen": "nowhere"}, "HOST:PORT"),
    ],
)
def test_wrong_settings_are_reported(how: dict[str, Any], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        AgentSettings(gateway="http://a", **how).for_door_ports()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read forward_keys"),
        ("", "contains no key"),
        ("shop=short", "line=`1`"),
        (f"ok={KEY}\nwithout-a-key", "line=`2`"),
        (f"={KEY}", "line=`1`"),
        (f"a={KEY}\na={KEY}x", "name=`a`"),
    ],
)
def test_a_wrong_file_of_keys_is_reported_without_its_keys(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    given = settings(tmp_path, free_port(), **with_ports(forward_keys=path))
    with pytest.raises(BadUsage, match=message) as found:
        asyncio.run(run_agent(given, stop=asyncio.Event()))
    assert KEY not in str(found.value)


@pytest.mark.parametrize("name", ["otlp_grpc_listen", "forward_listen"])
def test_a_port_that_is_taken_is_one_error_at_the_start(tmp_path: Path, name: str) -> None:
    """Also if its owner lets others share it, as gateways do."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        given = settings(tmp_path, free_port(), **with_ports(**{name: listen}))
        with pytest.raises(BadUsage, match=f"in use.*{name}=`{listen}`"):
            asyncio.run(run_agent(given, stop=asyncio.Event()))


def test_only_the_forward_door_needs_no_http_port(tmp_path: Path) -> None:
    async def main() -> None:
        port, stop = free_port(), asyncio.Event()
        given = settings(tmp_path, free_port(), doors=("forward",), forward_listen=f"[::1]:{port}")
        agent = asyncio.create_task(run_agent(given, stop=stop))
        for _ in range(500):
            try:
                writer = (await asyncio.open_connection("::1", port))[1]
                break
            except OSError:
                await asyncio.sleep(0.02)
        writer.write(chunk("c"))
        await asyncio.sleep(0.5)
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection(*given.doors_listen.split(":"))
        writer.close()
        await writer.wait_closed()
        stop.set()
        await agent

    asyncio.run(main())
    assert spooled(tmp_path) == 1


def test_metrics_count_messages_and_connections(tmp_path: Path) -> None:
    health = f"127.0.0.1:{free_port()}"

    async def check(client: Client) -> None:
        await export(client)
        fluent = await connect(client.forward_port)
        await fluent.send(chunk("c"))
        await fluent.receive()
        refused = await connect(client.forward_port)
        await refused.send(b"\xc1")
        await refused.receive()
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{health}/metrics") as answer,
        ):
            lines = (await answer.text()).splitlines()
        for line in (
            'sluice_agent_door_requests_total{door="otlp",result="new"} 1.0',
            'sluice_agent_door_requests_total{door="forward",result="new"} 1.0',
            'sluice_agent_door_requests_total{door="forward",result="bad_request"} 1.0',
            'sluice_agent_door_records_total{door="forward"} 1.0',
            "sluice_agent_door_connections 1.0",
        ):
            assert line in lines

    served(tmp_path, check, **with_ports(health=health))


def test_what_was_received_before_the_end_is_answered(tmp_path: Path) -> None:
    """A chunk that waits for its batch, and messages that no client waits for."""

    async def check(client: Client) -> None:
        named = await connect(client.forward_port)
        unnamed = await connect(client.forward_port)
        idle = await connect(client.forward_port)
        await named.send(chunk("c"))
        for number in range(20):
            await unnamed.send(pack(["t", S + number, {"log": f"line {number}"}]))
        await asyncio.sleep(0.5)
        client.stop.set()
        assert await named.receive() == {"ack": "c"}
        for fluent in (named, unnamed, idle):
            assert await fluent.receive() is None
        await client.agent

    served(tmp_path, check, **with_ports(batch_age_s=1.0))
    assert spooled(tmp_path) == 1 + 20


def test_a_call_that_waits_for_its_batch_is_answered_at_the_end(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        call = asyncio.create_task(export(client))
        await asyncio.sleep(0.5)
        client.stop.set()
        assert (await call)[0] is grpc.StatusCode.OK
        await client.agent

    served(tmp_path, check, **with_ports(batch_age_s=1.5))
    assert spooled(tmp_path) == 2


def test_the_real_client_without_acks(tmp_path: Path) -> None:
    def send(port: int) -> None:
        sender = FluentSender("app", port=port, nanosecond_precision=True)
        for number in range(200):
            assert sender.emit("log", {"message": f"line {number}"})
        sender.close()

    async def check(client: Client) -> None:
        await asyncio.to_thread(send, client.forward_port)
        for _ in range(200):
            if len(gateway.bodies()) >= 200:
                break
            await asyncio.sleep(0.05)

    with GatewayDouble() as gateway:
        served(tmp_path, check, **with_ports(gateway=gateway.url))
        assert sorted(gateway.bodies()) == sorted(b"line %d" % number for number in range(200))
