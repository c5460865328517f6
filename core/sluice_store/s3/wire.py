"""The hot path to S3: signed requests, no retry, no second hash, no `Expect`.

One exchange is one request: what came of it is told as it was seen, and never tried again here.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from sluice_protocol.outcomes import UnknownReason
from sluice_protocol.resolution import NoResponse, NotSent, Responded
from sluice_store.s3.answers import parse_error
from sluice_store.s3.channel import ERRORS_FROM, Broken, Channel, NotConnected
from sluice_store.s3.exchange import Exchange, Request
from sluice_store.s3.gate import ByteGate
from sluice_store.s3.settings import S3Settings
from sluice_store.s3.signing import Address, Credentials, sign


class Wire:
    """Sends signed requests to one bucket."""

    def __init__(
        self, channel: Channel, address: Address, credentials: Credentials, gate: ByteGate
    ) -> None:
        """Takes its parts; `open_wire` makes them."""
        self._channel = channel
        self._address = address
        self._credentials = credentials
        self._gate = gate

    async def send(self, request: Request, body: bytes = b"") -> Exchange:
        """Sends one request once and reports what was seen; it raises nothing of the network."""
        async with self._gate.held(len(body)):
            target = self._address.target_of(request.key, request.query)
            headers = await sign(
                request, self._address.origin + target, self._address, self._credentials
            )
            try:
                return await self._exchange(request.method, target, headers, body)
            except NotConnected as error:
                return Exchange(seen=NotSent(detail=str(error)), detail=str(error))
            except TimeoutError as error:
                return _lost(UnknownReason.TIMEOUT, error)
            except Broken as error:
                return _lost(UnknownReason.RESET, error)

    async def _exchange(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> Exchange:
        answer = await self._channel.exchange(method, target, headers, body)
        if answer.status < ERRORS_FROM:
            seen = Responded(status=answer.status)
            return Exchange(seen=seen, headers=answer.headers, body=answer.body)
        code, message = parse_error(answer.body)
        return Exchange(
            seen=Responded(status=answer.status, code=code),
            headers=answer.headers,
            detail=f"{answer.status} {code} {message}".strip(),
        )


def _lost(reason: UnknownReason, error: BaseException) -> Exchange:
    detail = str(error) or type(error).__name__
    return Exchange(seen=NoResponse(reason=reason, detail=detail), detail=detail)


@asynccontextmanager
async def open_wire(
    settings: S3Settings, address: Address, credentials: Credentials
) -> AsyncIterator[Wire]:
    """Opens the connections to one bucket; TLS is always verified."""
    verify = await asyncio.to_thread(ssl.create_default_context, cafile=settings.ca_bundle)
    timeout = aiohttp.ClientTimeout(
        total=settings.request_timeout_s, connect=settings.connect_timeout_s
    )
    async with aiohttp.TCPConnector(
        limit=settings.connections_max, ssl=verify, ttl_dns_cache=10, keepalive_timeout=15
    ) as connector:
        channel = Channel(connector, address.origin, address.host, timeout)
        yield Wire(channel, address, credentials, ByteGate(settings.in_flight_bytes_max))
