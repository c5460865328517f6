"""Under a low limit of open files, idle clients lock out neither other clients nor the store."""

import asyncio
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import pytest
from support.door_client import TestSender
from support.gateway import (
    GatewayProcess,
    TestKey,
    events_of,
    frame_of,
    gateways,
    upload_fields,
    with_open_files,
)
from support.gateway_tls import SERVER, TestAuthority
from support.local_deployment import clean_environment

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=("json",))
OPEN_FILES = 256
IDLE = 300
REQUESTS = 20
PORT_MAX = OPEN_FILES // 8
SERVICE_MAX = OPEN_FILES // 2


@contextmanager
def idle_clients(port: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(IDLE)
        ]


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


async def ingest(port: int) -> set[int]:
    """Send requests on separate connections; return their statuses."""
    found = set()
    for number in range(REQUESTS):
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"http://127.0.0.1:{port}/v1/ingest",
                json={"message": f"line {number}"},
                headers={"Authorization": f"Bearer {SHOP.token.token}"},
            ) as response,
        ):
            found.add(response.status)
    return found


def test_a_gateway_closes_the_longest_idle_connection_for_a_new_one(tmp_path: Path) -> None:
    start = with_open_files(OPEN_FILES)
    with (
        gateways(tmp_path, HOST, SHOP, flags=("--doors", "json"), prefix=start) as (server,),
        idle_clients(server.port) as idle,
    ):
        assert asyncio.run(ingest(server.port)) == {200}
        left = [number for number, client in enumerate(idle) if is_open(client)]
        assert len(left) < PORT_MAX
        assert left == list(range(IDLE - len(left), IDLE))
        (warned,) = server.events("connections_full")
        assert (warned["port"], warned["connections"]) == (server.port, PORT_MAX)
        assert displaced(server) >= IDLE - PORT_MAX


@pytest.mark.long
def test_unfinished_handshakes_leave_files_for_the_store(tmp_path: Path) -> None:
    """Clients that connect and send nothing are served in turns, and time out."""
    authority = TestAuthority(tmp_path / "ca")
    pem = authority.issue("server", usage=SERVER)
    tls = ("--tls-certificate", str(pem.certificate), "--tls-key", str(pem.key))
    flags = (*tls, "--head-timeout-s", "0.5")
    start = with_open_files(OPEN_FILES)
    with gateways(tmp_path, HOST, flags=flags, prefix=start) as (server,):
        before = open_files(server)
        with idle_clients(server.port):
            time.sleep(0.2)
            assert PORT_MAX // 2 < open_files(server) - before <= PORT_MAX + 2
            context = authority.client_context(None)
            assert asyncio.run(upload_over_tls(server.port, context)) == 200
        (warned,) = server.events("connections_full")
        assert (warned["port"], warned["peer"]) == (server.port, "")
        assert server.events("accept_failed") == []


def open_files(server: GatewayProcess) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


async def upload_over_tls(port: int, context: ssl.SSLContext) -> int:
    frame = frame_of()
    fields = HOST.sign(upload_fields(frame), f"127.0.0.1:{port}")
    url = f"https://127.0.0.1:{port}/v1/batches"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=frame, headers=fields, ssl=context) as response,
    ):
        return response.status


def displaced(server: GatewayProcess) -> float:
    name = 'sluice_connections_closed_total{reason="displaced"}'
    lines = server.get("/metrics")[1].splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.mark.long
def test_a_reconciler_does_not_wait_until_idle_connections_time_out(tmp_path: Path) -> None:
    with gateways(tmp_path, HOST, SHOP):  # it creates and examines the store
        pass
    log = tmp_path / "reconciler.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *with_open_files(OPEN_FILES),
                *(sys.executable, "-m", "sluice_cli", "reconciler"),
                *("--store", f"file://{tmp_path}/store", "--listen", "127.0.0.1:0"),
            ],
            stdout=out,
            stderr=out,
            cwd=tmp_path,
            env=clean_environment(),
        )
    try:
        port = await_port(process, log)
        with idle_clients(port) as idle:
            assert asyncio.run(live(port)) == 200
            # Of those that time out, all but the newest would be closed by now.
            assert sum(map(is_open, idle)) == SERVICE_MAX - 1
            assert len(events_of(log, "http_connections_full")) == 1
    finally:
        process.kill()
        process.wait()


async def live(port: int) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/livez") as response,
    ):
        return response.status


def await_port(process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + 90
    while time.monotonic() < until and process.poll() is None:
        for line in events_of(log, "reconciler_listening"):
            (url,) = line["urls"]
            return int(url.rpartition(":")[2])
        time.sleep(0.05)
    raise AssertionError(log.read_text())
