"""Merging the small files of the ledger and of the dead letters.

Each micro-batch commits one file per accepted hour, so an hour has many small files. After an hour
has ended they become one file with the same rows, ordered by identity. The driver does it: these
tables are small, and no row is dropped. Replaced files, and those of an interrupted merge, are
removed by the vacuum of the table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import find_table
from sluice_lake.errors import CommitConflict
from sluice_lake.tables import Table
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_spark.commits import replace_files
from sluice_spark.failpoints import FailPoint
from sluice_spark.file_selection import small_files
from sluice_spark.ledger import LedgerFiles
from sluice_spark.settings import CompactSettings
from sluice_spark.stopping import StopCheck

_log = structlog.get_logger("sluice.compact")

MERGED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Files that are merged into one, at most: about 150 000 rows, all of which are in memory."""
HOUR_S: Final = 3600


@dataclass(slots=True, kw_only=True)
class HourMerge:
    """The result of one run.

    Attributes:
        files: Files that were replaced.
        conflicts: Merges that were abandoned because another writer had replaced the files.
    """

    files: int = 0
    conflicts: int = 0


def plan_hour_merges(
    files: Sequence[DataFile], settings: CompactSettings, now_ns: int
) -> Iterator[list[DataFile]]:
    """Yield the files of each merge: small ones of one hour that has ended."""
    target_bytes = min(settings.target_bytes, MERGED_BYTES_MAX)
    by_hour: dict[str, list[DataFile]] = {}
    for file in files:
        if settings.open_partitions or _has_ended(file.partition, now_ns, settings.grace_s):
            by_hour.setdefault(file.partition, []).append(file)
    for _, found in sorted(by_hour.items()):
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
) -> HourMerge:
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
    done = HourMerge()
    opened = find_table(store_url, table, for_writing=True)
    if opened is None or settings.dry_run:
        return done
    for files in plan_hour_merges(list_files(opened, table), settings, now_ns):
        stop()
        name = f"part-{SystemIds().ulid().lower()}"
        writer = LedgerFiles(store_url=store_url, name=name, now_ns=SystemClock().now_ns())
        added = writer.merge(table, files)
        failpoint.reach("compact_after_write")
        try:
            replace_files(store_url, table, files, [added], data_change=False)
        except CommitConflict as error:
            done.conflicts += 1
            _log.info("merge_abandoned", table=table.name, reason=str(error))
            continue
        done.files += len(files)
        failpoint.reach("compact_after_commit")
    return done
