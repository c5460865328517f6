"""Merging the small files of the table `rollups`.

Each run of the rollup job adds files to every date for which it has points. After a date has ended,
its small files become one file, in which each series has one row per window. The values that
readers compute do not change: they merge the rows of a series and window in the same way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from sluice_lake.data_files import DataFile, total_bytes
from sluice_lake.tables import ROLLUPS, WINDOW_DATE
from sluice_spark.failpoints import FailPoint
from sluice_spark.file_merges import FileMerger, MergeResult, by_partition
from sluice_spark.file_selection import is_closed, small_files
from sluice_spark.rewrite import read_files, write_ordered
from sluice_spark.session import Session
from sluice_spark.settings import CompactSettings
from sluice_spark.stopping import StopCheck
from sluice_spark.written_files import WrittenFile, decode_result, encode_result

_SERIES: Final = ("window", "window_start", "name", "agent_id", "attributes")
_MERGED: Final = (
    "sum(count) AS count",
    "sum(sum) AS sum",
    "min(min) AS min",
    "max(max) AS max",
    "max_by(last, struct(last_ts_ns, last)) AS last",
    "max(last_ts_ns) AS last_ts_ns",
    "kll_merge_agg_double(sketch) AS sketch",
    "max(cover) AS cover",
)
_ORDER: Final = (WINDOW_DATE, "window", "name", "window_start", "agent_id")


def plan_rollup_merges(
    files: Sequence[DataFile], settings: CompactSettings, now_ns: int
) -> Iterator[list[DataFile]]:
    """Yield the files of each merge: the small ones of one date that has ended."""
    ended = (
        file
        for file in files
        if settings.open_partitions or is_closed(file.partition, now_ns, settings.grace_s)
    )
    for found in by_partition(ended):
        if small := small_files(found, settings.target_bytes):
            yield small


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupMerger:
    """Merges the files of one store.

    Attributes:
        spark: The session.
        store_url: The store.
        settings: The settings of the run.
        failpoint: Where a test interrupts the run.
        stop: Raises an error between two merges if the run must stop.
    """

    spark: Session
    store_url: str
    settings: CompactSettings
    failpoint: FailPoint
    stop: StopCheck

    def run(self, now_ns: int) -> MergeResult:
        """Merge the files of every date that has ended, one commit a date.

        Raises:
            JobStopped: `stop` raised it.
            TableRefused: The table has another schema or a refused feature.
        """
        merger = FileMerger(
            store_url=self.store_url,
            table=ROLLUPS,
            data_change=True,
            failpoint=self.failpoint,
            stop=self.stop,
        )
        return merger.run(
            self.settings,
            lambda files: plan_rollup_merges(files, self.settings, now_ns),
            self._write,
        )

    def _write(self, files: Sequence[DataFile]) -> list[WrittenFile]:
        count = max(1, -(-total_bytes(files) // self.settings.target_bytes))
        rows = merged_rows(read_files(self.spark, self.store_url, ROLLUPS, files))
        ordered = rows.repartitionByRange(count, *_ORDER).sortWithinPartitions(*_ORDER)
        found = ordered.mapInArrow(_file_writer(self.store_url), "result binary").toArrow()
        results = [decode_result(body) for body in found.column("result").to_pylist()]
        return [result for result in results if isinstance(result, WrittenFile)]


def merged_rows(rows: Any) -> Any:  # noqa: ANN401 - a DataFrame
    """Return one row per series and window."""
    # Imported here because most commands do not need pyspark.
    from pyspark.sql.functions import expr  # noqa: PLC0415

    merged = rows.groupBy(*_SERIES).agg(*(expr(figure) for figure in _MERGED))
    dated = merged.selectExpr("*", f"to_date(window_start) AS {WINDOW_DATE}")
    return dated.select(*(column.name for column in ROLLUPS.columns))


def _file_writer(store_url: str) -> Any:  # noqa: ANN401 - the function for `mapInArrow`
    names = [column.name for column in ROLLUPS.columns]

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # By position, because Spark renames a grouped map column when it rewrites the plan.
        renamed = (batch.rename_columns(names) for batch in batches)
        results = [encode_result(file) for file in write_ordered(store_url, ROLLUPS, renamed)]
        yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], names=["result"])

    return write
