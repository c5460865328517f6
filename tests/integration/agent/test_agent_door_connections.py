"""The limit of connections to an agent's doors over HTTP.

A client beyond the limit is neither refused nor closed: several real clients never repeat a request
whose connection broke. It waits in the queue of the kernel, in the order of arrival.
"""

import asyncio
import contextlib
import gc
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest
import structlog
from support.agent_doors import Client, fail_accepts, served, spooled
from support.gateway_tls import SERVER, TestAuthority
from support.store_versitygw import free_port

from sluice_agent.doors import servers

LIMIT = 3
SHORT_S = 0.3
EVENT = b'{"message":"x"}'


def request(number: int = 0, *, body: bytes = EVENT, close: bool = False) -> bytes:
    """Return a request whose record is new each time."""
    fields = [
        "POST /v1/ingest HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json",
        f"Idempotency-Key: {number}", f"Content-Length: {len(body)}",
        *(["Connection: close"] if close else []), "", "",
    ]  # fmt: skip
    return "\r\n".join(fields).encode() + body


class Connection:
    """A connection of a client that writes bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await asyncio.wait_for(self.writer.drain(), 10)

    async def response(self, within_s: float = 10.0) -> tuple[int, bool]:
        """Return the status, and whether the server closes the connection."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), within_s)
        lines = head.decode().lower().split("\r\n")
        length = next(int(one.split(":")[1]) for one in lines if one.startswith("content-length"))
        await self.reader.readexactly(length)
        return int(lines[0].split()[1]), "connection: close" in lines

    async def is_silent(self, during_s: float = SHORT_S) -> bool:
        """Return whether the server sends nothing and closes nothing."""
        try:
            await asyncio.wait_for(self.reader.read(1), during_s)
        except TimeoutError:
            return True
        return False

    async def is_closed(self, within_s: float = 10.0) -> bool:
        """Return whether the server closes the connection without a response."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(1), within_s) == b""
        return True


@contextlib.asynccontextmanager
async def connections(client: Client, count: int) -> AsyncIterator[Sequence[Connection]]:
    opened = [
        Connection(*await asyncio.open_connection("127.0.0.1", client.port)) for _ in range(count)
    ]
    try:
        yield opened
    finally:
        for one in opened:
            one.writer.close()
            with contextlib.suppress(ConnectionError):
                await one.writer.wait_closed()


async def metrics(address: str) -> dict[str, float]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics") as answer,
    ):
        lines = (await answer.text()).splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_a_client_beyond_the_limit_waits_and_gets_through_when_another_closes(
    tmp_path: Path,
) -> None:
    health = f"127.0.0.1:{free_port()}"

    async def check(client: Client) -> None:
        async with connections(client, LIMIT + 2) as opened:
            for number, one in enumerate(opened):
                await one.send(request(number) if number >= LIMIT else b"POST /v1/ing")
            *held, fourth, fifth = opened
            assert await fourth.is_silent()
            assert await fifth.is_silent()
            found = await metrics(health)
            assert found["sluice_agent_door_connections"] == LIMIT
            held[0].writer.close()
            assert await fourth.response() == (200, True), "it must make room for the fifth"
            assert await fifth.response() == (200, False)

    with structlog.testing.capture_logs() as logged:
        served(tmp_path, check, door_connections=LIMIT, health=health)
    assert spooled(tmp_path) == 2
    (full,) = [one for one in logged if one["event"] == "door_connections_full"]
    assert (full["log_level"], full["connections"]) == ("warning", LIMIT)


def test_clients_that_keep_their_connections_let_the_others_in(tmp_path: Path) -> None:
    """Four times as many clients as places; each keeps its connection until all have sent."""
    clients, rounds = 4 * LIMIT, 10
    url = "http://127.0.0.1:{}/v1/ingest"

    async def send(session: aiohttp.ClientSession, port: int, number: int) -> None:
        for turn in range(rounds):
            headers = {"Idempotency-Key": f"{number}-{turn}"}
            body = {"message": "x"}
            async with session.post(url.format(port), json=body, headers=headers) as answer:
                assert answer.status == 200

    async def check(client: Client) -> None:
        async with contextlib.AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1))
                )
                for _ in range(clients)
            ]
            async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                for number, session in enumerate(sessions):
                    group.create_task(send(session, client.port, number))

    served(tmp_path, check, door_connections=LIMIT, batch_age_s=0.01)
    assert spooled(tmp_path) == clients * rounds


def test_a_connection_is_kept_while_no_client_waits(tmp_path: Path) -> None:
    """Also when all places are taken."""

    async def check(client: Client) -> None:
        async with connections(client, 2) as opened:
            for number in range(4):
                one = opened[number % 2]
                await one.send(request(number))
                assert await one.response() == (200, False)

    served(tmp_path, check, door_connections=2)


@pytest.mark.parametrize(
    ("sent", "name", "reason"),
    [
        (b"", "HANDSHAKE_S", "slow_head"),
        (b"POST /v1/ingest HT", "HANDSHAKE_S", "slow_head"),
        (request(), "HTTP_IDLE_S", "idle"),
    ],
    ids=["silent", "half a head", "idle"],
)
def test_slow_and_idle_clients_lose_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, name: str, reason: str
) -> None:
    """A client that waits for a place gets one after the limit of time."""
    monkeypatch.setattr(servers, name, SHORT_S)
    health = f"127.0.0.1:{free_port()}"

    async def check(client: Client) -> None:
        async with connections(client, LIMIT) as slow:
            for one in slow:
                await one.send(sent)
                if sent.endswith(EVENT):
                    assert await one.response() == (200, False)
            async with connections(client, 1) as (late,):
                await late.send(request(1))
                assert (await late.response())[0] == 200
                for one in slow:
                    assert await one.is_closed()
            found = await metrics(health)
        closed = f'sluice_agent_door_connections_closed_total{{reason="{reason}"}}'
        assert found[closed] >= LIMIT

    served(tmp_path, check, door_connections=LIMIT, health=health)


def test_a_head_that_arrives_byte_by_byte_does_not_keep_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "HANDSHAKE_S", SHORT_S)

    async def check(client: Client) -> None:
        async with connections(client, 1) as (slow,):
            started = time.monotonic()
            with contextlib.suppress(ConnectionError):
                for byte in request():
                    await slow.send(bytes([byte]))
                    await asyncio.sleep(0.05)
            assert await slow.is_closed()
            assert time.monotonic() - started < 10 * SHORT_S

    served(tmp_path, check, door_connections=1)
    assert spooled(tmp_path) == 0


def test_what_waiting_clients_send_uses_no_memory_of_the_agent(tmp_path: Path) -> None:
    """Flow control stops them: 40 clients would send 160 MiB."""
    body = b"[" + b" " * (4 << 20)
    clients = 40

    async def check(client: Client) -> None:
        async with connections(client, 1) as (held,):
            await held.send(b"POST")
            gc.collect()
            tracemalloc.start()
            writing = await asyncio.gather(
                *(asyncio.to_thread(_write_without_reading, client.port, body)
                  for _ in range(clients))
            )  # fmt: skip
            size_bytes = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            sockets, written = zip(*writing, strict=True)
            for sock in sockets:
                sock.close()
        assert max(written) < len(body), "flow control did not stop a client"
        assert size_bytes < 4 << 20

    served(tmp_path, check, door_connections=1)


def _write_without_reading(port: int, body: bytes) -> tuple[socket.socket, int]:
    """Write a request until the connection takes no more; return the number of bytes."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=0.5)
    data, written = memoryview(request(body=body)), 0
    with contextlib.suppress(TimeoutError):
        while written < len(data):
            written += sock.send(data[written : written + 65_536])
    return sock, written


def test_the_limit_counts_handshakes_of_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "HANDSHAKE_S", SHORT_S)
    server = TestAuthority(tmp_path / "ca").issue("server", usage=SERVER)

    async def check(client: Client) -> None:
        started = time.monotonic()
        async with connections(client, LIMIT) as silent:
            url = f"https://127.0.0.1:{client.port}/v1/ingest"
            typed = {"Content-Type": "application/json"}
            async with client.session.post(url, data=EVENT, ssl=False, headers=typed) as answer:
                assert answer.status == 200
            assert time.monotonic() - started >= SHORT_S, "it did not wait for a place"
            for one in silent:
                assert await one.is_closed()

    served(
        tmp_path,
        check,
        door_connections=LIMIT,
        door_tls_cert=server.certificate,
        door_tls_key=server.key,
    )


def test_a_connection_is_accepted_when_descriptors_are_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_accepts(monkeypatch)

    async def check(client: Client) -> None:
        assert (await client.post("/v1/ingest", EVENT)).status == 200

    with structlog.testing.capture_logs() as logged:
        served(tmp_path, check)
    (failed,) = [one for one in logged if one["event"] == "door_accept_failed"]
    assert failed["reason"] == "Too many open files"


def test_the_end_of_the_agent_closes_waiting_clients(tmp_path: Path) -> None:
    """What it has received is answered; what it has not accepted is closed without a response."""

    async def check(client: Client) -> None:
        async with connections(client, 2) as (served_client, waiting):
            await served_client.send(request(1))
            await asyncio.sleep(0.1)
            await waiting.send(request(2))
            client.stop.set()
            assert (await served_client.response())[0] == 200
            await asyncio.wait_for(asyncio.shield(client.agent), 10)
            assert await waiting.is_closed()

    served(tmp_path, check, door_connections=1, batch_age_s=0.5)
    assert spooled(tmp_path) == 1
