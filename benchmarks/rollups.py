"""Benchmark `rollups`: a series over 90 days from rollups compared with the same from samples.

The tables are generated directly, as ingestion, compaction and the rollup job would leave them: one
file a day. `SLUICE_BENCH_DAYS`, `SLUICE_BENCH_SERIES` and `SLUICE_BENCH_INTERVAL_S` set the size.
Both queries cover the same range, which starts and ends within a minute, over the same store, and
must return equal values. The control is `--raw`.
"""

import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction

from benchmarks.measure import Sample, interleave, ratio, report, timed
from sluice_lake.delta import delta_schema, open_or_create_table
from sluice_lake.source_ranges import ROLLUP_APP, SourceRange, source_range_key
from sluice_lake.tables import METRICS, ROLLUPS, WINDOW_DATE, Table, accepted_date
from sluice_protocol.manifests import encode_record
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.request import Aggregate, Query, RecordField, Series
from sluice_query.result import SeriesPoint
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_spark.commits import add_action, commit_files
from sluice_spark.written_files import (
    WrittenFile,
    file_statistics,
    parquet_options,
    partition_folder,
)
from sluice_store import StoreMode, create_authority, open_store

DAYS = int(os.environ.get("SLUICE_BENCH_DAYS", "90"))
SERIES = int(os.environ.get("SLUICE_BENCH_SERIES", "1000"))
INTERVAL_S = int(os.environ.get("SLUICE_BENCH_INTERVAL_S", "60"))
ROUNDS = int(os.environ.get("SLUICE_BENCH_ROUNDS", "3"))
DAY_S = 86_400
WINDOWS = {"1h": 3600, "1m": 60}
START_S = 1_790_000_000 // DAY_S * DAY_S
GROUP_ROWS = 300_000
GATED = "step 1h"
FASTER_LEAST = 20.0
CONTROL = " (samples)"
AGENTS = [f"host-{number:04d}" for number in range(SERIES)]

Values = npt.NDArray[np.float64]


def _values(day: int) -> Values:
    """Return the values of a day by time and series; sums of them are exact."""
    rng = np.random.default_rng(day)
    return rng.integers(0, 1000, (DAY_S // INTERVAL_S, SERIES)).astype(np.float64)


def _text(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def _agents(count: int) -> pa.Array:
    codes = np.tile(np.arange(SERIES, dtype=np.int32), count // SERIES)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(AGENTS))


def _empty_maps(count: int) -> pa.Array:
    offsets = pa.array(np.zeros(count + 1, np.int32))
    return pa.MapArray.from_arrays(offsets, pa.array([], pa.string()), pa.array([], pa.string()))


def _stamps(seconds: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(seconds * 1_000_000).view(pa.timestamp("us", tz="UTC"))


def _samples(day: int) -> Iterator[pa.Table]:
    values = _values(day)
    begin, count = START_S + day * DAY_S, values.size
    ts_s = np.repeat(begin + np.arange(len(values), dtype=np.int64) * INTERVAL_S, SERIES)
    columns = {
        "agent_id": _agents(count),
        "boot_id": _text("b", count),
        "seq": pa.array(np.repeat(np.arange(len(values)) + day * len(values), SERIES)),
        "ts_ns": pa.array(ts_s * NS_PER_S),
        "ts": _stamps(ts_s),
        "accepted_at": _stamps(ts_s),
        "queue_sequence": pa.array(np.full(count, day + 1, np.int64)),
        "name": _text("cpu.load", count),
        "value": pa.array(values.ravel()),
        "type": pa.array(np.zeros(count, np.int32)),
        "attributes": _empty_maps(count),
        "resource": _empty_maps(count),
    }
    yield pa.table({column.name: columns[column.name] for column in METRICS.stored_columns})


def _rows(day: int) -> Iterator[pa.Table]:
    values = _values(day)
    for window, size_s in WINDOWS.items():
        per_window = max(size_s // INTERVAL_S, 1)
        grouped = values.reshape(len(values) // per_window, per_window, SERIES)
        count = grouped.shape[0] * SERIES
        begin = START_S + day * DAY_S
        start_s = begin + np.arange(grouped.shape[0], dtype=np.int64) * max(size_s, INTERVAL_S)
        starts = np.repeat(start_s, SERIES)
        last_ns = (starts + (per_window - 1) * INTERVAL_S) * NS_PER_S
        columns = {
            "window": _text(window, count),
            "window_start": _stamps(starts),
            "name": _text("cpu.load", count),
            "agent_id": _agents(count),
            "attributes": _empty_maps(count),
            "count": pa.array(np.full(count, per_window, np.int64)),
            "sum": pa.array(grouped.sum(axis=1).ravel()),
            "min": pa.array(grouped.min(axis=1).ravel()),
            "max": pa.array(grouped.max(axis=1).ravel()),
            "last": pa.array(grouped[:, -1].ravel()),
            "last_ts_ns": pa.array(last_ns),
            "sketch": pa.array([b"sketch"] * count, pa.binary()),
            "cover": pa.array(np.full(count, 1, np.int64)),
        }
        yield pa.table({column.name: columns[column.name] for column in ROLLUPS.stored_columns})


def _write(root: Path, table: Table, day: int, tables: Iterator[pa.Table]) -> WrittenFile:
    date = accepted_date((START_S + day * DAY_S) * NS_PER_S)
    path = f"{partition_folder(table.partition_column, date)}/{day:05d}.parquet"
    place = root / "lake" / "v1" / table.name / path
    place.parent.mkdir(parents=True, exist_ok=True)
    first = next(tables)
    with pq.ParquetWriter(place, first.schema, **parquet_options(first.schema)) as writer:
        for rows in chain([first], tables):
            writer.write_table(rows, row_group_size=GROUP_ROWS)
    return WrittenFile(
        table=table.name,
        path=path,
        partition=date,
        size_bytes=place.stat().st_size,
        written_at_ms=0,
        stats=file_statistics(table, writer.writer.metadata),
    )


async def _prepare(url: str, root: Path) -> int:
    """Write store and tables; return the size of the samples' files."""
    async with open_store(url, StoreMode.CREATE) as store:
        lanes = (await create_authority(store)).lanes
        through = {str(lane): DAYS for lane in range(lanes)}
        source = SourceRange(number=1, after={}, through=through)
        await store.create(source_range_key(1), encode_record(source))
    metrics, rollups = open_or_create_table(url, METRICS), open_or_create_table(url, ROLLUPS)
    samples = [_write(root, METRICS, day, _samples(day)) for day in range(DAYS)]
    versions = dict.fromkeys(range(lanes), DAYS)
    commit_files(metrics, METRICS, samples, versions, {})
    rows = [_write(root, ROLLUPS, day, _rows(day)) for day in range(DAYS)]
    rollups.create_write_transaction(
        [add_action(ROLLUPS, file, data_change=True) for file in rows],
        "append",
        delta_schema(ROLLUPS),
        [WINDOW_DATE],
        commit_properties=CommitProperties(app_transactions=[Transaction(ROLLUP_APP, 1)]),
    )
    return sum(file.size_bytes for file in samples)


def _query(step_s: int, *, by_agent: bool, raw: bool) -> Query:
    series = Series(
        metric="cpu.load",
        step_ns=step_s * NS_PER_S,
        aggregate=Aggregate.AVG,
        by=(RecordField("agent_id"),) if by_agent else (),
        raw=raw,
    )
    return Query(
        from_ns=UnixNs(START_S * NS_PER_S + 30 * NS_PER_S),
        to_ns=UnixNs((START_S + DAYS * DAY_S) * NS_PER_S - 30 * NS_PER_S),
        kind="metrics",
        series=series,
    )


class RollupBench:
    """One lake; keeps the points of each query for the comparison."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.points: dict[str, list[SeriesPoint]] = {}

    def run(self, name: str, query: Query) -> Sample:
        """Run a query, including the opening of the store, measured in samples."""
        settings = replace(QuerySettings(), time_s_max=600.0)

        async def ask() -> None:
            async with open_store(self.url) as store:
                searcher = Searcher(
                    store=store, store_url=self.url, settings=settings, clock=SystemClock()
                )
                result = await searcher.search(query)
            used = result.summary.rollup_segments_read > 0
            if used is name.endswith(CONTROL):
                raise RuntimeError(f"rollups are used by the wrong query, query=`{name}`")
            self.points[name] = result.points

        def work() -> float:
            asyncio.run(ask())
            return DAYS * (DAY_S // INTERVAL_S) * SERIES

        return timed(work)


def main() -> int:
    """Run the benchmark; return 1 if hours are not 20 times as fast, or values differ."""
    forms = {GATED: (3600, False), "step 1d by agent": (DAY_S, True)}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-rollups-") as folder:
        url = f"file://{folder}"
        size_bytes = asyncio.run(_prepare(url, Path(folder)))
        bench = RollupBench(url)
        subjects: dict[str, Callable[[], Sample]] = {}
        for form, (step_s, by_agent) in forms.items():
            for name, raw in ((form, False), (form + CONTROL, True)):
                query = _query(step_s, by_agent=by_agent, raw=raw)
                subjects[name] = partial(bench.run, name, query)
        samples = interleave(subjects, rounds=ROUNDS)
    count = DAYS * (DAY_S // INTERVAL_S) * SERIES
    size = f"{count:,} samples, {size_bytes >> 20} MiB"
    lines = [f"{DAYS} days, {SERIES} series, a sample each {INTERVAL_S} s: {size}"]
    faster, equal = 0.0, True
    for form in forms:
        mine, control = samples[form], samples[form + CONTROL]
        least, middle, most = ratio(mine, control, lambda sample: sample.per_second)
        cpu = ratio(control, mine, lambda sample: sample.cpu_s)[1]
        wall_s = statistics.median(sample.wall_s for sample in mine)
        same = bench.points[form] == bench.points[form + CONTROL]
        lines.append(
            f"{form}: {wall_s:.3f} s, {middle:.1f} x samples ({least:.1f} to {most:.1f}), by"
            f" processor time {cpu:.1f} x, {len(bench.points[form]):,} points,"
            f" {'equal' if same else 'DIFFERENT'} values"
        )
        faster = middle if form == GATED else faster
        equal = equal and same
    report("rollups", lines, samples)
    return 0 if equal and faster >= FASTER_LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
