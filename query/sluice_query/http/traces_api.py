"""`/v1/traces/{id}` and `/v1/operations`: the spans of one trace, and what services do."""

import asyncio
from dataclasses import replace
from typing import Any, Final

import msgspec
from aiohttp import web

from sluice_protocol.errors import ErrorCode
from sluice_protocol.meaning import plain_id
from sluice_query.http.responses import given_parameters, read_endpoint
from sluice_query.http.runner import QueryRunner
from sluice_query.parameters import OPERATIONS, TRACE, parse_operations, parse_trace
from sluice_query.result import QueryResult, ViewResult, record_json
from sluice_query.views import OperationsResult
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import JSON_TYPE, encode_json, json_response
from sluice_web.problems import HttpRefusal

_ID_SHOWN_CHARS: Final = 64
TRACE_BYTES_MAX: Final = 64 << 20
"""A page has the whole trace in memory; 100,000 plain spans are 47 MB of JSON."""


class TraceResult(ViewResult, frozen=True, kw_only=True):
    """The spans of one trace.

    Attributes:
        spans: The spans as `/v1/query` returns records, by their start.
        more: Whether there are further, later spans: more than the limit, or than 64 MiB.
    """

    trace_id: str
    spans: tuple[dict[str, Any], ...]
    more: bool


class TracesApi:
    """The endpoints of traces."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            read_endpoint(
                path="/v1/traces/{id}",
                handler=self._show_trace,
                summary="Return the spans of a trace by their start; 404 for an unknown one",
                parameters=TRACE,
                result=TraceResult,
            ),
            read_endpoint(
                path="/v1/operations",
                handler=self._list_operations,
                summary="Return the services and their operations, with errors and durations",
                parameters=OPERATIONS,
                result=OperationsResult,
            ),
        )

    async def _show_trace(self, request: web.Request) -> web.StreamResponse:
        trace_id = plain_id("trace_id", request.match_info["id"])
        now_ns = self._runner.searcher.clock.now_ns()
        found = await self._runner.search(parse_trace(trace_id, given_parameters(request), now_ns))
        if not found.records and not found.summary.partial:
            # An empty success would be drawn as a trace without spans.
            raise HttpRefusal(
                ErrorCode.NOT_FOUND,
                "no span of this trace: check the id, or `from` and `to` if they are given,"
                f" trace_id=`{trace_id[:_ID_SHOWN_CHARS]}`",
            )
        # Encoding 100,000 spans takes seconds, during which other clients are served.
        body = await asyncio.to_thread(_encode_trace, trace_id, found)
        return web.Response(body=body, content_type=JSON_TYPE)

    async def _list_operations(self, request: web.Request) -> web.StreamResponse:
        now_ns = self._runner.searcher.clock.now_ns()
        found = await self._runner.search(parse_operations(given_parameters(request), now_ns))
        return json_response(found.view)


def _encode_trace(trace_id: str, found: QueryResult) -> bytes:
    """Return the JSON of a `TraceResult`, with as many spans as fit; at least one."""
    spans: list[Any] = []
    room = TRACE_BYTES_MAX
    for row in found.records:
        span = encode_json(record_json("spans", row))
        room -= len(span) + 1
        if room < 0 and spans:
            break
        spans.append(msgspec.Raw(span))
    more = found.summary.more or len(spans) < len(found.records)
    summary = replace(found.summary, results=len(spans), more=more)
    return encode_json(
        TraceResult(trace_id=trace_id, spans=tuple(spans), more=more, summary=summary)
    )
