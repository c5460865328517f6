"""Explore, Traces, Metrics and dead letters: requests to the query service, streamed back.

The console adds the token of the query service; the browser never sees it. The query parameters are
passed unchanged, so the query service alone decides what they mean.
"""

from typing import Final

import aiohttp
from aiohttp import hdrs, web

from sluice_console.reconcilers import ServiceClient
from sluice_protocol.errors import ErrorCode
from sluice_web.endpoints import Endpoint
from sluice_web.problems import HttpRefusal

PATHS: Final = (
    "query",
    "query/stream",
    "logql",
    "histogram",
    "fields",
    "fields/values",
    "context",
    "metrics",
    "traces/{id}",
    "operations",
    "dead-letters",
    "tail",
    "download",
)
"""Paths below `/v1/` that are passed on."""
CONNECT_S: Final = 5.0
SILENCE_S: Final = 120.0
"""Longest time between two parts of a response."""
CHUNK_BYTES: Final = 64 * 1024
_TYPES: Final = frozenset(
    {
        "application/json",
        "application/problem+json",
        "application/x-ndjson",
        "application/vnd.apache.parquet",
        "text/event-stream",
    }
)
"""Media types that no browser runs as a page or a script."""
_FIELDS: Final = (hdrs.CONTENT_DISPOSITION, hdrs.RETRY_AFTER)


class ExploreApi:
    """The endpoints that pass requests to the query service."""

    def __init__(self, client: ServiceClient | None) -> None:
        """Bind the query service; None if there is none."""
        self._client = client

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return tuple(
            Endpoint(
                method="GET",
                path=f"/v1/{path}",
                handler=self._pass_on,
                summary=f"Return what the query service returns for /v1/{path}",
                result_type="application/x-ndjson",
            )
            for path in PATHS
        )

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        client = self._client
        if client is None:
            raise HttpRefusal(
                ErrorCode.NOT_FOUND,
                "no query service: start `sluice query serve` and set its URL as `query`",
            )
        url = f"{client.url}{request.path_qs}"
        fields = dict(client.headers)
        if "Last-Event-ID" in request.headers:
            fields["Last-Event-ID"] = request.headers["Last-Event-ID"]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        try:
            async with client.session.get(
                url, headers=fields, timeout=timeout, allow_redirects=False
            ) as found:
                return await self._send(request, found)
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
            raise HttpRefusal(
                ErrorCode.OVERLOADED,
                "the query service does not respond: start it or correct its URL,"
                f" url=`{client.url}`",
            ) from error

    @staticmethod
    async def _send(request: web.Request, found: aiohttp.ClientResponse) -> web.StreamResponse:
        if found.status == 401:  # noqa: PLR2004 - the visitor has a login; the console's token is wrong
            raise HttpRefusal(
                ErrorCode.OVERLOADED,
                "the query service refuses the token: set query_token to its api_token",
            )
        media_type = found.content_type if found.content_type in _TYPES else ""
        response = web.StreamResponse(status=found.status)
        response.headers[hdrs.CONTENT_TYPE] = media_type or "application/octet-stream"
        for name in _FIELDS:
            if name in found.headers:
                response.headers[name] = found.headers[name]
        try:
            await response.prepare(request)
            async for chunk in found.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        except ConnectionError:
            return response  # the page was closed, which also ends the query
        except aiohttp.ClientError:
            # The status is sent: an incomplete response must not end like a complete one.
            response.force_close()
            if request.transport is not None:
                request.transport.abort()
        return response
