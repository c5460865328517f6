"""Merging small files of tables whose ended partitions get no rows, one commit a group of files.

A commit replaces the files only if all of them are still in the table (ADR 32), so a concurrent
revision by deletes (ADR 35) loses nothing and doubles nothing. Replaced files, and those of an
interrupted merge, are removed by the vacuum of the table.

Each micro-batch commits one file of the ledger per accepted hour. After an hour has ended its
files become one with the same rows, ordered by identity; so do those of the dead letters. The
driver does it, because these tables are small. Each run of the rollup job adds files to every date
for which it has points. After a date has ended its small files become one, in which each series
has one row per window. The values that readers compute do not change: they merge the rows of a
series and window in the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import structlog

from sluice_lake.data_files import DataFile, list_files, total_bytes
from sluice_lake.delta import find_table
from sluice_lake.errors import CommitConflict
from sluice_lake.tables import ROLLUPS, WINDOW_DATE, Table
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_spark.commits import replace_files
from sluice_spark.compaction.file_selection import is_closed, small_files
from sluice_spark.compaction.rewrite import read_files, write_ordered
from sluice_spark.errors import StopCheck
from sluice_spark.failpoints import FailPoint
from sluice_spark.ingest.ledger import LedgerFiles
from sluice_spark.session import Session
from sluice_spark.settings import CompactSettings
from sluice_spark.written_files import WrittenFile, decode_result, encode_result

_log = structlog.get_logger("sluice.compact")


@dataclass(slots=True, kw_only=True)
class MergeResult:
    """The result of one run.

    Attributes:
        conflicts: Merges abandoned because another writer had replaced the files.
    """

    files: int = 0
    conflicts: int = 0


def by_partition(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Yield the files of each partition, in the order of the partitions."""
    found: dict[str, list[DataFile]] = {}
    for file in files:
        found.setdefault(file.partition, []).append(file)
    for _, some in sorted(found.items()):
        yield some


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMerger:
    """Merges the files of one table.

    Attributes:
        data_change: Whether the merged rows differ from the rows of the files.
        stop: Raises an error between two merges if the run must stop.
    """

    store_url: str
    table: Table
    data_change: bool
    failpoint: FailPoint
    stop: StopCheck

    def run(
        self,
        settings: CompactSettings,
        plan: Callable[[Sequence[DataFile]], Iterable[Sequence[DataFile]]],
        merge: Callable[[Sequence[DataFile]], Sequence[WrittenFile]],
    ) -> MergeResult:
        """Merge every group of files that `plan` yields, one commit a group.

        A dry run merges nothing.
        """
        done = MergeResult()
        opened = find_table(self.store_url, self.table, for_writing=True)
        if opened is None or settings.dry_run:
            return done
        for files in plan(list_files(opened, self.table)):
            self.stop()
            added = merge(files)
            self.failpoint.reach("compact_after_write")
            try:
                replace_files(
                    self.store_url, self.table, files, added, data_change=self.data_change
                )
            except CommitConflict as error:
                done.conflicts += 1
                _log.info("merge_abandoned", table=self.table.name, reason=str(error))
                continue
            done.files += len(files)
            self.failpoint.reach("compact_after_commit")
        return done


MERGED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit of the files merged into one: about 150 000 rows, which are in memory together."""
HOUR_S: Final = 3600


def plan_hour_merges(
    files: Sequence[DataFile], settings: CompactSettings, now_ns: int
) -> Iterator[list[DataFile]]:
    """Yield the files of each merge: small ones of one hour that has ended."""
    target_bytes = min(settings.target_bytes, MERGED_BYTES_MAX)
    ended = (
        file
        for file in files
        if settings.open_partitions or _has_ended(file.partition, now_ns, settings.grace_s)
    )
    for found in by_partition(ended):
        together: list[DataFile] = []
        for file in small_files(found, target_bytes):
            if together and sum(one.size_bytes for one in (*together, file)) > target_bytes:
                yield together
                together = []
            together.append(file)
        if len(together) > 1:
            yield together


def _has_ended(hour: str, now_ns: int, grace_s: int) -> bool:
    """Return True if an hour, `YYYY-MM-DDTHH` in UTC, ended more than the grace period ago."""
    begins = datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC)
    return int(begins.timestamp()) + HOUR_S + grace_s <= now_ns // NS_PER_S


def merge_hours(
    store_url: str,
    table: Table,
    settings: CompactSettings,
    now_ns: int,
    *,
    failpoint: FailPoint,
    stop: StopCheck,
) -> MergeResult:
    """Merge the small files of each hour that has ended, one commit an hour.

    `now_ns` is the store's clock; `stop` raises an error between two merges if the run must stop.
    """
    merger = FileMerger(
        store_url=store_url, table=table, data_change=False, failpoint=failpoint, stop=stop
    )

    def merge(files: Sequence[DataFile]) -> list[WrittenFile]:
        name = f"part-{SystemIds().ulid().lower()}"
        writer = LedgerFiles(store_url=store_url, name=name, now_ns=SystemClock().now_ns())
        return [writer.merge(table, files)]

    return merger.run(settings, lambda files: plan_hour_merges(files, settings, now_ns), merge)


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
    """Merges the small files of `rollups` in one store."""

    spark: Session
    store_url: str
    settings: CompactSettings
    failpoint: FailPoint
    stop: StopCheck

    def run(self, now_ns: int) -> MergeResult:
        """Merge the files of every date that has ended, one commit a date."""
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
