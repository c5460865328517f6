"""Signed HTTP/1.1 requests over aiohttp's connections and its response parser (ADR 10).

`ClientSession.request` spends most of a small PUT on features that this adapter never uses:
cookies, redirects, proxies, traces, header merging, and a retry. Here the request head is written
as it was signed, and the response is read from the connection's parser. Connections, TLS, name
resolution, the pool and parsing stay with aiohttp.

The names of aiohttp that this module uses are not part of its documented API. pyproject.toml limits
aiohttp to the tested versions, and `tests/unit/store/test_aiohttp_internals.py` checks each name.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from sluice_protocol.errors import StoreMisconfigured
from sluice_protocol.exchange_verdicts import (
    CREDENTIAL_CODES,
    ExchangeResult,
    Foreign,
    NoResponse,
    NotSent,
    RefusalReason,
    Responded,
    Succeeded,
    refusal_reason,
    resolve_read,
)
from sluice_protocol.outcomes import UnknownReason
from sluice_store.s3.credentials import CredentialSource, FrozenCredentials, resolve_settings
from sluice_store.s3.exchange import PutMarks, S3Exchange, S3Request, describe_foreign, parse_error
from sluice_store.s3.settings import S3Settings
from sluice_store.s3.signing import BucketAddress, sign

ERROR_BYTES_MAX: Final = 16 * 1024
KEEP_ALIVE_S: Final = 15.0
"""How long a connection without exchanges is kept. AWS closes one after some 20 s."""
_WHOLE_BYTES_MAX: Final = 256 * 1024
"""A body up to this size is handed to the socket together with the head."""
_SLICE_BYTES: Final = 1024 * 1024
_BAD_REQUEST: Final = 400
_ERRORS_FROM: Final = 300
"""Statuses from here on are errors: redirects are not followed."""
_BODYLESS: Final = frozenset({"GET", "HEAD", "DELETE"})


class NotConnected(Exception):
    """Nothing was sent: there is no connection, or a header cannot be sent."""

    def __init__(self, detail: str, cause: RefusalReason | None = None) -> None:
        super().__init__(detail)
        self.cause = cause


class ConnectionBroken(Exception):
    """The connection broke, or the response was not HTTP, after bytes may have been sent."""


class RawResponse(msgspec.Struct, frozen=True):
    """A response; the body of an error is truncated to `ERROR_BYTES_MAX`."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Channel:
    """Exchanges with one host. No request is sent twice.

    A connection whose exchange is complete is kept here for the next one: the pool of the connector
    needs several times longer to return it. It goes back to the pool while a caller waits there, so
    the limit of the connector and its fairness are as before.
    """

    def __init__(
        self,
        connector: aiohttp.BaseConnector,
        origin: str,
        host: str,
        timeout: aiohttp.ClientTimeout,
    ) -> None:
        """Bind a pool to a host.

        `origin` is the scheme, host and port to connect to, and `host` the value of the `Host`
        header. `timeout.connect` bounds the time for a connection, `timeout.total` an exchange.
        """
        loop = asyncio.get_running_loop()
        self._connector = connector
        self._timeout = timeout
        self._peer = aiohttp.ClientRequest("GET", URL(origin), loop=loop)  # the key in the pool
        self._host = host
        self._clock = loop.time
        self._idle: deque[tuple[Connection, float]] = deque()
        self._connecting = 0

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._idle:
            self._idle.pop()[0].close()

    async def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> RawResponse:
        """Send one request once and read its response.

        Raises:
            NotConnected: Nothing was sent.
            ConnectionBroken: Bytes may have been sent, and no complete response arrived.
            TimeoutError: As `ConnectionBroken`; the bound on the whole exchange was reached.
        """
        head = self._head(method, target, headers, len(body))
        connection = self._reused() or await self._connect()
        complete = False
        try:
            async with asyncio.timeout(self._timeout.total):
                protocol, transport = _opened(connection)
                protocol.set_response_params(skip_payload=method == "HEAD", auto_decompress=False)
                if len(body) <= _WHOLE_BYTES_MAX:
                    transport.write(head + body)
                    response, complete = await _read_response(protocol), True
                else:
                    response, complete = await _exchange_slices(protocol, transport, head, body)
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionBroken(_describe(error)) from error
        finally:
            if complete:
                self._keep(connection)
            else:
                connection.close()
        return response

    def _reused(self) -> Connection | None:
        """Return the newest kept connection that is still usable, or None."""
        while self._idle:
            connection, since_s = self._idle.pop()
            if _is_clean(connection) and self._clock() - since_s <= KEEP_ALIVE_S:
                return connection
            connection.close()
        return None

    def _keep(self, connection: Connection) -> None:
        """Keep a connection for the next exchange, and close those that were unused for too long.

        A caller that waits in the pool is served first.
        """
        if self._connecting:
            connection.release()
            return
        now_s = self._clock()
        self._idle.append((connection, now_s))
        while now_s - self._idle[0][1] > KEEP_ALIVE_S:
            self._idle.popleft()[0].close()

    def _head(self, method: str, target: str, headers: Mapping[str, str], size_bytes: int) -> bytes:
        fields = [f"{name}: {text}" for name, text in headers.items()]
        if method not in _BODYLESS:
            fields.append(f"Content-Length: {size_bytes}")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}", *fields]
        head = "\r\n".join(lines)
        if head.count("\r") != len(lines) - 1 or head.count("\n") != len(lines) - 1:
            raise NotConnected("a header contains a line break: nothing was sent")
        return f"{head}\r\n\r\n".encode("latin-1")

    async def _connect(self) -> Connection:
        self._connecting += 1
        try:
            connection = await self._connector.connect(self._peer, [], self._timeout)
        except (aiohttp.ClientError, OSError) as error:
            raise NotConnected(_describe(error), _connect_cause(error)) from error
        finally:
            self._connecting -= 1
        if not _is_clean(connection):
            connection.close()
            raise NotConnected("the connection was closed, or bytes arrived before the request")
        return connection


def _describe(error: BaseException) -> str:
    """Return the text of an error on one line; aiohttp's parser reports several."""
    return " ".join(str(error).split()) or type(error).__name__


def _connect_cause(error: Exception) -> RefusalReason | None:
    """Return why there is no connection, so that the message names what to correct."""
    inner = getattr(error, "os_error", error)
    if isinstance(error, aiohttp.ClientConnectorDNSError) or isinstance(inner, socket.gaierror):
        return RefusalReason.NAME_UNKNOWN
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return RefusalReason.UNTRUSTED
    if isinstance(inner, ConnectionRefusedError):
        return RefusalReason.CONNECTION_REFUSED
    return RefusalReason.CONNECT_TIMEOUT if isinstance(error, TimeoutError) else None


def _is_clean(connection: Connection) -> bool:
    """Return True for an open connection on which no byte arrived after its last response.

    The next request would take such bytes for its own response. The pool does not check this.
    """
    protocol = connection.protocol
    return protocol is not None and protocol.is_connected() and not protocol.should_close


def _opened(connection: Connection) -> tuple[ResponseHandler, asyncio.Transport]:
    protocol = connection.protocol
    if protocol is None or protocol.transport is None:
        raise aiohttp.ServerDisconnectedError
    return protocol, protocol.transport


async def _exchange_slices(
    protocol: ResponseHandler, transport: asyncio.Transport, head: bytes, body: bytes
) -> tuple[RawResponse, bool]:
    """Send a large body while the response is read; return if the connection is still usable.

    It is not after a response that arrived before the end of the body.
    """
    sending = asyncio.create_task(_send_slices(protocol, transport, head, body))
    try:
        response = await _read_response(protocol)
        return response, sending.done()
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
            await sending


async def _send_slices(
    protocol: ResponseHandler, transport: asyncio.Transport, head: bytes, body: bytes
) -> None:
    """Send a large body in slices, so that encrypting it does not block the event loop."""
    view = memoryview(body)
    for start in range(0, len(view), _SLICE_BYTES):
        if transport.is_closing():
            return
        piece = view[start : start + _SLICE_BYTES]
        transport.writelines([head, piece] if start == 0 else [piece])
        await protocol._drain_helper()  # noqa: SLF001 - the flow control of aiohttp's own writers


async def _read_response(protocol: ResponseHandler) -> RawResponse:
    message, payload = await protocol.read()
    while message.code < 200:  # noqa: PLR2004 - interim responses, RFC 9110 section 15.2
        message, payload = await protocol.read()
    whole = message.code < _ERRORS_FROM
    body = await payload.read() if whole else await payload.read(ERROR_BYTES_MAX)
    return RawResponse(message.code, message.headers, body)


class ByteGate:
    """A bound on the bytes in flight, in order of arrival. A larger body passes alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size_bytes: int) -> None:
        """Wait until the body fits, and count it as in flight until `leave`."""
        size = min(size_bytes, self._limit)
        if not self._waiting and self._held + size <= self._limit:
            self._held += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._held -= size  # granted and cancelled in the same moment
            self._wake()
            raise

    def leave(self, size_bytes: int) -> None:
        """Remove a body that `enter` counted."""
        self._held -= min(size_bytes, self._limit)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done() and self._held + size > self._limit:
                return
            self._waiting.popleft()
            if not turn.done():
                self._held += size
                turn.set_result(None)


class SigningTransport:
    """Sends signed requests to one bucket. One exchange is one request; nothing is retried here."""

    def __init__(
        self,
        channel: Channel,
        address: BucketAddress,
        credentials: CredentialSource,
        gate: ByteGate,
    ) -> None:
        self._channel = channel
        self._address = address
        self._credentials = credentials
        self._gate = gate
        self._marks = PutMarks()

    async def send(self, request: S3Request, body: bytes = b"") -> S3Exchange:
        """Send the request once and report the result; network errors are results.

        A request whose credentials were refused had no effect. It is signed and sent again if
        there are other credentials now.
        """
        await self._gate.enter(len(body))
        try:
            used = await self._credentials.get_frozen_credentials()
            exchange = await self._exchange(request, body, used)
            if _is_refused_for_credentials(exchange.seen) and await asyncio.to_thread(
                self._credentials.renew, used
            ):
                renewed = await self._credentials.get_frozen_credentials()
                exchange = await self._exchange(request, body, renewed)
            return exchange
        finally:
            self._gate.leave(len(body))

    async def _exchange(
        self, request: S3Request, body: bytes, credentials: FrozenCredentials
    ) -> S3Exchange:
        target = self._address.target_of(request.key, request.query)
        headers = sign(request, self._address.origin + target, self._address, credentials)
        try:
            response = await self._channel.exchange(request.method, target, headers, body)
        except NotConnected as error:
            return S3Exchange(seen=NotSent(detail=str(error), cause=error.cause), detail=str(error))
        except TimeoutError as error:
            return _no_response(UnknownReason.TIMEOUT, error)
        except ConnectionBroken as error:
            return _no_response(UnknownReason.RESET, error)
        foreign = describe_foreign(request, response.status, response.headers, response.body)
        if not foreign and request.method == "PUT" and response.status < _ERRORS_FROM:
            foreign = await self._marks.describe_doubt(response.headers, body)
            if foreign and await self._is_stored(request.key, body, credentials):
                self._marks.learn()
                foreign = ""
        if foreign:
            detail = f"{response.status}, {foreign}{_sender_hint(response)}"
            return S3Exchange(seen=Foreign(detail=detail), detail=detail)
        if response.status < _ERRORS_FROM:
            seen = Responded(status=response.status)
            return S3Exchange(seen=seen, headers=response.headers, body=response.body)
        code, message = parse_error(response.body)
        return S3Exchange(
            seen=Responded(status=response.status, code=code),
            headers=response.headers,
            detail=f"{response.status} {code} {message}".strip() + self._region_hint(response),
        )

    async def _is_stored(self, key: str, body: bytes, credentials: FrozenCredentials) -> bool:
        read = S3Request(method="GET", key=key, headers={})
        found = await self._exchange(read, b"", credentials)
        return isinstance(resolve_read(found.seen), Succeeded) and found.body == body

    def _region_hint(self, response: RawResponse) -> str:
        """Return which region the bucket is in and which one was used, if they may differ."""
        used, code = self._address.region, parse_error(response.body)[0]
        actual = response.headers.get("x-amz-bucket-region", "")
        if actual and actual != used:
            return f"; the bucket is in region=`{actual}`, the store URL has region=`{used}`"
        refusal = refusal_reason(Responded(status=response.status, code=code))
        if refusal is RefusalReason.WRONG_PLACE:
            return f"; region=`{used}`"
        # The response to a HEAD has no body: a wrong region is only a 400 there.
        return f"; check region=`{used}`" if response.status == _BAD_REQUEST and not code else ""


def _sender_hint(response: RawResponse) -> str:
    """Return a hint about the program that responded."""
    names = ("Content-Type", "Server", "Via", "Location")
    found = [(name, response.headers.get(name, "")[:100]) for name in names]
    return "".join(f", {name.lower()}=`{text}`" for name, text in found if text)


def _is_refused_for_credentials(seen: ExchangeResult) -> bool:
    return isinstance(seen, Responded) and seen.code in CREDENTIAL_CODES


def _no_response(reason: UnknownReason, error: BaseException) -> S3Exchange:
    detail = _describe(error)
    return S3Exchange(seen=NoResponse(reason=reason, detail=detail), detail=detail)


def _trusted(ca_bundle: str | None) -> ssl.SSLContext | bool:
    """Return a TLS context with the given authorities; True, for the system's, without any.

    aiohttp has loaded those of the system already, which takes 20 ms.
    """
    if ca_bundle is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except (OSError, ssl.SSLError) as error:
        raise StoreMisconfigured(
            "open",
            str(ca_bundle),
            "cannot read the certificate authorities; correct ca_bundle in the store URL, or"
            f" AWS_CA_BUNDLE ({error})",
        ) from error


@asynccontextmanager
async def open_transport(
    settings: S3Settings, address: BucketAddress, credentials: CredentialSource
) -> AsyncIterator[SigningTransport]:
    """Open the connection pool of one bucket; TLS certificates are always verified."""
    settings = await asyncio.to_thread(resolve_settings, settings)
    verify = await asyncio.to_thread(_trusted, settings.ca_bundle)
    timeout = aiohttp.ClientTimeout(
        total=settings.request_timeout_s, connect=settings.connect_timeout_s
    )
    async with aiohttp.TCPConnector(
        limit=settings.connections_max, ssl=verify, ttl_dns_cache=10, keepalive_timeout=KEEP_ALIVE_S
    ) as connector:
        channel = Channel(connector, address.origin, address.host, timeout)
        gate = ByteGate(settings.in_flight_bytes_max)
        try:
            yield SigningTransport(channel, address, credentials, gate)
        finally:
            channel.close()
