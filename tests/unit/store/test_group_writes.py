"""Creates that share two syncs of the file system: which ones, their outcomes, what fails alone."""

import asyncio
import fcntl
import os
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.store_groups import ALWAYS_GROUPS, CountedSync, GroupFiles

from sluice_protocol.authority import VISIBILITY_S_MAX as BOUND_S
from sluice_protocol.errors import ChecksumRefused, StoreError, StoreMisconfigured
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import Applied, Exists, NotFound, Unknown
from sluice_protocol.units import ObjectKey
from sluice_store.local import LocalStore, files, open_local_store
from sluice_store.local.files import (
    GROUP_BYTES_MAX,
    GROUP_OBJECTS_MAX,
    GroupOutcome,
    split_groups,
)
from sluice_store.local.layout import MARK
from sluice_store.local.store import GROUP_BODY_MAX, GroupLimits
from sluice_store.port import NewObject


def new(key: str, body: bytes = b"body") -> NewObject:
    return NewObject(key=ObjectKey(key), body=body)


class Store(GroupFiles):
    """The files of a store whose syncs are counted."""

    def create(self, *objects: NewObject) -> list[GroupOutcome]:
        found = self.files.create_group(objects)
        assert found is not None
        assert list(self.layout.temporary.iterdir()) == []
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.stamps.close()


def test_a_group_is_synced_twice_and_each_object_has_its_outcome(store: Store) -> None:
    """The outcomes are those of single creates, in the order of the objects."""
    first = store.create(new("x/1", b"1"), new("x/2", b"2"), new("x/1", b"other"))
    assert [type(one) for one in first] == [Applied, Applied, Exists]
    assert store.syncs.calls == 2
    assert [store.body("x/1"), store.body("x/2")] == [b"1", b"2"]
    stamps = [one.date_ns for one in first if isinstance(one, Applied)]
    assert stamps == sorted(set(stamps))
    for key, outcome in zip(("x/1", "x/2"), first, strict=False):
        head = store.files.head(ObjectKey(key))
        assert (head.etag, head.last_modified_ns) == (outcome.etag, outcome.date_ns)
        assert head.sha256 == digest_of(store.body(key) or b"")
        assert stat.S_IMODE(store.layout.object_of(ObjectKey(key)).stat().st_mode) == 0o644


def test_an_object_that_is_refused_does_not_affect_the_others(store: Store) -> None:
    """Bad keys, wrong checksums, folders in the way: each has its error."""
    store.create(new("folder/inner"), new("file"))
    wrong = NewObject(key=ObjectKey("wrong"), body=b"x", sha256=digest_of(b"y"))
    outcomes = store.create(
        new("good/1"), new("../bad"), wrong, new("folder"), new("file/below"), new("good/2")
    )
    assert isinstance(outcomes[0], Applied)
    assert isinstance(outcomes[1], StoreError)
    assert isinstance(outcomes[2], ChecksumRefused)
    assert isinstance(outcomes[3], StoreMisconfigured)
    assert isinstance(outcomes[4], StoreMisconfigured)
    assert isinstance(outcomes[5], Applied)
    assert [store.body(key) for key in ("good/1", "good/2", "wrong")] == [b"body", b"body", None]


def test_a_group_of_refused_objects_is_not_synced(store: Store) -> None:
    assert isinstance(store.create(new("../bad"))[0], StoreError)
    assert store.syncs.calls == 0


def test_a_full_disk_refuses_one_object(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write, bodies = os.write, []

    def full(fd: int, data: bytes) -> int:
        bodies.append(data)
        if data == b"2":
            raise OSError(28, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    outcomes = store.create(new("1", b"1"), new("2", b"2"), new("3", b"3"))
    assert [type(one) for one in outcomes] == [Applied, StoreMisconfigured, Applied]
    assert "disk is full" in str(outcomes[1])
    assert store.body("2") is None


def test_bodies_that_may_not_be_durable_get_no_name(store: Store) -> None:
    """The first sync fails: a definite error, and nothing is visible."""
    store.syncs.failing = frozenset({0})
    outcomes = store.create(new("1"), new("2"))
    assert all(isinstance(one, StoreError) for one in outcomes)
    assert [store.body("1"), store.body("2")] == [None, None]
    assert store.syncs.calls == 1


def test_names_that_may_not_be_durable_are_unknown(store: Store) -> None:
    """The second sync fails: what this group named is unknown, and `Exists` is not reported."""
    store.create(new("old"))
    store.syncs.failing = frozenset({3})
    outcomes = store.create(new("1"), new("old"))
    assert isinstance(outcomes[0], Unknown)
    assert isinstance(outcomes[1], StoreError)
    assert store.body("1") == b"body"


def test_an_object_that_a_stopped_reader_has_locked_is_unknown(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other objects of the group do not wait for its reader."""
    link, locked = os.link, []

    def linked(source: str, path: str) -> None:
        link(source, path)
        if path.endswith("/locked"):
            locked.append(os.open(path, os.O_RDONLY))
            fcntl.flock(locked[0], fcntl.LOCK_EX)

    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(files, "LOCK_TRIES", 3)
    outcomes = store.create(new("1"), new("locked"), new("2"))
    os.close(locked[0])
    assert [type(one) for one in outcomes] == [Applied, Unknown, Applied]
    assert store.body("locked") == b"body"
    assert isinstance(store.create(new("locked"))[0], Exists)


@pytest.mark.parametrize("grouped", [True, False])
def test_a_clock_that_is_lost_after_the_naming_is_no_definite_error(
    grouped: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is visible, so its outcome is unknown."""

    def lost(*_: Any) -> None:
        raise StoreMisconfigured("clock", "path", "the clock file is damaged")

    monkeypatch.setattr(store.stamps, "read_ns", lost)
    if grouped:
        assert isinstance(store.create(new("1"))[0], Unknown)
    else:
        assert isinstance(store.files.create(ObjectKey("1"), b"body", None), Unknown)


@pytest.mark.parametrize("name", ["utime", "link"])
def test_a_stalled_group_reports_the_time_of_its_visibility(
    name: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No timestamp is older than the visibility of its object by more than the bound."""
    call = getattr(os, name)

    def slow(*args: Any, **kwargs: Any) -> Any:
        store.clock.pass_s(BOUND_S + 1)
        return call(*args, **kwargs)

    with monkeypatch.context() as inner:
        inner.setattr(os, name, slow)
        begun_ns = store.stamps.now_ns()
        outcomes = store.create(new("1"), new("2"))
    for key, outcome in zip("12", outcomes, strict=True):
        assert outcome.date_ns > begun_ns + BOUND_S * 10**9
        head = store.files.head(ObjectKey(key))
        assert (head.last_modified_ns, head.etag) == (outcome.date_ns, outcome.etag)
        assert head.sha256 == digest_of(b"body")


def test_objects_of_a_group_that_died_are_dated_by_their_reader(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks remain until a reader has checked the timestamps."""

    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as inner:
        inner.setattr(store.files.visible, "settle_in_group", die)
        with pytest.raises(Killed):
            store.create(new("1"), new("2"))
    store.clock.pass_s(BOUND_S + 1)
    for key in "12":
        old = store.layout.object_of(ObjectKey(key)).stat()
        assert old.st_mode & MARK
        head = store.files.head(ObjectKey(key))
        assert head.last_modified_ns > old.st_mtime_ns + BOUND_S * 10**9


def test_objects_are_split_by_number_and_bytes() -> None:
    """A larger object is a group without others."""
    many = [new(str(number)) for number in range(2 * GROUP_OBJECTS_MAX + 1)]
    assert [len(one) for one in split_groups(many)] == [GROUP_OBJECTS_MAX, GROUP_OBJECTS_MAX, 1]
    large = new("large", bytes(GROUP_BYTES_MAX + 1))
    half = [new(str(number), bytes(GROUP_BYTES_MAX // 2)) for number in range(3)]
    sizes = [len(one) for one in split_groups([*half, large, new("small")])]
    assert sizes == [2, 1, 1, 1]
    assert list(split_groups([])) == []


def test_many_objects_in_one_call_share_syncs(store: Store) -> None:
    """And are created separately when no group can be written."""
    objects = [new(f"a/{number}") for number in range(GROUP_OBJECTS_MAX + 2)]
    assert all(isinstance(one, Applied) for one in store.files.create_many(objects))
    assert store.syncs.calls == 4
    store.syncs.ready = False
    outcomes = store.files.create_many([new("b/1"), new("a/1"), new("b/2")])
    assert [type(one) for one in outcomes] == [Applied, Exists, Applied]
    assert store.syncs.calls == 4
    good, bad = store.files.create_many([new("c"), new("../bad")])
    assert isinstance(good, Applied)
    assert isinstance(bad, StoreError)
    assert isinstance(store.files.head(ObjectKey("nothing")), NotFound)


class Watched(CountedSync):
    """Syncs of groups that can be held before they begin."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.begun = 0

    def is_ready(self) -> bool:
        self.begun += 1
        self.reached.set()
        assert self.open.wait(30)
        return super().is_ready()


@asynccontextmanager
async def opened(
    root: Path, limits: GroupLimits | None = None
) -> AsyncIterator[tuple[LocalStore, Watched]]:
    syncs = Watched(root)
    async with open_local_store(root, filesystem=syncs, limits=limits) as store:
        yield store, syncs


def create(store: LocalStore, key: str, body: bytes = b"x") -> "asyncio.Task[object]":
    return asyncio.ensure_future(store.create(ObjectKey(key), body))


@pytest.mark.parametrize(
    ("creates", "size_bytes", "ready", "synced"),
    [(32, 1, True, 2), (3, 1, True, 0), (8, GROUP_BODY_MAX + 1, True, 0), (20, 1, False, 0)],
    ids=["many", "a few", "large bodies", "no group can be written"],
)
async def test_many_small_creates_share_two_syncs_and_others_run_separately(
    creates: int, size_bytes: int, ready: bool, synced: int, tmp_path: Path
) -> None:
    async with opened(tmp_path) as (store, syncs):
        syncs.ready = ready
        body = bytes(size_bytes)
        made = (create(store, f"k/{number}", body) for number in range(creates))
        assert all(isinstance(one, Applied) for one in await asyncio.gather(*made))
    assert syncs.calls == synced


async def test_two_groups_are_written_at_the_same_time(tmp_path: Path) -> None:
    """Creates that arrive meanwhile are the next group, also if they are many."""
    async with opened(tmp_path) as (store, syncs):
        syncs.open.clear()
        tasks = [create(store, f"a/{number}") for number in range(4)]
        await asyncio.to_thread(syncs.reached.wait, 30)
        for name in "bcd":
            tasks += [create(store, f"{name}/{number}") for number in range(4)]
            await asyncio.sleep(0.05)
        assert syncs.begun == 2
        syncs.open.set()
        await asyncio.gather(*tasks)
        assert syncs.begun == 3
    assert syncs.calls == 6


async def test_a_few_creates_wait_for_the_end_of_a_group(tmp_path: Path) -> None:
    """Separate ones would sync the disk that the group waits for."""
    async with opened(tmp_path) as (store, syncs):
        syncs.open.clear()
        tasks = [create(store, f"a/{number}") for number in range(4)]
        await asyncio.to_thread(syncs.reached.wait, 30)
        later = create(store, "b/0")
        await asyncio.sleep(0.05)
        assert not later.done()
        syncs.open.set()
        await asyncio.gather(*tasks, later)
    assert syncs.calls == 2


@pytest.mark.parametrize("grouped", [1, 6])
async def test_each_caller_has_its_own_outcome(grouped: int, tmp_path: Path) -> None:
    """One key that exists, one that is refused, and others."""
    async with opened(tmp_path, ALWAYS_GROUPS if grouped == 1 else None) as (store, _):
        await create(store, "old")
        others = [create(store, f"k/{number}") for number in range(grouped)]
        found = await asyncio.gather(
            create(store, "old"), create(store, "../bad"), *others, return_exceptions=True
        )
        assert isinstance(found[0], Exists)
        assert isinstance(found[1], StoreError)
        assert all(isinstance(one, Applied) for one in found[2:])


async def test_a_group_that_fails_as_a_whole_fails_each_caller(tmp_path: Path) -> None:
    """The clock file was damaged: the next open rebuilds it."""
    async with opened(tmp_path) as (store, _):
        (tmp_path / ".sluice" / "clock").write_bytes(b"cut")
        found = await asyncio.gather(
            *(create(store, f"k/{number}") for number in range(5)), return_exceptions=True
        )
        assert all(isinstance(one, StoreError) for one in found)


async def test_a_cancelled_create_that_has_not_begun_is_skipped(tmp_path: Path) -> None:
    """One that is in a group is completed, and the others have their outcomes."""
    async with opened(tmp_path) as (store, syncs):
        syncs.open.clear()
        first = [create(store, f"a/{number}") for number in range(4)]
        await asyncio.to_thread(syncs.reached.wait, 30)
        later = [create(store, f"b/{number}") for number in range(4)]
        await asyncio.sleep(0)
        first[0].cancel()
        later[0].cancel()
        await asyncio.sleep(0)
        syncs.open.set()
        found = await asyncio.gather(*first, *later, return_exceptions=True)
        cancelled = [isinstance(one, asyncio.CancelledError) for one in found]
        assert cancelled == [True, False, False, False] * 2
        assert isinstance(await create(store, "a/0"), Exists)
        assert isinstance(await create(store, "b/0"), Applied)


@pytest.mark.parametrize("ready", [True, False])
async def test_creates_that_wait_when_the_store_closes_are_completed(
    ready: bool, tmp_path: Path
) -> None:
    async with opened(tmp_path) as (store, syncs):
        syncs.open.clear()
        waiting = [create(store, f"a/{number}") for number in range(4)]
        await asyncio.to_thread(syncs.reached.wait, 30)
        syncs.ready = ready
        waiting += [create(store, f"b/{number}") for number in range(2)]
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, syncs.open.set)
    assert all(isinstance(one, Applied) for one in await asyncio.gather(*waiting))
