"""Find and remove the records of an erasure in blobs, tables and what is derived from them.

Executors decode the blobs and read the data files again, so the result depends on nothing that was
reported before. Rows are removed as compaction removes deleted rows. Replaced files are deleted by
vacuum when no query or job that began before may still read them. A file that no commit names is
unfinished: its job may still commit it, or was killed. Such files are kept as long as compaction
keeps them.

The log of a table contains the least and the greatest value of some columns for each file, also
for files that were replaced. A checkpoint contains only the present files. So the entries before a
clean state are deleted after a checkpoint; the files that they name no longer exist.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileInfo, FileSelector

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import delta_errors_translated, find_table, vacuum_table
from sluice_lake.durable_files import require_durable
from sluice_lake.errors import read_transaction
from sluice_lake.locations import TableLocation, lake_location, open_filesystem
from sluice_lake.source_ranges import ROLLUP_APP, DeleteIdsReader, read_source_range
from sluice_lake.tables import RECORD_TABLES, ROLLUPS, Table
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.record_deletes import DeleteRecord, rollup_deletes
from sluice_spark.compaction.delete_matches import (
    any_of,
    is_deleted,
    only_deleted,
    touched_condition,
)
from sluice_spark.compaction.file_selection import may_contain_deleted
from sluice_spark.compaction.job import remove_deleted_rows
from sluice_spark.compaction.rewrite import read_files
from sluice_spark.index import remove_chunks_of
from sluice_spark.read_back import BATCH, READ, BatchComparison, compare_batches, decode_batches
from sluice_spark.rollups.job import run_rollup
from sluice_spark.session import Session
from sluice_store import open_store

ROLLUPS_NAME: Final = ROLLUPS.name
_LOG: Final = "_delta_log"
_ENTRY: Final = re.compile(r"([0-9]{20})\.(?:json|checkpoint\..*parquet|crc)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSearch:
    """What a search found in one table.

    Attributes:
        version: The state that was searched.
        rows: The matching rows of its files; for rollups 0 if they honour the deletes, else 1.
        files: The number of files that were read.
        replaced: The files that commits replaced and that contain matching rows, or that cannot be
            read.
        unfinished: The same of files that no commit names, with the time of writing, Unix ns.
    """

    version: int
    rows: int
    files: int
    replaced: tuple[str, ...]
    unfinished: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureLake:
    """The blobs, tables and indexes of one store; its calls block."""

    spark: Session
    store_url: str

    def count_matches(
        self,
        manifests: Sequence[AcceptedManifest],
        deletes: Sequence[DeleteRecord],
    ) -> dict[int, int]:
        """Return the number of matching records of each batch, by its place in `manifests`.

        A batch whose blob is missing or cannot be decoded is not in the result.
        """
        from pyspark.sql.functions import expr  # noqa: PLC0415 - the import takes a second

        found: dict[int, int] = {}
        for kind in dict.fromkeys(one.kind for one in deletes):
            places = [place for place, one in enumerate(manifests) if one.kind == kind]
            if not places:
                continue
            own = [one for one in deletes if one.kind == kind]
            batches = [manifests[place] for place in places]
            rows = decode_batches(
                self.spark, self.store_url, RECORD_TABLES[kind].without_promoted, batches
            )
            matches = (expr(f"{READ} IS NULL") & is_deleted(own)).cast("int").alias("one")
            totals = rows.select(BATCH, matches).groupBy(BATCH).sum("one").toArrow()
            for place, count in zip(*(totals.column(at).to_pylist() for at in (0, 1)), strict=True):
                found[places[place]] = int(count)
        return found

    def remove_records(self, deletes: Sequence[DeleteRecord]) -> None:
        """Remove matching rows from tables and rollups, and the index chunks of replaced files."""
        remove_deleted_rows(self.spark, self.store_url, deletes)
        if rollup_deletes(deletes) and find_table(self.store_url, ROLLUPS) is not None:
            run_rollup(self.spark, self.store_url)
        for table in _tables_of(deletes):
            opened = find_table(self.store_url, table)
            if opened is not None:
                current = {file.path for file in list_files(opened, table)}
                asyncio.run(remove_chunks_of(self.store_url, table, current))

    def search(self, deletes: Sequence[DeleteRecord]) -> dict[str, TableSearch]:
        """Search every data file of the tables, whether or not the table still contains it."""
        found: dict[str, TableSearch] = {}
        for table in _tables_of(deletes):
            opened = find_table(self.store_url, table)
            if opened is not None:
                search = self._search_rollups if table is ROLLUPS else self._search_records
                found[table.name] = search(opened, table, deletes)
        return found

    def _search_records(
        self, opened: DeltaTable, table: Table, deletes: Sequence[DeleteRecord]
    ) -> TableSearch:
        own = [one for one in deletes if one.kind == table.name]
        files = _list_all(self.store_url, opened, table)
        present, replaced = (
            [one for one in some if any(may_contain_deleted(one, delete) for delete in own)]
            for some in (files.present, files.replaced)
        )
        counts = self._count_rows(
            table, [*present, *replaced], lambda rows: only_deleted(rows, own)
        )
        left = [one.path for one in replaced if counts.get(_name(one.path), 0)]
        gone, unfinished = _divide(opened, files, left)
        return TableSearch(
            version=opened.version(),
            rows=sum(counts.get(_name(one.path), 0) for one in present),
            files=len(present) + len(replaced),
            replaced=gone,
            unfinished=unfinished,
        )

    def _search_rollups(
        self, opened: DeltaTable, table: Table, deletes: Sequence[DeleteRecord]
    ) -> TableSearch:
        """Search the replaced files for points that deletes touch.

        A point does not show what it was made of, so the last source range shows whether the
        present ones honour the deletes.
        """
        own = rollup_deletes(deletes)
        files = _list_all(self.store_url, opened, table)
        touched = any_of([touched_condition(one) for one in own])
        counts = self._count_rows(table, files.replaced, lambda rows: rows.where(touched))
        left = [one.path for one in files.replaced if counts.get(_name(one.path), 0)]
        done = read_transaction(opened, ROLLUP_APP) or 0
        gone, unfinished = _divide(opened, files, left)
        return TableSearch(
            version=opened.version(),
            rows=int(not asyncio.run(_are_honoured(self.store_url, done, own))),
            files=len(files.replaced),
            replaced=gone,
            unfinished=unfinished,
        )

    def _count_rows(
        self, table: Table, files: Sequence[DataFile], select: Callable[[Any], Any]
    ) -> dict[str, int]:
        """Return the number of rows that a function selects, by the name of the file."""
        if not files:
            return {}
        rows = select(read_files(self.spark, self.store_url, table.without_promoted, files))
        totals = rows.groupBy("data_file").count().collect()
        return {_name(row.data_file): int(row["count"]) for row in totals}

    def remove_replaced(
        self, tables: Collection[str], wait_hours: int, unfinished_hours: int
    ) -> None:
        """Delete replaced and unfinished files of these ages."""
        for table in _named(tables):
            opened = find_table(self.store_url, table, for_writing=True)
            if opened is not None:
                vacuum_table(opened, wait_hours, full=False, dry_run=False)
                vacuum_table(opened, unfinished_hours, full=True, dry_run=False)

    def count_old_entries(self, clean: Mapping[str, int]) -> int:
        """Return the number of log entries and checkpoints before the clean state of each table."""
        return sum(len(_old_entries(self.store_url, table, clean)) for table in _named(clean))

    def remove_old_entries(self, clean: Mapping[str, int], before_ns: int | None) -> int:
        """Delete those that were written before a time, after a checkpoint; return how many."""
        removed = 0
        for table in _named(clean):
            old = [
                path
                for path, written_ns in _old_entries(self.store_url, table, clean)
                if before_ns is None or written_ns < before_ns
            ]
            opened = find_table(self.store_url, table, for_writing=True) if old else None
            if opened is None or opened.version() < clean[table.name]:
                continue
            with delta_errors_translated(TableLocation(uri=opened.table_uri)):
                opened.create_checkpoint()
            require_durable(opened)
            filesystem, root = open_filesystem(lake_location(self.store_url, table.name))
            for path in sorted(old):
                filesystem.delete_file(f"{root}/{path}")
            removed += len(old)
        return removed

    def compare(self, manifests: Sequence[AcceptedManifest]) -> BatchComparison:
        """Compare batches with the tables."""
        return compare_batches(self.spark, self.store_url, manifests)


def _tables_of(deletes: Iterable[DeleteRecord]) -> list[Table]:
    found = [RECORD_TABLES[kind] for kind in dict.fromkeys(one.kind for one in deletes)]
    return [*found, ROLLUPS] if rollup_deletes(deletes) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableFiles:
    """The files of a table, other data files in its folder, and those of them without a footer."""

    present: list[DataFile]
    replaced: list[DataFile]
    damaged: list[str]
    written_ns: Mapping[str, int]


def _list_all(store_url: str, opened: DeltaTable, table: Table) -> _TableFiles:
    present = list_files(opened, table)
    names = {file.path for file in present}
    replaced: list[DataFile] = []
    damaged: list[str] = []
    written_ns: dict[str, int] = {}
    for one, at_ns in _data_files(store_url, table):
        if one.path in names:
            continue
        written_ns[one.path] = at_ns
        if _is_readable(store_url, table, one):
            replaced.append(one)
        else:
            damaged.append(one.path)
    return _TableFiles(present=present, replaced=replaced, damaged=damaged, written_ns=written_ns)


def _divide(
    opened: DeltaTable, files: _TableFiles, matching: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return replaced files with a match or without a footer, and unfinished ones with times."""
    paths = (*matching, *files.damaged)
    if not paths:
        return (), {}
    named = {_name(one) for one in vacuum_table(opened, 0, full=False, dry_run=True)}
    unfinished = {path: files.written_ns[path] for path in paths if _name(path) not in named}
    return tuple(path for path in paths if path not in unfinished), unfinished


def _name(path: str) -> str:
    return path.rpartition("/")[2]


async def _are_honoured(store_url: str, done: int, deletes: Sequence[DeleteRecord]) -> bool:
    """Return True if the last source range of the rollups applies all of some deletes."""
    async with open_store(store_url) as store:
        source = await read_source_range(store, done) if done else None
        if source is None:
            return not done
        ids = {one.delete_id for one in deletes}
        return await DeleteIdsReader(store=store).read(source.deletes, ids) == ids


def _data_files(store_url: str, table: Table) -> Iterator[tuple[DataFile, int]]:
    """Yield the data files in the folder of a table, with nothing but names, sizes and times."""
    folder = f"{table.partition_column}="
    for path, one in _list(store_url, table, ""):
        if path.startswith(folder) and path.endswith(".parquet"):
            partition = path.partition("/")[0].removeprefix(folder)
            file = DataFile(path=path, partition=partition, size_bytes=one.size)
            yield file, int(one.mtime_ns)


def _list(store_url: str, table: Table, folder: str) -> list[tuple[str, FileInfo]]:
    """Return the files below a folder of a table with their paths in the table."""
    filesystem, root = open_filesystem(lake_location(store_url, table.name))
    place = f"{root}/{folder}".rstrip("/")
    selector = FileSelector(place, recursive=True, allow_not_found=True)
    found = filesystem.get_file_info(selector)
    return [(one.path.removeprefix(f"{root}/"), one) for one in found if one.is_file]


def _is_readable(store_url: str, table: Table, file: DataFile) -> bool:
    filesystem, root = open_filesystem(lake_location(store_url, table.name))
    try:
        with filesystem.open_input_file(f"{root}/{file.path}") as source:
            pq.read_metadata(source)
    except (OSError, pa.ArrowException):
        return False
    return True


def _named(names: Collection[str]) -> list[Table]:
    return [one for one in (*RECORD_TABLES.values(), ROLLUPS) if one.name in names]


def _old_entries(store_url: str, table: Table, clean: Mapping[str, int]) -> list[tuple[str, int]]:
    found = []
    for path, one in _list(store_url, table, _LOG):
        entry = _ENTRY.fullmatch(path.removeprefix(f"{_LOG}/"))
        if entry is not None and int(entry[1]) < clean[table.name]:
            found.append((path, int(one.mtime_ns)))
    return found
