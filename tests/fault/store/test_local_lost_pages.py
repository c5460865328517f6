"""A crash of the machine before any call of the directory store, with lost names and torn files.

After each crash, acknowledged writes are there, and every object is whole, also for a program that
reads the files without sluice.

A disk that loses what was not synced: every state in which a crash could leave a directory.

The current state is the real directory. What is durable is recorded at each fsync. A crash keeps
each unsynced name or loses it. Each unsynced file is whole, empty, cut short, or without a page.
"""

import os
import random
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

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
from sluice_store.local.files import GroupOutcome, LocalFiles
from sluice_store.local.layout import HIDDEN, Layout
from sluice_store.port import NewObject

PAGE: Final = 4096
POINTS: Final = (
    "open",
    "write",
    "setxattr",
    "utime",
    "fsync",
    "mkdir",
    "rmdir",
    "link",
    "replace",
    "rename",
    "unlink",
    "fchmod",
)
"""Calls before which the disk can crash."""
_SHA256: Final = "user.sluice.sha256"
_BOOT: Final = slice(24, 60)
"""The boot id in a clock file: after a crash the machine has another one."""


@dataclass(frozen=True)
class Inode:
    """The contents and the metadata of a file at one time."""

    number: int
    data: bytes
    mode: int
    mtime_ns: int
    digest: bytes | None


Entries = dict[str, int | None]
"""The names in a folder: the inode of a file, None for a folder."""


def read_inode(path: Path) -> Inode:
    found = path.stat()
    try:
        digest = os.getxattr(path, _SHA256)
    except OSError:
        digest = None
    return Inode(found.st_ino, path.read_bytes(), found.st_mode, found.st_mtime_ns, digest)


def read_entries(folder: Path) -> Entries:
    with os.scandir(folder) as found:
        return {one.name: None if one.is_dir() else one.inode() for one in found}


@dataclass
class LossyDisk:
    """The directory `root`, what of it is durable, and a hook for each point of a crash.

    Attributes:
        root: The directory.
        at_point: Called before each call that changes the directory.
        skip: The numbers of the whole syncs that do nothing, to show that a test detects it.
    """

    root: Path
    at_point: Callable[[], None]
    skip: frozenset[int] = frozenset()
    open: Callable[..., int] = os.open
    files: dict[int, Inode] = field(default_factory=dict)
    folders: dict[Path, Entries] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    syncs: int = 0

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        for fd in self.held.values():
            os.close(fd)
        self.held.clear()

    @contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        yield self._sync

    def _sync(self) -> None:
        """The whole file system is durable."""
        self.at_point()
        self.syncs += 1
        if self.syncs - 1 not in self.skip:
            self.sync_everything()
        self.at_point()

    def sync_everything(self) -> None:
        for folder, _, names in os.walk(self.root):
            self.folders[Path(folder)] = read_entries(Path(folder))
            for name in names:
                self._keep(Path(folder, name))

    def _keep(self, path: Path) -> None:
        """Record a file as durable. An open descriptor prevents that its number is used again."""
        found = read_inode(path)
        self.files[found.number] = found
        if found.number not in self.held:
            self.held[found.number] = self.open(path, os.O_RDONLY)

    def _fsync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if not path.is_relative_to(self.root):
            return
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            self.folders[path] = read_entries(path)
        else:
            self._keep(path)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Record the calls of the store; nothing is synced to the real disk."""
        kept = {name: getattr(os, name) for name in POINTS}

        def around(call: Callable[..., Any]) -> Callable[..., Any]:
            def pointed(*args: Any, **kwargs: Any) -> Any:
                self.at_point()
                found = call(*args, **kwargs)
                if call is kept["mkdir"]:  # it contains nothing of a folder that had its name
                    self.folders.pop(Path(args[0]), None)
                return found

            return pointed

        try:
            for name, call in kept.items():
                setattr(os, name, around(self._fsync if name == "fsync" else call))
            yield
        finally:
            for name, call in kept.items():
                setattr(os, name, call)

    def crash(self, into: Path, seed: int) -> None:
        """Write one state after a crash: 0 loses nothing, 1 everything unsynced, others some."""
        choice = Choice(seed)
        made: dict[int, Path] = {}
        pending = [Path()]
        while pending:
            inner = pending.pop()
            (into / inner).mkdir(parents=True)
            for name, number in self._entries_after(self.root / inner, choice).items():
                if number is None:
                    pending.append(inner / name)
                elif number in made:
                    os.link(made[number], into / inner / name)
                else:
                    made[number] = into / inner / name
                    self._write_file(made[number], number, self.root / inner / name, choice)

    def _entries_after(self, folder: Path, choice: "Choice") -> Entries:
        durable = self.folders.get(folder, {})
        current = read_entries(folder) if folder.is_dir() else {}
        kept: Entries = {}
        for name in sorted(durable.keys() | current.keys()):
            source = durable if durable.get(name, -1) == current.get(name, -1) else None
            source = source or (current if choice.keeps() else durable)
            if name in source:
                kept[name] = source[name]
        return kept

    def _write_file(self, path: Path, number: int, now_at: Path, choice: "Choice") -> None:
        durable, current = self.files.get(number), self._current(number, now_at)
        found = current or durable
        assert found is not None
        data = found.data
        if durable is not None and not choice.keeps():
            data = durable.data
        elif durable is None or durable.data != data:
            data = data if path.name == "clock" else choice.torn(data)
        if path.name == "clock":
            data = data[: _BOOT.start] + b"another boot".ljust(36, b"\0")
        dated = durable if durable is not None and not choice.keeps() else found
        path.write_bytes(data)
        if dated.digest is not None:
            os.setxattr(path, _SHA256, dated.digest)
        path.chmod(stat.S_IMODE(dated.mode))
        os.utime(path, ns=(dated.mtime_ns, dated.mtime_ns))

    def _current(self, number: int, path: Path) -> Inode | None:
        if path.is_file() and path.stat().st_ino == number:
            return read_inode(path)
        return None


class Choice:
    """What one crash keeps."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random(seed)

    def keeps(self) -> bool:
        """Return True if an unsynced change survives."""
        if self._seed in (0, 1):
            return self._seed == 0
        return self._rng.random() < 0.5

    def torn(self, data: bytes) -> bytes:
        """Return the unsynced contents of a file after the crash."""
        if self._seed == 0:
            return data
        cut = self._rng.randrange(len(data) + 1)
        page = cut // PAGE * PAGE
        hole = data[:page] + bytes(len(data[page : page + PAGE])) + data[page + PAGE :]
        return b"" if self._seed == 1 else self._rng.choice([data, b"", data[:cut], hole])


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


@pytest.mark.daily(2)
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
