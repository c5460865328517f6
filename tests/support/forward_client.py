"""A small client of Fluent's forward protocol with handshake and ack, as `out_forward` has them."""

import asyncio
import contextlib
import hashlib
import ssl
from dataclasses import dataclass, field
from typing import Any

import msgpack


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
