"""Rows that a client sent twice in other batches, their removal, and sequences sent twice.

A client that cuts its batches again after a lost response sends requests with other identities.
Their records are recognised by what they contain. A row is a repetition if all of this is true:

- it has the same key as a row that stays, its witness. For logs the key is the sender, the body,
  the severity and the configured attributes; for metrics sender, series, type, time and value;
- the witness was accepted earlier, at most `window_us` before;
- both came with different requests: a request that contains a record twice means it twice.

The witness is the first row of its key in the window, so a row never depends on a row that is
removed. Source: ADR 5.

    files that no run has examined --> their dates, and those that their rows may reach
    date --> repetitions --> new files --> proof --> commit --> examined through this date

A crash at any step changes nothing that a repeated run does not complete: the commit replaces the
files of a date together, and the dates behind the last record are examined again.

Sequence ranges that several batches contain are found in the ledger. It has a row for each batch
that was ever ingested, and compaction can only drop rows that the record tables contain. Each batch
is in the partition of its accepted date, and in the ledger in an hour of that date. A run therefore
reads the hours of the dates that have record files, and only the columns of an identity.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import structlog
from deltalake import Transaction

from sluice_lake.data_files import DataFile, list_files, list_partitions
from sluice_lake.delta import find_table, list_paths_at
from sluice_lake.errors import CommitConflict, read_transaction
from sluice_lake.tables import BATCHES, RECORD_TABLES, Table
from sluice_protocol.errors import SluiceError
from sluice_protocol.fields import Kind
from sluice_protocol.identity import DOOR_AGENT_PREFIX, is_single_request
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S
from sluice_spark.commits import commit_from_state
from sluice_spark.compaction.delete_matches import sql_literal, without_deleted
from sluice_spark.compaction.deleted_rows import FileDeletes
from sluice_spark.compaction.file_selection import SequenceOverlap
from sluice_spark.compaction.rewrite import FileRewrite, files_with_rows, read_files
from sluice_spark.failpoints import FailPoint
from sluice_spark.session import Session
from sluice_spark.written_files import WrittenFile

KEY: Final = "repetition_key"
"""The column with the digest of what two records must have in common; null: never compared."""
ROW_ID: Final = ("agent_id", "boot_id", "seq", KEY)
"""What names a row: overlapping batches may contain one sequence number twice."""
REMOVED_SCHEMA: Final = (
    "agent_id string, boot_id string, seq bigint, repetition_key string, data_file string,"
    " witness_agent_id string, witness_boot_id string, witness_seq bigint"
)
_WHOLE_BOOT: Final = -1
_CHUNK_ROWS: Final = 10_000
_DAY_US: Final = 86_400_000_000
_US_PER_S: Final = 1_000_000
_SENDER: Final = (
    f"CASE WHEN startswith(agent_id, '{DOOR_AGENT_PREFIX}')"
    " THEN regexp_replace(agent_id, ':[^:]*$', '') ELSE agent_id END"
)
"""The lanes and requests of a principal are one sender."""
_LABELS: Final = (
    "array_sort(concat(coalesce(map_entries(attributes), array()),"
    " transform(coalesce(map_entries(resource), array()), pair -> named_struct('key',"
    " CASE WHEN coalesce(map_contains_key(attributes, pair.key), false)"
    " THEN concat('resource.', pair.key) ELSE pair.key END, 'value', pair.value))))"
)
"""The pairs of a series; a combined batch has pairs in the attributes that others have in the
resource.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionRules:
    """Which records are compared.

    Attributes:
        attributes: For logs: the attributes that name a record. Records without one of them are not
            compared.
    """

    kind: Kind
    attributes: tuple[str, ...]
    window_s: int

    @property
    def window_us(self) -> int:
        """The window in microseconds, the unit of `accepted_at`."""
        return self.window_s * _US_PER_S

    @property
    def window_days(self) -> int:
        """The dates before that of a row that the window reaches."""
        return -(-self.window_us // _DAY_US)

    @property
    def digest(self) -> str:
        """The name of these rules: other rules examine all files again."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    @property
    def key(self) -> str:
        """The SQL expression of `KEY`: null for a row that is not compared."""
        return self._metric_key() if self.kind == "metrics" else self._log_key()

    def _log_key(self) -> str:
        values = [
            f"coalesce(attributes[{name}], resource[{name}])"
            for name in map(sql_literal, self.attributes)
        ]
        parts = [_SENDER, "body", "cast(coalesce(severity, 0) AS string)", *values]
        present = " AND ".join(f"{value} IS NOT NULL" for value in values)
        return f"CASE WHEN {present} THEN sha2(to_json(array({', '.join(parts)})), 256) END"

    def _metric_key(self) -> str:
        parts = (
            f"'sender', {_SENDER}, 'name', name, 'type', type, 'ts_ns', ts_ns,"
            f" 'value', cast(value AS string), 'labels', {_LABELS}"
        )
        # The text of a NaN does not show its bits, and so not whether it is a stale marker.
        return f"CASE WHEN NOT isnan(value) THEN sha2(to_json(named_struct({parts})), 256) END"

    def dates_before(self, partition: str) -> list[str]:
        """Return the dates before a date whose rows may be witnesses of its rows."""
        day = date.fromisoformat(partition)
        return [(day - timedelta(days=back)).isoformat() for back in range(self.window_days, 0, -1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRow:
    """A row that shares its key with another row.

    Attributes:
        key: Digest of what repetitions have in common.
        may_go: It is in the date that is examined.
    """

    key: str
    accepted_us: int
    agent_id: str
    boot_id: str
    seq: int
    data_file: str
    may_go: bool

    @property
    def request(self) -> tuple[str, str, int]:
        """The request that contained it, as far as its identity shows it.

        A large request of a door is one boot. Other boots contain many requests, so each of their
        rows counts as a separate one.
        """
        is_request = is_single_request(self.agent_id, self.boot_id)
        return (self.agent_id, self.boot_id, _WHOLE_BOOT if is_request else self.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """A row to remove, and the row that stays."""

    row: KeyedRow
    witness: KeyedRow


ORDER: Final = (KEY, "accepted_us", "agent_id", "boot_id", "seq")
"""The order in which `find_repetitions` reads rows; it is the same in each run."""


def find_repetitions(rows: Iterable[KeyedRow], window_us: int) -> Iterator[Repetition]:
    """Yield the repetitions among rows in the order of `ORDER`; pure, and in constant memory."""
    witness: KeyedRow | None = None
    for row in rows:
        if (
            witness is None
            or row.key != witness.key
            or row.accepted_us - witness.accepted_us > window_us
        ):
            witness = row
        elif row.request != witness.request and row.may_go:
            yield Repetition(row=row, witness=witness)


def keyed(rows: Any, rules: RepetitionRules) -> Any:  # noqa: ANN401 - DataFrames
    """Return the rows of a record table with the column `KEY`."""
    return rows.selectExpr("*", f"{rules.key} AS {KEY}")


def removed_rows(rows: Any, rules: RepetitionRules, partition: str) -> Any:  # noqa: ANN401
    """Return a DataFrame of `REMOVED_SCHEMA`: the repetitions in the date `partition`.

    `rows` are those of the date and of the dates before it, as `keyed` returns them.
    """
    columns = (
        KEY,
        "unix_micros(accepted_at) AS accepted_us",
        *("agent_id", "boot_id", "seq", "data_file"),
        f"to_date(accepted_at) = date'{partition}' AS may_go",
    )
    narrow = rows.where(f"{KEY} IS NOT NULL").selectExpr(*columns)
    counted = narrow.selectExpr("*", f"count(*) OVER (PARTITION BY {KEY}) AS times")
    several = counted.where("times > 1").drop("times")
    # The partitioning of the window is kept: all rows of a key are in one partition.
    ordered = several.sortWithinPartitions(*ORDER)
    return ordered.mapInArrow(_search(rules.window_us), REMOVED_SCHEMA)


def _search(window_us: int) -> Any:  # noqa: ANN401 - the function for `mapInArrow`
    def search(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = find_repetitions(_rows(batches), window_us)
        while chunk := [one for _, one in zip(range(_CHUNK_ROWS), found, strict=False)]:
            yield _encode(chunk)

    return search


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[KeyedRow]:
    for batch in batches:
        for row in batch.to_pylist():
            key = row.pop(KEY)
            yield KeyedRow(key=key, **row)


def _encode(found: Sequence[Repetition]) -> pa.RecordBatch:
    texts: dict[str, list[str]] = {
        "agent_id": [one.row.agent_id for one in found],
        "boot_id": [one.row.boot_id for one in found],
        KEY: [one.row.key for one in found],
        "data_file": [one.row.data_file for one in found],
        "witness_agent_id": [one.witness.agent_id for one in found],
        "witness_boot_id": [one.witness.boot_id for one in found],
    }
    numbers = {
        "seq": [one.row.seq for one in found],
        "witness_seq": [one.witness.seq for one in found],
    }
    arrays = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    arrays |= {name: pa.array(values, pa.int64()) for name, values in numbers.items()}
    names = [column.split()[0] for column in REMOVED_SCHEMA.split(", ")]
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names)


OVERLAPS_MAX: Final = 10_000
"""Maximum number of overlapping ranges that a run processes."""


_IDENTITY: Final = ("kind", "agent_id", "boot_id", "seq_start", "seq_end")
_IDENTITIES: Final = replace(
    BATCHES,
    columns=tuple(
        column
        for column in BATCHES.columns
        if column.name in (*_IDENTITY, BATCHES.partition_column)
    ),
)
"""The ledger without the other columns."""


def files_of_dates(files: Sequence[DataFile], dates: Collection[str]) -> list[DataFile]:
    """Return the files of a table by hour, `YYYY-MM-DDTHH`, whose hour is on one of the dates."""
    return [file for file in files if file.partition.partition("T")[0] in dates]


def _record_dates(store_url: str) -> set[str]:
    dates: set[str] = set()
    for table in RECORD_TABLES.values():
        opened = find_table(store_url, table)
        if opened is not None:
            dates |= list_partitions(opened, table)
    return dates


def find_overlaps(spark: Session, store_url: str) -> Mapping[str, list[SequenceOverlap]]:
    """Return sequence ranges that several batches of the ledger contain, by kind.

    Batches with different ranges have different identities, so both are accepted. Compaction drops
    the records that are in both. The ledger keeps their rows, so they are found again, until
    retention has removed the records of their dates. Of more than
    `OVERLAPS_MAX` ranges each call therefore returns a random selection: an order would return the
    same ones in every run, and the others would never be processed.
    """
    ledger = find_table(store_url, BATCHES, for_writing=True)
    if ledger is None:
        return {}
    files = files_of_dates(list_files(ledger, BATCHES), _record_dates(store_url))
    if not files:
        return {}
    rows = read_files(spark, store_url, _IDENTITIES, files)
    before = "PARTITION BY kind, agent_id, boot_id ORDER BY seq_start, seq_end DESC"
    seen = f"max(seq_end) OVER ({before} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    found = (
        rows.selectExpr(*_IDENTITY, f"{seen} AS reached")
        .where("seq_start <= reached")
        .selectExpr(
            *("kind", "agent_id", "boot_id", "seq_start", "least(seq_end, reached) AS seq_end"),
            "rand() AS place",
        )
        .orderBy("place")
        .limit(OVERLAPS_MAX)
        .collect()
    )
    by_kind: dict[str, list[SequenceOverlap]] = defaultdict(list)
    for row in found:
        by_kind[row.kind].append(
            SequenceOverlap(
                agent_id=row.agent_id,
                boot_id=row.boot_id,
                seq_start=row.seq_start,
                seq_end=row.seq_end,
            )
        )
    return by_kind


_log = structlog.get_logger("sluice.compact")

_DATE_BITS: Final = 22
"""Bits of the ordinal of a date in a transaction version, above which is the table's version."""


class RepetitionsNotProved(SluiceError):
    """New files do not have exactly the rows that must remain; nothing was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What earlier runs have examined: the files of a version of the table, up to a date."""

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
        deletes: Rows that these deletes hide are no witnesses.
        treated: Paths of files of which every deleted row was removed.
        replace: Returns False if another writer has replaced the files.
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

        Raise `RepetitionsNotProved` if new files do not have the rows that must remain.
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
            touched = files_with_rows(here, removed.select("data_file").distinct())
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
        """Check new files before they are committed, or raise `RepetitionsNotProved`.

        They have exactly `count` rows less, and the witness of each removed row is in a file that
        stays, with the same key.
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
