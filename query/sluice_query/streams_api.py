"""`/v1/query` and `/v1/query/stream`: records as NDJSON, after a search and while it runs."""

from contextlib import aclosing
from typing import Final

from aiohttp import web

from sluice_protocol.errors import SluiceError
from sluice_query.parameters import PARAMETERS, STREAMED, parse_query
from sluice_query.read_endpoints import given_parameters, read_endpoint
from sluice_query.responses import LateResponse, problem_line
from sluice_query.result import result_lines
from sluice_query.runner import QueryRunner
from sluice_query.streaming import stream_lines, stream_search
from sluice_web.endpoints import Endpoint

NDJSON: Final = "application/x-ndjson"


class StreamsApi:
    """The endpoints that return records as NDJSON."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            read_endpoint(
                path="/v1/query",
                handler=self._send_results,
                summary="Return records or a series as NDJSON; the last line is a summary",
                parameters=PARAMETERS,
                result_type=NDJSON,
            ),
            read_endpoint(
                path="/v1/query/stream",
                handler=self._send_stream,
                summary="Return the newest records first, as NDJSON, while the search runs",
                parameters=STREAMED,
                result_type=NDJSON,
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
                await response.write(problem_line(response.problem(error)))
            return await response.finish()
