"""Removal of deleted rows from the files of one record table, each delete once for a file.

For each file, consider only unapplied deletes that may affect it. Files that retention covers are
removed without being read. Of the others, those that contain deleted rows are found and rewritten,
for a bounded number of deletes at a time.

A file of a date contains only rows that were accepted on that date, so a delete with an earlier
cut-off cannot remove one. Deletes are sorted by agent and by the date of their cut-off. For a file
of recent records, only deletes that are as recent are compared.

After a run, every file of a version of a table contains no row that a set of deletes removes,
except the files that the run names. Files never change, so this stays true. The next run applies
only deletes that are not in the set to these files, and every delete to the others: those that
were added since, and those that are named. Without the record, with that of another table, or if
the log no longer contains the version, every delete is applied to every file. A lost record costs
reads and nothing else.

    lake/v1/applied-deletes/<table>.json         the record, replaced by each run
    lake/v1/applied-deletes/<table>/<ulid>.txt.z  ids of deletes, if they are many
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
import structlog

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import find_table, list_paths_at
from sluice_lake.durable_files import require_durable
from sluice_lake.source_ranges import DeleteIds, DeleteIdsReader, remove_old_parts, with_ids
from sluice_lake.tables import Table, accepted_date
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import LAKE
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.record_deletes import DeleteRecord, is_retention
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import ObjectKey
from sluice_spark.compaction.file_selection import may_contain_deleted, removes_whole_file
from sluice_spark.written_files import WrittenFile
from sluice_store import open_store
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, overwrite_known


class _ByCutOff:
    """Deletes, sorted by the date of their cut-off."""

    def __init__(self, records: Iterable[DeleteRecord]) -> None:
        dated = sorted(
            ((accepted_date(one.accepted_until_unix_ns), one) for one in records),
            key=lambda pair: pair[0],
        )
        self._dates = [day for day, _ in dated]
        self._records = [one for _, one in dated]

    def since(self, partition: str) -> Iterator[DeleteRecord]:
        """Yield the deletes whose cut-off is on a date or later."""
        first = bisect_left(self._dates, partition)
        return (self._records[place] for place in range(first, len(self._records)))


class DeleteIndex:
    """Deletes of one kind."""

    def __init__(self, records: Sequence[DeleteRecord]) -> None:
        groups: dict[str, list[DeleteRecord]] = defaultdict(list)
        for one in records:
            if one.agent_id is not None:
                groups[one.agent_id].append(one)
        self._any_agent = _ByCutOff(one for one in records if one.agent_id is None)
        self._agents = sorted(groups)
        self._by_agent = [_ByCutOff(groups[agent]) for agent in self._agents]

    def touching(self, file: DataFile) -> list[DeleteRecord]:
        """Return the deletes that, by the statistics of a file, may remove rows of it."""
        return [
            record
            for group in (self._any_agent, *self._groups_of(file))
            for record in group.since(file.partition)
            if may_contain_deleted(file, record)
        ]

    def _groups_of(self, file: DataFile) -> Sequence[_ByCutOff]:
        if file.agents is None:
            return self._by_agent
        first, last = file.agents
        end = bisect_right(self._agents, last)
        # Statistics may be truncated: agents that begin with the last one may follow it.
        while end < len(self._agents) and self._agents[end].startswith(last):
            end += 1
        return self._by_agent[bisect_left(self._agents, first) : end]


APPLIED_PREFIX: Final = f"{LAKE}applied-deletes/"
OTHERS_MAX: Final = 10_000
"""Files that a record names. With more, the former record stays."""

_log = structlog.get_logger("sluice.compact")


class AppliedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a table, and the deletes that were applied to its files.

    Without it, compaction applies every delete to every file.

    Attributes:
        table_id: The id of the table in its log; a table that was created again has another one.
        table_version: The version of the state.
        before: Only files of dates before this one are meant; empty for all dates.
        others: Paths of files of these dates to which the deletes were not applied.
    """

    schema: Literal["sluice.applied_deletes.v1"] = "sluice.applied_deletes.v1"
    table_id: str
    table_version: int
    before: str
    others: tuple[str, ...]
    deletes: DeleteIds


def applied_key(table: str) -> ObjectKey:
    """Return the key of the record of a table."""
    return ObjectKey(f"{APPLIED_PREFIX}{table}.json")


async def read_applied(store: ObjectStore, table: str) -> AppliedRecord | None:
    """Read the record of a table; return None if it is missing or cannot be decoded."""
    key = applied_key(table)
    read = await store.get(key)
    if not isinstance(read, Found):
        return None
    try:
        return decode_record(key, read.body, AppliedRecord)
    except InvalidRecord as error:
        _log.info("applied_deletes_ignored", table=table, reason=error.reason)
        return None


async def write_applied(reader: DeleteIdsReader, table: str, record: AppliedRecord) -> None:
    """Write the record of a table; one that another run overwrites is true, too."""
    backoff = Backoff.seeded_by(SystemClock())
    await overwrite_known(reader.store, applied_key(table), encode_record(record), backoff)


@dataclass(slots=True, kw_only=True)
class FileDeletes:
    """The deletes that each file of a table still needs.

    Attributes:
        new: Deletes that were not applied to the files of `done`.
        done: Paths of the files of the recorded version, without those that the record names.
        before: Only files of dates before this one are done; empty for all dates.
    """

    every: Sequence[DeleteRecord]
    new: Sequence[DeleteRecord]
    done: Collection[str] = ()
    before: str = ""
    applied: DeleteIds = field(default_factory=DeleteIds)
    _every: DeleteIndex = field(init=False)
    _new: DeleteIndex = field(init=False)

    def __post_init__(self) -> None:
        self._every, self._new = DeleteIndex(self.every), DeleteIndex(self.new)

    def is_done(self, file: DataFile) -> bool:
        """Return True if all but the new deletes were applied to a file."""
        return file.path in self.done and (not self.before or file.partition < self.before)

    def touching(self, file: DataFile) -> list[DeleteRecord]:
        """Return the deletes that may remove rows of a file and were not applied to it."""
        return (self._new if self.is_done(file) else self._every).touching(file)


async def add_applied(reader: DeleteIdsReader, table: str, found: FileDeletes) -> DeleteIds:
    """Return the deletes that were applied before, and those that a run has applied."""
    return await with_ids(
        reader,
        found.applied,
        [one.delete_id for one in found.new],
        prefix=f"{APPLIED_PREFIX}{table}/",
        ids=SystemIds(),
        backoff=Backoff.seeded_by(SystemClock()),
    )


def list_others(
    files: Iterable[DataFile], treated: Collection[str], *, before: str
) -> tuple[str, ...] | None:
    """Return the paths of `files` without `treated` for a record; None if they are too many.

    `before` is the first date that the run did not select; empty if it selected all dates.
    """
    others = tuple(
        file.path
        for file in files
        if file.path not in treated and (not before or file.partition < before)
    )
    return others if len(others) <= OTHERS_MAX else None


async def remove_old_applied(store: ObjectStore, table: str, before_ns: int) -> int:
    """Delete parts that are older than a time and that the record does not name."""
    record = await read_applied(store, table)
    named = {one.key for one in record.deletes.parts} if record is not None else set[str]()
    return await remove_old_parts(store, f"{APPLIED_PREFIX}{table}/", named, before_ns)


async def plan_file_deletes(
    reader: DeleteIdsReader,
    record: AppliedRecord | None,
    paths: Collection[str] | None,
    every: Sequence[DeleteRecord],
) -> FileDeletes:
    """Return the deletes that each file still needs.

    `record` is None if there is none for this table, and `paths` are those of the recorded version,
    or None if it is not readable. `every` has each delete of this kind that no other one implies.
    """
    if record is None or paths is None:
        return FileDeletes(every=every, new=every)
    try:
        applied = await reader.read(record.deletes, {one.delete_id for one in every})
    except InvalidRecord as error:
        _log.info("applied_deletes_ignored", reason=error.reason)
        return FileDeletes(every=every, new=every)
    return FileDeletes(
        every=every,
        new=[one for one in every if one.delete_id not in applied],
        done=frozenset(paths).difference(record.others),
        before=record.before,
        applied=record.deletes,
    )


def plan_deletes(store_url: str, table: Table, every: Sequence[DeleteRecord]) -> FileDeletes:
    """Read which deletes each file of a table still needs; `every` as in `plan_file_deletes`."""

    async def plan() -> FileDeletes:
        async with open_store(store_url) as store:
            record = await read_applied(store, table.name)
            paths = None
            if record is not None and record.table_id == _table_id(store_url, table):
                paths = list_paths_at(store_url, table, record.table_version, {})
            return await plan_file_deletes(DeleteIdsReader(store=store), record, paths, every)

    return asyncio.run(plan())


def _table_id(store_url: str, table: Table) -> str | None:
    opened = find_table(store_url, table)
    return str(opened.metadata().id) if opened is not None else None


def record_applied(
    store_url: str, table: Table, found: FileDeletes, treated: Collection[str], *, before: str
) -> None:
    """Record that every delete was applied to some files of a table.

    `before` is the first date that the run did not select; empty if it selected all dates.
    """
    opened = find_table(store_url, table)
    if opened is None:
        return
    others = list_others(list_files(opened, table), treated, before=before)
    if others is None:
        _log.info("applied_deletes_not_recorded", table=table.name)
        return
    require_durable(opened)
    table_id, table_version = str(opened.metadata().id), opened.version()

    async def write() -> None:
        async with open_store(store_url) as store:
            reader = DeleteIdsReader(store=store)
            record = AppliedRecord(
                table_id=table_id,
                table_version=table_version,
                before=before,
                others=others,
                deletes=await add_applied(reader, table.name, found),
            )
            await write_applied(reader, table.name, record)

    asyncio.run(write())


TOGETHER_MAX: Final = 20_000
"""Deletes that files are searched for together; each worker receives all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRowsRemover:
    """Removes deleted rows from the files of one table.

    Attributes:
        waiting: Files from which retention may not remove anything yet.
        rewrite: None if another writer has replaced the files, or the run only counts; `remove`
            then returns False.
        treated: Paths of files to which every delete was applied; a result.
    """

    deletes: FileDeletes
    waiting: Collection[DataFile]
    find: Callable[[Sequence[DataFile], Sequence[DeleteRecord]], Sequence[DataFile]]
    rewrite: Callable[[Sequence[DataFile], Sequence[DeleteRecord]], Sequence[WrittenFile] | None]
    remove: Callable[[Sequence[DataFile]], bool]
    treated: set[str] = field(default_factory=set)

    def run(self, files: Sequence[DataFile]) -> None:
        """Remove the deleted rows of files."""
        paths = {file.path for file in self.waiting}
        needed = {file.path: self.deletes.touching(file) for file in files}
        gone = {
            file.path
            for file in files
            if file.path not in paths
            and any(removes_whole_file(file, record) for record in needed[file.path])
        }
        if gone:
            self.remove([file for file in files if file.path in gone])
        rest = [file for file in files if file.path not in gone and file.path not in paths]
        self.treated.update(file.path for file in rest)
        self._remove_rows(rest, needed)
        # Separately, because retention must not be part of a condition for these files.
        for path in paths.intersection(needed):
            needed[path] = [record for record in needed[path] if not is_retention(record)]
        self._remove_rows([file for file in files if file.path in paths], needed)

    def _remove_rows(
        self, files: Sequence[DataFile], needed: dict[str, list[DeleteRecord]]
    ) -> None:
        records = {one.delete_id: one for file in files for one in needed[file.path]}
        ids = {file.path: {one.delete_id for one in needed[file.path]} for file in files}
        current = list(files)
        ordered = sorted(records)
        for start in range(0, len(ordered), TOGETHER_MAX):
            some = ordered[start : start + TOGETHER_MAX]
            touched = [file for file in current if not ids[file.path].isdisjoint(some)]
            if touched:
                current = self._remove_some(current, ids, touched, [records[one] for one in some])

    def _remove_some(
        self,
        current: Sequence[DataFile],
        ids: dict[str, set[str]],
        touched: Sequence[DataFile],
        some: Sequence[DeleteRecord],
    ) -> list[DataFile]:
        """Rewrite the files with deleted rows; return the files to continue with.

        Files that could not be rewritten are left to the next run.
        """
        wanted = set[str]().union(*(ids[file.path] for file in touched))
        some = [record for record in some if record.delete_id in wanted]
        holding = self.find(touched, some)
        if not holding:
            return list(current)
        replaced = {file.path for file in holding}
        rest = [file for file in current if file.path not in replaced]
        added = self.rewrite(holding, some)
        if added is None:
            self.treated.difference_update(replaced)
            return rest
        remaining = set[str]().union(*(ids[path] for path in replaced))
        new = [
            DataFile(path=one.path, partition=one.partition, size_bytes=one.size_bytes)
            for one in added
        ]
        ids.update((file.path, remaining) for file in new)
        if replaced <= self.treated:
            self.treated.update(file.path for file in new)
        self.treated.difference_update(replaced)
        return [*rest, *new]
