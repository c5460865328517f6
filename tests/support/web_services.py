"""Every HTTP service in this process over one directory, on real sockets in a background thread."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from support.constants import settings_with
from support.door_client import TestSender
from support.gateway import TestKey, running
from support.gc_world import open_world
from support.store_versitygw import free_port

from sluice_agent.doors.servers import serve_doors
from sluice_agent.doors.service import DoorPorts
from sluice_agent.health import serve_health
from sluice_agent.metrics import AgentMetrics
from sluice_agent.settings import AgentSettings
from sluice_agent.spool.batching import RecordBlock
from sluice_agent.spool.disk import RealDisk
from sluice_agent.spool.spool import Spool
from sluice_doors.table import HTTP_DOORS, DoorName
from sluice_protocol.system_clock import SystemClock
from sluice_query.http.service import make_query_app
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings, ServeSettings
from sluice_reconciler.app import make_operator_app
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_web.addresses import parse_allowed_hosts
from sluice_web.connection_guard import listening
from sluice_web.listening import ServerOptions

SERVICES = ("gateway", "reconciler", "query", "agent-otlp", "agent-health")
DOOR_TOKEN = "token-of-a-client"
RESPONSE_S_MAX = 20.0
"""Longer than the longest documented wait of `/v1/live` would hide an unbounded one."""
RESPONSE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True)
class RawResponse:
    """What a service sent until it closed the connection; status 0 if that was nothing."""

    status: int
    head: str
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document


@dataclass
class Services:
    """The ports of the services."""

    ports: dict[str, int] = field(default_factory=dict)

    def send(self, service: str, request: bytes, timeout_s: float = RESPONSE_S_MAX) -> RawResponse:
        """Send bytes, and read until the service closes; it must do so in time."""
        with socket.create_connection(("127.0.0.1", self.ports[service]), timeout_s) as sock:
            received = bytearray()
            with contextlib.suppress(ConnectionError):
                sock.sendall(request)
                while len(received) <= RESPONSE_BYTES_MAX:
                    part = sock.recv(65536)
                    if not part:
                        break
                    received += part
        assert len(received) <= RESPONSE_BYTES_MAX, "the response has no bound"
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        status = head.split(b" ", 2)[1] if head.startswith(b"HTTP/1.") else b"0"
        return RawResponse(int(status), head.decode("latin-1"), body)

    def request(
        self, service: str, method: str, target: str, *fields: tuple[str, str], body: bytes = b""
    ) -> RawResponse:
        """Send one request with the right `Host`, unless the fields contain another one."""
        given = [*fields, ("Connection", "close")]
        names = {name.lower() for name, _ in fields}
        if "host" not in names:
            given.insert(0, ("Host", f"127.0.0.1:{self.ports[service]}"))
        if body or method == "POST":
            given.append(("Content-Length", str(len(body))))
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given)]
        head = "\r\n".join(lines) + "\r\n\r\n"
        return self.send(service, head.encode("utf-8", "surrogateescape") + body)


class SealingBatcher:
    """A batcher whose spool makes every block durable."""

    async def put(self, block: RecordBlock) -> None:
        if block.sealed is not None:
            block.sealed(True)


@asynccontextmanager
async def all_services(folder: Path, hosts: str = "", token: str = "") -> AsyncIterator[Services]:
    """Serve one conflict and a few batches from every service."""
    found, allowed = Services(), parse_allowed_hosts(hosts)
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(open_world(folder / "store"))
        await world.accept(0)
        await world.accept(10)
        await world.quarantine(0, salt="other bytes")
        key = TestKey("operator", ("host-1",), ("agent", "operator"))
        sender = TestSender("client", (), doors=get_args(DoorName), secret=token or DOOR_TOKEN)
        gateway = running(
            folder, key, sender, store=world.store, authority=world.authority, allowed_hosts=hosts,
            doors=get_args(DoorName), door_body_bytes_max=1 << 20,
        )  # fmt: skip
        found.ports["gateway"] = (await stack.enter_async_context(gateway)).port
        settings = ReconcilerSettings(
            http_queues="http", allowed_hosts=hosts, api_token=token, live_bytes_max=1 << 20
        )
        reconciler = Reconciler(world.store, world.authority, settings=settings)
        searcher = Searcher(
            store=world.store,
            store_url=f"file://{folder}/store",
            settings=QuerySettings(time_s_max=5.0),
            clock=SystemClock(),
        )
        serving = settings_with(ServeSettings, allowed_hosts=hosts, api_token=token, tail_s_max=0.2)
        for name, app in (
            ("reconciler", make_operator_app(reconciler)),
            ("query", make_query_app(searcher, serving)),
        ):
            options = ServerOptions(decompress=True, shutdown_s=1.0)
            (url,) = await stack.enter_async_context(listening(app, "127.0.0.1:0", options))
            found.ports[name] = int(url.rpartition(":")[2])
        metrics = AgentMetrics()
        agent = AgentSettings(
            gateway="http://127.0.0.1:9", spool=folder / "spool", allowed_hosts=hosts,
            doors=HTTP_DOORS, doors_listen="127.0.0.1:0",
        )  # fmt: skip
        spool = Spool(agent.for_spool(), RealDisk(), boot_id="boot")
        stack.callback(spool.close)
        ports = DoorPorts(
            batcher=SealingBatcher(),  # type: ignore[arg-type]
            spool=spool,
            metrics=metrics,
            clock=SystemClock(),
        )
        opened = serve_doors(agent.for_doors(), ports)
        (url,) = (await stack.enter_async_context(opened)).urls
        found.ports["agent-otlp"] = int(url.rpartition(":")[2])
        found.ports["agent-health"] = free_port()
        at = {name: f"127.0.0.1:{port}" for name, port in found.ports.items()}
        health = serve_health(at["agent-health"], metrics, lambda: "", allowed)
        await stack.enter_async_context(health)
        yield found


@contextmanager
def served(folder: Path, hosts: str = "", token: str = "") -> Iterator[Services]:
    """Serve in a background thread, so that a test may use blocking sockets."""
    ready: threading.Event = threading.Event()
    outcome: list[Services] = []
    failures: list[BaseException] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with all_services(folder, hosts, token) as services:
            outcome.append(services)
            ready.set()
            await stop.wait()

    def work() -> None:
        try:
            loop.run_until_complete(run())
        except BaseException as error:
            failures.append(error)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            ready.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(60)
    if failures:
        raise failures[0]
    try:
        yield outcome[0]
    finally:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)
    if failures:
        raise failures[0]
