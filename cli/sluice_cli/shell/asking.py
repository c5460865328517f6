"""Ask questions: the query service of the running deployment, else the store in this process.

Both return the same lines of JSON, the last of them with the summary. With the service, a command
imports no part of a query, so a whole command takes a fraction of the time.

A time is read as people write it: of a day, in a zone, or a duration ago.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from cyclopts import Parameter

from sluice_cli.shell.options import EXISTING_SPOOL
from sluice_protocol.errors import BadUsage, ErrorCode, SluiceError
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UNITS_NS, UnixNs
from sluice_query.settings import FROM_DEFAULT, QuerySettings

if TYPE_CHECKING:
    from sluice_query.request import Query
    from sluice_query.search import Searcher

_Result = TypeVar("_Result")
_DURATION: Final = re.compile(r"-?((?:[0-9]{1,9}(?:ms|s|m|h|d|w))+)", re.ASCII)
_PART: Final = re.compile(r"([0-9]+)(ms|s|m|h|d|w)", re.ASCII)
_UNITS_NS: Final = {**UNITS_NS, "w": 7 * UNITS_NS["d"]}
_ABSOLUTE: Final = re.compile(r"now|-?\d+|\d{4}-\d\d-\d\d[Tt ].*", re.ASCII)
"""What the query service reads itself: `now`, a Unix time, or RFC 3339."""
_DAY_AND_TIME: Final = re.compile(
    r"(?:(?P<day>\d{4}-\d\d-\d\d|today|yesterday)(?:[T ]|$))?"
    r"(?:(?P<minute>\d\d?:\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?)?",
    re.ASCII,
)


def parse_zone(name: str) -> tzinfo | None:
    """Return the zone of a name such as `Europe/Berlin` or `UTC`; None for `local`."""
    if name == "local":
        return None
    if name.upper() in {"UTC", "Z"}:
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - most people read times of their own zone

    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise BadUsage(
            f"unknown time zone: use local, UTC or a name such as Europe/Berlin, zone=`{name[:40]}`"
        ) from error


def parse_time(text: str, now_ns: UnixNs, zone: tzinfo | None) -> str:
    """Return a time as the parameters of queries have it.

    A day, a time of day, or both are those of the zone: `2026-11-28 14:00`, `14:00`, `yesterday`.
    Of a time that a change of clocks repeats, the first is meant. Other texts are returned as they
    are: RFC 3339, Unix times and `now`.
    """
    duration = _DURATION.fullmatch(text)
    if duration is not None:
        ago_ns = sum(int(n) * _UNITS_NS[unit] for n, unit in _PART.findall(duration[1]))
        return str(now_ns - ago_ns)
    found = _DAY_AND_TIME.fullmatch(text)
    if _ABSOLUTE.fullmatch(text) and found is None:
        return text
    if found is None or not text:
        from sluice_query.parameters import meant_time  # noqa: PLC0415 - only for an error

        raise BadUsage(
            "must be a duration ago such as 15m, 1h30m or 2d, a time such as 14:00, yesterday or"
            f" `2026-11-28 14:00`, or RFC 3339{meant_time(text)}, time=`{text[:40]}`"
        )
    today = datetime.fromtimestamp(now_ns // NS_PER_S, zone)
    day = found["day"] or "today"
    try:
        if day in {"today", "yesterday"}:
            date = (today - timedelta(days=day == "yesterday")).date()
        else:
            date = datetime.fromisoformat(day).date()
        hour, minute = map(int, (found["minute"] or "0:0").split(":"))
        moment = datetime(
            date.year, date.month, date.day, hour, minute, int(found["second"] or 0), tzinfo=zone
        )
    except ValueError as error:
        raise BadUsage(f"no such time: {error}, time=`{text}`") from error
    # Without a zone, a moment is in that of this machine.
    fraction_ns = int((found["fraction"] or "0").ljust(9, "0"))
    at_ns = int(moment.timestamp()) * NS_PER_S + fraction_ns
    # A small number would be read as a Unix time in seconds.
    return (
        f"{datetime.fromtimestamp(at_ns // NS_PER_S, UTC):%Y-%m-%dT%H:%M:%S}.{at_ns % NS_PER_S:09}Z"
    )


def format_moment(at_ns: int, zone: tzinfo | None) -> str:
    """Return a time in a zone, with milliseconds, in a form that `parse_time` reads again."""
    moment = datetime.fromtimestamp(at_ns // NS_PER_S, zone)
    end = "Z" if zone is UTC else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at_ns % NS_PER_S // 1_000_000:03}{end}"


Given = Mapping[str, Sequence[str]]
"""The values of each parameter of a query."""
Ask = Callable[[str, Given], list[bytes]]
"""Sends one question: the end of a route of the query service, and its parameters."""

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


@contextmanager
def asking(store: str, spool: str | None, settings: QuerySettings) -> Iterator[Ask]:
    """Yield the function that sends questions about a store."""
    service = None
    if spool is None and settings == QuerySettings():
        service = _service_of(store)
    with ExitStack() as stack:
        here: list[Ask] = []

        def ask(route: str, given: Given) -> list[bytes]:
            found = None if service is None else _ask_service(service, route, given)
            if found is not None:
                return found
            if not here:
                here.append(stack.enter_context(asking_here(store, spool, settings)))
            return here[0](route, given)

        yield ask


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
    from socket import create_connection  # noqa: PLC0415 - only with a service
    from urllib.parse import urlencode  # noqa: PLC0415 - the same

    # The body of HTTP/1.0 ends with the connection. `http.client` takes a tenth of a command's
    # processor time to import.
    target = f"/v1/{route}?{urlencode(given, doseq=True)}"
    host, _, port = service.rpartition(":")
    try:
        with create_connection((host.strip("[]"), int(port)), _SERVICE_S) as connection:
            connection.sendall(f"GET {target} HTTP/1.0\r\nHost: {service}\r\n\r\n".encode())
            with connection.makefile("rb") as response:
                head, _, body = response.read().partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        is_problem = b"\r\ncontent-type: application/problem+json" in head.lower()
        problem = msgspec.json.decode(body) if is_problem else None
    except (OSError, ValueError, IndexError, RecursionError):
        return None
    if problem is not None:
        detail = str(problem["detail"])
        if status == 400:  # noqa: PLR2004 - bad request
            parse_question(route, given)  # its error names the option and not the parameter
            raise BadUsage(detail)
        if problem["code"] == ErrorCode.OVERLOADED:
            raise SluiceError(detail)  # the same limits would end it here, after as much time
    if status != 200:  # noqa: PLR2004 - OK
        return None
    lines = body.splitlines(keepends=True)
    # A response that ends early has no summary.
    return lines if lines and b'"summary":' in lines[-1] else None


def decode_lines(lines: Sequence[bytes]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the records or points of an answer, and its summary."""
    decoded: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lines]
    return decoded[:-1], decoded[-1]


def parse_question(route: str, given: Given) -> "Query":
    """Return the query of a question; an error names the option of the command line."""
    from sluice_query import parameters  # noqa: PLC0415 - the service parses what it computes

    parsers = {
        "query": parameters.parse_query,
        "histogram": parameters.parse_histogram,
        "fields": parameters.parse_fields,
        "fields/values": parameters.parse_values,
        "metrics": parameters.parse_metrics,
        "context": parameters.parse_context,
    }
    return parsers[route](given, SystemClock().now_ns(), flag_of)


@contextmanager
def asking_here(store: str, spool: str | None, settings: QuerySettings) -> Iterator[Ask]:
    """Yield the function that computes questions; the store is opened for the first of them.

    A query that is refused opens no store.
    """
    import asyncio  # noqa: PLC0415 - slow, and not needed with a service

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        searchers: list[Searcher] = []

        async def answer(query: "Query") -> list[bytes]:
            from sluice_query.result import result_lines  # noqa: PLC0415 - imports pyarrow

            if not searchers:
                searchers.append(await open_searcher(stack, store, spool, settings))
            return list(result_lines(await searchers[0].search(query)))

        try:
            yield lambda route, given: runner.run(answer(parse_question(route, given)))
        finally:
            runner.run(stack.aclose())


def run_with_searcher(
    store: str,
    spool: str | None,
    settings: QuerySettings,
    work: Callable[["Searcher"], Awaitable[_Result]],
) -> _Result:
    """Run work that uses a searcher of this process."""
    import asyncio  # noqa: PLC0415 - slow, and not needed with a service

    async def run() -> _Result:
        async with AsyncExitStack() as stack:
            return await work(await open_searcher(stack, store, spool, settings))

    return asyncio.run(run())


async def open_searcher(
    stack: AsyncExitStack, store_url: str, spool_url: str | None, settings: QuerySettings
) -> "Searcher":
    """Open a store, and the spool of its gateway, for queries of this process."""
    from sluice_web.log_output import log_to_stderr  # noqa: PLC0415 - slow

    log_to_stderr()
    from sluice_query.engine import keep_pandas_out  # noqa: PLC0415 - imports pyarrow and DuckDB
    from sluice_query.pending import attach_spool  # noqa: PLC0415
    from sluice_query.search import Searcher  # noqa: PLC0415 - imports numpy
    from sluice_store.authority import read_authority  # noqa: PLC0415
    from sluice_store.url import StoreMode, open_store  # noqa: PLC0415

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
