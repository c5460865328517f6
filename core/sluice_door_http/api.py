"""The endpoints of the doors that a gateway or an agent opens."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Final, Protocol

from aiohttp import hdrs, web

from sluice_door_http import (
    elasticsearch,
    firehose,
    hec,
    json_lines,
    loki,
    otlp,
    prometheus,
)
from sluice_door_http.closed_doors import closed_endpoints
from sluice_door_http.query_parameters import check_query
from sluice_door_http.routes import (
    RECEIVED_NS,
    AcceptedRequest,
    DoorRequest,
    DoorResult,
    DoorRoute,
)
from sluice_protocol.errors import ErrorCode
from sluice_protocol.request_identity import DoorName
from sluice_protocol.units import UnixNs
from sluice_protocol.upload_http import SHED_HEADER
from sluice_web.endpoints import Endpoint
from sluice_web.problems import PROBLEM_RENDERER, Problem, ProblemRenderer
from sluice_web.refused_clients import RefusedClients, refusal_of

IDENTITY_HEADER: Final = "Sluice-Identity"
"""What identified the request: `key`, `content` or `none`, and whether it was combined."""
_ROUTES: Final = (
    *otlp.ROUTES,
    *json_lines.ROUTES,
    *prometheus.ROUTES,
    *loki.ROUTES,
    *elasticsearch.ROUTES,
    *hec.ROUTES,
    *firehose.ROUTES,
)
_UNAUTHENTICATED: Final = 401
_CHALLENGE: Final = 'Basic realm="sluice"'
"""Clients that wait for a challenge, such as collectd, know this scheme and may not know others."""
_PROBLEMS: Final = {
    "400": "No record of the body can be read",
    "401": "The sender is not known",
    "403": "The sender may not use this door",
    "413": "The body is too large",
    "415": "The media type is not one of this protocol",
    "503": "Send the same request again",
}


def refusal_at(path: str) -> Callable[[web.Request, Problem], web.Response]:
    """Return how the protocol of a path refuses a request."""
    return next(route.refuse for route in _ROUTES if route.path == path)


class DoorAcceptance(Protocol):
    """Accepts the records of a request, and counts requests."""

    @property
    def refused(self) -> RefusedClients:
        """The clients without a valid key."""
        ...

    async def accept(self, request: web.Request, wanted: DoorRequest) -> DoorResult:
        """Accept every record of a request.

        Raises:
            SluiceError: Nothing, or only a part, is accepted; the code of the error states why.
        """
        ...

    def now_ns(self) -> UnixNs:
        """Return the time."""
        ...

    def sheds(self) -> bool:
        """Return whether clients should close their connections and use another server."""
        ...

    def is_full(self) -> bool:
        """Return whether a request would be answered "later" now."""
        ...

    def count_accepted(self, door: DoorName, result: DoorResult) -> None:
        """Count a request that was accepted."""
        ...

    def count_refused(self, door: DoorName, problem: Problem) -> None:
        """Count a request that was refused, or not accepted yet."""
        ...


class DoorsApi:
    """The endpoints of the open doors."""

    def __init__(
        self,
        service: DoorAcceptance,
        doors: Collection[DoorName],
        *,
        open_host: bool,
        on_accepted: Callable[[AcceptedRequest], None] | None = None,
    ) -> None:
        """Bind what accepts the records.

        Args:
            service: Accepts them.
            doors: The open doors.
            open_host: Whether the gate accepts any `Host`, because every request is authenticated
                by something that a browser cannot send (ADR 0028).
            on_accepted: Called with each combined request whose responses follow from the head.
        """
        self._service = service
        self._doors = doors
        self._open_host = open_host
        self._on_accepted = on_accepted

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints of each open door, and refusals at the paths of the others."""
        open_routes = [route for route in _ROUTES if route.door in self._doors]
        for route in open_routes:
            refusals = ProblemRenderer(partial(self._refuse, route))
            for method in route.methods:
                yield Endpoint(
                    method=method,
                    path=route.path,
                    handler=partial(self._accept, route, refusals),
                    summary=route.summary,
                    body=bytes,
                    body_type=route.media_type,
                    result_summary="Every record is accepted, by this request or an earlier one",
                    problems=_PROBLEMS,
                    sends_continue=True,
                    open_host=self._open_host,
                )
        if "loki" in self._doors:
            yield from loki.probe_endpoints(open_host=self._open_host)
        if "elasticsearch" in self._doors:
            yield from elasticsearch.probe_endpoints(open_host=self._open_host)
        if "hec" in self._doors:
            yield from hec.state_endpoints(self._service.is_full, open_host=self._open_host)
        yield from closed_endpoints(self._doors, self._service.now_ns, open_host=self._open_host)

    async def _accept(
        self, route: DoorRoute, refusals: ProblemRenderer, request: web.Request
    ) -> web.StreamResponse:
        request[RECEIVED_NS] = self._service.now_ns()
        request[PROBLEM_RENDERER] = refusals
        query = request.rel_url.raw_query_string
        if query:
            check_query(query, route.parameters, ignores_others=route.ignores_others)
        wanted = route.read(request)
        result = await self._service.accept(request, wanted)
        if result.combined and route.from_head and self._on_accepted is not None:
            self._on_accepted(
                AcceptedRequest(
                    request=request,
                    wanted=wanted,
                    respond=partial(self._respond, route, request),
                    refuse=partial(self._refuse, route, request),
                )
            )
        return self._respond(route, request, result)

    def _respond(self, route: DoorRoute, request: web.Request, result: DoorResult) -> web.Response:
        self._service.count_accepted(route.door, result)
        response = route.respond(request, result)
        response.headers[IDENTITY_HEADER] = result.identity
        self._shed(response)
        return response

    def _refuse(self, route: DoorRoute, request: web.Request, problem: Problem) -> web.Response:
        self._service.count_refused(route.door, problem)
        if problem.code is ErrorCode.UNAUTHENTICATED:
            self._service.refused.add(route.door, refusal_of(request), request.remote)
        response = route.refuse(request, problem)
        if response.status == _UNAUTHENTICATED:
            response.headers[hdrs.WWW_AUTHENTICATE] = _CHALLENGE
        self._shed(response)
        return response

    def _shed(self, response: web.Response) -> None:
        if self._service.sheds():
            response.force_close()
            response.headers[SHED_HEADER] = "1"
