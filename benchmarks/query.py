"""Benchmark `query`: text queries over the lake compared with DuckDB on the same files.

In addition: histogram, values and stream compared with the search that returns the same records.

The queries are statistics and records, substring and regex, over ten million distinct lines
(`SLUICE_BENCH_LINES` sets another number). In addition: a text that the index finds in one file,
and a time range that skips files. All are interleaved in one run.
"""

import asyncio
import io
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq

from benchmarks.measure import Sample, interleave, ratio, report, timed
from sluice_lake.data_files import list_files
from sluice_lake.delta import find_table, open_or_create_table
from sluice_lake.records import DecodedBatch, records_table
from sluice_lake.tables import LOGS, accepted_date
from sluice_protocol.fields import KINDS
from sluice_protocol.frame import decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.records import logs_from_lines
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.logql.expressions import LineFilter, LineOperator, LogQuery
from sluice_query.logql.planning import narrowed
from sluice_query.logql.stages import own_condition
from sluice_query.request import (
    BUCKETS_DEFAULT,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    Histogram,
    Query,
    RecordField,
    TopValues,
    View,
    choose_width,
)
from sluice_query.result import QueryResult
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_query.statements import returned_columns
from sluice_query.streaming import stream_search
from sluice_spark.commits import commit_files
from sluice_spark.index import group_files, make_chunk
from sluice_spark.written_files import (
    ROW_GROUP_ROWS,
    WrittenFile,
    file_statistics,
    parquet_options,
    partition_folder,
)
from sluice_store import StoreMode, create_authority, open_store

LINES = int(os.environ.get("SLUICE_BENCH_LINES", "10000000"))
LINES_PER_FRAME = 50_000
RARE_AT = LINES // 2 // LINES_PER_FRAME * LINES_PER_FRAME
FRAMES_PER_FILE = 20
ROUNDS = 5
RATIO_LEAST = 0.8
CONTROL = " (DuckDB)"
SEARCH = " (search)"
PRUNED = "a tenth of the time range, stats only"
INDEXED = "a text of one file, indexed, stats only"
RARE = "user=4242424242 is banned"
INDEXED_LEAST = 5.0
START_NS = 1_790_000_000 * NS_PER_S
NEEDLES = {"substring": ("88123 of", False), "regex": (r"user=7[0-9]+3 .*took 99\d ms", True)}


def _frame(first: int) -> bytes:
    rng = np.random.default_rng(first)
    took, user = rng.integers(0, 1000, LINES_PER_FRAME), rng.integers(0, 10**9, LINES_PER_FRAME)
    lines = [
        b"request %d of user=%d handled on path /api/v2/items/%d took %d ms" % (n, u, u % 9973, t)
        for n, (u, t) in enumerate(zip(user.tolist(), took.tolist(), strict=True), first)
    ]
    if first == RARE_AT:
        lines[7] = RARE.encode()
    ts = START_NS + np.arange(first, first + LINES_PER_FRAME, dtype=np.int64) * 1_000_000
    who = Identity(
        agent_id="host-1", boot_id="b", seq_start=first, seq_end=first + LINES_PER_FRAME - 1
    )
    return encode_frame(
        identity=who,
        columns=logs_from_lines(
            lines, ts, attributes={"tenant": f"tenant-{first // LINES_PER_FRAME}"}
        ),
    )


def _write_file(root: Path, first: int, place: int) -> WrittenFile:
    frames = [decode_frame(_frame(first + n * LINES_PER_FRAME)) for n in range(FRAMES_PER_FILE)]
    batches = [
        DecodedBatch(frame=one, accepted_at_ns=START_NS, sequence=place + 1) for one in frames
    ]
    table = records_table("logs", batches)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **parquet_options(table.schema)) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    date = accepted_date(START_NS)
    path = f"{partition_folder(LOGS.partition_column, date)}/{place:05d}.parquet"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(sink.getvalue())
    return WrittenFile(
        table=LOGS.name,
        path=path,
        partition=date,
        size_bytes=len(sink.getvalue()),
        written_at_ms=0,
        stats=file_statistics(LOGS, writer.writer.metadata),
    )


async def _prepare(url: str, root: Path) -> None:
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store)
    opened = open_or_create_table(url, LOGS)
    step = LINES_PER_FRAME * FRAMES_PER_FILE
    facts = [_write_file(root, n, n // step) for n in range(0, LINES, step)]
    commit_files(opened, LOGS, facts, {0: len(facts)}, {})


def _index(url: str) -> None:
    opened = find_table(url, LOGS)
    for group in group_files(list_files(opened, LOGS)):
        make_chunk(url, KINDS["logs"], group)


def _query(text: str, *, regex: bool, stats_only: bool, share: float = 1.0) -> Query:
    query = Query(
        from_ns=UnixNs(START_NS),
        to_ns=UnixNs(START_NS + int(LINES * share) * 1_000_000 + 1),
        stats_only=stats_only,
    )
    operator = LineOperator.MATCHES if regex else LineOperator.CONTAINS
    return narrowed(query, LogQuery((), (LineFilter(operator, (text,)),)))


class QueryBench:
    """One lake, queried by sluice and by DuckDB alone."""

    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self.files = [str(path) for path in sorted(root.rglob("*.parquet"))]
        self.settings = QuerySettings()

    def sluice(self, query: Query) -> QueryResult:
        """Run the query with sluice, including the opening of the store."""

        async def ask() -> QueryResult:
            async with open_store(self.url) as store:
                return await Searcher(
                    store=store, store_url=self.url, settings=self.settings, clock=SystemClock()
                ).search(query)

        return asyncio.run(ask())

    def stream(self, query: Query) -> float:
        """Run the query as a stream of the newest records."""

        async def ask() -> None:
            async with open_store(self.url) as store:
                searcher = Searcher(
                    store=store, store_url=self.url, settings=self.settings, clock=SystemClock()
                )
                async for _ in stream_search(searcher, query):
                    pass

        asyncio.run(ask())
        return LINES

    def duckdb(self, query: Query) -> int:
        """Run the query with DuckDB over all files of the lake; return the number of rows."""
        where = own_condition(query.pipeline or LogQuery(), "logs", {})
        what, tail = "count(*), min(ts_ns), max(ts_ns)", ""
        if not query.stats_only:
            what = ", ".join(returned_columns("logs"))
            tail = "ORDER BY ts_ns, agent_id, boot_id, seq LIMIT 1001"
        config = {
            "threads": self.settings.threads,
            "memory_limit": f"{self.settings.memory_bytes_max}B",
        }
        text = f"SELECT {what} FROM read_parquet(?) WHERE {where.text} {tail}"  # noqa: S608 - built from constants
        with duckdb.connect(config=config) as connection:
            return len(connection.execute(text, [self.files, *where.values]).fetchall())

    def runs(self, query: Query) -> tuple[Callable[[], Sample], Callable[[], Sample]]:
        """Return a function for one run of each, measured in lines of the lake."""

        def ours() -> float:
            self.sluice(query)
            return LINES

        def theirs() -> float:
            self.duckdb(query)
            return LINES

        return lambda: timed(ours), lambda: timed(theirs)


def _subjects(bench: QueryBench) -> dict[str, Callable[[], Sample]]:
    subjects: dict[str, Callable[[], Sample]] = {}
    for name, (text, regex) in NEEDLES.items():
        for form, stats_only in (("stats only", True), ("1000 records", False)):
            query = _query(text, regex=regex, stats_only=stats_only)
            mine, control = bench.runs(query)
            subjects |= {f"{name}, {form}": mine, f"{name}, {form}{CONTROL}": control}
    rare = _query(RARE, regex=False, stats_only=True)
    mine, control = bench.runs(rare)
    subjects |= {INDEXED: mine, f"{INDEXED}{CONTROL}": control}
    text, regex = NEEDLES["substring"]
    tenth = _query(text, regex=regex, stats_only=True, share=0.1)
    mine, control = bench.runs(tenth)
    return subjects | {PRUNED: mine, f"{PRUNED}{CONTROL}": control}


def _views(bench: QueryBench) -> dict[str, Callable[[], Sample]]:
    """Return the views of one search, each next to the search that returns its records."""
    text, regex = NEEDLES["substring"]
    search = replace(_query(text, regex=regex, stats_only=False), limit=LIMIT_MAX)
    agent = RecordField("agent_id")
    step_ns = choose_width(search.from_ns, search.to_ns, BUCKETS_DEFAULT)
    views: dict[str, View] = {
        "histogram": Histogram(step_ns=step_ns),
        "histogram by agent": Histogram(step_ns=step_ns, by=agent),
        "values of agent": TopValues(field=agent),
    }
    subjects: dict[str, Callable[[], Sample]] = {}
    for name, view in views.items():
        subjects |= {
            name: bench.runs(replace(search, view=view))[0],
            name + SEARCH: bench.runs(search)[0],
        }
    newest = replace(search, pipeline=None, required=(), newest_first=True, limit=LIMIT_DEFAULT)
    subjects[f"stream{SEARCH}"] = bench.runs(newest)[0]
    return subjects | {"stream": lambda: timed(lambda: bench.stream(newest))}


def main() -> int:
    """Run the benchmark; return 1 if a full scan is slower than 0.8 of DuckDB."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-query-") as folder:
        url, root = f"file://{folder}", Path(folder) / "lake" / "v1" / "logs"
        asyncio.run(_prepare(url, root))
        _index(url)
        bench = QueryBench(url, root)
        size_bytes = sum(Path(one).stat().st_size for one in bench.files)
        samples = interleave(_subjects(bench), rounds=ROUNDS)
        views = interleave(_views(bench), rounds=ROUNDS)
    lines = [f"{LINES:,} lines, {len(bench.files)} files, {size_bytes >> 20} MiB of Parquet"]
    full: list[float] = []
    indexed = 0.0
    for name in samples:
        if name.endswith(CONTROL):
            continue
        mine, control = samples[name], samples[name + CONTROL]
        least, middle, most = ratio(mine, control, lambda sample: sample.per_second)
        wall_s = statistics.median(sample.wall_s for sample in mine)
        cpu = ratio(control, mine, lambda sample: sample.cpu_s)[1]
        lines.append(
            f"{name}: {wall_s:.3f} s, {middle:.2f} x DuckDB ({least:.2f} to {most:.2f}),"
            f" by processor time {cpu:.2f} x"
        )
        if name == INDEXED:
            indexed = middle
        elif name != PRUNED:
            full.append(middle)
    for name in views:
        if not name.endswith(SEARCH):
            cpu = ratio(views[name], views[name + SEARCH], lambda sample: sample.cpu_s)[1]
            lines.append(f"{name}: {cpu:.2f} x the processor time of the search")
    report("query", lines, samples | views)
    return 0 if min(full) >= RATIO_LEAST and indexed >= INDEXED_LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
