"""Client of the other services, for what only their memory contains."""

import asyncio
import math
from dataclasses import dataclass
from typing import Final, TypeVar

import aiohttp
import msgspec

from sluice_console.attention_items import ServiceState
from sluice_console.gateway_health import samples_of
from sluice_protocol.errors import UNREADABLE_JSON
from sluice_reconciler.completeness import BootList
from sluice_web.refused_clients import REFUSED_PATH, RefusedDoor
from sluice_web.response_bodies import read_up_to

TIMEOUT_S: Final = 10.0
RESPONSE_BYTES_MAX: Final = 256 << 20
PROBLEM_BYTES_MAX: Final = 64 << 10
_REASON_CHARS_MAX: Final = 200
_DETAIL_CHARS_MAX: Final = 500
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503
_CHECKED_PATHS: Final = {"reconciler": "/v1/discovery", "query": "/v1/deletes?limit=1"}
"""Per service a path that needs the token and the store."""

_Body = TypeVar("_Body")


class ServiceFailed(Exception):
    """A service did not send a usable response; the message contains the reason.

    The status is None without a response; `detail` is why it failed, as the response states it.
    """

    def __init__(self, message: str, *, status: int | None = None, detail: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.detail = detail

    @property
    def responded(self) -> bool:
        """Whether the service sent a response."""
        return self.status is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceClient:
    """Sends requests to one service.

    The URL has no slash at the end, and an empty token is none.

    Attributes:
        tls_name: The name in its certificate, if it is not that of the URL.
    """

    service: str
    url: str
    token: str
    session: aiohttp.ClientSession
    tls_name: str = ""
    timeout_s: float = TIMEOUT_S

    @property
    def headers(self) -> dict[str, str]:
        """The fields of each request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def check(self) -> ServiceState:
        """Return whether the service responds, accepts the token, and can do its work."""
        try:
            reason, path = await self.why_not_ready(), _CHECKED_PATHS.get(self.service)
            if not reason and path is not None:
                await self._read(path)
        except ServiceFailed as error:
            return ServiceState(
                service=self.service,
                url=self.url,
                problem=str(error),
                responds=error.responded,
            )
        return ServiceState(service=self.service, url=self.url, problem=reason, responds=True)

    async def why_not_ready(self) -> str:
        """Return the reason in a 503 of `/readyz`; empty if the service is ready."""
        try:
            await self._read("/readyz")
        except ServiceFailed as error:
            if error.status != _UNAVAILABLE:
                raise
            return error.detail or "it is not ready: see its log"
        return ""

    async def refused_doors(self) -> tuple[RefusedDoor, ...]:
        """Return the doors whose clients a gateway refused; none if it sends no list of them.

        A gateway that does not respond is found by what else is read.
        """
        try:
            return await self.get(REFUSED_PATH, tuple[RefusedDoor, ...])
        except ServiceFailed:
            return ()

    async def get(self, path: str, kind: type[_Body]) -> _Body:
        """Return the JSON of a path."""
        body = await self._read(path)
        try:
            return await asyncio.to_thread(msgspec.json.decode, body, type=kind)
        except UNREADABLE_JSON as error:
            raise ServiceFailed(f"unreadable response: {error}; check its version") from error

    async def gauge(self, name: str, label: str, value: str) -> list[float]:
        """Return the finite values of a metric whose label has a value."""
        text = await self.metrics()
        try:
            samples = samples_of(text, name)
        except ValueError as error:
            raise ServiceFailed(f"unreadable metrics: {error}; check its version") from error
        found = [one.value for one in samples if one.labels.get(label) == value]
        return [one for one in found if math.isfinite(one)]

    async def metrics(self) -> str:
        """Return the metrics of the service, in the text format of Prometheus."""
        return (await self._read("/metrics")).decode(errors="replace")

    async def _read(self, path: str) -> bytes:
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        try:
            async with self.session.get(
                self.url + path,
                headers=self.headers,
                timeout=timeout,
                allow_redirects=False,
                server_hostname=self.tls_name or None,
            ) as response:
                if response.status == 401:  # noqa: PLR2004 - RFC 9110 section 15.5.2
                    raise ServiceFailed(
                        f"the {self.service} refuses the token: set {self.service}_token to its"
                        " api_token",
                        status=401,
                    )
                if response.status == _NOT_FOUND:
                    raise ServiceFailed(
                        f"it does not know {path.partition('?')[0]}: upgrade the {self.service}",
                        status=_NOT_FOUND,
                    )
                if response.status != 200:  # noqa: PLR2004 - RFC 9110 section 15.3.1
                    detail = _detail_of(await read_up_to(response, PROBLEM_BYTES_MAX))
                    raise ServiceFailed(
                        f"status {response.status}: {detail or 'see its log'}",
                        status=response.status,
                        detail=detail,
                    )
                body = await read_up_to(response, RESPONSE_BYTES_MAX)
                if not response.content.at_eof():
                    raise ServiceFailed(f"the response is larger than {RESPONSE_BYTES_MAX} bytes")
                return body
        except TimeoutError as error:
            raise ServiceFailed(
                f"no response within {self.timeout_s:g} s: is it overloaded?"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServiceFailed(
                f"unreachable: {_one_line(error)}; start the {self.service} or correct its URL"
            ) from error


class _Detail(msgspec.Struct, frozen=True):
    detail: str = ""


def _detail_of(body: bytes) -> str:
    try:
        detail = msgspec.json.decode(body, type=_Detail).detail
    except UNREADABLE_JSON:
        return ""
    return " ".join(detail.split())[:_DETAIL_CHARS_MAX]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:_REASON_CHARS_MAX] or type(error).__name__


async def read_boots(clients: tuple[ServiceClient, ...]) -> BootList | None:
    """Return the newest report of all boots; None if no reconciler has made a whole pass."""
    found: list[BootList] = []
    failures: list[ServiceFailed] = []
    for one in await asyncio.gather(
        *(client.get("/v1/agents", BootList) for client in clients), return_exceptions=True
    ):
        if isinstance(one, ServiceFailed):
            failures.append(one)
        elif isinstance(one, BaseException):
            raise one
        elif one.complete_through is not None:
            found.append(one)
    if not found and failures:
        raise failures[0]
    return max(found, key=lambda one: one.complete_through or "", default=None)
