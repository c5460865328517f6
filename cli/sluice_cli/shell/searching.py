"""Search a store in this process, with the libraries of queries."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from sluice_cli.shell.asking import Ask, Given, flag_of
from sluice_cli.shell.logs import log_to_stderr
from sluice_protocol.system_clock import SystemClock
from sluice_query.parameters import (
    parse_context,
    parse_fields,
    parse_histogram,
    parse_metrics,
    parse_query,
    parse_values,
)
from sluice_query.request import Query
from sluice_query.settings import QuerySettings

if TYPE_CHECKING:
    from sluice_query.search import Searcher

_Result = TypeVar("_Result")
_PARSERS: Final = {
    "query": parse_query,
    "histogram": parse_histogram,
    "fields": parse_fields,
    "fields/values": parse_values,
    "metrics": parse_metrics,
    "context": parse_context,
}


def parse_question(route: str, given: Given) -> Query:
    """Return the query of a question; an error names the option of the command line."""
    return _PARSERS[route](given, SystemClock().now_ns(), flag_of)


@contextmanager
def asking_here(store: str, spool: str | None, settings: QuerySettings) -> Iterator[Ask]:
    """Yield the function that computes questions; the store is opened for the first of them.

    A query that is refused opens no store.
    """
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        searchers: list[Searcher] = []

        async def answer(query: Query) -> list[bytes]:
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

    async def run() -> _Result:
        async with AsyncExitStack() as stack:
            return await work(await open_searcher(stack, store, spool, settings))

    return asyncio.run(run())


async def open_searcher(
    stack: AsyncExitStack, store_url: str, spool_url: str | None, settings: QuerySettings
) -> "Searcher":
    """Open a store, and the spool of its gateway, for queries of this process."""
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
