"""Merging the small files of the ledger and of the dead letters.

Each micro-batch commits one file per accepted hour, so an hour has many small files. After an hour
has ended they become one file with the same rows, ordered by identity. The driver does it: these
tables are small, and no row is dropped.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from sluice_lake.data_files import DataFile
from sluice_lake.tables import Table
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_spark.failpoints import FailPoint
from sluice_spark.file_merges import FileMerger, MergeResult, by_partition
from sluice_spark.file_selection import small_files
from sluice_spark.ledger import LedgerFiles
from sluice_spark.settings import CompactSettings
from sluice_spark.stopping import StopCheck
from sluice_spark.written_files import WrittenFile

MERGED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Files that are merged into one, at most: about 150 000 rows, all of which are in memory."""
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

    Args:
        store_url: The store.
        table: A table that is partitioned by the accepted hour.
        settings: The settings of the run.
        now_ns: The store's clock.
        failpoint: Where a test interrupts the run.
        stop: Raises an error between two merges if the run must stop.

    Raises:
        JobStopped: `stop` raised it.
        TableRefused: The table has another schema or a refused feature.
    """
    merger = FileMerger(
        store_url=store_url, table=table, data_change=False, failpoint=failpoint, stop=stop
    )

    def merge(files: Sequence[DataFile]) -> list[WrittenFile]:
        name = f"part-{SystemIds().ulid().lower()}"
        writer = LedgerFiles(store_url=store_url, name=name, now_ns=SystemClock().now_ns())
        return [writer.merge(table, files)]

    return merger.run(settings, lambda files: plan_hour_merges(files, settings, now_ns), merge)
