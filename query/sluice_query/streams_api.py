"""`/v1/query` and `/v1/query/stream`: records as NDJSON, after a search and while it runs."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final

import msgspec
from aiohttp import web

from sluice_protocol.errors import SluiceError
from sluice_query.errors import QueryTimedOut
from sluice_query.parameters import PARAMETERS, STREAMED, parse_query
from sluice_query.result import result_lines
from sluice_query.runner import QueryRunner
from sluice_query.streaming import stream_lines, stream_search
from sluice_query.views_api import PROBLEMS, given_parameters
from sluice_web.disconnects import while_connected
from sluice_web.endpoints import Endpoint
from sluice_web.problems import describe_error

NDJSON: Final = "application/x-ndjson"
_CHUNK_BYTES: Final = 64 << 10


class LateResponse:
    """A streamed response whose head is sent with its first bytes.

    An error before them becomes an ordinary error response.
    """

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=headers)
        self._chunk = bytearray()

    @property
    def started(self) -> bool:
        """Whether something was sent."""
        return self._response.prepared

    async def write(self, data: bytes) -> None:
        """Add bytes to the response; they are sent in chunks."""
        self._chunk += data
        if len(self._chunk) >= _CHUNK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send what was written."""
        if not self.started:
            await self._response.prepare(self._request)
        if self._chunk:
            chunk = bytes(self._chunk)
            self._chunk.clear()
            await self._response.write(chunk)

    async def finish(self) -> web.StreamResponse:
        """Send the rest and end the response."""
        await self.flush()
        await self._response.write_eof()
        return self._response

    def problem(self, error: SluiceError) -> bytes:
        """Return the last line of a stream that ends with an error."""
        found = describe_error(error, path=self._request.path, peer=self._request.remote)
        return msgspec.json.encode({"problem": found}) + b"\n"

    @asynccontextmanager
    async def within(self, limit_s: float) -> AsyncIterator[None]:
        """Limit the time of the block, including that of a slow client.

        Raises:
            QueryTimedOut: The time is over before something was sent.
            ConnectionError: It is over later. The connection is closed, so the client notices that
                the response is incomplete.
        """
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError as error:
            if not self.started:
                raise QueryTimedOut(limit_s) from error
            self.abort()
            raise ConnectionResetError from error

    def abort(self) -> None:
        """Close the connection, so that the client notices that the response is incomplete."""
        if self._request.transport is not None:
            self._request.transport.abort()


class StreamsApi:
    """The endpoints that return records as NDJSON."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/v1/query",
                handler=while_connected(self._send_results),
                summary="Return records or a series as NDJSON; the last line is a summary",
                parameters=PARAMETERS,
                result_type=NDJSON,
                problems=PROBLEMS,
            ),
            Endpoint(
                method="GET",
                path="/v1/query/stream",
                handler=while_connected(self._send_stream),
                summary="Return the newest records first, as NDJSON, while the search runs",
                parameters=STREAMED,
                result_type=NDJSON,
                problems=PROBLEMS,
            ),
        )

    async def _send_results(self, request: web.Request) -> web.StreamResponse:
        query = parse_query(given_parameters(request), self._runner.searcher.clock.now_ns())
        result = await self._runner.search(query)
        response = LateResponse(request, {"Content-Type": NDJSON})
        for line in result_lines(result):
            await response.write(line)
        return await response.finish()

    async def _send_stream(self, request: web.Request) -> web.StreamResponse:
        searcher = self._runner.searcher
        query = parse_query(given_parameters(request), searcher.clock.now_ns(), known=STREAMED)
        response = LateResponse(request, {"Content-Type": NDJSON, "Cache-Control": "no-store"})
        # The engine reports the same limit in a line; that of `within` is for a slow client.
        limit_s = searcher.settings.time_s_max + 1.0
        async with self._runner.counted() as counted, response.within(limit_s):
            try:
                async with aclosing(stream_search(searcher, query)) as parts:
                    async for part in parts:
                        for line in stream_lines(query.kind, part):
                            await response.write(line)
                        await response.flush()
                        if part.summary is not None:
                            counted.finish(part.summary)
            except SluiceError as error:
                if not response.started:
                    raise
                await response.write(response.problem(error))
            return await response.finish()
