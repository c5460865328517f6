"""The endpoints of the doors that a gateway or an agent opens, and refusals at the paths of others.

A door that imitates another product ignores the query parameters of that product which it does not
read, because real clients send them: `pretty`, `timeout`, `filter_path`, `refresh`. A name that is
almost one that the door reads is a typing error. Ignoring it would store records in another way
than their sender wants, so it is refused.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache, partial
from importlib import import_module
from itertools import chain
from types import ModuleType
from typing import Final, Protocol

import msgspec
from aiohttp import hdrs, web
from yarl import URL

from sluice_doors.decoded import BodyUnreadable
from sluice_doors.requests import (
    RECEIVED_NS,
    DoorRequest,
    DoorResult,
    DoorRoute,
    credentials_remedy,
)
from sluice_doors.table import DOORS, HTTP_DOORS, DoorName, methods_of
from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import UnixNs
from sluice_protocol.upload_http import SHED_HEADER
from sluice_web.endpoints import Endpoint
from sluice_web.problems import PROBLEM_RENDERER, HttpRefusal, Problem, ProblemRenderer
from sluice_web.refused_clients import RefusedClients, client_refusal_of

QUERIES_MAX: Final = 256
"""Queries that are remembered; most clients always send the same."""
_TYPING_ERROR: Final = 0.75
"""Names at least this similar are typing errors. `type` and `op_type`, both names of Elasticsearch,
have 0.73; `hots` and `host` 0.75.
"""
_HINT: Final = 0.5
"""Names at least this similar get a hint where they are refused anyway."""


@lru_cache(maxsize=QUERIES_MAX)
def check_parameters(query: str, known: Sequence[str], *, ignores_others: bool) -> None:
    """Check the names of the query parameters of a request.

    With `ignores_others`, a parameter that is not known is ignored unless it is similar to one of
    `known`.
    """
    named = URL.build(query_string=query, encoded=True).query
    cutoff = _TYPING_ERROR if ignores_others else _HINT
    for name in named:
        if name in known:
            continue
        (likely, *_) = (*get_close_matches(name, known, n=1, cutoff=cutoff), "")
        if likely or not ignores_others:
            hint = f"; did you mean {likely}?" if likely else f"; use {' or '.join(known)}"
            raise BodyUnreadable(f"parameter is not known, parameter=`{name[:40]}`{hint}")
    twice = next((name for name in known if len(named.getall(name, ())) > 1), None)
    if twice is not None:
        raise BodyUnreadable(f"parameter is given twice, parameter=`{twice}`")


def closed_endpoints(
    doors: Collection[DoorName], now_ns: Callable[[], UnixNs], *, open_host: bool
) -> Iterator[Endpoint]:
    """Yield an endpoint for each path of each door that is not open; responses are constants."""
    for door in HTTP_DOORS:
        for path in () if door in doors else DOORS[door].paths:
            for method in methods_of(path):
                yield Endpoint(
                    method=method,
                    path=path,
                    handler=partial(_refuse_closed, door, path, now_ns),
                    summary="Refuse requests, because this door is not open",
                    sends_continue=True,
                    open_host=open_host,
                    described=False,
                )


async def _refuse_closed(
    door: DoorName, path: str, now_ns: Callable[[], UnixNs], request: web.Request
) -> web.StreamResponse:
    """Refuse a request in the form that its client logs.

    The protocol is imported with the first such request, in a thread: a gateway without doors
    otherwise never needs the decoders.
    """
    with suppress(ImportError):  # without the extra `doors`, the response has the usual form
        loop = asyncio.get_running_loop()
        routes = await loop.run_in_executor(None, routes_of, door)
        request[RECEIVED_NS] = now_ns()
        refuse = next(route.refuse for route in routes if route.path == path)
        request[PROBLEM_RENDERER] = ProblemRenderer(refuse)
    raise HttpRefusal(
        ErrorCode.NOT_FOUND,
        f"door is not open: no client can send here; start the server with --doors {door},"
        f" door=`{door}`",
    )


IDENTITY_HEADER: Final = "Sluice-Identity"
"""What identified the request: `key`, `content` or `none`, and whether it was combined."""
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


def _module_of(door: DoorName) -> ModuleType:
    """Import the module of a protocol over HTTP."""
    return import_module(f"sluice_doors.{DOORS[door].module}")


def routes_of(door: DoorName) -> tuple[DoorRoute, ...]:
    """Return the routes of a protocol over HTTP."""
    routes: tuple[DoorRoute, ...] = _module_of(door).ROUTES
    return routes


def _probes_of(door: DoorName, is_full: Callable[[], bool], *, open_host: bool) -> list[Endpoint]:
    """Return the other endpoints that clients of a protocol request."""
    make = getattr(_module_of(door), "probe_endpoints", None)
    probes: list[Endpoint] = [] if make is None else make(is_full, open_host=open_host)
    return probes


class DoorAcceptance(Protocol):
    """Accepts the records of a request, and counts requests."""

    @property
    def refused(self) -> RefusedClients:
        """The clients without a valid key."""
        ...

    async def accept(self, request: web.Request, wanted: DoorRequest) -> DoorResult:
        """Accept every record of a request."""
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
    ) -> None:
        """Bind what accepts the records.

        With `open_host` the gate accepts any `Host`, because every request is authenticated by
        something that a browser cannot send (ADR 14).
        """
        self._service = service
        self._doors = doors
        self._open_host = open_host

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints of each open door, and refusals at the paths of the others."""
        opened = [door for door in HTTP_DOORS if door in self._doors]
        for route in chain.from_iterable(map(routes_of, opened)):
            refusals = ProblemRenderer(partial(self._refuse, route))
            for method in methods_of(route.path):
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
        for door in opened:
            yield from _probes_of(door, self._service.is_full, open_host=self._open_host)
        yield from closed_endpoints(self._doors, self._service.now_ns, open_host=self._open_host)

    async def _accept(
        self, route: DoorRoute, refusals: ProblemRenderer, request: web.Request
    ) -> web.StreamResponse:
        request[RECEIVED_NS] = self._service.now_ns()
        request[PROBLEM_RENDERER] = refusals
        query = request.rel_url.raw_query_string
        if query:
            check_parameters(query, route.parameters, ignores_others=route.ignores_others)
        result = await self._service.accept(request, route.read(request))
        self._service.count_accepted(route.door, result)
        response = route.respond(request, result)
        response.headers[IDENTITY_HEADER] = result.identity
        self._shed(response)
        return response

    def _refuse(self, route: DoorRoute, request: web.Request, problem: Problem) -> web.Response:
        self._service.count_refused(route.door, problem)
        if problem.code is ErrorCode.UNAUTHENTICATED:
            self._service.refused.add(route.door, client_refusal_of(request), request.remote)
            remedy = f"{problem.detail}: {credentials_remedy(request.headers)}"
            problem = msgspec.structs.replace(problem, detail=remedy)
        response = route.refuse(request, problem)
        if response.status == _UNAUTHENTICATED:
            response.headers[hdrs.WWW_AUTHENTICATE] = _CHALLENGE
        self._shed(response)
        return response

    def _shed(self, response: web.Response) -> None:
        if self._service.sheds():
            response.force_close()
            response.headers[SHED_HEADER] = "1"
