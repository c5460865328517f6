"""DuckDB as sluice uses it: in memory, bounded, interruptible, with no way out to the network."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import duckdb

from sluice_protocol.errors import BadUsage
from sluice_query.errors import LakeRefused, QueryTimedOut, QueryTooLarge
from sluice_query.files import open_dataset
from sluice_query.segments import Segment
from sluice_query.settings import QuerySettings
from sluice_query.sql import Statement
from sluice_store.lake import TableLocation

LAKE: Final = "lake"
TAIL: Final = "tail"

_Result = TypeVar("_Result")


class Engine:
    """One connection for one query."""

    def __init__(self, opening: Future[Any], settings: QuerySettings) -> None:
        """Takes a connection that is being opened."""
        self._opening = opening
        self._settings = settings

    @property
    def _connection(self) -> Any:  # noqa: ANN401 - untyped
        return self._opening.result()

    def check_pattern(self, pattern: str) -> None:
        """Refuses a pattern that RE2 does not take.

        Raises:
            BadUsage: It does not compile, or would need too much memory.
        """
        try:
            self._connection.execute("SELECT regexp_matches('', ?)", [pattern]).fetchall()
        except duckdb.InvalidInputException as error:
            raise BadUsage(f"regex does not compile: {_reason(error)}") from error

    def show_files(self, name: str, files: Sequence[Segment], location: TableLocation) -> None:
        """Makes Parquet files of one table readable under a name.

        Raises:
            LakeRefused: A file cannot be read.
        """
        paths = [segment.path for segment in files]
        with _translated(location.uri):
            if location.is_local:
                self._connection.read_parquet(paths, hive_partitioning=False).create_view(name)
            else:
                self._connection.register(name, open_dataset(location, paths))

    def show_table(self, name: str, table: Any) -> None:  # noqa: ANN401 - pyarrow is not typed
        """Makes an Arrow table readable under a name."""
        self._connection.register(name, table)

    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        """Runs a statement and gives every row.

        Raises:
            LakeRefused: A file cannot be read.
            QueryTooLarge: The memory bound is spent and disk did not help.
        """
        with _translated(LAKE):
            found: list[tuple[Any, ...]] = self._connection.execute(
                statement.text, statement.values
            ).fetchall()
            return found

    async def bounded(self, work: Callable[[], _Result], left_s: float) -> _Result:
        """Runs blocking work in a thread for at most `left_s` seconds, then interrupts it.

        Raises:
            QueryTimedOut: It took longer.
        """
        task = asyncio.create_task(asyncio.to_thread(work))
        done, _ = await self._wait(task, left_s)
        if not done:
            await self._stop(task)
            raise QueryTimedOut(self._settings.time_s_max)
        return task.result()

    async def _wait(
        self, task: asyncio.Task[_Result], left_s: float
    ) -> tuple[set[asyncio.Task[_Result]], set[asyncio.Task[_Result]]]:
        try:
            return await asyncio.wait({task}, timeout=max(left_s, 0))
        except asyncio.CancelledError:
            await self._stop(task)
            raise

    async def _stop(self, task: asyncio.Task[_Result]) -> None:
        # The thread must be out of the connection before it is closed.
        while not task.done():
            self._connection.interrupt()
            await asyncio.wait({task}, timeout=0.05)
        if not task.cancelled():
            task.exception()


@contextmanager
def open_engine(settings: QuerySettings) -> Iterator[Engine]:
    """Opens an engine with a folder of its own for what does not fit into memory."""
    with tempfile.TemporaryDirectory(prefix="sluice-query-") as spill:
        config = {
            "memory_limit": f"{settings.memory_bytes_max}B",
            "threads": settings.threads,
            "temp_directory": spill,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        # Opening takes as long as reading the log of a table, so both are done at once.
        with ThreadPoolExecutor(1, "sluice-engine") as thread:
            opening = thread.submit(duckdb.connect, ":memory:", config=config)
            try:
                yield Engine(opening, settings)
            finally:
                opening.result().close()


@contextmanager
def _translated(place: str) -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise QueryTooLarge(_reason(error)) from error
    except (duckdb.InterruptException, duckdb.ParserException, duckdb.CatalogException):
        raise
    except (duckdb.Error, OSError) as error:
        reason = f"a data file cannot be read, ask again: {_reason(error)}"
        raise LakeRefused(place, reason) from error


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0]
    return text.split("Error: ", 1)[-1]
