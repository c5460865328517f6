"""What routes that read from the store share, and streamed responses."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from sluice_protocol.errors import SluiceError
from sluice_query.engine import QueryTimedOut
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import JSON_TYPE
from sluice_web.parameters import Parameter
from sluice_web.problems import Handler, Problem, describe_error, while_connected

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


async def given_with_form(request: web.Request) -> dict[str, Sequence[str]]:
    """Return the values of each parameter, of the URL and of a form."""
    given = given_parameters(request)
    if request.method == "POST":
        form = await request.post()
        for name in form:
            values = [one for one in form.getall(name) if isinstance(one, str)]
            given[name] = [*given.get(name, ()), *values]
    return given


_CHUNK_BYTES: Final = 64 << 10


def problem_line(problem: Problem) -> bytes:
    """Return the last line of NDJSON that ends with an error."""
    return msgspec.json.encode({"problem": problem}) + b"\n"


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
        """Return True if something was sent."""
        return self._response.prepared

    @property
    def headers(self) -> "CIMultiDict[str]":
        """Return the fields of the head, which can be changed until it is sent."""
        return self._response.headers

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

    def problem(self, error: SluiceError) -> Problem:
        """Return the problem document of an error after the head was sent."""
        return describe_error(error, path=self._request.path, peer=self._request.remote)

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
