"""A TCP relay in front of a server, which records what clients send."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

READ_BYTES = 64 * 1024


@dataclass
class RecordingRelay:
    """What was sent so far, by connection.

    A client waits while the server does not read: the relay reads no further than it can write.
    """

    server_port: int
    sent: list[bytearray] = field(default_factory=list)
    tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.create_task(self._relay(reader, writer)))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = bytearray()
        self.sent.append(sent)
        _, onward = await asyncio.open_connection("127.0.0.1", self.server_port)
        onward.transport.set_write_buffer_limits(0)
        with suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(READ_BYTES):
                sent += data
                onward.write(data)
                await onward.drain()
        for one in (onward, writer):
            one.close()
            with suppress(OSError):
                await one.wait_closed()


@asynccontextmanager
async def relayed(port: int, server_port: int) -> AsyncIterator[RecordingRelay]:
    """Listen on a port while the context is active."""
    relay = RecordingRelay(server_port)
    server = await asyncio.start_server(relay.connected, "127.0.0.1", port, limit=READ_BYTES)
    try:
        yield relay
    finally:
        server.close()
        for task in relay.tasks:
            task.cancel()
        await asyncio.gather(*relay.tasks)
