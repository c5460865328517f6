"""Real gateways behind a TCP balancer, for clients that know one address, with faults on the way.

The balancer connects to any gateway that accepts, as the load balancers that users run. It can also
lose responses: the request reaches a gateway, and the client sees a closed connection.
"""

import asyncio
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.door_client import TestSender, accepted_frames
from support.gateway import GatewayProcess, gateways, start_gateway

from sluice_doors.table import DoorName
from sluice_protocol.columns import LogColumns
from sluice_protocol.frame import Frame
from sluice_reconciler.service import Reconciler
from sluice_store import StoreMode, open_store, read_authority

CHUNK_BYTES = 64 * 1024


@dataclass
class Balancer:
    """Forwards connections to live ports, in a thread with an event loop.

    Attributes:
        ports: The ports of the gateways; changed while clients are connected.
        lost_responses: How many of the next responses are lost.
        reachable: Whether it forwards; otherwise connections break when they are used.
        port: The port that clients connect to.
    """

    ports: list[int]
    lost_responses: int = 0
    reachable: bool = True
    port: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    running: set[asyncio.Task[None]] = field(default_factory=set)
    ends: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        """Forward until `stop` is set; then close every socket, whatever it still has to send.

        `asyncio.Server` is not used: it does not close a connection that it has accepted just
        before it is closed, or whose task is cancelled (Python 3.11).
        """
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            self.port = listening.getsockname()[1]
            loop.add_reader(listening, self._accept, listening)
            started.set()
            await stop.wait()
            loop.remove_reader(listening)
        await asyncio.sleep(0)  # a task that is cancelled before it begins closes nothing
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
        for end in self.ends:
            end.transport.abort()
        await self._closed(*self.ends)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:  # the client has closed it already
            return
        task = asyncio.create_task(self._forward(connection))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def _closed(self, *ends: asyncio.StreamWriter) -> None:
        """Wait until connections are closed; until then `serve` can abort them."""
        await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)
        self.ends.difference_update(ends)

    async def _forward(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        self.ends.add(writer)
        for port in self.rng.sample(self.ports, len(self.ports)) if self.reachable else ():
            with suppress(OSError):
                behind, ahead = await asyncio.open_connection("127.0.0.1", port)
                break
        else:
            writer.close()
            await self._closed(writer)
            return
        self.ends.add(ahead)
        way = _Connection()
        pipes = [
            asyncio.create_task(self._send(reader, ahead, way)),
            asyncio.create_task(self._respond(behind, writer, way)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
        for end in (ahead, writer):
            end.close()
        await self._closed(ahead, writer)

    async def _send(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, way: "_Connection"
    ) -> None:
        with suppress(OSError):
            while (chunk := await source.read(CHUNK_BYTES)) and self.reachable:
                way.probes = chunk.startswith((b"GET ", b"HEAD "))
                to.write(chunk)
                await to.drain()

    async def _respond(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, way: "_Connection"
    ) -> None:
        with suppress(OSError):
            while (chunk := await source.read(CHUNK_BYTES)) and self.reachable:
                if self.lost_responses and not way.probes:
                    self.lost_responses -= 1
                    return
                to.write(chunk)
                await to.drain()


@dataclass
class _Connection:
    """A connection of a client.

    Attributes:
        probes: Whether its last request sends no records; such responses are not lost.
    """

    probes: bool = False


@contextmanager
def balancing(ports: list[int]) -> Iterator[Balancer]:
    """Run a balancer in a thread until the block ends; then all its sockets are closed."""
    balancer, started = Balancer(ports), threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(balancer.serve(started, stop))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield balancer
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive(), "the balancer does not stop"


@dataclass
class Fleet:
    """Gateways over one store, and the address that clients use.

    Attributes:
        folder: The folder of the store and the principals file.
        sender: The principal of the clients.
        gateways: The running processes.
        balancer: In front of them.
        store_url: The store, as a reader reaches it.
        scheme: What clients speak to the balancer; `https` is a mistake, because nothing does.
    """

    folder: Path
    sender: TestSender
    flags: tuple[str, ...]
    gateways: list[GatewayProcess]
    balancer: Balancer
    store_url: str
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.balancer.port}"

    @property
    def token(self) -> str:
        return self.sender.token.token

    @property
    def shared_key(self) -> str:
        """The shared key of the sender for the door `forward`; empty without that door."""
        return self.sender.token.principal.partition('shared_key = "')[2].partition('"')[0]

    def ports(self, door: DoorName) -> list[int]:
        """Return where the gateways accept a door; for HTTP the list that `start` extends."""
        if door != "forward":
            return self.balancer.ports
        return [
            int(event["port"]) for one in self.gateways for event in one.events("forward_listening")
        ]

    def kill(self) -> None:
        """Kill a gateway; the balancer keeps its port, as a real one does for a while."""
        self.gateways.pop(0).kill()

    def start(self) -> None:
        principals = self.folder / "principals.toml"
        self.gateways.append(start_gateway(self.folder, self.store_url, principals, *self.flags))
        self.balancer.ports.append(self.gateways[-1].port)

    def frames(self) -> list[Frame]:
        """Return every accepted frame."""

        async def read() -> list[Frame]:
            async with open_store(self.store_url) as store:
                return await accepted_frames(store)

        return asyncio.run(read())

    def enqueue(self) -> None:
        """Enqueue everything that was accepted, as a reconciler does."""

        async def run() -> None:
            async with open_store(self.store_url, StoreMode.WRITE) as store:
                await Reconciler(store, await read_authority(store)).once()

        asyncio.run(run())

    def bodies(self) -> list[str]:
        """Return the body of every accepted log record, sorted; a duplicate appears twice."""
        found: list[str] = []
        for frame in self.frames():
            if isinstance(frame.columns, LogColumns):
                found += [body.decode() for body in frame.columns.body.slices()]
        return sorted(found)


@dataclass(frozen=True, slots=True)
class GatewayStore:
    """An initialised store of a fleet.

    Attributes:
        written: Its URL for the gateways; faults may be on the way.
        read: Its URL for the test.
    """

    written: str
    read: str


@contextmanager
def fleet(
    folder: Path,
    *doors: DoorName,
    count: int = 2,
    flags: tuple[str, ...] = (),
    store: GatewayStore | None = None,
) -> Iterator[Fleet]:
    """Start gateways with open doors, and a balancer in front of them."""
    prepared = store.written if store else ""
    read_url = store.read if store else f"file://{folder}/store"
    sender = TestSender("shop", (), doors=doors)
    options = (*(part for door in doors for part in ("--doors", door)), *flags)
    if "forward" in doors and "--forward-listen" not in flags:
        listening = ("--forward-listen", "127.0.0.1:0", "--forward-principal", sender.name)
        options = (*options, *listening)
    with (
        gateways(folder, sender, count=count, flags=options, store_url=prepared) as started,
        balancing([one.port for one in started]) as balancer,
    ):
        found = Fleet(folder, sender, options, started, balancer, read_url)
        try:
            yield found
        finally:
            for one in found.gateways:
                if one.process.poll() is None:
                    one.kill()
