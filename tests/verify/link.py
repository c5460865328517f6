"""A TCP proxy with faults: between a program and the servers that it sends to."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

CHUNK_BYTES: Final = 1 << 16
TLS_HANDSHAKE: Final = b"\x16\x03"


@dataclass
class FaultyLink:
    """Forwards each connection to one of the servers that accept it.

    `drop_share` is the share of responses that are cut off after the server has sent them, so the
    sender cannot know that its request took effect. For a protocol without responses, the same
    share of what the sender writes is followed by a reset. The handshake of TLS is not a response.
    """

    targets: Callable[[], Sequence[int]]
    rng: random.Random
    has_responses: bool = True
    drop_share: float = 0.0
    delay_s_max: float = 0.0
    fired: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def connect(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def disconnect(self) -> None:
        """Refuse connections, and reset those that are open."""
        assert self._server is not None
        self._server.close()
        self.fired += 1
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = list(self.targets())
        for port in self.rng.sample(ports, len(ports)):
            with suppress(OSError):
                to = await asyncio.open_connection("127.0.0.1", port)
                await self._join((reader, writer), to)
                return
        writer.transport.abort()

    async def _join(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._open |= {client[1], server[1]}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(client[0], server[1], not self.has_responses))
                tasks.create_task(self._copy(server[0], client[1], self.has_responses))
        except* OSError:
            pass
        finally:
            for writer in (client[1], server[1]):
                self._open.discard(writer)
                writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_drop: bool
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self.delay_s_max:
                self.fired += 1
                await asyncio.sleep(self.rng.uniform(0.0, self.delay_s_max))
            droppable = may_drop and not data.startswith(TLS_HANDSHAKE)
            drops = droppable and self.rng.random() < self.drop_share
            if drops and self.has_responses:
                self.fired += 1
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()
            if drops:
                self.fired += 1
                raise ConnectionResetError
        raise ConnectionResetError


@asynccontextmanager
async def linked(link: FaultyLink) -> AsyncIterator[FaultyLink]:
    """Serve a link on a free port until the end of the block."""
    await link.connect()
    try:
        yield link
    finally:
        link.disconnect()
