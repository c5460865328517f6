"""Rollups of metrics: count, sum, min, max, last and a quantile sketch per window and series.

A run processes one source range after another. Spark aggregates the points of a range. The chunks
are created under `rollup/v1/`. The rows are appended to the table `rollups` in one commit, whose
transaction version is the number of the range.

Sketches are KLL sketches of Apache DataSketches, as Spark creates them. Rows of the same series and
window are merged by `kll_merge_agg_double`. NaN values are ignored.

If a delete is created after its points were rolled up, the next source range aggregates the
affected units again from the remaining points; as for chunks, a unit is a window length, a metric
and an hour. If retention has already removed points of the unit, that is impossible: rows whose
points are all deleted are removed, and the others remain. Retention itself does not change rollups,
because rollups are kept longer than points (ADR 35).
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import structlog
from deltalake import DeltaTable, Transaction
from msgspec.structs import replace

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import open_or_create_table
from sluice_lake.errors import CommitConflict, read_transaction
from sluice_lake.source_ranges import (
    ROLLUP_APP,
    SourceRange,
)
from sluice_lake.tables import METRICS, ROLLUPS, WINDOW_DATE
from sluice_protocol.batch_in_lake import ROLLUP_WINDOWS
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_spark.commits import commit_from_state
from sluice_spark.compaction.delete_matches import (
    any_of,
    certain_condition,
    touched_condition,
    without_deleted,
)
from sluice_spark.compaction.file_selection import may_contain_agent
from sluice_spark.compaction.rewrite import files_with_rows, read_files, write_ordered
from sluice_spark.errors import StopCheck, never_stop
from sluice_spark.failpoints import read_failpoint
from sluice_spark.rollups.inputs import RollupInput, RollupInputReader, select_point_files
from sluice_spark.rollups.objects import (
    HOUR_S,
    WHOLE,
    RollupUnit,
    delete_superseded_chunks,
    put_chunks,
)
from sluice_spark.session import Session
from sluice_spark.written_files import WrittenFile, decode_result, encode_result
from sluice_store import open_store

COLUMNS: Final = [column.name for column in ROLLUPS.columns]
_DAY_NS: Final = 24 * HOUR_S * NS_PER_S
_HOUR_US: Final = HOUR_S * 1_000_000
HOUR: Final = f"(unix_micros(window_start) DIV {_HOUR_US})"
UNIT: Final = ["window", "name", "hour"]


def _may_contain_touched(file: DataFile, record: DeleteRecord) -> bool:
    """Return True if a data file of `rollups` may contain rows that a delete affects."""
    day_ns = datetime.fromisoformat(file.partition).replace(tzinfo=UTC).timestamp() * NS_PER_S
    return (
        (record.from_unix_ns is None or day_ns + _DAY_NS > record.from_unix_ns)
        and (record.to_unix_ns is None or day_ns < record.to_unix_ns)
        and (record.agent_id is None or may_contain_agent(file, record.agent_id))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupRevision:
    """What a source range aggregates again, as DataFrames; Spark caches the units until `close`.

    A unit is a window, name and hour, and whether all of its points are `intact`. The `files` of
    `rollups` with rows of these units are replaced; `rows` are those of them that remain, each with
    the column `whole`.
    """

    units: Any
    files: tuple[DataFile, ...]
    rows: Any

    def chunks(self) -> Iterator[RollupUnit]:
        """Yield the units one at a time, because they may not fit into memory."""
        for one in self.units.toLocalIterator():
            yield RollupUnit(
                window=one.window, name=one.name, hour_ns=UnixNs(one.hour * _HOUR_US * 1000)
            )

    def intact_hours(self) -> list[int]:
        """Return the hours since 1970 that are aggregated again from their points, sorted."""
        found = self.units.where("intact").select("hour").distinct().collect()
        return sorted(one.hour for one in found)

    def close(self) -> None:
        """Release the cached units."""
        self.units.unpersist()


def plan_revision(
    spark: Session,
    store_url: str,
    new_deletes: Sequence[DeleteRecord],
    retention_cut_ns: int | None,
) -> RollupRevision | None:
    """Return the changes by deletes that no source range lists yet; None if there are none.

    Retention may have removed points before `retention_cut_ns`.
    """
    if not new_deletes:
        return None
    files = [
        file
        for file in list_files(open_or_create_table(store_url, ROLLUPS), ROLLUPS)
        if any(_may_contain_touched(file, one) for one in new_deletes)
    ]
    if not files:
        return None
    rows = read_files(spark, store_url, ROLLUPS, files).selectExpr("*", f"{HOUR} AS hour")
    intact = (
        "true" if retention_cut_ns is None else f"hour * {_HOUR_US} * 1000L >= {retention_cut_ns}"
    )
    touched = rows.where(any_of([touched_condition(one) for one in new_deletes]))
    units = touched.selectExpr(*UNIT, f"{intact} AS intact").distinct().persist()
    if units.isEmpty():
        units.unpersist()
        return None
    touched_files = files_with_rows(
        files, rows.join(units, UNIT, "left_semi").select("data_file").distinct()
    )
    return RollupRevision(
        units=units,
        files=tuple(touched_files),
        rows=_remaining_rows(
            read_files(spark, store_url, ROLLUPS, touched_files), units, new_deletes
        ),
    )


def _remaining_rows(rows: Any, units: Any, new_deletes: Sequence[DeleteRecord]) -> Any:  # noqa: ANN401
    placed = rows.selectExpr("*", f"{HOUR} AS hour").join(units, UNIT, "left")
    certain = any_of([certain_condition(one) for one in new_deletes])
    kept = placed.where(f"intact IS NULL OR (NOT intact AND NOT {certain})")
    return kept.selectExpr(
        *(name for name in COLUMNS if name != WINDOW_DATE),
        f"to_date(window_start) AS {WINDOW_DATE}",
        f"intact IS NOT NULL AS {WHOLE}",
    )


SKETCH_K: Final = 200
_US_PER_S: Final = 1_000_000
SOURCE_RANGES_MAX: Final = 100
"""Maximum number of source ranges of a run; the next run continues."""
TASKS: Final = 8

_log = structlog.get_logger("sluice.rollup")

_AGENT_HASH: Final = "CAST(conv(substr(sha2(agent_id, 256), 1, 16), 16, 10) AS DECIMAL(20, 0))"
_LANE: Final = f"CAST({_AGENT_HASH} % {{lanes}} AS INT)"
_SERIES: Final = ("window", "window_start", "name", "agent_id", "attributes")
_FIGURES: Final = (
    "count(*) AS count",
    "sum(value) AS sum",
    "min(value) AS min",
    "max(value) AS max",
    "max_by(value, struct(ts_ns, value)) AS last",
    "max(ts_ns) AS last_ts_ns",
    f"kll_sketch_agg_double(value, {SKETCH_K}) AS sketch",
)


@dataclass(slots=True, kw_only=True)
class RollupReport:
    """The result of a rollup run.

    Attributes:
        covers: Source ranges that this run completed.
        revised: Source ranges that aggregated older hours again because of deletes.
    """

    covers: int = 0
    rows: int = 0
    revised: int = 0
    files_read: int = 0


def lanes_condition(source: SourceRange, lanes: int) -> str:
    """Return the Spark SQL condition that a point belongs to a source range."""
    parts = []
    for lane in range(lanes):
        after, through = source.ends(lane)
        if through > after:
            parts.append(
                f"(lane = {lane} AND queue_sequence > {after} AND queue_sequence <= {through})"
            )
    return f"({' OR '.join(parts)})" if parts else "false"


def aggregate(points: Any, source: SourceRange, units: Any = None) -> Any:  # noqa: ANN401 - a DataFrame
    """Return the rows of `rollups` for points, each with the column `whole`.

    The points end at the end of the source range; their column `fresh` is true for this range.
    `units` are aggregated again, from all of their points if they are intact.
    """
    # Imported here because most commands do not need pyspark.
    from pyspark.sql.functions import expr  # noqa: PLC0415

    windows = ", ".join(
        f"struct('{name}' AS window, {size * _US_PER_S}L AS size_us)"
        for name, size in ROLLUP_WINDOWS
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
        "*", f"CAST({source.number} AS BIGINT) AS cover", f"to_date(window_start) AS {WINDOW_DATE}"
    )
    return dated.select(*COLUMNS, WHOLE)


def _point_files(
    store_url: str, source: SourceRange, inputs: RollupInput, revision: RollupRevision | None
) -> list[DataFile]:
    return select_point_files(
        inputs.files,
        source,
        lanes=inputs.lanes.most,
        known=inputs.known_files(store_url),
        hours=revision.intact_hours() if revision is not None else (),
    )


def _points(
    spark: Session,
    store_url: str,
    source: SourceRange,
    inputs: RollupInput,
    files: Sequence[DataFile],
) -> Any:  # noqa: ANN401
    if not files:
        return None
    rows = without_deleted(read_files(spark, store_url, METRICS, files), inputs.deletes_of(files))
    lane = _LANE.format(lanes=inputs.lanes.sql("queue_sequence"))
    laned = rows.selectExpr("*", f"{lane} AS lane")
    reached = laned.where(lanes_condition(replace(source, after={}), inputs.lanes.most))
    return reached.selectExpr("*", f"{lanes_condition(source, inputs.lanes.most)} AS fresh")


def run_rollup(spark: Session, store_url: str, *, stop: StopCheck = never_stop) -> RollupReport:
    """Roll up every committed point that is in no source range yet."""
    report, failpoint = RollupReport(), read_failpoint()
    reader = RollupInputReader(store_url=store_url)
    for _ in range(SOURCE_RANGES_MAX):
        stop()
        table = open_or_create_table(store_url, ROLLUPS)
        done = read_transaction(table, ROLLUP_APP) or 0
        source = reader.next_range(done)
        if source is None:
            break
        inputs = reader.read_input(source)
        revision = plan_revision(spark, store_url, inputs.new_deletes, inputs.retention_cut_ns)
        read = _point_files(store_url, source, inputs, revision)
        report.files_read += len(read)
        files = _write_rows(spark, store_url, source, inputs, revision, read)
        failpoint.reach("rollup_after_write")
        if revision is not None:
            asyncio.run(_delete_chunks(store_url, source, revision))
            revision.close()
        try:
            _commit(store_url, source, files, revision.files if revision is not None else ())
        except CommitConflict as error:
            # Another owner committed the range, or a merge replaced files of the revision.
            _log.info("rollup_commit_lost", source_range=source.number, reason=str(error))
            continue
        failpoint.reach("rollup_after_commit")
        report.covers += 1
        report.rows += sum(file.stats["numRecords"] for file in files)
        report.revised += revision is not None
    return report


async def _delete_chunks(store_url: str, source: SourceRange, revision: RollupRevision) -> None:
    # Before the commit: if the process stops in between, the next owner repeats the deletion.
    async with open_store(store_url) as store:
        dropped = await delete_superseded_chunks(store, source, revision.chunks())
    _log.info("rollup_hours_revised", source_range=source.number, chunks_dropped=dropped)


def _write_rows(
    spark: Session,
    store_url: str,
    source: SourceRange,
    inputs: RollupInput,
    revision: RollupRevision | None,
    read: Sequence[DataFile],
) -> list[WrittenFile]:
    rows = _all_rows(spark, store_url, source, inputs, revision, read)
    if rows is None:
        return []
    order = (WINDOW_DATE, "window", "name")
    ordered = rows.repartition(TASKS, *order).sortWithinPartitions(
        *order, "window_start", "agent_id"
    )

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # By position, because Spark renames a grouped map column when it rewrites the plan.
        found = [batch.rename_columns([*COLUMNS, WHOLE]) for batch in batches]
        if found:
            asyncio.run(put_chunks(store_url, source, pa.Table.from_batches(found)))
        plain = [batch.drop_columns([WHOLE]) for batch in found]
        results = [encode_result(file) for file in write_ordered(store_url, ROLLUPS, plain)]
        yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], names=["result"])

    bodies = ordered.mapInArrow(write, "result binary").toArrow().column("result").to_pylist()
    results = [decode_result(body) for body in bodies]
    return [result for result in results if isinstance(result, WrittenFile)]


def _all_rows(
    spark: Session,
    store_url: str,
    source: SourceRange,
    inputs: RollupInput,
    revision: RollupRevision | None,
    read: Sequence[DataFile],
) -> Any:  # noqa: ANN401 - a DataFrame
    points = _points(spark, store_url, source, inputs, read)
    if revision is None:
        return aggregate(points, source) if points is not None else None
    if points is None:
        return revision.rows
    return aggregate(points, source, revision.units).unionByName(revision.rows)


def _commit(
    store_url: str,
    source: SourceRange,
    files: Sequence[WrittenFile],
    replaced: Sequence[DataFile],
) -> None:
    """Append the rows of a source range and remove the replaced files, in one commit."""

    def transaction(opened: DeltaTable) -> Transaction:
        done = read_transaction(opened, ROLLUP_APP) or 0
        if done != source.number - 1:
            raise CommitConflict(opened.table_uri, f"it contains source range {done}")
        return Transaction(ROLLUP_APP, source.number)

    commit_from_state(store_url, ROLLUPS, replaced, files, data_change=True, advance=transaction)
