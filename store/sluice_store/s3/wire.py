"""The hot path to S3: signed requests through aiohttp, no retry, no second hash, no `Expect`.

One exchange is one request. aiohttp itself would send a PUT or DELETE a second time when a kept
connection breaks, and the second answer would then speak of the first try's write: that is off.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from sluice_protocol.outcomes import UnknownReason
from sluice_protocol.resolution import Answered, Lost, NotSent
from sluice_store.s3.answers import ERROR_BYTES_MAX, parse_error
from sluice_store.s3.body import Body
from sluice_store.s3.exchange import Exchange, Request
from sluice_store.s3.gate import ByteGate
from sluice_store.s3.settings import S3Settings
from sluice_store.s3.signing import Address, Credentials, sign

_SKIPPED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_ERRORS_FROM = 300


class Wire:
    """Sends signed requests to one bucket."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: Address,
        credentials: Credentials,
        gate: ByteGate,
    ) -> None:
        """Takes its parts; `open_wire` makes them."""
        self._session = session
        self._address = address
        self._credentials = credentials
        self._gate = gate

    async def send(self, request: Request, body: bytes = b"") -> Exchange:
        """Sends one request once and reports what was seen; it raises nothing of the network."""
        async with self._gate.held(len(body)):
            url = self._address.url_of(request.key, request.query)
            headers = await sign(request, url, self._address, self._credentials)
            try:
                return await self._exchange(request.method, URL(url, encoded=True), headers, body)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                detail = str(error) or type(error).__name__
                return Exchange(seen=NotSent(detail=detail), detail=detail)
            except TimeoutError as error:
                return _lost(UnknownReason.TIMEOUT, error)
            except (aiohttp.ClientError, OSError) as error:
                return _lost(UnknownReason.RESET, error)

    async def _exchange(
        self, method: str, url: URL, headers: dict[str, str], body: bytes
    ) -> Exchange:
        async with self._session.request(
            method, url, headers=headers, data=Body(body) if body else None, allow_redirects=False
        ) as answer:
            if answer.status < _ERRORS_FROM:
                read = await answer.read()
                return Exchange(
                    seen=Answered(status=answer.status), headers=answer.headers, body=read
                )
            code, message = parse_error(await answer.content.read(ERROR_BYTES_MAX))
            return Exchange(
                seen=Answered(status=answer.status, code=code),
                headers=answer.headers,
                detail=f"{answer.status} {code} {message}".strip(),
            )


def _lost(reason: UnknownReason, error: BaseException) -> Exchange:
    detail = str(error) or type(error).__name__
    return Exchange(seen=Lost(reason=reason, detail=detail), detail=detail)


@asynccontextmanager
async def open_wire(
    settings: S3Settings, address: Address, credentials: Credentials
) -> AsyncIterator[Wire]:
    """Opens the connections to one bucket; TLS is always verified."""
    verify = await asyncio.to_thread(ssl.create_default_context, cafile=settings.ca_bundle)
    connector = aiohttp.TCPConnector(
        limit=settings.connections_max, ssl=verify, ttl_dns_cache=10, keepalive_timeout=15
    )
    timeout = aiohttp.ClientTimeout(
        total=settings.request_timeout_s, connect=settings.connect_timeout_s
    )
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        auto_decompress=False,
        skip_auto_headers=_SKIPPED,
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        session._retry_connection = False  # noqa: SLF001 - no public switch, see the module's head
        yield Wire(session, address, credentials, ByteGate(settings.in_flight_bytes_max))
