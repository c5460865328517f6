"""Compaction against a naive model: random batches, deletes, merges, lost races and crashes.

A table with deletes in memory: batches, deletes, merges, lost races and crashes.

The rows of a file are a list, and the log of the table is a list of its versions. Everything that
decides which deletes are applied to which files is the product's.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dying_store import Died, DyingStore
from support.gc_store import VersionedStore
from support.gc_world import MovedClock

from sluice_lake import source_ranges
from sluice_lake.data_files import DataFile, TimeStats
from sluice_lake.source_ranges import DeleteIdsReader
from sluice_protocol.record_deletes import DeleteRecord, is_retention, needed_deletes
from sluice_spark.compaction import deleted_rows
from sluice_spark.compaction.deleted_rows import (
    AppliedRecord,
    DeletedRowsRemover,
    FileDeletes,
    add_applied,
    applied_key,
    list_others,
    plan_file_deletes,
    read_applied,
    remove_old_applied,
    write_applied,
)
from sluice_spark.compaction.file_selection import is_closed, may_contain_deleted
from sluice_spark.written_files import WrittenFile

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
START_NS = 20_000 * DAY_NS
TABLE = "metrics"
AGENTS = ["a", "b", "c"]


@dataclass(frozen=True)
class Row:
    number: int
    accepted_ns: int
    at_ns: int
    agent: str


def hides(record: DeleteRecord, row: Row) -> bool:
    """Return whether a delete hides a row; no row has attributes."""
    return (
        row.accepted_ns <= record.accepted_until_unix_ns
        and (record.from_unix_ns is None or row.at_ns >= record.from_unix_ns)
        and (record.to_unix_ns is None or row.at_ns < record.to_unix_ns)
        and record.agent_id in (None, row.agent)
        and not record.attributes
    )


def day_of(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, UTC).date().isoformat()


@dataclass
class Lake:
    """A table, its deletes and its store.

    Attributes:
        rng: Decides everything.
        faults: Whether rewrites lose races and runs crash.
        now_ns: The time.
        files: The rows of the files of the newest version, by path.
        stored: The rows of every file, also of those that were replaced.
        unrolled: Paths of files from which retention may remove nothing.
        held: Those of them that the current run has selected.
        searched: Files that were searched for deleted rows.
    """

    rng: random.Random
    faults: bool = True
    now_ns: int = START_NS
    files: dict[str, list[Row]] = field(default_factory=dict)
    stored: dict[str, list[Row]] = field(default_factory=dict)
    versions: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    deletes: list[DeleteRecord] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    unrolled: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    searched: int = 0
    made: int = 0
    store: VersionedStore = field(default_factory=lambda: VersionedStore(clock=MovedClock()))

    def put(self, rows: Sequence[Row]) -> list[str]:
        """Add one file for each date, and commit."""
        paths = []
        for day in sorted({day_of(row.accepted_ns) for row in rows}):
            self.made += 1
            paths.append(f"{day}/{self.made}")
            self.files[paths[-1]] = [row for row in rows if day_of(row.accepted_ns) == day]
        self.stored.update(self.files)
        self.versions.append(frozenset(self.files))
        return paths

    def ingest(self) -> None:
        """Add a batch; some were accepted long before."""
        late_ns = self.rng.choice([0, 0, 0, self.rng.randrange(8) * DAY_NS])
        accepted_ns = max(START_NS, self.now_ns - late_ns)
        found = [
            Row(
                number=len(self.rows) + one,
                accepted_ns=accepted_ns,
                at_ns=accepted_ns - self.rng.randrange(3 * DAY_NS),
                agent=self.rng.choice(AGENTS),
            )
            for one in range(self.rng.randint(1, 4))
        ]
        self.rows += found
        added = self.put(found)
        if self.rng.random() < 0.2:
            self.unrolled.update(added)

    def delete(self) -> None:
        until_ns = self.now_ns - self.rng.choice([0, 0, DAY_NS])
        start = self.rng.choice([None, until_ns - self.rng.randrange(5 * DAY_NS)])
        end = self.rng.choice([None, until_ns - self.rng.randrange(2 * DAY_NS)])
        if start is not None and end is not None and end <= start:
            end = None
        agent = self.rng.choice([None, *AGENTS])
        if (start, end, agent) == (None, None, None):
            agent = "a"
        self.deletes.append(
            DeleteRecord(
                delete_id=f"{self.rng.randrange(10**9):012d}{len(self.deletes):014d}",
                kind="metrics",
                accepted_until_unix_ns=until_ns,
                from_unix_ns=start,
                to_unix_ns=end,
                agent_id=agent,
            )
        )

    def delete_attributes(self, count: int) -> None:
        """Add deletes that may touch every file, and of which none implies another one."""
        for number in range(len(self.deletes), len(self.deletes) + count):
            self.deletes.append(
                DeleteRecord(
                    delete_id=f"{number:026d}",
                    kind="metrics",
                    accepted_until_unix_ns=self.now_ns,
                    attributes={"key": str(number)},
                )
            )

    def data_file(self, path: str) -> DataFile:
        rows = self.files[path]
        agents, times = sorted(row.agent for row in rows), sorted(row.at_ns for row in rows)
        return DataFile(
            path=path,
            partition=path.partition("/")[0],
            size_bytes=1,
            records=len(rows),
            agents=(agents[0], agents[-1]),
            ts=TimeStats(range_ns=(times[0], times[-1]), nulls=0),
        )

    def find(self, files: Sequence[DataFile], records: Sequence[DeleteRecord]) -> list[DataFile]:
        assert len(records) <= deleted_rows.TOGETHER_MAX
        self.searched += len(files)
        return [
            file
            for file in files
            if any(hides(one, row) for one in records for row in self.stored[file.path])
        ]

    def rewrite(
        self, treated: set[str], files: Sequence[DataFile], records: Sequence[DeleteRecord]
    ) -> list[WrittenFile] | None:
        """Rewrite files, unless another writer is first."""
        self.race()
        if any(file.path not in self.files for file in files):
            return None
        for file in files:
            if file.path in self.held:
                self.check_held(file.path, records)
        rows = [row for file in files for row in self.files.pop(file.path)]
        rows = [row for row in rows if not any(hides(one, row) for one in records)]
        added = self.put(rows)
        for some in (self.unrolled, self.held):
            if not some.isdisjoint(file.path for file in files):
                some.update(added)
        if treated.issuperset(file.path for file in files):
            treated.update(added)
        self.crash()
        return [
            WrittenFile(
                table=TABLE,
                path=path,
                partition=path.partition("/")[0],
                size_bytes=1,
                written_at_ms=0,
                stats={},
            )
            for path in added
        ]

    def check_held(self, path: str, records: Sequence[DeleteRecord]) -> None:
        """Check that retention removes no row that rollups do not contain yet."""
        others = [one for one in self.deletes if not is_retention(one)]
        for row in self.files[path]:
            if any(hides(one, row) for one in records):
                assert any(hides(one, row) for one in others)

    def remove(self, files: Sequence[DataFile]) -> bool:
        self.race()
        if any(file.path not in self.files for file in files):
            return False
        for file in files:
            assert file.path not in self.held
            del self.files[file.path]
        self.versions.append(frozenset(self.files))
        return True

    def race(self) -> None:
        """Let another writer work in between: a batch, or a compaction that replaces files."""
        if not self.faults or self.rng.random() < 0.8:
            return
        if self.files and self.rng.random() < 0.5:
            path = self.rng.choice(sorted(self.files))
            added = self.put(self.files.pop(path))
            self.unrolled.update(added if path in self.unrolled else ())
        else:
            self.ingest()

    def crash(self) -> None:
        if self.faults and self.rng.random() < 0.1:
            raise Died

    async def compact(self, *, open_partitions: bool = False) -> None:
        grace_s = 3600
        store: Any = self.store
        if self.faults:
            store = DyingStore(store, self.rng.randint(0, 5), self.rng.random() < 0.5)
        every = needed_deletes(self.deletes)
        record = await read_applied(store, TABLE)
        paths = None
        if record is not None and not (self.faults and self.rng.random() < 0.1):
            paths = self.versions[record.table_version]
        reader = DeleteIdsReader(store=store)
        found = await plan_file_deletes(reader, record, paths, every)
        files = [
            self.data_file(path)
            for path in sorted(self.files)
            if open_partitions or is_closed(path.partition("/")[0], self.now_ns, grace_s)
        ]
        treated: set[str] = set()
        self.held = self.unrolled.intersection(self.files)
        DeletedRowsRemover(
            deletes=found,
            waiting=[file for file in files if file.path in self.unrolled],
            find=self.find,
            rewrite=partial(self.rewrite, treated),
            remove=self.remove,
            treated=treated,
        ).run(files)
        self.check_treated(treated, every)
        self.merge(treated, {file.path for file in files})
        self.race()
        before = "" if open_partitions else day_of(self.now_ns - grace_s * 10**9)
        await self.record(reader, found, treated, before)

    def merge(self, treated: set[str], selected: set[str]) -> None:
        some = [path for path in sorted(selected & self.files.keys()) if self.rng.random() < 0.3]
        if some:
            self.rewrite(treated, [self.data_file(path) for path in some], ())

    async def record(
        self, reader: DeleteIdsReader, found: FileDeletes, treated: set[str], before: str
    ) -> None:
        files = [self.data_file(path) for path in sorted(self.files)]
        others = list_others(files, treated, before=before)
        assert others is not None
        record = AppliedRecord(
            table_id="t",
            table_version=len(self.versions) - 1,
            before=before,
            others=others,
            deletes=await add_applied(reader, TABLE, found),
        )
        await write_applied(reader, TABLE, record)

    def check_treated(self, treated: set[str], every: Sequence[DeleteRecord]) -> None:
        for path in treated.intersection(self.files):
            assert not any(hides(one, row) for one in every for row in self.files[path])

    def check(self) -> None:
        """No row is lost or doubled, whatever happened."""
        numbers = sorted(row.number for rows in self.files.values() for row in rows)
        assert len(numbers) == len(set(numbers))
        shown = {row.number for row in self.rows if not self.is_deleted(row)}
        assert shown <= set(numbers)

    def is_deleted(self, row: Row) -> bool:
        return any(hides(one, row) for one in self.deletes)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_ranges, "LISTED_MAX", 4)
    monkeypatch.setattr(deleted_rows, "TOGETHER_MAX", 2)


async def play(seed: int) -> None:
    lake = Lake(rng=random.Random(seed))
    for _ in range(30):
        lake.now_ns += lake.rng.randrange(DAY_NS)
        step = lake.rng.choice(["ingest", "ingest", "delete", "compact", "rolled"])
        if step == "ingest":
            lake.ingest()
        elif step == "delete":
            lake.delete()
        elif step == "rolled":
            lake.unrolled.clear()
        else:
            with contextlib.suppress(Died):
                await lake.compact()
        lake.check()
    lake.faults = False
    await lake.compact()
    waiting = lake.unrolled
    closed = day_of(lake.now_ns - 3600 * 10**9)
    for path, rows in lake.files.items():
        applied = [one for one in lake.deletes if path not in waiting or not is_retention(one)]
        if path < closed:
            assert not any(hides(one, row) for one in applied for row in rows)
    lake.unrolled.clear()
    await lake.compact(open_partitions=True)
    lake.check()
    left = {row.number for rows in lake.files.values() for row in rows}
    assert left == {row.number for row in lake.rows if not lake.is_deleted(row)}


@given(seed=st.integers(0, 2**32))
def test_no_deleted_row_stays_and_no_other_row_goes(seed: int) -> None:
    asyncio.run(play(seed))


@pytest.mark.parametrize("deletes", [20, 400])
def test_the_work_of_a_run_does_not_grow_with_deletes_that_were_applied(
    deletes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = Mock(wraps=may_contain_deleted)

    async def story() -> tuple[Lake, int]:
        lake = Lake(rng=random.Random(1), faults=False)
        for number in range(12):
            lake.now_ns = START_NS + number * DAY_NS
            for _ in range(5):
                lake.ingest()
        lake.delete_attributes(deletes)
        lake.now_ns += 3 * DAY_NS
        lake.unrolled.clear()
        await lake.compact(open_partitions=True)
        compared.reset_mock()
        lake.searched = 0
        lake.put([Row(10_000, lake.now_ns, lake.now_ns, "a")])
        lake.deletes.append(
            DeleteRecord(
                delete_id="9" * 26, kind="metrics", accepted_until_unix_ns=lake.now_ns, agent_id="a"
            )
        )
        files = len(lake.files)
        await lake.compact(open_partitions=True)
        return lake, files

    monkeypatch.setattr(deleted_rows, "may_contain_deleted", compared)
    lake, files = asyncio.run(story())
    assert 0 < compared.call_count <= files
    assert 0 < lake.searched <= files


async def test_parts_that_no_record_names_are_removed_at_an_age() -> None:
    lake = Lake(rng=random.Random(1), faults=False)
    lake.ingest()
    for _ in range(3):
        lake.delete_attributes(6)
        await lake.compact(open_partitions=True)
    parts = [key for key in lake.store.versions if key.endswith(".txt.z")]
    record = await read_applied(lake.store, TABLE)
    assert len(parts) > len(record.deletes.parts) > 0
    later_ns = lake.store.clock.now_ns() + HOUR_NS
    gone = len(parts) - len(record.deletes.parts)
    assert await remove_old_applied(lake.store, TABLE, 0) == 0
    assert await remove_old_applied(lake.store, TABLE, later_ns) == gone
    await DeleteIdsReader(store=lake.store).read(record.deletes)


@pytest.mark.parametrize("lost", ["record", "parts"])
async def test_without_a_readable_record_every_delete_is_applied_to_every_file(lost: str) -> None:
    lake = Lake(rng=random.Random(1), faults=False)
    lake.ingest()
    lake.delete_attributes(10)
    lake.unrolled.clear()
    await lake.compact(open_partitions=True)
    for key in list(lake.store.versions):
        if key.endswith(".txt.z") or lost == "record":
            lake.store.remove_key(key)
    lake.ingest()
    lake.delete()
    every = needed_deletes(lake.deletes)
    record = await read_applied(lake.store, TABLE)
    found = await plan_file_deletes(
        DeleteIdsReader(store=lake.store), record, lake.versions[-1], every
    )
    assert (found.new, found.done) == (every, ())
    await lake.compact(open_partitions=True)
    assert (await read_applied(lake.store, TABLE)) is not None
    lake.check()


async def test_a_record_of_another_form_is_ignored() -> None:
    lake = Lake(rng=random.Random(1), faults=False)
    lake.store.put(applied_key(TABLE), b'{"schema":"sluice.applied_deletes.v9"}')
    assert await read_applied(lake.store, TABLE) is None
