"""Rollups of metrics: count, sum, min, max, last and a quantile sketch per window and series.

Points are taken cover by cover (`covers`): each is aggregated by Spark, its chunks are created once
under `rollup/v1/`, and its rows are appended to the table `rollups` in one commit whose transaction
version is the cover's number. Sketches are Apache DataSketches' KLL, as Spark makes them; rows of
one series and window are merged by `kll_merge_agg_double`. NaN is left out. Deletes that come after
their points were rolled up make the next cover do the touched hours again (`revising`, ADR 0057).
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from msgspec.structs import replace

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.lake import METRICS, ROLLUPS, WINDOW_DATE
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_spark.chunks import WHOLE, drop_superseded, put_chunks
from sluice_spark.compact import read_horizon
from sluice_spark.covers import Cover, next_cover, read_cover
from sluice_spark.errors import CommitConflict
from sluice_spark.facts import FileFact, decode_fact, encode_fact
from sluice_spark.housekeeping import any_condition
from sluice_spark.inventory import DataFile, list_files
from sluice_spark.microbatch import open_snapshot
from sluice_spark.revising import (
    COLUMNS,
    HOUR,
    UNIT,
    Revision,
    for_rollups,
    kept_from_ns,
    plan_revision,
)
from sluice_spark.rewriting import read_files, remove_action, write_ordered
from sluice_spark.session import Session
from sluice_spark.tables import add_action, delta_schema, open_table, translated
from sluice_store import open_store, read_authority
from sluice_store.lake import TableLocation

WINDOWS: Final = (("1m", 60), ("1h", 3600))
SKETCH_K: Final = 200
_US_PER_S: Final = 1_000_000
ROLLUP_APP: Final = "sluice-rollup"
COVERS_MAX: Final = 100
"""Covers that one run finishes; the next run goes on."""
TASKS: Final = 8

_log = structlog.get_logger("sluice.rollup")

_HASH: Final = "CAST(conv(substr(sha2(agent_id, 256), 1, 16), 16, 10) AS DECIMAL(20, 0))"
_LANE: Final = f"CAST({_HASH} % {{lanes}} AS INT)"
_SERIES: Final = ("window", "window_start", "name", "agent_id", "attributes")
_FIGURES: Final = (
    "count(*) AS count",
    "sum(value) AS sum",
    "min(value) AS min",
    "max(value) AS max",
    "max_by(value, struct(ts_ns, seq)) AS last",
    "max(ts_ns) AS last_ts_ns",
    f"kll_sketch_agg_double(value, {SKETCH_K}) AS sketch",
)


@dataclass(slots=True, kw_only=True)
class RollupReport:
    """What a run of rollups did.

    Attributes:
        covers: Covers that this run finished.
        rows: Rows that it wrote into the table.
        revised: Covers that did older hours again, because of deletes.
    """

    covers: int = 0
    rows: int = 0
    revised: int = 0


def lanes_condition(cover: Cover, lanes: int) -> str:
    """Gives the condition of Spark SQL that a point belongs to a cover."""
    parts = []
    for lane in range(lanes):
        after, through = cover.ends(lane)
        if through > after:
            parts.append(
                f"(lane = {lane} AND queue_sequence > {after} AND queue_sequence <= {through})"
            )
    return f"({' OR '.join(parts)})" if parts else "false"


def aggregate(points: Any, cover: Cover, units: Any = None) -> Any:  # noqa: ANN401 - a DataFrame
    """Gives the rows of `rollups` for points, each with `whole`; a pure function of DataFrames.

    Args:
        points: Points up to the cover's end, each with `fresh`: whether it is of this very cover.
        cover: The cover.
        units: Units that are done again, from all their points where they are intact.
    """
    # Imported late, as everywhere: most commands do without pyspark.
    from pyspark.sql.functions import expr  # noqa: PLC0415

    windows = ", ".join(
        f"struct('{name}' AS window, {size * _US_PER_S}L AS size_us)" for name, size in WINDOWS
    )
    start = "timestamp_micros(unix_micros(ts) - pmod(unix_micros(ts), size_us))"
    spread = points.where("NOT isnan(value)").selectExpr("*", f"inline(array({windows}))")
    keyed = spread.selectExpr(
        "window",
        f"{start} AS window_start",
        "name",
        "agent_id",
        "coalesce(attributes, CAST(map() AS MAP<STRING, STRING>)) AS attributes",
        "value",
        "ts_ns",
        "seq",
        "fresh",
    )
    if units is None:
        keyed = keyed.where("fresh").selectExpr("*", f"false AS {WHOLE}")
    else:
        placed = keyed.selectExpr("*", f"{HOUR} AS hour").join(units, UNIT, "left")
        keyed = placed.where("fresh OR intact").selectExpr("*", f"intact IS NOT NULL AS {WHOLE}")
    rows = keyed.groupBy(*_SERIES, WHOLE).agg(*(expr(figure) for figure in _FIGURES))
    dated = rows.selectExpr(
        "*", f"CAST({cover.number} AS BIGINT) AS cover", f"to_date(window_start) AS {WINDOW_DATE}"
    )
    return dated.select(*COLUMNS, WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the store says that a cover rests on.

    Attributes:
        lanes: Number of lanes.
        honoured: The deletes that the cover honours.
        fresh: Those of them that the cover before did not honour.
        kept_ns: Points before it may be gone by retention.
    """

    lanes: int
    honoured: tuple[DeleteRecord, ...]
    fresh: tuple[DeleteRecord, ...]
    kept_ns: int | None


async def _read_known(store_url: str, cover: Cover) -> Known:
    async with open_store(store_url) as store:
        found = {one.delete_id: one for one in (await read_horizon(store)).deletes}
        lost = [one for one in cover.deletes if one not in found]
        if lost:
            raise InvalidRecord(delete_key(lost[0]), f"cover {cover.number} names it: it is gone")
        previous = await read_cover(store, cover.number - 1)
        before = frozenset(previous.deletes) if previous is not None else cover.deletes
        return Known(
            lanes=(await read_authority(store)).lanes,
            honoured=tuple(found[one] for one in cover.deletes),
            fresh=tuple(found[one] for one in cover.deletes if one not in before),
            kept_ns=kept_from_ns(found.values()),
        )


def _points(spark: Session, store_url: str, cover: Cover, known: Known) -> Any:  # noqa: ANN401
    files = list_files(open_table(store_url, METRICS), METRICS)
    if not files:
        return None
    rows = read_files(spark, store_url, METRICS, files)
    gone = any_condition(known.honoured)
    if gone is not None:
        rows = rows.where(f"NOT {gone}")
    laned = rows.selectExpr("*", f"{_LANE.format(lanes=known.lanes)} AS lane")
    reached = laned.where(lanes_condition(replace(cover, after={}), known.lanes))
    return reached.selectExpr("*", f"{lanes_condition(cover, known.lanes)} AS fresh")


def run_rollup(spark: Session, store_url: str) -> RollupReport:
    """Rolls up every point that is in the lake for good and in no cover yet.

    Raises:
        TableRefused: A table is not ours.
        StoreError: The store did not answer.
    """
    report = RollupReport()
    for _ in range(COVERS_MAX):
        table = open_table(store_url, ROLLUPS)
        done = table.transaction_version(ROLLUP_APP) or 0
        cover = asyncio.run(_next(store_url, done))
        if cover is None:
            break
        known = asyncio.run(_read_known(store_url, cover))
        revision = plan_revision(spark, store_url, known.fresh, known.kept_ns)
        facts = _write(spark, store_url, cover, known, revision)
        if revision is not None:
            asyncio.run(_drop_chunks(store_url, cover, revision))
            revision.close()
        try:
            _commit(table, cover, facts, revision.files if revision is not None else ())
        except CommitConflict as error:
            _log.info("cover finished by another owner", cover=cover.number, reason=str(error))
            continue
        report.covers += 1
        report.rows += sum(fact.stats["numRecords"] for fact in facts)
        report.revised += revision is not None
    return report


async def _next(store_url: str, done: int) -> Cover | None:
    snapshot = open_snapshot(store_url)
    async with open_store(store_url) as store:
        lanes = range((await read_authority(store)).lanes)
        positions = snapshot.positions(list(lanes))
        ends = {lane: positions.acknowledgeable(lane) for lane in lanes}
        previous = await read_cover(store, done) if done else None
        deletes = for_rollups((await read_horizon(store)).deletes)
        return await next_cover(store, previous, ends, [one.delete_id for one in deletes])


async def _drop_chunks(store_url: str, cover: Cover, revision: Revision) -> None:
    # Before the commit: an owner that dies in between is followed by one that does it again.
    async with open_store(store_url) as store:
        dropped = await drop_superseded(store, cover, revision.chunks())
    _log.info("rollups done again", cover=cover.number, chunks_dropped=dropped)


def _write(
    spark: Session, store_url: str, cover: Cover, known: Known, revision: Revision | None
) -> list[FileFact]:
    rows = _rows(spark, store_url, cover, known, revision)
    if rows is None:
        return []
    place = (WINDOW_DATE, "window", "name")
    ordered = rows.repartition(TASKS, *place).sortWithinPartitions(
        *place, "window_start", "agent_id"
    )

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # By position: Spark names a grouped map column after its own rewriting of the plan.
        found = [batch.rename_columns([*COLUMNS, WHOLE]) for batch in batches]
        if found:
            asyncio.run(put_chunks(store_url, cover, pa.Table.from_batches(found)))
        plain = [batch.drop_columns([WHOLE]) for batch in found]
        facts = [encode_fact(fact) for fact in write_ordered(store_url, ROLLUPS, plain)]
        yield pa.RecordBatch.from_arrays([pa.array(facts, pa.binary())], names=["fact"])

    bodies = ordered.mapInArrow(write, "fact binary").toArrow().column("fact").to_pylist()
    facts = [decode_fact(body) for body in bodies]
    return [fact for fact in facts if isinstance(fact, FileFact)]


def _rows(
    spark: Session, store_url: str, cover: Cover, known: Known, revision: Revision | None
) -> Any:  # noqa: ANN401 - a DataFrame
    points = _points(spark, store_url, cover, known)
    if revision is None:
        return aggregate(points, cover) if points is not None else None
    if points is None:
        return revision.rows
    return aggregate(points, cover, revision.units).unionByName(revision.rows)


def _commit(
    table: DeltaTable, cover: Cover, facts: Sequence[FileFact], replaced: Sequence[DataFile]
) -> None:
    """Puts a cover's rows in, and takes replaced files out, from the state that lacks the cover.

    A stale state is refused by Delta.
    """
    properties = CommitProperties(app_transactions=[Transaction(ROLLUP_APP, cover.number)])
    removals = [remove_action(ROLLUPS, file, data_change=True) for file in replaced]
    with translated(TableLocation(uri=table.table_uri)):
        table.create_write_transaction(
            [*removals, *(add_action(ROLLUPS, fact, data_change=True) for fact in facts)],
            "append",
            delta_schema(ROLLUPS),
            [WINDOW_DATE],
            commit_properties=properties,
        )
