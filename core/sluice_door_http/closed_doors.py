"""Responses at the paths of doors that are not open, in the form that their clients log.

The form of a protocol is in the module with its decoders. It is imported with the first such
request, in a thread: a gateway without doors otherwise never needs the decoders.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module

from aiohttp import web

from sluice_door_http.paths import DOOR_PATHS, methods_of
from sluice_protocol.errors import ErrorCode
from sluice_protocol.request_identity import DoorName
from sluice_protocol.units import UnixNs
from sluice_web.endpoints import Endpoint
from sluice_web.problems import PROBLEM_RENDERER, HttpRefusal, ProblemRenderer


def closed_endpoints(
    doors: Collection[DoorName], now_ns: Callable[[], UnixNs], *, open_host: bool
) -> Iterator[Endpoint]:
    """Yield an endpoint for each path of each door that is not open.

    Args:
        doors: The open doors.
        now_ns: Returns the time, which some responses contain.
        open_host: Whether the gate accepts any `Host`; the responses are constants.
    """
    closed = {door: paths for door, paths in DOOR_PATHS.items() if door not in doors}
    for door, paths in closed.items():
        for path in paths:
            for method in methods_of(path):
                yield Endpoint(
                    method=method,
                    path=path,
                    handler=partial(_refuse, door, path, now_ns),
                    summary="Refuse requests, because this door is not open",
                    sends_continue=True,
                    open_host=open_host,
                    described=False,
                )


async def _refuse(
    door: DoorName, path: str, now_ns: Callable[[], UnixNs], request: web.Request
) -> web.StreamResponse:
    load = partial(import_module, "sluice_door_http.api")
    with suppress(ImportError):  # without the extra `doors`, the response has the usual form
        api = await asyncio.get_running_loop().run_in_executor(None, load)
        request[api.RECEIVED_NS] = now_ns()
        request[PROBLEM_RENDERER] = ProblemRenderer(api.refusal_at(path))
    raise HttpRefusal(
        ErrorCode.NOT_FOUND,
        f"door is not open: no client can send here; start the server with --doors {door},"
        f" door=`{door}`",
    )
