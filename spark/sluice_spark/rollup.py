"""Rollups of metrics: count, sum, min, max, last and a quantile sketch per window and series.

Points are taken cover by cover (`covers`): each is aggregated by Spark, its chunks are created once
under `rollup/v1/`, and its rows are appended to the table `rollups` in one commit whose transaction
version is the cover's number. Sketches are Apache DataSketches' KLL, as Spark makes them; rows of
one series and window are merged by `kll_merge_agg_double`. NaN is left out.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import structlog
import zstandard
from deltalake import CommitProperties, DeltaTable, Transaction

from sluice_protocol.errors import OutcomeUnknown
from sluice_protocol.keys import rollup_key
from sluice_protocol.lake import METRICS, ROLLUPS, WINDOW_DATE
from sluice_protocol.outcomes import Applied, Exists
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_spark.compact import read_horizon
from sluice_spark.covers import Cover, next_cover, read_cover
from sluice_spark.errors import CommitConflict
from sluice_spark.facts import FileFact, decode_fact, encode_fact
from sluice_spark.housekeeping import any_condition
from sluice_spark.inventory import list_files
from sluice_spark.microbatch import open_snapshot
from sluice_spark.rewriting import read_files, write_ordered
from sluice_spark.schemas import arrow_schema
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
TRIES_MAX: Final = 5

_log = structlog.get_logger("sluice.rollup")

_HASH: Final = "CAST(conv(substr(sha2(agent_id, 256), 1, 16), 16, 10) AS DECIMAL(20, 0))"
_LANE: Final = f"CAST({_HASH} % {{lanes}} AS INT)"
_COLUMNS: Final = [column.name for column in ROLLUPS.columns]
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
        rows: Rows that it appended to the table.
    """

    covers: int = 0
    rows: int = 0


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


def aggregate(points: Any, cover: Cover) -> Any:  # noqa: ANN401 - pyspark's DataFrame
    """Gives the rows of `rollups` for points; a pure function of a DataFrame."""
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
    )
    rows = keyed.groupBy(*_SERIES).agg(*(expr(figure) for figure in _FIGURES))
    dated = rows.selectExpr(
        "*", f"CAST({cover.number} AS BIGINT) AS cover", f"to_date(window_start) AS {WINDOW_DATE}"
    )
    return dated.select(*_COLUMNS)


def _points(spark: Session, store_url: str, cover: Cover) -> Any:  # noqa: ANN401
    async def read() -> tuple[int, str | None]:
        async with open_store(store_url) as store:
            deletes = (await read_horizon(store)).deletes
            mine = [record for record in deletes if record.kind == "metrics"]
            return (await read_authority(store)).lanes, any_condition(mine)

    lanes, gone = asyncio.run(read())
    files = list_files(open_table(store_url, METRICS), METRICS)
    if not files:
        return None
    rows = read_files(spark, store_url, METRICS, files)
    if gone is not None:
        rows = rows.where(f"NOT {gone}")
    laned = rows.selectExpr("*", f"{_LANE.format(lanes=lanes)} AS lane")
    return laned.where(lanes_condition(cover, lanes))


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
        facts = _write(spark, store_url, cover)
        try:
            _commit(table, cover, facts)
        except CommitConflict as error:
            _log.info("cover finished by another owner", cover=cover.number, reason=str(error))
            continue
        report.covers += 1
        report.rows += sum(fact.stats["numRecords"] for fact in facts)
    return report


async def _next(store_url: str, done: int) -> Cover | None:
    snapshot = open_snapshot(store_url)
    async with open_store(store_url) as store:
        lanes = range((await read_authority(store)).lanes)
        positions = snapshot.positions(list(lanes))
        ends = {lane: positions.acknowledgeable(lane) for lane in lanes}
        previous = await read_cover(store, done) if done else None
        return await next_cover(store, previous, ends)


def _write(spark: Session, store_url: str, cover: Cover) -> list[FileFact]:
    points = _points(spark, store_url, cover)
    if points is None:
        return []
    place = (WINDOW_DATE, "window", "name")
    rows = aggregate(points, cover).repartition(TASKS, *place)
    ordered = rows.sortWithinPartitions(*place, "window_start", "agent_id")

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # By position: Spark names a grouped map column after its own rewriting of the plan.
        found = [batch.rename_columns(_COLUMNS) for batch in batches]
        if found:
            asyncio.run(put_chunks(store_url, cover, pa.Table.from_batches(found)))
        facts = [encode_fact(fact) for fact in write_ordered(store_url, ROLLUPS, found)]
        yield pa.RecordBatch.from_arrays([pa.array(facts, pa.binary())], names=["fact"])

    bodies = ordered.mapInArrow(write, "fact binary").toArrow().column("fact").to_pylist()
    facts = [decode_fact(body) for body in bodies]
    return [fact for fact in facts if isinstance(fact, FileFact)]


async def put_chunks(store_url: str, cover: Cover, rows: pa.Table) -> None:
    """Creates a chunk per window, hour and metric; one that stands already is as good.

    Raises:
        OutcomeUnknown: The bounds are spent.
        StoreError: The store did not answer.
    """
    async with open_store(store_url) as store:
        for key, body in encode_chunks(cover, rows):
            for _ in range(TRIES_MAX):
                if isinstance(await store.create(key, body), Applied | Exists):
                    break
            else:
                raise OutcomeUnknown("create", key, TRIES_MAX)


def encode_chunks(cover: Cover, rows: pa.Table) -> Iterator[tuple[ObjectKey, bytes]]:
    """Gives the chunks of rows: each the zstd of an Arrow IPC stream of the table's columns."""
    stored = rows.select([column.name for column in ROLLUPS.stored_columns])
    plain = stored.cast(arrow_schema(ROLLUPS, partition=False))
    places: dict[tuple[str, str, int], list[int]] = {}
    names = plain.column("name").to_pylist()
    windows = plain.column("window").to_pylist()
    for number, start in enumerate(plain.column("window_start").to_pylist()):
        place = (windows[number], names[number], _hour_ns(start))
        places.setdefault(place, []).append(number)
    for (window, name, hour_ns), numbers in places.items():
        key = rollup_key(window, name, UnixNs(hour_ns), f"{cover.number:020d}")
        yield key, _ipc(plain.take(numbers))


def _hour_ns(start: datetime) -> int:
    seconds = int(start.astimezone(UTC).timestamp())
    return (seconds - seconds % 3600) * NS_PER_S


def _ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return zstandard.ZstdCompressor(level=3).compress(sink.getvalue().to_pybytes())


def _commit(table: DeltaTable, cover: Cover, facts: Sequence[FileFact]) -> None:
    """Appends a cover's rows from the state that lacks it; a stale state is refused by Delta."""
    properties = CommitProperties(app_transactions=[Transaction(ROLLUP_APP, cover.number)])
    with translated(TableLocation(uri=table.table_uri)):
        table.create_write_transaction(
            [add_action(ROLLUPS, fact, data_change=True) for fact in facts],
            "append",
            delta_schema(ROLLUPS),
            [WINDOW_DATE],
            commit_properties=properties,
        )
