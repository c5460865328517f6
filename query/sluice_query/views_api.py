"""`/v1/histogram`, `/v1/fields`, `/v1/fields/values` and `/v1/context`."""

from collections.abc import Callable, Sequence

from aiohttp import web

from sluice_protocol.units import UnixNs
from sluice_query.field_values import FieldListResult, TopValuesResult
from sluice_query.histogram import HistogramResult
from sluice_query.read_endpoints import given_parameters, read_endpoint
from sluice_query.request import Query
from sluice_query.result import NeighboursResult, ViewResult
from sluice_query.runner import QueryRunner
from sluice_query.view_parameters import (
    CONTEXT,
    FIELDS,
    HISTOGRAM,
    VALUES,
    Given,
    parse_context,
    parse_fields,
    parse_histogram,
    parse_values,
)
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.parameters import Parameter
from sluice_web.problems import Handler

_Parse = Callable[[Given, UnixNs], Query]


class ViewsApi:
    """The endpoints that compute something from the records of a search."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            self._endpoint(
                "/v1/histogram",
                parse_histogram,
                HISTOGRAM,
                HistogramResult,
                "Return the number of records in each bucket of time",
            ),
            self._endpoint(
                "/v1/fields",
                parse_fields,
                FIELDS,
                FieldListResult,
                "Return the fields that records have",
            ),
            self._endpoint(
                "/v1/fields/values",
                parse_values,
                VALUES,
                TopValuesResult,
                "Return the most frequent values of a field",
            ),
            self._endpoint(
                "/v1/context",
                parse_context,
                CONTEXT,
                NeighboursResult,
                "Return the records before and after a record",
            ),
        )

    def _endpoint(
        self,
        path: str,
        parse: _Parse,
        parameters: Sequence[Parameter],
        result: type[ViewResult],
        summary: str,
    ) -> Endpoint:
        return read_endpoint(
            path=path,
            handler=self._handler(parse),
            summary=summary,
            parameters=parameters,
            result=result,
        )

    def _handler(self, parse: _Parse) -> Handler:
        async def send_view(request: web.Request) -> web.StreamResponse:
            query = parse(given_parameters(request), self._runner.searcher.clock.now_ns())
            result = await self._runner.search(query)
            return json_response(result.view)

        return send_view
