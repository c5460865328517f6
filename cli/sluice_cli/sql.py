"""`sluice sql`: run a SELECT over the tables, lake and pending batches together."""

import asyncio
import resource
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from cyclopts import Parameter

from sluice_cli.shell.asking import RangeOptions, SpoolUrl
from sluice_cli.shell.options import STORE_DEFAULT, FoundStoreUrl
from sluice_cli.shell.output import print_summary
from sluice_protocol.errors import BadUsage
from sluice_query.request import END_NS, FIRST_NS
from sluice_query.settings import QuerySettings

if TYPE_CHECKING:
    from sluice_query.tables import SqlAnswer

_LINES_LIMIT: Final = 1_000
"""Rows of a table for people without `--limit`."""
_PROGRESS_S: Final = 2.0
_OTHER_BYTES: Final = 1 << 30
"""Memory in addition to that of the engine; libraries use a third of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlRange(RangeOptions):
    """The time range of the records of each table.

    Attributes:
        since: Start of the range, as for `sluice query`; without it, all records.
        until: End of the range, exclusive; without it, all records.
        zone: Time zone of texts that are compared with times, and of times in the result.
    """

    since: Annotated[str, Parameter(name=("--since", "--from"), show_default=False)] = str(FIRST_NS)
    until: Annotated[str, Parameter(name="--to", show_default=False)] = str(END_NS)


_RANGE = SqlRange()
_SETTINGS = QuerySettings()


def sql(
    statement: Annotated[str, Parameter(help="One SELECT, DESCRIBE, SHOW TABLES or EXPLAIN.")],
    /,
    *,
    store: FoundStoreUrl = STORE_DEFAULT,
    spool: SpoolUrl = None,
    span: Annotated[SqlRange, Parameter(name="*")] = _RANGE,
    limit: Annotated[
        int | None, Parameter(help="Most rows; `lines` prints 1,000 without it.")
    ] = None,
    output: Annotated[
        Literal["lines", "json", "csv", "parquet"],
        Parameter(help="`lines` is a table; redirect `json`, `csv` and `parquet` to a file."),
    ] = "lines",
    settings: Annotated[QuerySettings, Parameter(name="*")] = _SETTINGS,
) -> None:
    """Run a SELECT over logs, metrics, spans, entries and batches."""
    if limit is not None and limit < 1:
        raise BadUsage(f"--limit must be at least 1, limit=`{limit}`")
    most = _LINES_LIMIT if limit is None and output == "lines" else limit
    with _bounded_memory(settings.memory_bytes_max + _OTHER_BYTES):
        asyncio.run(_run(statement, (store, spool), span, most, output, settings))


@contextmanager
def _bounded_memory(data_bytes: int) -> Iterator[None]:
    """Bound what the data of this process may grow by.

    The engine does not count a value that a function such as `replace` builds. Without a bound, one
    row could take all memory of the machine. What the process already has does not count: else it
    might not be able to start a thread.
    """
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # data and stack, see proc(5)
    data_bytes += pages * resource.getpagesize()
    known = [one for one in (before, most, data_bytes) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


async def _run(
    statement: str,
    urls: tuple[str, str | None],
    span: SqlRange,
    limit: int | None,
    output: Literal["lines", "json", "csv", "parquet"],
    settings: QuerySettings,
) -> None:
    from sluice_cli.shell.asking import open_searcher  # noqa: PLC0415 - its libraries
    from sluice_protocol.system_clock import SystemClock  # noqa: PLC0415 - quick help
    from sluice_query.parameters import parse_query  # noqa: PLC0415 - the same
    from sluice_query.tables import answer_sql  # noqa: PLC0415 - imports DuckDB

    asked = parse_query(span.parameters(), SystemClock().now_ns())
    async with AsyncExitStack() as stack:
        searcher = await open_searcher(stack, *urls, settings)
        progress = asyncio.create_task(_show_progress()) if sys.stderr.isatty() else None
        try:
            answer = await stack.enter_async_context(
                answer_sql(
                    searcher,
                    statement,
                    from_ns=asked.from_ns,
                    to_ns=asked.to_ns,
                    zone="" if span.shown_zone is None else str(span.shown_zone),
                )
            )
            rows, more = await _write(answer, output, limit, progress)
        finally:
            if progress is not None:
                progress.cancel()
        summary: dict[str, Any] = msgspec.to_builtins(answer.finished(rows, more=more))
        if output == "json":
            sys.stdout.buffer.write(msgspec.json.encode({"summary": summary}) + b"\n")
            sys.stdout.flush()
        else:
            left = " (more exist: raise --limit)" if more else ""
            print_summary(summary, f"{rows} rows{left}")


async def _write(
    answer: "SqlAnswer",
    output: Literal["lines", "json", "csv", "parquet"],
    limit: int | None,
    progress: "asyncio.Task[None] | None",
) -> tuple[int, bool]:
    """Write the rows; return how many, and whether the limit left some out."""
    from sluice_cli.shell.records_output import open_writer  # noqa: PLC0415 - imports pyarrow

    writer = open_writer(output, answer.schema, sys.stdout.buffer)
    rows, more = 0, False
    async for batch in answer.batches():
        if progress is not None:
            progress.cancel()
        room = batch.num_rows if limit is None else limit - rows
        more = batch.num_rows > room
        writer.write(batch.slice(0, room) if more else batch)
        rows += min(batch.num_rows, room)
        if more:
            break
    writer.finish()
    return rows, more


async def _show_progress() -> None:
    """Write on a terminal, every two seconds, that a long statement still runs."""
    clock_s = 0.0
    while True:
        await asyncio.sleep(_PROGRESS_S)  # noqa: TID251 - a display
        clock_s += _PROGRESS_S
        sys.stderr.write(f"\rrunning for {clock_s:.0f} s; --since reads less\r")
        sys.stderr.flush()
