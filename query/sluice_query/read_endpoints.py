"""What the endpoints that read from the store share."""

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from sluice_web.disconnects import while_connected
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import JSON_TYPE
from sluice_web.parameters import Parameter
from sluice_web.problems import Handler

_PROBLEMS: Final = {
    "400": "The request is malformed",
    "401": "The request does not contain the token",
    "503": "The store is unreachable, or a limit of time or memory is exceeded",
}


def read_endpoint(
    *,
    path: str,
    handler: Handler,
    summary: str,
    parameters: Sequence[Parameter],
    result: object | None = None,
    result_type: str = JSON_TYPE,
) -> Endpoint:
    """Return a `GET` whose handler is cancelled when its client disconnects."""
    return Endpoint(
        method="GET",
        path=path,
        handler=while_connected(handler),
        summary=summary,
        parameters=parameters,
        result=result,
        result_type=result_type,
        problems=_PROBLEMS,
    )


def given_parameters(request: web.Request) -> dict[str, Sequence[str]]:
    """Return the values of each query parameter."""
    return {name: request.query.getall(name) for name in request.query}
