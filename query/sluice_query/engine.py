"""DuckDB as sluice uses it: in memory, bounded, interruptible and without network access."""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import duckdb
import pyarrow as pa

from sluice_lake.data_files import DataFile, RowGroup
from sluice_lake.delta import FILE_REMEDY, describe_file, find_wrong_files
from sluice_lake.errors import TableRefused
from sluice_lake.locations import TableLocation, open_filesystem
from sluice_lake.tables import ColumnType, Table
from sluice_protocol.errors import BadUsage, ErrorCode, SluiceError
from sluice_query.settings import QuerySettings
from sluice_query.statements import REFUSED, SqlStatement

LAKE: Final = "lake"
PENDING: Final = "pending"
_S3: Final = "s3://"
_PROBE: Final = "probe"
_IN_FILE: Final = ".parquet"
_OWN_TABLES: Final = "SELECT table_name FROM duckdb_tables()"
_OUT_OF_MEMORY: Final = "Out of Memory"
_IN_JSON: Final = re.compile(r'"exception_message":("(?:[^"\\]|\\.)*")')
_INTERRUPTED: Final = "INTERRUPT"
_READ_ALL: Final = SqlStatement("SELECT bit_xor(hash(COLUMNS(*))) FROM probe")
"""Reads every column of every row."""

_Result = TypeVar("_Result")


class QueryTimedOut(SluiceError):
    """A query that exceeded its time limit."""

    code = ErrorCode.OVERLOADED

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.limit_s = limit_s

    def __str__(self) -> str:
        return f"query exceeded its time limit: narrow the time range, limit_s=`{self.limit_s:g}`"


class QueryTooLarge(SluiceError):
    """A query that needs more memory than its limit."""

    code = ErrorCode.OVERLOADED

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"query exceeded its memory limit: narrow the range or the limit: {self.reason}"


class DataFilesUnreadable(TableRefused):
    """Data files that cannot be read; a query for records leaves them out and is partial."""


class QueryEngine:
    """One connection for one query."""

    def __init__(self, opening: Future[Any], settings: QuerySettings) -> None:
        self._opening = opening
        self._settings = settings
        self._registered: dict[str, tuple[TableLocation, tuple[DataFile, ...]]] = {}
        self._names: set[str] = set()

    @property
    def _connection(self) -> Any:  # noqa: ANN401 - DuckDB is untyped
        return self._opening.result()

    def check_pattern(self, pattern: str) -> None:
        """Check that RE2 accepts a pattern.

        Raises:
            BadUsage: The pattern does not compile, or would need too much memory.
        """
        try:
            self._connection.execute("SELECT regexp_matches('', ?)", [pattern]).fetchall()
        except duckdb.InvalidInputException as error:
            raise BadUsage(f"regex does not compile: {_reason(error)}") from error

    def register_files(
        self,
        name: str,
        files: Sequence[DataFile],
        location: TableLocation,
        extended: Table | None = None,
    ) -> None:
        """Make data files of one table readable under a name.

        Some files may do without columns of a table that was `extended`, which are then null.
        Finding out needs the footer of each file, so other tables are read without.
        """
        self._registered[name] = (location, tuple(files))
        self._names.add(name)
        with self._errors_translated():
            if not location.is_local:
                self._connection.register(name, _open_dataset(location, files, extended))
                return
            whole = [file for file in files if file.groups is None]
            parts = [[file] for file in files if file.groups is not None]
            if parts:
                # This optimization of a small limit fails for a condition on row numbers (2.0.0).
                self._connection.execute("SET late_materialization_max_rows = 0")
            scans = [
                self._scan(location, some, extended) for some in ([whole] if whole else []) + parts
            ]
            # Files may have further columns, in another order.
            text = " UNION ALL BY NAME ".join(scans)
            self._connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS {text}')

    def _scan(
        self, location: TableLocation, files: Sequence[DataFile], extended: Table | None
    ) -> str:
        """Return the statement for the rows of whole files, or of some row groups of one file.

        A view has no parameters, so paths are literals.
        """
        paths = [location.uri_of(file.path) for file in files]
        columns, by_name = ["*"], extended is not None
        if extended is not None:
            found = self._connection.read_parquet(
                paths, hive_partitioning=False, union_by_name=True
            )
            columns += _missing(extended, found.columns)
        literals = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
        options = f"hive_partitioning = false, union_by_name = {str(by_name).lower()}"
        text = f"SELECT {', '.join(columns)} FROM read_parquet([{literals}], {options})"  # noqa: S608 - escaped
        if files[0].groups is not None:
            # The engine leaves out the other row groups by this condition.
            ranges = (
                f"file_row_number >= {one.first} AND file_row_number < {one.end}"
                for one in files[0].groups
            )
            text += f" WHERE {' OR '.join(ranges)}"
        return text

    def with_row_groups(self, location: TableLocation, file: DataFile) -> DataFile:
        """Return a file with its row groups and their times, from its footer.

        Raises:
            DataFilesUnreadable: The footer cannot be read.
        """
        with self._errors_translated():
            found = _read_footer(location, file)
        chosen = None if file.groups is None else {one.number for one in file.groups}
        groups, end = [], 0
        for number, (rows, times_ns) in enumerate(found):
            first, end = end, end + rows
            if chosen is None or number in chosen:
                groups.append(RowGroup(number=number, first=first, end=end, times_ns=times_ns))
        return replace(file, groups=tuple(groups), records=end)

    def register_table(self, name: str, table: Any) -> None:  # noqa: ANN401 - pyarrow is untyped
        """Make an Arrow table readable under a name."""
        self._names.add(name)
        self._connection.register(name, table)

    def forget(self) -> None:
        """Remove everything that was registered or created, and reset what was set for it."""
        for name in self._names:
            self._connection.execute(f'DROP VIEW IF EXISTS "{name}"')
            self._connection.unregister(name)
        for (name,) in self._connection.execute(_OWN_TABLES).fetchall():
            self._connection.execute(f'DROP TABLE "{name}"')
        self._connection.execute("RESET late_materialization_max_rows")

    def rows(self, statement: SqlStatement) -> list[tuple[Any, ...]]:
        """Run a statement and return every row; raise `QueryTooLarge` above the memory limit."""
        with self._errors_translated():
            found: list[tuple[Any, ...]] = self._connection.execute(
                statement.text, list(statement.values)
            ).fetchall()
            return found

    def open_reader(self, statement: SqlStatement, rows: int) -> Any:  # noqa: ANN401 - pyarrow is untyped
        """Run a statement and return an Arrow reader of its rows, `rows` of them at a time.

        The rows are computed while they are read, and are never in memory together.
        """
        with self._errors_translated():
            found = self._connection.sql(statement.text, params=list(statement.values))
            return found.to_arrow_reader(rows)

    def next_rows(self, reader: Any) -> Any | None:  # noqa: ANN401 - pyarrow is untyped
        """Return the next record batch of a reader, or None after the last."""
        with self._errors_translated():
            try:
                return reader.read_next_batch()
            except StopIteration:
                return None

    def parse(self, text: str) -> list[str]:
        """Return the kinds of the statements of a text, as the engine names them."""
        self.define("SET errors_as_json = true")  # with the place of an error
        with self._sql_errors_translated(text):
            kinds = [one.type.name for one in self._connection.extract_statements(text)]
        self.define("SET errors_as_json = false")
        return kinds

    def close_down(self) -> None:
        """Let later statements read registered files only, and change no setting."""
        paths = [
            location.uri_of(file.path).replace("'", "''")
            for location, files in self._registered.values()
            if location.is_local
            for file in files
        ]
        allowed = ", ".join(f"'{path}'" for path in paths)
        for setting in (
            f"allowed_paths = [{allowed}]",
            "enable_external_access = false",
            "python_enable_replacements = false",
            "errors_as_json = true",
            "lock_configuration = true",
        ):
            self._connection.execute(f"SET {setting}")

    def define(self, text: str) -> None:
        """Run a statement that defines a view or a macro, or changes a setting."""
        with self._errors_translated():
            self._connection.execute(text)

    def open_sql(self, text: str, rows: int) -> Any:  # noqa: ANN401 - pyarrow is untyped
        """Run the text of a user, and return an Arrow reader of its rows, `rows` at a time."""
        with self._sql_errors_translated(text):
            try:
                return self._connection.sql(text).to_arrow_reader(rows)
            except (duckdb.BinderException, duckdb.CatalogException):
                self._connection.execute(text)  # fails alike, and states the place
                raise

    def next_sql_rows(self, reader: Any, text: str) -> Any | None:  # noqa: ANN401 - pyarrow is untyped
        """Return the next record batch of a reader, or None after the last."""
        with self._sql_errors_translated(text):
            try:
                return reader.read_next_batch()
            except StopIteration:
                return None

    @contextmanager
    def _sql_errors_translated(self, text: str) -> Iterator[None]:
        from sluice_query.select_check import describe_sql_error  # noqa: PLC0415 - for SQL

        with self._errors_translated():
            try:
                yield
            except duckdb.InterruptException:
                raise
            except OSError as error:  # of an Arrow reader, which has no other classes
                if _OUT_OF_MEMORY in str(error):
                    raise QueryTooLarge(_reason(error)) from error
                if _INTERRUPTED in str(error) or _IN_FILE in str(error):
                    raise
                raise BadUsage(describe_sql_error(str(error), text)) from error
            except duckdb.Error as error:
                known = isinstance(error, (duckdb.IOException, duckdb.OutOfMemoryException))
                if known or _IN_FILE in str(error):
                    raise
                raise BadUsage(describe_sql_error(str(error), text)) from error

    def find_unreadable(
        self, location: TableLocation, files: Sequence[DataFile]
    ) -> list[tuple[DataFile, str]]:
        """Return the files that cannot be read, each with what is wrong.

        Sizes are compared first. If all are right, each file is read completely.
        """
        if wrong := find_wrong_files(location, files):
            return wrong
        for file in files:
            try:
                self.register_files(_PROBE, [file], location)
                self.rows(_READ_ALL)
            except DataFilesUnreadable as error:
                wrong.append((file, f"is damaged ({error.__cause__ and _reason(error.__cause__)})"))
        return wrong

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise QueryTooLarge(_reason(error)) from error
        except (duckdb.InterruptException, duckdb.ParserException, duckdb.CatalogException):
            raise
        except (duckdb.Error, OSError) as error:
            _, marker, why = str(error).partition(REFUSED)
            if marker:
                raise BadUsage(why) from error
            raise self._file_error(error) from error

    def _file_error(self, error: Exception) -> DataFilesUnreadable:
        """Return an error that names the file, if its size shows which one cannot be read."""
        for location, files in self._registered.values():
            try:
                wrong = find_wrong_files(location, files)
            except SluiceError:
                wrong = []
            for file, why in wrong:
                return DataFilesUnreadable(location.uri, describe_file(location, file, why))
        table = ", ".join(sorted({one.uri for one, _ in self._registered.values()})) or LAKE
        reason = f"a data file cannot be read: {_reason(error)}"
        return DataFilesUnreadable(table, f"{reason}; {FILE_REMEDY}")

    async def bounded(self, work: Callable[[], _Result], left_s: float) -> _Result:
        """Run blocking work in a thread; after `left_s`, interrupt it and raise `QueryTimedOut`."""
        task = asyncio.create_task(asyncio.to_thread(work))
        try:
            await asyncio.wait({task}, timeout=max(left_s, 0))
            if not task.done():
                raise QueryTimedOut(self._settings.time_s_max)
            return task.result()
        finally:
            if not task.done():
                await self._stop(task)
            # A task in a frame of the traceback of its error is a reference cycle, which would keep
            # everything that the query has read.
            del task

    async def _stop(self, task: asyncio.Task[_Result]) -> None:
        """Interrupt work until its thread uses the connection no more, which may then be closed."""
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            self._connection.interrupt()
            try:
                await asyncio.wait({task}, timeout=0.05)
            except asyncio.CancelledError as error:
                cancelled = error
        if not task.cancelled():
            task.exception()
        if cancelled is not None:
            raise cancelled


class IdleEngines:
    """Engines of queries that have ended, for the next ones.

    Opening an engine takes a third of the processor time of a small query. One that is used again
    also knows the footers of the files that it has read, with the least and greatest values in
    them. It is closed after a failed query, after some number of them, and some minutes after it
    was opened, so that a process soon forgets files that an erasure deletes.
    """

    def __init__(self) -> None:
        self._idle: list[_OpenedEngine] = []

    def pop(self) -> "_OpenedEngine | None":
        """Return an engine that is idle no more; None without one."""
        return self._idle.pop() if self._idle else None

    def keep(self, opened: "_OpenedEngine") -> bool:
        """Keep an engine; return False if it is to be closed."""
        opened.queries += 1
        loop = asyncio.get_running_loop()
        if opened.queries == 1:
            opened.ends_at_s = loop.time() + ENGINE_S
            loop.call_at(opened.ends_at_s, self._end, opened)
        if (
            len(self._idle) == _IDLE_MAX
            or opened.queries == _QUERIES_OF_ENGINE
            or loop.time() >= opened.ends_at_s
        ):
            return False
        opened.opening.result().execute("SET parquet_metadata_cache = true")
        self._idle.append(opened)
        return True

    def _end(self, opened: "_OpenedEngine") -> None:
        """Close an engine whose time is over; one that is in use is closed after its query."""
        if opened in self._idle:
            self._idle.remove(opened)
            opened.close()

    def close(self) -> None:
        """Close every idle engine."""
        while self._idle:
            self._idle.pop().close()


ENGINE_S: Final = 600.0
"""Seconds after its first query for which an engine is used."""
_IDLE_MAX: Final = 4
"""As many as queries of a service run concurrently."""
_QUERIES_OF_ENGINE: Final = 200


class _OpenedEngine:
    """A connection that is being opened, and the folder for data that does not fit into memory."""

    def __init__(self, settings: QuerySettings) -> None:
        self.queries = 0
        self.ends_at_s = 0.0
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-query-")
        config = {
            "memory_limit": f"{settings.memory_bytes_max}B",
            "threads": settings.threads,
            "temp_directory": self._folder.name,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        # Opening takes as long as reading a table's log, so the two run concurrently.
        thread = ThreadPoolExecutor(1, "sluice-engine")
        self.opening: Future[Any] = thread.submit(duckdb.connect, ":memory:", config=config)
        thread.shutdown(wait=False)

    def close(self) -> None:
        """Close the connection, and remove the folder."""
        try:
            self.opening.result().close()
        finally:
            self._folder.cleanup()


@contextmanager
def open_engine(settings: QuerySettings, idle: IdleEngines | None = None) -> Iterator[QueryEngine]:
    """Open an engine for one query, or use an idle one."""
    opened = (idle and idle.pop()) or _OpenedEngine(settings)
    kept = False
    try:
        engine = QueryEngine(opened.opening, settings)
        yield engine
        if idle is not None:
            engine.forget()
            kept = idle.keep(opened)
    finally:
        if not kept:
            opened.close()


_SQL_TYPES: Final = {
    ColumnType.STRING: "VARCHAR",
    ColumnType.LONG: "BIGINT",
    ColumnType.DOUBLE: "DOUBLE",
    ColumnType.BOOLEAN: "BOOLEAN",
    ColumnType.TEXT_MAP: "MAP(VARCHAR, VARCHAR)",
}
"""The types of columns that were added to tables."""


def _missing(table: Table, names: Sequence[str]) -> list[str]:
    """Return the expressions of the columns of a table that none of its files has."""
    return [
        f"CAST(NULL AS {_SQL_TYPES[column.type]}) AS {column.name}"
        for column in table.addable_columns
        if column.name not in names
    ]


def _open_dataset(
    location: TableLocation, files: Sequence[DataFile], extended: Table | None
) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Open Parquet files of a bucket, or some of their row groups, as one dataset.

    pyarrow contains an S3 client; DuckDB would download its own as an extension at run time.
    """
    with _pandas_hidden():
        import pyarrow.dataset as ds  # noqa: PLC0415 - slow, and not needed for a local lake

    filesystem, _ = open_filesystem(location)
    from sluice_lake.schemas import arrow_schema  # noqa: PLC0415 - imports pyarrow

    form = ds.ParquetFileFormat()
    fragments = [
        form.make_fragment(
            location.uri_of(file.path).removeprefix(_S3),
            filesystem,
            row_groups=None if file.groups is None else [one.number for one in file.groups],
            file_size=file.size_bytes,  # saves a request for each file
        )
        for file in files
    ]
    schema = (
        fragments[0].physical_schema
        if extended is None
        else arrow_schema(extended, partition=False)
    )
    return ds.FileSystemDataset(fragments, schema, form, filesystem)


def _read_footer(
    location: TableLocation, file: DataFile
) -> list[tuple[int, tuple[int, int] | None]]:
    """Return the number of rows of each row group, and their times if they are known.

    The engine's function `parquet_metadata` takes ten times as long.
    """
    with _pandas_hidden():
        import pyarrow.parquet as pq  # noqa: PLC0415 - only if a file is divided

    filesystem, root = open_filesystem(location)
    try:
        footer = pq.read_metadata(f"{root}/{file.path}", filesystem=filesystem)
    except pa.ArrowInvalid as error:
        raise OSError(str(error)) from error
    found: list[tuple[int, tuple[int, int] | None]] = []
    place = footer.schema.names.index("ts_ns")
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        known = group.column(place).statistics
        exact = known is not None and known.has_min_max and known.null_count == 0
        found.append((group.num_rows, (known.min, known.max) if exact else None))
    return found


def keep_pandas_out() -> None:
    """Let pyarrow find no pandas: it imports pandas with the first array, which takes a second.

    For a process that only queries. In any other one a later conversion to pandas would fail.
    """
    with _pandas_hidden():
        import pyarrow as pa  # noqa: PLC0415 - before its first array

        pa.array([0])


class _PandasHider:
    """A finder for which pandas is not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextmanager
def _pandas_hidden() -> Iterator[None]:
    sys.meta_path.insert(0, _PandasHider)
    try:
        yield
    finally:
        sys.meta_path.remove(_PandasHider)


def _reason(error: BaseException) -> str:
    text = str(error)
    if found := _IN_JSON.search(text):  # DuckDB writes errors of its readers as JSON
        text = str(json.loads(found[1]))
    return text.splitlines()[0].split("Error: ", 1)[-1]
