"""Removal of repetitions, date by date, and the record of the files that were examined.

    files that no run has examined --> their dates, and those that their rows may reach
    date --> repetitions --> new files --> proof --> commit --> examined through this date

A crash at any step changes nothing that a repeated run does not complete: the commit replaces the
files of a date together, and the dates behind the last record are examined again.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import Any, Final

import structlog
from deltalake import Transaction

from sluice_lake.data_files import DataFile
from sluice_lake.delta import find_table, list_paths_at
from sluice_lake.errors import CommitConflict
from sluice_lake.log_errors import read_transaction
from sluice_lake.tables import RECORD_TABLES, Table
from sluice_protocol.errors import SluiceError
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S
from sluice_spark.applied_deletes import FileDeletes
from sluice_spark.commits import commit_from_state
from sluice_spark.delete_matches import without_deleted
from sluice_spark.failpoints import FailPoint
from sluice_spark.repetitions import KEY, ROW_ID, RepetitionRules, keyed, removed_rows
from sluice_spark.rewrite import FileRewrite, files_with_rows, read_files
from sluice_spark.session import Session
from sluice_spark.written_files import WrittenFile

_log = structlog.get_logger("sluice.compact")

_DATE_BITS: Final = 22
"""Bits of the ordinal of a date in a transaction version, above which is the table's version."""


class RepetitionsNotProved(SluiceError):
    """New files do not have exactly the rows that must remain; nothing was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What earlier runs have examined: the files of a version of the table, through a date.

    Attributes:
        version: The version.
        through: The last date.
        paths: The files of that version.
    """

    version: int
    through: str
    paths: Collection[str]

    def includes(self, file: DataFile) -> bool:
        """Return True if a file was examined."""
        return file.partition <= self.through and file.path in self.paths


def encode_examined(version: int, through: str) -> int:
    """Return a version of the table and a date as the version of a transaction."""
    return version << _DATE_BITS | date.fromisoformat(through).toordinal()


def parse_examined(encoded: int) -> tuple[int, str]:
    """Return the version of the table and the date of a transaction's version."""
    ordinal = encoded & ((1 << _DATE_BITS) - 1)
    return encoded >> _DATE_BITS, date.fromordinal(ordinal).isoformat()


def dates_to_examine(
    files: Sequence[DataFile], examined: Examined | None, rules: RepetitionRules
) -> list[str]:
    """Return the dates with files that were not examined, and those that these files may reach."""
    new = {file.partition for file in files if examined is None or not examined.includes(file)}
    reached = {
        (date.fromisoformat(one) + timedelta(days=ahead)).isoformat()
        for one in new
        for ahead in range(rules.window_days + 1)
    }
    return sorted(reached.intersection(file.partition for file in files))


def witness_files(
    files: Sequence[DataFile], partition: str, rules: RepetitionRules
) -> list[DataFile]:
    """Return the files of earlier dates that may contain witnesses of rows of a date."""
    starts = [file.accepted_at.range_ns for file in files if file.partition == partition]
    known = [one[0] for one in starts if one is not None]
    edge_ns = min(known) - rules.window_s * NS_PER_S if len(known) == len(starts) else None
    before = rules.dates_before(partition)
    return [
        file
        for file in files
        if file.partition in before
        and (
            edge_ns is None
            or file.accepted_at.range_ns is None
            or file.accepted_at.range_ns[1] >= edge_ns
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionRemover:
    """Removes the repetitions of one record table.

    Attributes:
        spark: The session.
        store_url: The store.
        rules: What is compared.
        deletes: The deletes that files still need. Rows that they hide are no witnesses.
        treated: Paths of files of which every deleted row was removed.
        dry_run: Count only.
        failpoint: Where a test interrupts the run.
        replace: Rewrites files; returns False if another writer has replaced them.
    """

    spark: Session
    store_url: str
    rules: RepetitionRules
    deletes: FileDeletes
    treated: Collection[str]
    dry_run: bool
    failpoint: FailPoint
    replace: Callable[[Table, FileRewrite], bool]

    @property
    def table(self) -> Table:
        """The table."""
        return RECORD_TABLES[self.rules.kind]

    def run(self, list_selectable: Callable[[], Sequence[DataFile]]) -> int:
        """Examine what no earlier run has examined; return the number of removed rows.

        Args:
            list_selectable: Lists the files that may be rewritten.

        Raises:
            RepetitionsNotProved: New files do not have the rows that must remain.
            TableRefused: The table has another schema or a refused feature.
        """
        opened = find_table(self.store_url, self.table, for_writing=True)
        if opened is None:
            return 0
        version, files = opened.version(), list_selectable()
        examined = self._examined(read_transaction(opened, self._app))
        removed = 0
        for day in dates_to_examine(files, examined, self.rules):
            found = self._examine(list_selectable(), day)
            if found is None:
                return removed
            removed += found
            self.failpoint.reach("repetitions_before_record")
            if examined is None or day >= examined.through:
                self._record(version, day)
        return removed

    @property
    def _app(self) -> str:
        return f"sluice-repetitions/{self.rules.digest}"

    def _examined(self, encoded: int | None) -> Examined | None:
        if encoded is None:
            return None
        version, through = parse_examined(encoded)
        paths = list_paths_at(self.store_url, self.table, version, {})
        # Without its log, which expires, every file is examined again.
        return None if paths is None else Examined(version=version, through=through, paths=paths)

    def _record(self, version: int, through: str) -> None:
        if self.dry_run:
            return
        done = Transaction(self._app, encode_examined(version, through))
        try:
            commit_from_state(
                self.store_url, self.table, (), (), data_change=False, advance=lambda _: done
            )
        except CommitConflict:
            _log.info("examined_files_not_recorded", table=self.table.name, through=through)

    def _examine(self, files: Sequence[DataFile], day: str) -> int | None:
        """Remove the repetitions of a date; return None if other files replaced these meanwhile."""
        here = [file for file in files if file.partition == day]
        if not here:  # retention has removed them meanwhile
            return 0
        before = witness_files(files, day, self.rules)
        rows = keyed(
            read_files(self.spark, self.store_url, self.table, [*before, *here]), self.rules
        )
        visible = without_deleted(rows, self._deletes_of([*before, *here]))
        removed = removed_rows(visible, self.rules, day).persist()
        try:
            count = int(removed.count())
            if not count or self.dry_run:
                return count
            touched = files_with_rows(here, removed.select("file").distinct())
            names = {file.path for file in touched}
            others = [file for file in (*before, *here) if file.path not in names]
            plan = FileRewrite(
                files=tuple(touched),
                keep=partial(_without, self.rules, removed),
                check=partial(self._prove, touched, others, removed, count),
                needed=tuple(others),
            )
            if not self.replace(self.table, plan):
                return None
        finally:
            removed.unpersist()
        _log.info("repetitions_removed", table=self.table.name, date=day, rows=count)
        return count

    def _deletes_of(self, files: Sequence[DataFile]) -> list[DeleteRecord]:
        untreated = (file for file in files if file.path not in self.treated)
        found = (record for file in untreated for record in self.deletes.touching(file))
        return list({record.delete_id: record for record in found}.values())

    def _prove(
        self,
        replaced: Sequence[DataFile],
        others: Sequence[DataFile],
        removed: Any,  # noqa: ANN401 - a DataFrame
        count: int,
        written: Sequence[WrittenFile],
    ) -> None:
        """Check new files before they are committed.

        They have exactly `count` rows less, and the witness of each removed row is in a file that
        stays, with the same key.

        Raises:
            RepetitionsNotProved: One of this is wrong.
        """
        new = [
            DataFile(path=file.path, partition=file.partition, size_bytes=file.size_bytes)
            for file in written
        ]
        old_rows = read_files(self.spark, self.store_url, self.table, replaced).count()
        lost = old_rows - sum(file.stats["numRecords"] for file in written)
        remaining = keyed(
            read_files(self.spark, self.store_url, self.table, [*new, *others]), self.rules
        )
        witnesses = removed.selectExpr(
            *(f"witness_{name} AS {name}" for name in ("agent_id", "boot_id", "seq")), KEY
        )
        orphans = witnesses.join(remaining.select(*ROW_ID), list(ROW_ID), "left_anti").count()
        if lost != count or orphans:
            _log.error(
                "repetitions_not_proved",
                table=self.table.name,
                planned=count,
                lost=lost,
                without_witness=orphans,
            )
            raise RepetitionsNotProved(
                f"cannot remove repetitions: {lost} instead of {count} rows would go, and {orphans}"
                f" have no witness; nothing was changed, table=`{self.table.name}`"
            )


def _without(rules: RepetitionRules, removed: Any, rows: Any) -> Any:  # noqa: ANN401 - DataFrames
    ids = removed.select(*ROW_ID).distinct()
    return keyed(rows, rules).join(ids, list(ROW_ID), "left_anti").drop(KEY)
