"""A gateway with the door of Fluent's forward protocol, for one test or for several.

Also here: a small client of Fluent's forward protocol with handshake and ack, as `out_forward` has
them.
"""

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import uvloop
from support.door_client import TestSender, accepted_frames
from support.gateway import Running, TestKey, running

from sluice_gateway.process.worker import serving_forward_port
from sluice_protocol.columns import LogColumns
from sluice_protocol.frame import Frame


def sha512(*parts: bytes) -> str:
    return hashlib.sha512(b"".join(parts)).hexdigest()


@dataclass
class ForwardClient:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    unpacker: Any = field(default_factory=lambda: msgpack.Unpacker(raw=False))

    async def receive(self, timeout_s: float = 20.0) -> Any:
        """Return the next message of the server; None at the end of the connection."""
        async with asyncio.timeout(timeout_s):
            while True:
                for message in self.unpacker:
                    return message
                data = await self.reader.read(65536)
                if not data:
                    return None
                self.unpacker.feed(data)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def log_in(
        self, shared_key: str, *, username: str = "", password: str = "", proves: bool = True
    ) -> list[Any] | None:
        """Shake hands as the specification defines it; return the PONG."""
        kind, option = await self.receive()
        assert kind == "HELO"
        salt, host, nonce = b"0123456789abcdef", b"client.example", option["nonce"]
        digest = sha512(salt, host, nonce, shared_key.encode())
        hidden = sha512(option["auth"], username.encode(), password.encode())
        ping = ["PING", host.decode(), salt, digest, username, hidden]
        await self.send(msgpack.packb(ping))
        pong = await self.receive()
        if pong is not None and pong[1] and proves:
            assert pong[4] == sha512(salt, pong[3].encode(), nonce, shared_key.encode())
        return pong

    def close(self) -> None:
        self.writer.close()


_OPEN: list[ForwardClient] = []


async def connect(port: int, context: ssl.SSLContext | None = None) -> ForwardClient:
    client = ForwardClient(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
    _OPEN.append(client)
    return client


async def close_clients() -> None:
    """End all connections before their event loop is closed."""
    while _OPEN:
        client = _OPEN.pop()
        client.writer.transport.abort()
        with contextlib.suppress(OSError):
            await client.writer.wait_closed()


KEY = "a-shared-key-of-32-characters-00"
Body = Callable[[Running, int], Awaitable[None]]


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


async def frames_of(served: Running, count: int = 1) -> list[Frame]:
    """Return the accepted frames, when there are that many records."""
    for _ in range(600):
        found = await accepted_frames(served.store.inner)
        if sum(frame.envelope.count for frame in found) >= count:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("the records were not accepted")


def bodies(frames: list[Frame], start: str = "") -> list[str]:
    """Return the sorted bodies that begin with `start`."""
    found: list[str] = []
    for frame in frames:
        assert isinstance(frame.columns, LogColumns)
        found += [body.decode() for body in frame.columns.body.slices()]
    return sorted(body for body in found if body.startswith(start))


@dataclass
class SharedDoor:
    """A gateway that serves several tests, which must not depend on what others sent."""

    loop: asyncio.Runner
    served: Running
    port: int

    def check(self, body: Body) -> None:
        """Run a test, and close its connections."""

        async def main() -> None:
            try:
                await body(self.served, self.port)
            finally:
                await close_clients()

        self.loop.run(main())


@contextmanager
def shared_door(folder: Path, **settings: Any) -> Iterator[SharedDoor]:
    """Serve until the block ends; the gateway runs only while a test does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        started: asyncio.Future[tuple[Running, int]] = loop.get_loop().create_future()
        end = asyncio.Event()

        async def serve() -> None:
            async with serving(folder, **settings) as door:
                started.set_result(door)
                await end.wait()

        async def begin() -> asyncio.Task[None]:
            task = asyncio.create_task(serve())
            either: list[asyncio.Future[Any]] = [task, started]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            return task

        async def finish(task: asyncio.Task[None]) -> None:
            end.set()
            await task

        task = loop.run(begin())
        try:
            yield SharedDoor(loop, *started.result())
        finally:
            loop.run(finish(task))
