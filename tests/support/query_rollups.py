"""A world of samples, deletes and rollups, with the rules of the rollup job in plain Python.

Also here: rollups computed in plain Python, to compare with those of the table and of the chunks;
rollups of a real table `metrics`, written by the rules of the rollup job and without a JVM.
"""

import asyncio
import math
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from support.spark_lake import Deployment

from sluice_lake.delta import find_table, open_or_create_table, read_lane_versions
from sluice_lake.locations import lake_location
from sluice_lake.schemas import arrow_schema
from sluice_lake.source_ranges import ROLLUP_APP, DeleteIds, SourceRange, source_range_key
from sluice_lake.tables import METRICS, ROLLUPS, WINDOW_DATE
from sluice_protocol.authority import LaneCounts
from sluice_protocol.keys import lane_of
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import (
    DeleteRecord,
    retention_cut_ns,
    rollup_deletes,
)
from sluice_protocol.units import UnixNs
from sluice_query.request import Query, Series
from sluice_query.rollups import (
    HOUR_NS,
    MINUTE_NS,
    RollupCoverage,
    RollupPlan,
    plan_rollups,
)
from sluice_query.search import applying_deletes
from sluice_query.series import SampleSource, SeriesSources, series_sql
from sluice_store import open_store
from sluice_store.stored_deletes import read_all_deletes

LANES = 2
COUNTS = LaneCounts(lanes=LANES)
SIZES = {"1m": MINUTE_NS, "1h": HOUR_NS}
Row = dict[str, Any]
Figures = list[tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample, with the queue sequence of its batch."""

    agent: str
    seq: int
    ts_ns: int
    value: float
    sequence: int
    accepted_ns: int
    name: str = "cpu"
    attributes: tuple[tuple[str, str], ...] = ()
    resource: tuple[tuple[str, str], ...] = ()

    @property
    def lane(self) -> int:
        return lane_of(self.agent, LANES)


def is_deleted(record: DeleteRecord, one: Sample) -> bool:
    pairs = {*one.attributes, *one.resource}
    return (
        one.accepted_ns <= record.accepted_until_unix_ns
        and (record.from_unix_ns is None or one.ts_ns >= record.from_unix_ns)
        and (record.to_unix_ns is None or one.ts_ns < record.to_unix_ns)
        and record.agent_id in (None, one.agent)
        and record.contains in (None, one.name)
        and pairs.issuperset(record.attributes.items())
    )


def aggregate(samples: Iterable[Sample], cover: int) -> list[Row]:
    """Return the rows of `rollups` for samples, without sketches."""
    groups: dict[tuple[Any, ...], list[Sample]] = defaultdict(list)
    for one in samples:
        for window, size in SIZES.items():
            if not math.isnan(one.value):
                start = one.ts_ns // size * size
                groups[window, start, one.name, one.agent, one.attributes].append(one)
    return [_row(key, found, cover) for key, found in groups.items()]


def _row(key: tuple[Any, ...], found: Sequence[Sample], cover: int) -> Row:
    window, start, name, agent, attributes = key
    values = [one.value for one in found]
    last = max(found, key=lambda one: (one.ts_ns, one.value))
    return {
        "window": window,
        "window_start": _stamp(start),
        "name": name,
        "agent_id": agent,
        "attributes": list(attributes),
        "count": len(found),
        "sum": sum(values),
        "min": min(values),
        "max": max(values),
        "last": last.value,
        "last_ts_ns": last.ts_ns,
        "sketch": b"",
        "cover": cover,
        "start_ns": start,
    }


def _stamp(at_ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_ns // 1000)


@dataclass(kw_only=True)
class RollupJob:
    """The rollup job: source ranges, revisions by deletes, and what retention prevents."""

    rows: list[Row] = field(default_factory=list)
    number: int = 0
    through: dict[int, int] = field(default_factory=dict)
    deletes: frozenset[str] = frozenset()

    def run(
        self, samples: Sequence[Sample], ends: Mapping[int, int], deletes: Sequence[DeleteRecord]
    ) -> None:
        """Add one source range that ends at `ends`, from the samples of the table."""
        applied = rollup_deletes(deletes)
        new = [one for one in applied if one.delete_id not in self.deletes] if self.number else []
        before, self.through = self.through, {**self.through, **ends}
        self.number += 1
        self.deletes = self.deletes.union(one.delete_id for one in applied)
        left = [one for one in samples if not any(is_deleted(record, one) for record in applied)]
        left = [one for one in left if one.sequence <= self.through.get(one.lane, 0)]
        fresh = {one for one in left if one.sequence > before.get(one.lane, 0)}
        cut_ns = retention_cut_ns(deletes)
        touched = {_unit(row) for row in self.rows if any(_touches(one, row) for one in new)}
        intact = {unit for unit in touched if cut_ns is None or unit[2] * HOUR_NS >= cut_ns}
        kept = [
            row
            for row in self.rows
            if _unit(row) not in touched
            or (_unit(row) not in intact and not any(_covers(one, row) for one in new))
        ]
        added = [row for row in aggregate(left, self.number) if _unit(row) in intact]
        added += [row for row in aggregate(fresh, self.number) if _unit(row) not in intact]
        self.rows = [*kept, *added]

    def merge(self, chosen: Callable[[Row], bool]) -> None:
        """Merge the rows of some files, as compaction does."""
        groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in self.rows:
            if chosen(row):
                key = (row["window"], row["start_ns"], row["name"], row["agent_id"])
                groups[*key, tuple(row["attributes"])].append(row)
        kept = [row for row in self.rows if not chosen(row)]
        self.rows = [*kept, *(merged_row(rows) for rows in groups.values())]

    @property
    def coverage(self) -> RollupCoverage:
        return RollupCoverage(through=self.through, deletes=self.deletes)


def merged_row(rows: Sequence[Row]) -> Row:
    """Return one row for rows of the same series and window."""
    latest = max(rows, key=lambda row: (row["last_ts_ns"], row["last"]))
    return {
        **rows[0],
        "count": sum(row["count"] for row in rows),
        "sum": sum(row["sum"] for row in rows),
        "min": min(row["min"] for row in rows),
        "max": max(row["max"] for row in rows),
        "last": latest["last"],
        "last_ts_ns": latest["last_ts_ns"],
        "cover": max(row["cover"] for row in rows),
    }


def _unit(row: Row) -> tuple[str, str, int]:
    return row["window"], row["name"], row["start_ns"] // HOUR_NS


def _of_series(record: DeleteRecord, row: Row) -> bool:
    return record.agent_id in (None, row["agent_id"]) and record.contains in (None, row["name"])


def _touches(record: DeleteRecord, row: Row) -> bool:
    start = row["start_ns"]
    return (
        _of_series(record, row)
        and (record.from_unix_ns is None or start + SIZES[row["window"]] > record.from_unix_ns)
        and (record.to_unix_ns is None or start < record.to_unix_ns)
    )


def _covers(record: DeleteRecord, row: Row) -> bool:
    start = row["start_ns"]
    return (
        _of_series(record, row)
        and (record.from_unix_ns is None or start >= record.from_unix_ns)
        and (record.to_unix_ns is None or start + SIZES[row["window"]] <= record.to_unix_ns)
        and record.attributes.items() <= dict(row["attributes"]).items()
    )


def samples_table(samples: Sequence[Sample]) -> pa.Table:
    """Return samples as rows of `metrics`."""
    schema = arrow_schema(METRICS, partition=False)
    rows = [
        {
            "agent_id": one.agent,
            "boot_id": "b1",
            "seq": one.seq,
            "ts_ns": one.ts_ns,
            "ts": _stamp(one.ts_ns),
            "accepted_at": _stamp(one.accepted_ns),
            "queue_sequence": one.sequence,
            "name": one.name,
            "value": one.value,
            "type": 0,
            "attributes": list(one.attributes),
            "resource": list(one.resource),
        }
        for one in samples
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def rollups_table(rows: Sequence[Row]) -> pa.Table:
    schema = arrow_schema(ROLLUPS, partition=False)
    plain = [{name: row[name] for name in schema.names} for row in rows]
    return pa.Table.from_pylist(plain, schema=schema)


@dataclass(kw_only=True)
class RollupWorld:
    """Samples on their way from the queue into the lake and into rollups."""

    now_ns: int
    pending: list[Sample] = field(default_factory=list)
    lake: list[Sample] = field(default_factory=list)
    deletes: list[DeleteRecord] = field(default_factory=list)
    job: RollupJob = field(default_factory=RollupJob)
    ingested: dict[int, int] = field(default_factory=dict)
    _sequences: dict[int, int] = field(default_factory=dict)
    _seq: int = 0

    def accept(self, samples: Sequence[Sample]) -> None:
        """Accept and enqueue one batch of one agent."""
        self.now_ns += 1000
        lane = samples[0].lane
        self._sequences[lane] = self._sequences.get(lane, 0) + 1
        for one in samples:
            self._seq += 1
            self.pending.append(
                replace(
                    one,
                    seq=self._seq,
                    sequence=self._sequences[lane],
                    accepted_ns=self.now_ns,
                )
            )

    def ingest(self) -> None:
        """Write everything that is pending into the lake."""
        self.lake += self.pending
        self.pending = []
        self.ingested = dict(self._sequences)

    def delete(self, **conditions: Any) -> None:
        """Delete what is accepted by now."""
        self.now_ns += 1000
        number = len(self.deletes)
        self.deletes.append(
            DeleteRecord(
                delete_id=f"01{number:024d}",
                kind="metrics",
                accepted_until_unix_ns=self.now_ns,
                **conditions,
            )
        )

    def compact(self) -> None:
        """Remove deleted samples from the lake."""
        self.lake = [
            one for one in self.lake if not any(is_deleted(record, one) for record in self.deletes)
        ]

    def roll_up(self) -> None:
        """Run the rollup job once."""
        self.job.run(self.lake, self.ingested, self.deletes)

    def plan(self, query: Query, series: Series) -> RollupPlan | None:
        coverage = self.job.coverage
        return plan_rollups(query, series, coverage, lanes=COUNTS, deletes=self.deletes)

    def answer(
        self,
        query: Query,
        series: Series,
        plan: RollupPlan | None,
        spoil: Callable[[SeriesSources], SeriesSources] = lambda sources: sources,
    ) -> Figures:
        """Return the points of a series, with rollups if there is a plan."""
        if plan is not None:
            span = plan.span
            query = replace(query, from_ns=UnixNs(span.from_ns), to_ns=UnixNs(span.to_ns))
        pending = [SampleSource(name="pending")]
        lake = [SampleSource(name="lake")]
        if plan is not None:
            windows = tuple(plan.windows)
            lake = [
                SampleSource(name="lake", spans=plan.samples),
                SampleSource(name="lake", spans=windows, later_than=plan.through, lanes=COUNTS),
            ]
        sources = SeriesSources(
            samples=(*lake, *pending),
            deletes=applying_deletes(self.deletes, query),
            minutes="rows" if plan is not None else None,
            hours="rows" if plan is not None else None,
            plan=plan,
        )
        statement = series_sql(query, series, spoil(sources))
        connection = _connection()
        connection.register("lake", samples_table(self.lake))
        connection.register("pending", samples_table(self.pending))
        connection.register("rows", rollups_table(self.job.rows))
        return connection.execute(statement.text, list(statement.values)).fetchall()


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """Return the one connection of a process: it is opened more slowly than it is queried."""
    return duckdb.connect(":memory:", config={"threads": 1})


RollupValues = dict[tuple[Any, ...], tuple[int, float]]


def expected(
    deployment: Deployment,
    size_s: int,
    keep: Callable[[tuple[Any, ...]], bool] = lambda _: True,
) -> RollupValues:
    """Return counts and maxima by (window start, name, agent, attributes)."""
    figures: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    rows = (row for one in deployment.sent if one.manifest.kind == "metrics" for row in one.rows)
    for row in rows:
        agent, _, _, ts_ns, name, packed, _, attributes = row
        (value,) = struct.unpack("<d", packed)
        start = ts_ns // 10**9 // size_s * size_s
        if not math.isnan(value) and keep(row):
            figures[start, name, agent, tuple(sorted(attributes.items()))].append(value)
    return {key: (len(found), max(found)) for key, found in figures.items()}


def merged(rows: Iterable[dict[str, Any]], window: str) -> RollupValues:
    figures: RollupValues = {}
    for row in rows:
        if row["window"] == window:
            start = int(row["window_start"].timestamp())
            key = (start, row["name"], row["agent_id"], tuple(sorted(row["attributes"])))
            count, most = figures.get(key, (0, row["max"]))
            figures[key] = (count + row["count"], max(most, row["max"]))
    return figures


def _sample(row: dict[str, Any]) -> Sample:
    return Sample(
        agent=row["agent_id"],
        seq=row["seq"],
        ts_ns=row["ts_ns"],
        value=row["value"],
        sequence=row["queue_sequence"],
        accepted_ns=int(row["accepted_at"].timestamp()) * 10**9,
        name=row["name"],
        attributes=tuple(row["attributes"] or ()),
        resource=tuple(row["resource"] or ()),
    )


@dataclass(kw_only=True)
class LakeRollups:
    """The rollup job of one deployment."""

    place: Deployment
    job: RollupJob = field(default_factory=RollupJob)

    def run(self, *, crash: bool = False) -> None:
        """Add one source range; with `crash` it is only created, and no row is committed."""
        opened = find_table(self.place.url, METRICS)
        assert opened is not None
        samples = [_sample(row) for row in opened.to_pyarrow_table().to_pylist()]
        location = lake_location(self.place.url, METRICS.name)
        ends = read_lane_versions(location, opened, range(self.place.lanes))
        deletes = asyncio.run(self._start(ends, opened.version()))
        if crash:
            return
        self.job.run(samples, ends, deletes)
        self._commit()

    async def _start(self, ends: dict[int, int], version: int) -> list[Any]:
        async with open_store(self.place.url) as store:
            deletes = await read_all_deletes(store)
            source = SourceRange(
                number=self.job.number + 1,
                after={str(lane): end for lane, end in self.job.through.items()},
                through={str(lane): end for lane, end in ends.items()},
                deletes=DeleteIds(
                    listed=tuple(sorted(self.job.deletes.union(one.delete_id for one in deletes)))
                ),
                metrics_version=version,
            )
            await store.create(source_range_key(source.number), encode_record(source))
            return deletes

    def _commit(self) -> None:
        rows = rollups_table(self.job.rows)
        dates = rows.column("window_start").cast("date32")
        write_deltalake(
            open_or_create_table(self.place.url, ROLLUPS),
            rows.append_column(WINDOW_DATE, dates),
            mode="overwrite",
            commit_properties=CommitProperties(
                app_transactions=[Transaction(ROLLUP_APP, self.job.number)]
            ),
        )
