"""One HTTP/1.1 exchange with one host, over aiohttp's connections and its parser (ADR 0015).

`ClientSession.request` spends most of a small PUT on what this adapter never uses: cookies,
redirects, proxies, traces, header merging, and a second try of its own. Here the head is written
as it was signed and the answer is read from the connection's parser. Making connections, TLS, name
resolution, the pool and parsing stay aiohttp's.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

ERROR_BYTES_MAX: Final = 16 * 1024
_WHOLE_BYTES_MAX: Final = 256 * 1024
"""Up to here a body is handed to the socket with its head."""
_SLICE_BYTES: Final = 1024 * 1024
ERRORS_FROM: Final = 300
"""Statuses from here on are not what was asked for: redirects are not followed."""
_BODYLESS: Final = frozenset({"GET", "HEAD", "DELETE"})


class NotConnected(Exception):
    """Nothing was sent: no connection could be had, or a header cannot be sent."""


class Broken(Exception):
    """The connection broke or spoke no HTTP after something may have been sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; the body of an error is cut at `ERROR_BYTES_MAX`."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Channel:
    """Exchanges with one host; nothing is ever sent twice."""

    def __init__(
        self,
        connector: aiohttp.BaseConnector,
        origin: str,
        host: str,
        timeout: aiohttp.ClientTimeout,
    ) -> None:
        """Takes where to connect (`origin`), the `Host` to name there, and the bounds on time."""
        loop = asyncio.get_running_loop()
        self._connector = connector
        self._timeout = timeout
        self._peer = aiohttp.ClientRequest("GET", URL(origin), loop=loop)  # names it to the pool
        self._host = host

    async def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Sends one request once and reads its answer.

        Raises:
            NotConnected: Nothing was sent.
            Broken: Something may have been sent, and no whole answer came.
            TimeoutError: As `Broken`; the bound on the whole exchange ran out.
        """
        head = self._head(method, target, headers, len(body))
        connection = await self._connect()
        try:
            async with asyncio.timeout(self._timeout.total):
                answer = await _exchange(connection, method, head, body)
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise Broken(str(error) or type(error).__name__) from error
        finally:
            connection.close()  # does nothing once it was released
        return answer

    def _head(self, method: str, target: str, headers: Mapping[str, str], size_bytes: int) -> bytes:
        fields = [f"{name}: {text}" for name, text in headers.items()]
        if method not in _BODYLESS:
            fields.append(f"Content-Length: {size_bytes}")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}", *fields]
        head = "\r\n".join(lines)
        if head.count("\r") != len(lines) - 1 or head.count("\n") != len(lines) - 1:
            raise NotConnected("a header holds a line break: nothing was sent")
        return f"{head}\r\n\r\n".encode("latin-1")

    async def _connect(self) -> Connection:
        try:
            return await self._connector.connect(self._peer, [], self._timeout)
        except (aiohttp.ClientError, OSError) as error:
            raise NotConnected(str(error) or type(error).__name__) from error


async def _exchange(connection: Connection, method: str, head: bytes, body: bytes) -> Answer:
    protocol = connection.protocol
    if protocol is None or protocol.transport is None:
        raise aiohttp.ServerDisconnectedError
    protocol.set_response_params(skip_payload=method == "HEAD", auto_decompress=False)
    if len(body) <= _WHOLE_BYTES_MAX:
        protocol.transport.write(head + body)
        answer = await _answer(protocol)
        connection.release()
        return answer
    sending = asyncio.create_task(_send_slices(protocol, head, body))
    try:
        answer = await _answer(protocol)
        if sending.done():  # an answer before the end of the body leaves the connection unusable
            connection.release()
        return answer
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
            await sending


async def _send_slices(protocol: ResponseHandler, head: bytes, body: bytes) -> None:
    """Sends a large body in slices, so that encrypting it does not hold the loop."""
    view = memoryview(body)
    transport = protocol.transport
    for start in range(0, len(view), _SLICE_BYTES):
        if transport is None or transport.is_closing():
            return
        piece = view[start : start + _SLICE_BYTES]
        transport.writelines([head, piece] if start == 0 else [piece])
        await protocol._drain_helper()  # noqa: SLF001 - aiohttp's own writers wait by it


async def _answer(protocol: ResponseHandler) -> Answer:
    message, payload = await protocol.read()
    while message.code < 200:  # noqa: PLR2004 - interim answers, RFC 9110 section 15.2
        message, payload = await protocol.read()
    whole = message.code < ERRORS_FROM
    body = await payload.read() if whole else await payload.read(ERROR_BYTES_MAX)
    return Answer(message.code, message.headers, body)
