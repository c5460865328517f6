"""Separate ports of an agent's doors: who may send, how much, and which settings are wrong."""

import asyncio
import gzip
import hashlib
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.agent_doors import (
    BODY,
    PREFACE,
    SETTINGS,
    Client,
    chunk,
    export,
    frame,
    served,
    settings,
    spooled,
    with_ports,
)
from support.door_bodies import pack
from support.forward_door import ForwardClient, connect
from support.gateway_tls import SERVER, TestAuthority
from support.store_versitygw import free_port

from sluice_agent import settings as agent_settings
from sluice_agent.app import run_agent
from sluice_agent.settings import AgentSettings
from sluice_protocol.errors import BadUsage

PROTOBUF = {"Content-Type": "application/x-protobuf"}
KEY = "a-shared-key-of-32-characters-00"
TOKENS = f"shop={hashlib.sha256(b'secret').hexdigest()}"


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


def test_a_connection_of_grpc_above_the_limit_is_closed(tmp_path: Path) -> None:
    async def check(client: Client) -> None:
        begun = PREFACE + frame(SETTINGS, 0, 0, b"")
        await asyncio.sleep(0.2)  # the connection that found the port open has ended
        kept = [await connect(client.grpc_port) for _ in range(3)]
        for one in kept:
            await one.send(begun)
        await asyncio.sleep(0.2)
        further = await connect(client.grpc_port)
        await further.send(begun)
        await ended(further)
        assert not any(one.reader.at_eof() for one in kept)
        kept[0].close()
        for _ in range(100):
            if (await export(client))[0] is grpc.StatusCode.OK:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("a connection that ended makes no room")

    served(tmp_path, check, **with_ports(door_connections=3))


def test_a_connection_of_fluent_above_the_limit_replaces_the_longest_idle_one(
    tmp_path: Path,
) -> None:
    async def check(client: Client) -> None:
        await asyncio.sleep(0.2)  # the connection that found the port open has ended
        kept = [await connect(client.forward_port) for _ in range(3)]
        await asyncio.sleep(0.2)
        further = await connect(client.forward_port)
        await further.send(chunk("c"))
        assert await further.receive() == {"ack": "c"}
        await ended(kept[0])
        assert not any(one.reader.at_eof() for one in kept[1:])

    served(tmp_path, check, **with_ports(door_connections=3))


async def ended(client: ForwardClient) -> None:
    """Wait until the server closes a connection."""
    with suppress(ConnectionError):
        while await asyncio.wait_for(client.reader.read(4096), 5):
            pass


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


# -- settings ----------------------------------------------------------------------------


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
        AgentSettings(gateway="http://a", **how).for_doors()


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


async def test_only_the_forward_door_needs_no_http_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused = free_port()
    address = f"127.0.0.1:{unused}"
    monkeypatch.setattr(agent_settings, "DOORS_LISTEN", address)
    port, stop = free_port(), asyncio.Event()
    how = {"doors": ("forward",), "doors_listen": address, "forward_listen": f"[::1]:{port}"}
    given = settings(tmp_path, 0, **how)
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
        await asyncio.open_connection("127.0.0.1", unused)
    writer.close()
    await writer.wait_closed()
    stop.set()
    await agent
    assert spooled(tmp_path) == 1
