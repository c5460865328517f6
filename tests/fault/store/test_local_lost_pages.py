"""A crash of the machine before any call of the directory store, with lost names and torn files.

After each crash, acknowledged writes are there, and every object is whole, also for a program that
reads the files without sluice.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.store_lossy_disk import LossyDisk

from sluice_protocol.outcomes import (
    Applied,
    CreateOutcome,
    Deleted,
    Exists,
    Found,
    NotFound,
    ReplaceOutcome,
)
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import ETag, ObjectKey, ObjectVersion
from sluice_store.local.durability import DirectorySync, FileSystemSync, GroupSync, LogicalClock
from sluice_store.local.files import LocalFiles
from sluice_store.local.group_writes import GroupOutcome
from sluice_store.local.layout import HIDDEN, Layout
from sluice_store.port import NewObject

SEEDS = 4
"""States after each crash: one that loses nothing, one that loses everything, and random ones."""
DAILY_SEEDS = 3
REGISTER = ObjectKey("queue/register")
KEPT = ObjectKey("over/kept")


def body_of(key: str, writer: str = "") -> bytes:
    return f"{key} {writer}\n".encode() * 300  # more than one page


@dataclass
class Course:
    """A course of writes, and what a crash at any moment must leave.

    Attributes:
        root: The directory.
        bodies: Every body that a key may have.
        acknowledged: The bodies of which one must be readable; `None` for an absent object.
        stamps: The timestamps that were reported.
        points: How many crashes were checked.
    """

    root: Path
    bodies: dict[str, set[bytes]] = field(default_factory=dict)
    acknowledged: dict[str, set[bytes | None]] = field(default_factory=dict)
    stamps: list[int] = field(default_factory=list)
    points: int = 0
    skip: frozenset[int] = frozenset()
    seeds: int = SEEDS

    def play(self, work: Callable[["Course", LocalFiles], None]) -> None:
        disk = LossyDisk(self.root, self.crash, self.skip)
        self.disk = disk
        files, stamps = open_files(self.root, disk)
        disk.sync_everything()
        with disk.attached():
            work(self, files)
        self.crash()
        stamps.close()
        disk.close()

    def begin(self, key: str, body: bytes) -> None:
        """A write of this body has begun: until it is acknowledged, either state may be found."""
        self.bodies.setdefault(key, set()).add(body)
        if key in self.acknowledged:
            self.acknowledged[key].add(body)

    def end(self, key: str, body: bytes | None, outcome: object) -> None:
        self.acknowledged[key] = {body}
        if isinstance(outcome, Applied):
            self.stamps.append(int(outcome.date_ns))

    def crash(self) -> None:
        """Check some states after a crash at this moment."""
        self.points += 1
        point = self.disk.at_point
        self.disk.at_point = lambda: None
        try:
            for seed in range(self.seeds):
                after = self.root.with_name(f"after-{seed}")
                shutil.rmtree(after, ignore_errors=True)
                self.disk.crash(after, seed if seed < 2 else self.points * SEEDS + seed)
                self.check(after)
        finally:
            self.disk.at_point = point

    def check(self, after: Path) -> None:
        plain = {
            str(path.relative_to(after)): path.read_bytes()
            for path in after.rglob("*")
            if path.is_file() and HIDDEN not in path.relative_to(after).parts
        }
        for key, body in plain.items():
            assert body in self.bodies[key], f"{key} is torn, point={self.points}"
        for key, wanted in self.acknowledged.items():
            assert plain.get(key) in wanted, f"{key} is lost, point={self.points}"
        files, stamps = open_files(after, None)
        for key, body in plain.items():
            read = files.get(ObjectKey(key), 0, None)
            assert isinstance(read, Found)
            assert read.body == body
        for key in sorted(plain)[:1]:
            assert isinstance(files.create(ObjectKey(key), b"again", None), Exists)
        assert stamps.next_ns() > max(self.stamps, default=0)
        stamps.close()


def open_files(
    root: Path, filesystem: FileSystemSync | None, syncer: DirectorySync | None = None
) -> tuple[LocalFiles, LogicalClock]:
    layout = Layout(root=root)
    for folder in (layout.temporary, layout.locks, layout.generations):
        folder.mkdir(parents=True, exist_ok=True)
    stamps = LogicalClock(layout.clock, SystemClock())
    return LocalFiles(layout, stamps, syncer or GroupSync(), SystemIds(), filesystem), stamps


def new_objects(names: str, writer: str = "") -> list[NewObject]:
    keys = [f"blobs/{name[0]}/{name}" for name in names.split()]
    return [NewObject(key=ObjectKey(key), body=body_of(key, writer)) for key in keys]


def create_group(course: Course, files: LocalFiles, objects: list[NewObject]) -> None:
    for one in objects:
        course.begin(one.key, one.body)
    outcomes: list[GroupOutcome] | None = files.create_group(objects)
    assert outcomes is not None
    for one, outcome in zip(objects, outcomes, strict=True):
        if isinstance(outcome, Applied):
            course.end(one.key, one.body, outcome)
    assert all(isinstance(outcome, Applied | Exists) for outcome in outcomes)


def groups(course: Course, files: LocalFiles) -> None:
    """Groups in new and old folders, one with keys that exist or are twice in it."""
    create_group(course, files, new_objects("a1 a2 b1"))
    create_group(course, files, [*new_objects("a3 c1 a1"), *new_objects("c1", "other")])


def overwrite_twice(
    course: Course, files: LocalFiles, key: ObjectKey
) -> list[tuple[bytes, ObjectVersion]]:
    """Overwrite an object twice; return both bodies with their versions."""
    versions = []
    for number in range(2):
        body = body_of(key, str(number))
        course.begin(key, body)
        written = files.overwrite(key, body, None)
        assert isinstance(written, Applied)
        course.end(key, body, written)
        versions.append((body, written.incarnation or ObjectVersion("")))
    return versions


def one_by_one(course: Course, files: LocalFiles) -> None:
    """Every other verb that writes."""
    etag = ETag("")
    for number in range(3):
        body = body_of(REGISTER, str(number))
        course.begin(REGISTER, body)
        outcome: CreateOutcome | ReplaceOutcome = (
            files.replace(REGISTER, body, etag) if number else files.create(REGISTER, body, None)
        )
        assert isinstance(outcome, Applied)
        course.end(REGISTER, body, outcome)
        etag = outcome.etag
    versions = overwrite_twice(course, files, KEPT)
    course.begin(KEPT, versions[0][0])
    assert isinstance(files.delete(KEPT, versions[1][1]), Deleted)
    course.end(KEPT, versions[0][0], None)
    course.acknowledged[REGISTER].add(None)
    assert isinstance(files.delete(REGISTER, ObjectVersion(etag)), Deleted)
    course.end(REGISTER, None, None)


def group_then_delete(course: Course, files: LocalFiles) -> None:
    """An object of a group is deleted and created again."""
    [new] = new_objects("d1")
    create_group(course, files, [new])
    found = files.get(new.key, 0, None)
    assert isinstance(found, Found)
    course.acknowledged[new.key].add(None)
    assert isinstance(files.delete(new.key, found.info.incarnation or ObjectVersion("")), Deleted)
    course.end(new.key, None, None)
    assert isinstance(files.get(new.key, 0, None), NotFound)
    create_group(course, files, new_objects("d1", "second"))


class Killed(BaseException):
    """The process of a writer has ended."""


class KilledSync:
    """Kills a writer before it syncs a folder."""

    def sync(self, directories: Iterable[str]) -> None:
        raise Killed


def reported_by_others(course: Course, files: LocalFiles) -> None:
    """Objects in new folders, whose writer was killed before it synced the folders."""
    reports: list[Callable[[ObjectKey], object]] = [
        lambda key: files.create(key, b"other", None),
        lambda key: files.get(key, 0, None),
        lambda key: files.head_many([key]),
    ]
    killed, stamps = open_files(course.root, None, KilledSync())
    for number, report in enumerate(reports):
        key = ObjectKey(f"agents/{number}/boots/batch")
        body = body_of(key)
        course.begin(key, body)
        with pytest.raises(Killed):
            killed.create(key, body, None)
        report(key)
        course.end(key, body, None)
    stamps.close()
    create_group(course, files, new_objects("a1"))


def delete_known(course: Course, files: LocalFiles, key: ObjectKey) -> None:
    found = files.get(key, 0, None)
    assert isinstance(found, Found)
    course.acknowledged[key].add(None)
    assert isinstance(files.delete(key, found.info.incarnation or ObjectVersion("")), Deleted)
    course.end(key, None, None)


def partitions(course: Course, files: LocalFiles) -> None:
    """A partition is removed with its last object by a process, and used again by another one."""
    other, stamps = open_files(course.root, course.disk)
    first, second, third = (ObjectKey(f"lists/date=1/hour=2/{name}") for name in "abc")
    for key, maker, deleter in ((first, files, other), (second, files, files)):
        body = body_of(key)
        course.begin(key, body)
        made = maker.create(key, body, None)
        assert isinstance(made, Applied)
        course.end(key, body, made)
        delete_known(course, deleter, key)
        assert not (course.root / "lists/date=1").exists()
    create_group(course, files, [NewObject(key=third, body=body_of(third))])
    overwrite_twice(course, other, third)
    stamps.close()


COURSES = [groups, one_by_one, group_then_delete, reported_by_others, partitions]


@pytest.mark.parametrize("seeds", [DAILY_SEEDS, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("work", COURSES, ids=lambda work: work.__name__)
def test_no_crash_loses_an_acknowledged_write_or_leaves_a_torn_object(
    work: Callable[[Course, LocalFiles], None], seeds: int, tmp_path: Path
) -> None:
    course = Course(tmp_path / "store", seeds=seeds)
    course.play(work)
    assert course.points > 30
    assert course.stamps


@pytest.mark.parametrize(("skipped", "message"), [(0, "is torn"), (1, "is lost")])
def test_the_disk_shows_a_group_without_one_of_its_syncs(
    skipped: int, message: str, tmp_path: Path
) -> None:
    """Otherwise a loss would not be noticed."""
    course = Course(tmp_path / "store", skip=frozenset({skipped}))
    with pytest.raises(AssertionError, match=message):
        course.play(groups)
