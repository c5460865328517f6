"""Removal of deleted rows from the files of one record table.

For each file only the deletes are considered that may remove rows of it and were not applied to it
yet (`applied_deletes`). Files that retention covers are removed without being read. Of the others,
those that contain deleted rows are found and rewritten, for a bounded number of deletes at a time.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice_lake.data_files import DataFile
from sluice_protocol.active_deletes import is_retention
from sluice_protocol.record_deletes import DeleteRecord
from sluice_spark.applied_deletes import FileDeletes
from sluice_spark.file_selection import removes_whole_file
from sluice_spark.written_files import WrittenFile

TOGETHER_MAX: Final = 20_000
"""Deletes that files are searched for together; each worker receives all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRowsRemover:
    """Removes deleted rows from the files of one table.

    Attributes:
        deletes: The deletes that each file still needs.
        waiting: Files from which retention may not remove anything yet.
        find: Returns those of some files that contain rows which one of some deletes removes.
        rewrite: Rewrites files without these rows. None: another writer has replaced them, or the
            run only counts.
        remove: Removes whole files; returns False in the same cases.
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
        """Rewrite the files with rows that some deletes remove; return the files to continue with.

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
