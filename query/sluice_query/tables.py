"""SQL over the tables, lake and pending batches together: views, macros, and one statement.

Each table that a statement names is a view over the same sources as a search: data files and
pending batches, read in the order that finds a batch exactly once, without deleted records. DuckDB
pushes conditions on plain columns, such as `ts` and `service`, into the Parquet files.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

import msgspec
import pyarrow as pa

from sluice_lake.data_files import DataFile, list_files, total_bytes
from sluice_lake.delta import find_table
from sluice_lake.locations import lake_location
from sluice_lake.promoted import FLOAT, FLOAT_BYTES_MAX, INTEGER
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import BATCHES, RECORD_TABLES, Column, ColumnType, accepted_hour
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.coverage import decide_completeness, read_coverage
from sluice_query.engine import QueryEngine, QueryTooLarge, open_engine
from sluice_query.parameters import parse_instant
from sluice_query.pending import (
    UnqueuedBatches,
    confirm_named,
    read_ingested,
    read_pending,
    read_spooled,
)
from sluice_query.promoted import register_runs
from sluice_query.request import (
    END_NS,
    FIRST_NS,
    NUMBER_PATTERN,
    Query,
    RecordField,
    check_encodable,
    check_query,
)
from sluice_query.result import SUMMARY_KEY, QuerySummary
from sluice_query.search import Searcher, SearchRead, SourceReader, with_completeness
from sluice_query.select_check import TABLES, CheckedSelect, check_kinds, check_tree
from sluice_query.settings import QuerySettings
from sluice_query.statements import Promoted, SqlStatement, condition, field_sql
from sluice_store import StoreMode, open_store

ROWS_EACH: Final = 2_048
"""Rows that are in memory together: the vector size of DuckDB."""
_TEXT_CHARS_MAX: Final = 1 << 20
_PENDING: Final = "pending_"
_LAKE: Final = "lake_"
_VALUE: Final = "CASE WHEN isnan(nextafter(value, 0)) THEN 'NaN'::DOUBLE ELSE value END"
"""The statistics of a Parquet file omit NaN, and DuckDB would decide `isnan(value)` by them."""
_NUMBER: Final = (
    f"number(text) AS CASE WHEN regexp_full_match(text::VARCHAR, '{NUMBER_PATTERN}')"
    " THEN TRY_CAST(text AS DOUBLE) END"
)
_INCREASE: Final = (
    # A counter that is less than before has started again at zero.
    "increase(samples) AS CASE WHEN len(samples) < 2 THEN NULL ELSE list_sum(list_transform("
    "list_zip(samples[1:-2]::DOUBLE[], samples[2:]::DOUBLE[]),"
    " lambda pair: CASE WHEN pair[2] >= pair[1]"
    " THEN pair[2] - pair[1] ELSE pair[2] END)) END"
)
_RATE: Final = "rate(samples, seconds) AS increase(samples) / seconds"


def _bounded(name: str, more: str, length: str) -> str:
    """Return a macro that hides a function whose result may be long.

    The memory limit of the engine does not count the text of one value.
    """
    return (
        f"{name}(text, size{more}) AS system.main.{name}(text, CASE WHEN {length} >"
        f" {_TEXT_CHARS_MAX} THEN error('the result of {name} would have more than"
        f" {_TEXT_CHARS_MAX} characters') ELSE size END{more})"
    )


_MACROS: Final = (
    _NUMBER,
    _INCREASE,
    _RATE,
    _bounded("repeat", "", "length(text) * size::HUGEINT"),
    _bounded("lpad", ", filling", "size"),
    _bounded("rpad", ", filling", "size"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlAnswer:
    """The rows of one statement while it runs, and what was read for it."""

    engine: QueryEngine
    schema: pa.Schema
    reader: object
    text: str
    time_s_max: float
    started_ns: int
    summary: QuerySummary

    def finished(self, rows: int, *, more: bool = False) -> QuerySummary:
        """Return the summary after the last row that is returned; `more` means others exist."""
        elapsed_ns = SystemClock().monotonic_ns() - self.started_ns
        elapsed_ms = elapsed_ns * 1_000 // NS_PER_S
        return replace(self.summary, results=rows, more=more, elapsed_ms=elapsed_ms)

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the rows; the time limit is that of the engine, without the reader's."""
        clock, left_s = SystemClock(), self.time_s_max
        while True:
            before_ns = clock.monotonic_ns()
            found = await self.engine.bounded(
                lambda: self.engine.next_sql_rows(self.reader, self.text), left_s
            )
            left_s -= (clock.monotonic_ns() - before_ns) / NS_PER_S
            if found is None:
                return
            yield found


@asynccontextmanager
async def answer_sql(
    searcher: Searcher, text: str, *, from_ns: int = FIRST_NS, to_ns: int = END_NS, zone: str = ""
) -> AsyncIterator[SqlAnswer]:
    """Run one statement over the tables of a store.

    Raises:
        BadUsage: The statement is wrong, or does more than read the tables.
        QueryTimedOut: The time limit is exceeded.
        QueryTooLarge: The memory limit is exceeded.
    """
    settings, clock = searcher.settings, searcher.clock
    started_ns = clock.monotonic_ns()
    with open_engine(settings) as engine:
        checked = check_sql(engine, text)
        summaries = [QuerySummary(complete_now=True)]
        for macro in _MACROS:
            engine.define(f"CREATE MACRO {macro}")
        if zone:
            engine.define(f"SET TimeZone = {_literal(zone)}")
        for table in checked.tables:
            query = Query(from_ns=UnixNs(from_ns), to_ns=UnixNs(to_ns))
            if table == BATCHES.name:
                summaries.append(await _define_batches(searcher, engine, query))
                continue
            query = check_query(replace(query, kind=_kind(table), every_column=True))
            reader = SourceReader(
                searcher=searcher, engine=engine, query=query, started_ns=started_ns
            )
            read = await reader.read()
            await reader.bounded(partial(_define_records, engine, read))
            summaries.append(reader.summarize(QuerySummary(), read))
        for name in TABLES:  # so that SHOW TABLES lists them
            if name not in checked.tables:
                _define_empty(engine, name)
        engine.close_down()
        used_s = (clock.monotonic_ns() - started_ns) / NS_PER_S
        left_s = settings.time_s_max - used_s
        opened = await engine.bounded(lambda: engine.open_sql(_shown(checked), ROWS_EACH), left_s)
        yield SqlAnswer(
            engine=engine,
            schema=opened.schema,
            reader=opened,
            text=checked.text,
            time_s_max=left_s,
            started_ns=started_ns,
            summary=_joined(summaries),
        )


def check_sql(engine: QueryEngine, text: str) -> CheckedSelect:
    """Check that a text is one statement that only reads the tables."""
    check_encodable(text)
    select = check_kinds(engine.parse(text), text)
    kinds = engine.parse(select)
    if kinds != ["SELECT"]:
        raise BadUsage(f"EXPLAIN is for a SELECT, statement=`{''.join(kinds[:1])}`")
    tree = engine.rows(SqlStatement("SELECT json_serialize_sql(?)", (select,)))[0][0]
    return check_tree(tree, text)


def _shown(checked: CheckedSelect) -> str:
    """Return the text to run; `SHOW TABLES` lists the tables and not their sources."""
    words = checked.text.strip().rstrip(";").upper().split()
    if words != ["SHOW", "TABLES"]:
        return checked.text
    rows = ", ".join(f"({_literal(name)}, {_literal(what)})" for name, what in TABLES.items())
    return f"SELECT * FROM (VALUES {rows}) AS t(name, meaning)"  # noqa: S608 - constants


def _kind(table: str) -> Kind:
    return next(kind for kind in KINDS if kind == table)


def _literal(value: object) -> str:
    """Return a value as text of a statement."""
    if not isinstance(value, str):
        return str(value)
    quoted = value.replace("'", "''").replace("\0", "' || chr(0) || '")  # no text contains NUL
    return f"('{quoted}')"


def _inlined(statement: SqlStatement) -> str:
    """Return a statement with its values in its text, because a view has no parameters."""
    parts = statement.text.split("?")
    if len(parts) != len(statement.values) + 1:
        raise AssertionError(statement.text)
    values = [*map(_literal, statement.values), ""]
    return "".join(chain.from_iterable(zip(parts, values, strict=True)))


def _define_records(engine: QueryEngine, read: SearchRead) -> None:
    """Define the view of a kind over what was read."""
    files, kind = read.files, read.query.kind
    sources: dict[str, Promoted] = {}
    if files.read and files.promoted:
        sources |= register_runs(engine, read.query, files, files.read, f"{_LAKE}{kind}")
    elif files.read:
        sources[f"{_LAKE}{kind}"] = {}
        engine.register_files(f"{_LAKE}{kind}", files.read, files.location, files.extended)
    if read.fetched.tables:
        sources[f"{_PENDING}{kind}"] = {}
        engine.register_table(f"{_PENDING}{kind}", pa.concat_tables(read.fetched.tables))
    if not sources:
        _define_empty(engine, kind, files.promoted)
        return
    where = _inlined(condition(read.query, read.deletes))
    _define_view(engine, kind, sources, files.promoted, where)


def _define_empty(engine: QueryEngine, name: str, promoted: Promoted | None = None) -> None:
    table = BATCHES if name == BATCHES.name else RECORD_TABLES[_kind(name)]
    engine.register_table(f"empty_{name}", arrow_schema(table, partition=False).empty_table())
    if name == BATCHES.name:
        _define_batch_view(engine, [(f"empty_{name}", True)], "true")
    else:
        _define_view(engine, _kind(name), {f"empty_{name}": {}}, promoted or {}, "true")


def _define_view(
    engine: QueryEngine,
    kind: Kind,
    sources: Mapping[str, Promoted],
    promoted: Promoted,
    where: str,
) -> None:
    """Define the view of a kind over sources, each with the promoted columns of its rows.

    In the other sources they are computed from the maps, so that each row has its value.
    """
    columns = ["ts"]
    for one in KINDS[kind].read_fields:
        found = field_sql(RecordField(one.name)).text
        found = _VALUE if (kind, one.name) == ("metrics", "value") else found
        columns.append(f'{found} AS "{one.name}"')
    columns += ["attributes", "attribute_types", "resource"]
    columns += ["agent_id", "boot_id", "seq", "accepted_at", "ts_ns"]
    selects = []
    for source, stored in sources.items():
        added = [
            column.name if field in stored else f"{_converted(field, column)} AS {column.name}"
            for field, column in promoted.items()
        ]
        selects.append(f"SELECT {', '.join([*columns, *added])} FROM {source} WHERE {where}")  # noqa: S608 - no text of users
    engine.define(f"CREATE VIEW {kind} AS {' UNION ALL '.join(selects)}")


def _converted(field: RecordField, column: Column) -> str:
    """Return the expression for the value that ingestion gives a promoted column."""
    text = f"{field.column}[{_literal(field.key)}]"
    match column.type:
        case ColumnType.LONG:
            return (
                f"CASE WHEN regexp_full_match({text}, '{INTEGER}')"
                f" THEN TRY_CAST({text} AS BIGINT) END"
            )
        case ColumnType.DOUBLE:
            number = (
                f"CASE WHEN strlen({text}) <= {FLOAT_BYTES_MAX}"
                f" AND regexp_full_match({text}, '{FLOAT}') THEN TRY_CAST({text} AS DOUBLE) END"
            )
            return f"CASE WHEN isfinite({number}) THEN {number} END"
        case ColumnType.BOOLEAN:
            return f"CASE {text} WHEN 'true' THEN true WHEN 'false' THEN false END"
        case _:
            return text


_BATCH_COLUMNS: Final = (
    *("accepted_at", "agent_id", "boot_id", "seq_start", "seq_end", "kind", "record_count"),
    *("frame_bytes", "frame_sha256", "min_ts_ns", "max_ts_ns", "collector_id", "principal"),
    "accepted_at_ns",
)
_IDENTITY: Final = "(agent_id, boot_id, seq_start, seq_end)"


async def _define_batches(searcher: Searcher, engine: QueryEngine, query: Query) -> QuerySummary:
    """Define the view of accepted batches: the ledger, and those that are not in it yet.

    The ledger is read last, so a batch that is ingested meanwhile is found in it, once.
    """
    store, settings = searcher.store, searcher.settings
    everything = Query(from_ns=FIRST_NS, to_ns=END_NS, every_kind=True)
    with_spool = searcher.spool is not None
    coverage = await read_coverage(store, everything, settings, with_spool=with_spool)
    spooled = UnqueuedBatches()
    if searcher.spool is not None:
        spooled = await read_spooled(searcher.spool, everything, settings)
    named = spooled.with_named(coverage.named)
    confirmed = await confirm_named(store, named, everything, settings)
    pending = await read_pending(store, settings, searcher.work_lists)
    waiting = {one.identity: one for one in (*confirmed.batches, *pending.manifests)}
    new = [one.manifest for one in coverage.new or ()]
    files, ingested = await engine.bounded(
        lambda: _register_batches(searcher, engine, query, list(waiting.values()), new),
        settings.time_s_max,
    )
    summary = QuerySummary(
        segments_read=len(files),
        bytes_read=total_bytes(files),
        waiting_batches=len(waiting),
        reasons=(*confirmed.problems, *pending.problems),
    )
    found = decide_completeness(coverage, everything, settings, ingested.union(waiting))
    return with_completeness(summary, found)


def _register_batches(
    searcher: Searcher,
    engine: QueryEngine,
    query: Query,
    waiting: Sequence[AcceptedManifest],
    new: Sequence[AcceptedManifest],
) -> tuple[Sequence[DataFile], frozenset[Identity]]:
    """Define the view; return its files, and the identities that the ledger has near `new` ones."""
    opened = find_table(searcher.store_url, BATCHES)
    first = accepted_hour(query.from_ns)
    files = () if opened is None else list_files(opened, BATCHES, lambda hour: hour >= first)
    sources = []
    if files:
        engine.register_files("lake_batches", files, lake_location(searcher.store_url, "batches"))
        sources.append(("lake_batches", True))
    rows = [
        {
            "accepted_at": one.accepted_at_unix_ns // 1_000,
            "min_ts_ns": one.min_ts_unix_ns,
            "max_ts_ns": one.max_ts_unix_ns,
            "accepted_at_ns": one.accepted_at_unix_ns,
        }
        | {name: getattr(one, name, None) for name in _BATCH_COLUMNS if hasattr(one, name)}
        for one in waiting
    ]
    schema = arrow_schema(BATCHES, partition=False)
    engine.register_table("pending_batches", pa.Table.from_pylist(rows, schema=schema))
    sources.append(("pending_batches", False))
    where = f"accepted_at_ns >= {query.from_ns} AND accepted_at_ns < {query.to_ns}"
    _define_batch_view(engine, sources, where)
    ingested = read_ingested(engine, searcher.store_url, new, opened)
    return files, frozenset(row.identity for row in ingested)


def _define_batch_view(
    engine: QueryEngine, sources: Sequence[tuple[str, bool]], where: str
) -> None:
    columns = ", ".join(_BATCH_COLUMNS)
    selects = []
    for source, in_lake in sources:
        text = f"SELECT {columns}, {in_lake} AS in_lake FROM {source} WHERE {where}"  # noqa: S608 - constants
        if not in_lake and len(sources) > 1:
            text += f" AND {_IDENTITY} NOT IN (SELECT {_IDENTITY} FROM {sources[0][0]})"  # noqa: S608 - constants
        selects.append(text)
    engine.define(f"CREATE VIEW batches AS {' UNION ALL '.join(selects)}")


def _joined(summaries: Sequence[QuerySummary]) -> QuerySummary:
    """Return what was read for several tables together; complete only if each is."""
    reasons = tuple(dict.fromkeys(chain.from_iterable(one.reasons for one in summaries)))
    parts = summaries[1:]
    until = [one.accepted_until for one in parts]
    known = [one for one in until if one is not None]
    return QuerySummary(
        segments_read=sum(one.segments_read for one in summaries),
        segments_pruned=sum(one.segments_pruned for one in summaries),
        bytes_read=sum(one.bytes_read for one in summaries),
        waiting_batches=sum(one.waiting_batches for one in summaries),
        deletes_applied=sum(one.deletes_applied for one in summaries),
        accepted_until=min(known) if len(known) == len(until) and known else None,
        complete_now=all(one.complete_now for one in summaries) and not reasons,
        held_by=next((one.held_by for one in summaries if one.held_by), None),
        partial=bool(reasons),
        reasons=reasons,
    )


def sql(
    store_url: str,
    text: str,
    *,
    since: str | None = None,
    until: str | None = None,
    zone: str = "UTC",
    settings: QuerySettings | None = None,
) -> pa.Table:
    """Return the rows of one SELECT over the tables of a store, with the summary as metadata.

    It works in a notebook: the statement runs in another thread. The key
    `sluice.summary` of the schema's metadata has the summary as JSON.

    Args:
        store_url: The store, `file:///path` or `s3://bucket/prefix`.
        text: One SELECT, DESCRIBE, SHOW TABLES or EXPLAIN.
        since: Start of the range: RFC 3339, or a duration ago such as `15m`; by default everything.
        until: End of the range, exclusive.
        zone: Time zone of texts that are compared with times.
        settings: Limits; a table larger than `memory_bytes_max` is refused.

    Raises:
        BadUsage: The statement is wrong, or does more than read the tables.
        QueryTimedOut: The time limit is exceeded.
        QueryTooLarge: The memory limit is exceeded.
    """
    limits, clock = settings or QuerySettings(), SystemClock()
    now_ns = clock.now_ns()
    from_ns = FIRST_NS if since is None else parse_instant(since, now_ns)
    to_ns = END_NS if until is None else parse_instant(until, now_ns)

    async def run() -> pa.Table:
        async with open_store(store_url, StoreMode.READ) as store:
            searcher = Searcher(store=store, store_url=store_url, settings=limits, clock=clock)
            asked = answer_sql(searcher, text, from_ns=from_ns, to_ns=to_ns, zone=zone)
            async with asked as answer:
                found, size_bytes = [], 0
                async for batch in answer.batches():
                    found.append(batch)
                    size_bytes += batch.nbytes
                    if size_bytes > limits.memory_bytes_max:
                        raise QueryTooLarge("the rows of the result need more: add LIMIT")
                table = pa.Table.from_batches(found, answer.schema)
                summary = msgspec.json.encode(answer.finished(table.num_rows))
                return table.replace_schema_metadata({SUMMARY_KEY: summary})

    return _run_in_thread(run)


def _run_in_thread(run: Callable[[], Coroutine[None, None, pa.Table]]) -> pa.Table:
    """Run a coroutine in a new thread: the caller may be inside a running event loop.

    An interrupt of the caller, such as Ctrl-C in a notebook, stops the statement.
    """
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[pa.Table]]] = Future()

    async def work() -> pa.Table:
        task = asyncio.ensure_future(run())
        started.set_result((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1, "sluice-sql") as thread:
        found = thread.submit(asyncio.run, work())
        try:
            return found.result()
        except KeyboardInterrupt:
            loop, task = started.result()
            loop.call_soon_threadsafe(task.cancel)
            raise
