"""The local store behind the port: blocking calls run in separate threads.

`CreateQueue` decides which creates of a process are written together, and which in separate
threads.

A few creates run in separate threads, so that none waits for another. Further ones wait, and are
written as a group in one thread. Two groups are written at the same time: one uses the processor
while the other waits for the disk. So the groups grow with the number of callers and with the time
that a sync takes, and no timer is needed.

`StoreThreads` costs less than `run_in_executor`. An executor creates two futures for each call and
wakes the event loop for each result. Here a call has one future, and the results that are ready
together wake the loop once.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import StoreError, StoreMisconfigured
from sluice_protocol.outcomes import (
    CreateOutcome,
    DeleteOutcome,
    GetOutcome,
    HeadOutcome,
    OverwriteOutcome,
    ReplaceOutcome,
)
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S, Digest, ETag, ObjectKey, ObjectVersion
from sluice_store.local.disk_space import translated
from sluice_store.local.durability import (
    DirectorySync,
    FileSystemSync,
    GroupSync,
    LogicalClock,
    ReadingClock,
    StoreTimes,
    fsync_directory,
    open_filesystem_sync,
)
from sluice_store.local.files import GroupOutcome, LocalFiles, split_groups
from sluice_store.local.layout import (
    MARK,
    NEW_FILE,
    PROBE,
    Layout,
    newest_timestamp,
    walk_incarnations,
    walk_objects,
)
from sluice_store.port import (
    IncarnationPage,
    ListedIncarnation,
    ListPage,
    NewObject,
    ObjectStore,
    Versioning,
)
from sluice_store.url import StoreMode, parse_local_path, refuse_nested_store, require_store

_T = TypeVar("_T")

THREADS_MAX: Final = 64
NAME: Final = "sluice-store"


class StoreThreads:
    """Runs blocking calls in up to `THREADS_MAX` threads, in the order in which they were made."""

    def __init__(self) -> None:
        """Bind the threads to the running event loop; a thread starts when none is free."""
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[tuple[Callable[[], object], asyncio.Future[Any]] | None] = (
            SimpleQueue()
        )
        self._done: deque[tuple[asyncio.Future[Any], object, BaseException | None]] = deque()
        self._threads: list[threading.Thread] = []
        self._open = 0
        self._waking = False

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return the result of a call; if its caller is cancelled before it starts, skip it."""
        future: asyncio.Future[_T] = self._loop.create_future()
        self.submit(work, future)
        return await future

    def submit(self, work: Callable[[], _T], future: asyncio.Future[_T]) -> None:
        """Make a call whose result or failure completes a future, as `run` does."""
        self._open += 1
        if self._open > len(self._threads) and len(self._threads) < THREADS_MAX:
            name = f"{NAME}-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._calls.put((work, future))

    def _serve(self) -> None:
        """Run calls until the end, which is left for the other threads."""
        while (call := self._calls.get()) is not None:
            work, future = call
            result: object = None
            failure: BaseException | None = None
            if not future.cancelled():
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - raised in the caller
                    failure = error
            self._done.append((future, result, failure))
            if not self._waking:
                self._waking = True
                self._loop.call_soon_threadsafe(self._deliver)
            del call, work, future, result, failure  # not kept alive by an idle thread
        self._calls.put(None)

    def _deliver(self) -> None:
        """Complete the futures of finished calls.

        The mark is removed first: a result that is appended later wakes the loop again.
        """
        self._waking = False
        while self._done:
            future, result, failure = self._done.popleft()
            self._open -= 1
            if future.done():  # the caller was cancelled
                continue
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)

    def close(self) -> None:
        """Complete the calls that were made, and end the threads. Blocks until then.

        A task that its caller has left may still make calls, for which a thread may start.
        """
        self._calls.put(None)
        for thread in self._threads:
            thread.join()


GROUP_BODY_MAX: Final = 2 * 2**20
"""Larger bodies are written in separate threads: a few of them would be a whole group."""
RETRY_S: Final = 0.5
"""How long creates run in separate threads after a group could not be written."""

_Waiting = tuple[NewObject, asyncio.Future[CreateOutcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Bounds of grouping.

    Attributes:
        separate_max: Creates that run in separate threads before others wait.
        group_min: Waiting creates from which a group is written.
        groups_max: Groups that are written at the same time.
    """

    separate_max: int = 3
    group_min: int = 4
    groups_max: int = 2


class CreateQueue:
    """The creates of one store that have not begun. It belongs to one event loop."""

    def __init__(self, files: LocalFiles, threads: StoreThreads, limits: GroupLimits) -> None:
        self._files = files
        self._threads = threads
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiting] = []
        self._separate = 0
        self._groups: set[asyncio.Future[list[GroupOutcome] | None]] = set()
        self._due = False
        self._no_group_before_s = 0.0
        self._closed = False

    async def create(self, new: NewObject) -> CreateOutcome:
        """Create one object, in a group if others wait; skip it if the caller is cancelled."""
        future: asyncio.Future[CreateOutcome] = self._loop.create_future()
        if len(new.body) > GROUP_BODY_MAX or self._closed:
            self._start_separate(new, future)
        else:
            self._waiting.append((new, future))
            self._start_soon()
        return await future

    async def close(self) -> None:
        """Begin every create that waits, and return when no group is being written."""
        self._closed = True
        self._separate_up_to(len(self._waiting))
        if self._groups:
            await asyncio.wait(self._groups)
            self._separate_up_to(len(self._waiting))

    def _start_soon(self) -> None:
        """Start creates after all ready tasks have run, so that their creates share a group."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._due = False
        self._waiting = [one for one in self._waiting if not one[1].done()]
        if self._loop.time() < self._no_group_before_s:
            self._separate_up_to(len(self._waiting))
        elif len(self._groups) >= self._limits.groups_max:
            return
        elif len(self._waiting) >= self._limits.group_min:
            self._start_group()
        elif not self._groups:
            self._separate_up_to(self._limits.separate_max - self._separate)

    def _separate_up_to(self, count: int) -> None:
        begun = self._waiting[: max(count, 0)]
        del self._waiting[: len(begun)]
        for new, future in begun:
            self._separate += 1
            future.add_done_callback(self._separate_done)
            self._start_separate(new, future)

    def _start_separate(self, new: NewObject, future: asyncio.Future[CreateOutcome]) -> None:
        work = partial(self._files.create, new.key, new.body, new.sha256)
        self._threads.submit(work, future)

    def _separate_done(self, _: asyncio.Future[CreateOutcome]) -> None:
        self._separate -= 1
        if self._waiting:
            self._start_soon()

    def _start_group(self) -> None:
        count = len(next(split_groups([new for new, _ in self._waiting])))
        group = self._waiting[:count]
        del self._waiting[:count]
        written: asyncio.Future[list[GroupOutcome] | None] = self._loop.create_future()
        written.add_done_callback(partial(self._group_done, group))
        self._groups.add(written)
        objects = [new for new, _ in group]
        self._threads.submit(partial(self._files.create_group, objects), written)

    def _group_done(
        self, group: list[_Waiting], written: asyncio.Future[list[GroupOutcome] | None]
    ) -> None:
        self._groups.discard(written)
        failure = written.exception()
        outcomes = [failure] * len(group) if failure else written.result()
        if outcomes is None:
            self._no_group_before_s = self._loop.time() + RETRY_S
            self._waiting = [*group, *self._waiting]
        else:
            for (_, future), outcome in zip(group, outcomes, strict=True):
                _complete(future, outcome)
        if self._waiting:
            self._start_soon()


def _complete(
    future: asyncio.Future[CreateOutcome], outcome: CreateOutcome | BaseException
) -> None:
    if future.done():  # the caller was cancelled
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


_In = TypeVar("_In")

PAGE_OBJECTS: Final = 1000
_LEFT_OVER_NS: Final = 3600 * NS_PER_S
"""A hidden file older than this belongs to a process that died."""
SPANS_MAX: Final = 4
"""Threads of one call for many objects: more of them only compete for the interpreter's lock."""
SPAN_MIN: Final = 8
"""Objects of one thread, at least: switching to a thread costs as much as a few small files."""
_PROBE_NS: Final = 123_456_789


class LocalStore(ObjectStore):
    """A directory as an object store; `sluice_store.local.files` describes its order of writes."""

    def __init__(
        self,
        layout: Layout,
        files: LocalFiles,
        threads: StoreThreads,
        creates: CreateQueue,
        *,
        read_only: bool = False,
    ) -> None:
        self._layout = layout
        self._files = files
        self._threads = threads
        self._creates = creates
        self._read_only = read_only

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        """Write `body` under a key that does not exist."""
        self._refuse_reader(key)
        return await self._creates.create(NewObject(key=key, body=body, sha256=sha256))

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        """Write `body` over the state tagged `if_match`; the old state is not kept."""
        self._refuse_reader(key)
        return await self._threads.run(lambda: self._files.replace(key, body, if_match))

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        """Write `body`, whether or not the key exists; the old state stays noncurrent."""
        self._refuse_reader(key)
        return await self._threads.run(lambda: self._files.overwrite(key, body, sha256))

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        """Read an object or a range of it."""
        return await self._threads.run(lambda: self._files.get(key, first, last))

    async def create_many(self, objects: Sequence[NewObject]) -> list[CreateOutcome | StoreError]:
        """Create objects in a few threads, in groups that are synced together."""
        self._refuse_reader(objects[0].key if objects else "")
        return await self._in_spans(objects, self._files.create_many)

    async def get_many(self, keys: Sequence[ObjectKey]) -> list[GetOutcome | StoreError]:
        """Read whole objects in a few threads."""
        return await self._in_spans(keys, self._files.get_many)

    async def head_many(self, keys: Sequence[ObjectKey]) -> list[HeadOutcome | StoreError]:
        """Read the metadata of objects in a few threads."""
        return await self._in_spans(keys, self._files.head_many)

    async def _in_spans(
        self, items: Sequence[_In], work: Callable[[Sequence[_In]], list[_T]]
    ) -> list[_T]:
        size = max(SPAN_MIN, -(-len(items) // SPANS_MAX))
        spans = [items[first : first + size] for first in range(0, len(items), size)]
        done = await asyncio.gather(*(self._threads.run(partial(work, span)) for span in spans))
        return [one for some in done for one in some]

    async def head(self, key: ObjectKey) -> HeadOutcome:
        """Read the metadata of an object."""
        return await self._threads.run(lambda: self._files.head(key))

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        """Read the metadata of one object version."""
        return await self._threads.run(lambda: self._files.head_incarnation(key, incarnation))

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        """Delete exactly this object version."""
        self._refuse_reader(key)
        return await self._threads.run(lambda: self._files.delete(key, incarnation))

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        """List current objects, page by page."""
        walk = walk_objects(self._layout, self._files.visible.find, prefix, start_after, end_at)
        async for page, last in self._pages("list", prefix, walk):
            date_ns = await self._threads.run(self._files.now_ns)
            yield ListPage(objects=page, date_ns=date_ns, last=last)

    async def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        """List every object version, page by page; there are no delete markers."""
        walk: Iterator[ListedIncarnation] = walk_incarnations(
            self._layout, self._files.visible.find, prefix, start_after, end_at
        )
        async for page, last in self._pages("list_incarnations", prefix, walk):
            date_ns = await self._threads.run(self._files.now_ns)
            yield IncarnationPage(incarnations=page, date_ns=date_ns, last=last)

    async def read_versioning(self) -> Versioning:
        """Return `ENABLED`: here a delete of one object version always keeps the others."""
        return Versioning.ENABLED

    def _refuse_reader(self, key: str) -> None:
        if self._read_only:
            raise StoreMisconfigured("write", key, "the store is opened for reading")

    async def _pages(
        self, operation: str, prefix: str, walk: Iterator[_T]
    ) -> AsyncIterator[tuple[tuple[_T, ...], bool]]:
        def take() -> tuple[_T, ...]:
            with translated(operation, prefix):
                return tuple(islice(walk, PAGE_OBJECTS))

        page = await self._threads.run(take)
        while True:
            following = await self._threads.run(take) if len(page) == PAGE_OBJECTS else ()
            yield page, not following
            if not following:
                return
            page = following


def _prepare(layout: Layout, ids: IdSource, now_ns: int) -> None:
    """Create the inner folders, and raise for a file system that cannot store timestamps."""
    inner = layout.clock.parent
    for folder in (inner, layout.temporary, layout.locks, layout.generations):
        folder.mkdir(exist_ok=True)  # never the root, which may be moved away at this moment
        fsync_directory(folder)
    fsync_directory(layout.root)
    fsync_directory(layout.root.parent)
    probe = layout.temporary / f"{PROBE}{ids.ulid()}"
    stamp = now_ns // NS_PER_S * NS_PER_S + _PROBE_NS
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, NEW_FILE))
        os.utime(probe, ns=(stamp, stamp))
        found = probe.stat()
        kept, marked = found.st_mtime_ns == stamp, found.st_mode & MARK
    finally:
        probe.unlink(missing_ok=True)
    if not kept:
        raise StoreMisconfigured(
            "open",
            str(layout.root),
            ("the file system does not store nanoseconds: use another, for example ext4"),
        )
    if not marked:
        raise StoreMisconfigured(
            "open",
            str(layout.root),
            ("the file system does not store the sticky bit: use another, for example ext4"),
        )


def _sweep(layout: Layout, now_ns: int) -> None:
    for path in layout.temporary.iterdir():
        with suppress(FileNotFoundError):  # other processes sweep and write concurrently
            if path.stat().st_mtime_ns < now_ns - _LEFT_OVER_NS:
                path.unlink()


def _check_place(root: Path, mode: StoreMode) -> None:
    """Create the folder of a new store, or raise if there is none."""
    if mode is not StoreMode.CREATE:
        require_store(root)
        return
    refuse_nested_store(root)
    root.mkdir(parents=True, exist_ok=True)


def _open_clock(layout: Layout, clock: Clock, ids: IdSource) -> LogicalClock:
    _prepare(layout, ids, clock.now_ns())
    stamps = LogicalClock(layout.clock, clock, partial(newest_timestamp, layout))
    _sweep(layout, clock.now_ns())
    return stamps


@asynccontextmanager
async def open_local_store(  # noqa: PLR0913 - tests replace each part
    root: Path,
    *,
    mode: StoreMode = StoreMode.CREATE,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    syncer: DirectorySync | None = None,
    filesystem: FileSystemSync | None = None,
    limits: GroupLimits | None = None,
) -> AsyncIterator[LocalStore]:
    """Open a directory as a store.

    It must be on a local file system with hard links and flock. None means the machine's clock, the
    system's randomness, grouped fsyncs, and `syncfs` where the file system is suitable.

    Raises:
        BadUsage: A new store would be inside or around another one.
        StoreMisconfigured: The path is no directory, is read-only, or cannot store timestamps.
    """
    layout, clock, ids = Layout(root=root), clock or SystemClock(), ids or SystemIds()
    read_only = mode is StoreMode.READ
    stamps: StoreTimes
    whole: FileSystemSync | None = None
    with translated("open", str(root)):
        await asyncio.to_thread(_check_place, root, mode)
        if read_only:
            stamps = ReadingClock(layout.clock, clock)
        else:
            stamps = await asyncio.to_thread(_open_clock, layout, clock, ids)
            whole = filesystem or open_filesystem_sync(root, clock)
    threads = StoreThreads()
    files = LocalFiles(layout, stamps, syncer or GroupSync(), ids, whole, read_only=read_only)
    creates = CreateQueue(files, threads, limits or GroupLimits())
    try:
        yield LocalStore(layout, files, threads, creates, read_only=read_only)
    finally:
        await creates.close()
        await asyncio.to_thread(threads.close)
        stamps.close()


check_url = parse_local_path


def open_url(url: str, mode: StoreMode) -> AbstractAsyncContextManager[ObjectStore]:
    """Open the store; see `sluice_store.url.open_store`."""
    return open_local_store(parse_local_path(url), mode=mode)
