"""Ask questions: the query service of the running deployment, else the store in this process.

Both return the same lines of JSON, the last of them with the summary. The service has its libraries
loaded, so a whole command takes a third of the time.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import Parameter

from sluice_cli.shell.options import EXISTING_SPOOL
from sluice_cli.shell.times import parse_time, parse_zone
from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock
from sluice_query.parameters import (
    FROM_DEFAULT,
    parse_context,
    parse_fields,
    parse_histogram,
    parse_metrics,
    parse_query,
    parse_values,
)
from sluice_query.settings import QuerySettings

if TYPE_CHECKING:
    from sluice_query.search import Searcher

_Result = TypeVar("_Result")
Given = Mapping[str, Sequence[str]]
"""The values of each parameter of a query."""
Ask = Callable[[str, Given], Awaitable[list[bytes]]]
"""Sends one question: the end of a route of the query service, and its parameters."""

_PARSERS: Final = {
    "query": parse_query,
    "histogram": parse_histogram,
    "fields": parse_fields,
    "fields/values": parse_values,
    "metrics": parse_metrics,
    "context": parse_context,
}
_FLAGS: Final = {"query": "the query"}
_SERVICE_S: Final = 90.0
"""Longer than the service computes."""

SpoolUrl = Annotated[
    str | None,
    EXISTING_SPOOL,
    Parameter(
        name="--spool",
        help="The gateway's spool, file:///path; batches that are only there are searched too.",
    ),
]
"""The spool of a gateway in `local_spool` mode, the value of the gateway's `--spool`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """The time range of a question.

    Attributes:
        since: Start of the range: a duration ago such as `15m` or `1h30m`; a time such as
            `2026-11-28 14:00`, `14:00` or `yesterday`; RFC 3339; or a Unix time.
        until: End of the range, exclusive; the same forms, or `now`. Records with a later time, of
            a clock that is ahead, are found only with a later end.
        zone: Time zone of times that are read and shown: `local`, `UTC` or a name.
    """

    since: Annotated[str, Parameter(name=("--since", "--from"))] = FROM_DEFAULT
    until: Annotated[str, Parameter(name="--to")] = "now"
    zone: str = "local"

    @property
    def shown_zone(self) -> tzinfo | None:
        """The zone; None for that of this machine."""
        return parse_zone(self.zone)

    def parameters(self) -> dict[str, list[str]]:
        """Return the range as parameters of a query; an end of `now` is left out."""
        now_ns, zone = SystemClock().now_ns(), self.shown_zone
        given = {}
        for name, text in (("from", self.since), ("to", self.until)):
            if text.isdigit() and 0 < int(text) < 10**6:
                raise BadUsage(
                    f"{flag_of(name)} would be in January 1970: did you mean {text}m, {text}h or"
                    f" {text}d ago? time=`{text}`"
                )
            try:
                given[name] = [parse_time(text, now_ns, zone)]
            except BadUsage as error:
                raise BadUsage(f"{flag_of(name)}: {error}") from error
        if self.until == "now":
            del given["to"]
        return given


def flag_of(parameter: str) -> str:
    """Return the option of a query parameter."""
    return _FLAGS.get(parameter, f"--{parameter.replace('_', '-')}")


def run_questions(
    store: str,
    spool: str | None,
    settings: QuerySettings,
    work: Callable[[Ask], Awaitable[_Result]],
) -> _Result:
    """Run work that sends questions about a store."""
    service = None
    if spool is None and settings == QuerySettings():
        service = _service_of(store)

    async def run() -> _Result:
        async with AsyncExitStack() as stack:
            searchers: list[Searcher] = []

            async def ask(route: str, given: Given) -> list[bytes]:
                # Refused here, an error names the option and not the parameter of the service.
                _PARSERS[route](given, SystemClock().now_ns(), flag_of)
                found = None if service is None else _ask_service(service, route, given)
                if found is not None:
                    return found
                if not searchers:
                    searchers.append(await open_searcher(stack, store, spool, settings))
                return await ask_here(searchers[0], route, given)

            return await work(ask)

    return asyncio.run(run())


async def ask_here(searcher: "Searcher", route: str, given: Given) -> list[bytes]:
    """Ask a store of this process."""
    from sluice_query.result import result_lines  # noqa: PLC0415 - the service has it loaded

    query = _PARSERS[route](given, SystemClock().now_ns(), flag_of)
    return list(result_lines(await searcher.search(query)))


def _service_of(store: str) -> str | None:
    """Return `HOST:PORT` of the query service of the running deployment with a store."""
    from sluice_cli.shell.running import find_running  # noqa: PLC0415 - not with a spool
    from sluice_store.url import local_folder  # noqa: PLC0415 - the same

    def place(url: str) -> object:
        folder = local_folder(url)
        return url if folder is None else folder.resolve()

    running = [one for one in find_running() if place(one.store) == place(store)]
    return next((one.addresses["query"] for one in running if "query" in one.addresses), None)


def _ask_service(service: str, route: str, given: Given) -> list[bytes] | None:
    """Return the response of the service; None if it has none, so that this process computes it."""
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - only with a service
    from urllib.parse import urlencode  # noqa: PLC0415 - the same

    connection = HTTPConnection(service, timeout=_SERVICE_S)
    try:
        connection.request("GET", f"/v1/{route}?{urlencode(given, doseq=True)}")
        response = connection.getresponse()
        body = response.read()
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    if response.status == 400:  # noqa: PLR2004 - bad request
        raise BadUsage(str(json.loads(body).get("detail", "the query service refused the query")))
    if response.status != 200:  # noqa: PLR2004 - OK
        return None
    lines = body.splitlines(keepends=True)
    # A response that ends early has no summary.
    return lines if lines and b'"summary":' in lines[-1] else None


async def open_searcher(
    stack: AsyncExitStack, store_url: str, spool_url: str | None, settings: QuerySettings
) -> "Searcher":
    """Open a store, and the spool of its gateway, for queries of this process."""
    from sluice_cli.shell.logs import log_to_stderr  # noqa: PLC0415 - imports structlog

    log_to_stderr()
    from sluice_query.engine import keep_pandas_out  # noqa: PLC0415 - imports pyarrow and DuckDB
    from sluice_query.search import Searcher  # noqa: PLC0415 - imports numpy
    from sluice_query.unqueued import attach_spool  # noqa: PLC0415
    from sluice_store import StoreMode, open_store, read_authority  # noqa: PLC0415

    keep_pandas_out()
    store = await stack.enter_async_context(open_store(store_url, StoreMode.READ))
    authority = await read_authority(store)
    spool = None
    if spool_url is not None:
        local = await stack.enter_async_context(open_store(spool_url, StoreMode.READ))
        spool = await attach_spool(local, authority)
    return Searcher(
        store=store, store_url=store_url, settings=settings, clock=SystemClock(), spool=spool
    )


def decode_lines(lines: Sequence[bytes]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the records or points of an answer, and its summary."""
    import msgspec  # noqa: PLC0415 - programs get the lines as they are

    decoded: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lines]
    return decoded[:-1], decoded[-1]
