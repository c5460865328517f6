"""Sync of a whole file system, and the folders of new objects and which of them are durable.

`syncfs(2)` serves a whole group of new objects, but it also waits for what other programs wrote to
the disk. Therefore it is refused while much is unwritten, and for some time after a slow call. It
is only used on file systems for which it is known to be durable and fast (ADR 9).

Partitions are folders such as `hour=07`, which are removed with their last object.

Keys of derived data contain dates, hours and names of metrics. Their objects are deleted after some
time, and each would leave folders, which take an inode each and which every listing reads. Other
folders stay, because no process writes to them for a limited time only. A folder of noncurrent
versions of one key, which ends in `@`, is removed too.

A process cannot know that a partition is durable: another one may have removed it and made it again
since, and may have died before it synced it. So each new object in one syncs the folders above it.
"""

import ctypes
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S

_PARTITIONS: Final = ("date=", "hour=", "window=", "metric=")


def is_partition(folder: str) -> bool:
    """Return True if a folder is removed when it is empty."""
    name = os.path.basename(folder)  # noqa: PTH119 - a path is a string, as in the callers
    return name.startswith(_PARTITIONS) or name.endswith("@")


def remove_empty_partitions(folder: str) -> None:
    """Remove a folder and those above it, as long as they are empty partitions.

    The removal is durable once the folder above them is synced.
    """
    with suppress(OSError):  # it is not empty, or another process has removed it
        while is_partition(folder):
            os.rmdir(folder)  # noqa: PTH106 - as above
            folder = os.path.dirname(folder)  # noqa: PTH120 - as above


_STATES_MAX: Final = 65_536
_FOLDERS_MAX: Final = 65_536
_TRIES: Final = 16
"""Tries to name a file whose folder is removed each time."""


class DurableNames:
    """A bounded set of folders and states known to be durable; a lost entry costs one fsync."""

    def __init__(self, root: Path) -> None:
        """Start with the root, which is durable once the store is open."""
        self._root = str(root)
        self._lock = threading.Lock()
        self._folders: set[str] = set()
        self._states: OrderedDict[tuple[str, int], None] = OrderedDict()

    def unknown_folders(self, folder: str) -> list[str]:
        """Return the folders on a path below the root that are not known to be durable.

        `folder` is the first of them, and the folder that is closest to the root is the last.
        """
        unknown: list[str] = []
        while folder not in self._folders and folder != self._root:
            unknown.append(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120 - several times for each new object
        return unknown

    def add_folders(self, folders: list[str]) -> None:
        """Record folders whose names were synced; partitions may be others at any time."""
        permanent = [one for one in folders if not is_partition(one)]
        with self._lock:
            if len(self._folders) + len(permanent) > _FOLDERS_MAX:
                self._folders = set()
            self._folders.update(permanent)

    def forget_folders(self, folder: str) -> None:
        """Forget a folder that does not exist, and every folder above it."""
        with self._lock:
            while folder != self._root:
                self._folders.discard(folder)
                folder = os.path.dirname(folder)  # noqa: PTH120 - as above

    def has_state(self, path: str, stamp: int) -> bool:
        """Return True when this state of a file is known to be durable."""
        return (path, stamp) in self._states

    def add_state(self, path: str, stamp: int) -> None:
        """Record that a state is durable."""
        with self._lock:
            self._states[path, stamp] = None
            while len(self._states) > _STATES_MAX:
                self._states.popitem(last=False)

    def _make_folders(self, folder: str) -> list[str]:
        """Create a folder; return those on its path that are not known to be durable."""
        made = self.unknown_folders(folder)
        for one in reversed(made):
            try:
                os.mkdir(one)  # noqa: PTH102 - several times for each new object
            except FileExistsError:
                # One that was removed in between is FileNotFoundError here.
                if not stat.S_ISDIR(os.stat(one).st_mode):  # noqa: PTH116 - as above
                    raise
        return made

    def link(self, source: str, path: str) -> tuple[list[str], bool]:
        """Give a file another name, and create the folders that the name needs.

        A folder that another process removes in between is created again.

        Returns:
            The folders on the path that are not known to be durable, and whether the file has the
            name now; False if the name existed.

        Raises:
            OSError: The name could not be given.
        """
        folder = os.path.dirname(path)  # noqa: PTH120 - for each new object
        tries = 0
        while True:
            try:
                made = self._make_folders(folder)
                try:
                    os.link(source, path)
                except FileExistsError:
                    return made, False
            except FileNotFoundError:  # a folder was removed after it was known or created
                tries += 1
                if tries == _TRIES or not os.path.lexists(source):
                    raise
                self.forget_folders(folder)
            else:
                return made, True


DIRTY_BYTES_MAX: Final = 256 * 2**20
"""Unwritten bytes of all programs above which a call could take long."""
SLOW_NS: Final = NS_PER_S // 2
PAUSE_NS: Final = 10 * NS_PER_S
"""How long no call is made after one that took longer than `SLOW_NS`."""
_CHECK_NS: Final = NS_PER_S // 50
"""How long a count of unwritten bytes is used."""
_MEMINFO: Final = "/proc/meminfo"
_EXT4: Final = 0xEF53
_XFS: Final = 0x58465342
_TMPFS: Final = 0x01021994
_SUITABLE: Final = frozenset({_EXT4, _XFS, _TMPFS})
"""On others, syncfs does nothing (FUSE) or costs more than many fsyncs (btrfs, F2FS)."""
_REPORTS_ERRORS: Final = (5, 8)
"""The first Linux whose syncfs reports write errors."""


class FileSystemSync(Protocol):
    """Port: makes all earlier writes to one file system durable."""

    def is_ready(self) -> bool:
        """Return True if a call is not expected to wait long for other programs."""
        ...

    def watched(self) -> AbstractContextManager[Callable[[], None]]:
        """Return a sync, which reports each write that failed since.

        It returns when everything that was written before the call is durable, and raises `OSError`
        if something may not be durable. It must be requested before the writes, for each thread
        separately: a failed write is reported once.
        """
        ...


class NoFileSystemSync:
    """The port on a system without a suitable call; it is never ready."""

    def is_ready(self) -> bool:
        """Return False: each object is synced separately."""
        return False

    @contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        """Raise: nothing can be synced."""
        raise OSError("this file system cannot be synced as a whole")
        yield


@dataclass(slots=True)
class SyncPause:
    """Decides from past calls and unwritten bytes whether the next call may be made.

    Attributes:
        until_ns: No call is made before this monotonic time.
    """

    until_ns: int = 0

    def ended(self, *, now_ns: int, taken_ns: int) -> bool:
        """Record a call that ended; return True if it was slow, so that a pause begins."""
        if taken_ns > SLOW_NS:
            self.until_ns = now_ns + PAUSE_NS
        return taken_ns > SLOW_NS

    def permits(self, *, now_ns: int, dirty_bytes: int) -> bool:
        """Return True if a call may be made."""
        return now_ns >= self.until_ns and dirty_bytes <= DIRTY_BYTES_MAX


def read_dirty_bytes() -> int:
    """Return the bytes that were written by any program and are not on a disk.

    Raises:
        OSError: The system does not report them.
    """
    found = 0
    for line in Path(_MEMINFO).read_bytes().splitlines():
        name, _, value = line.partition(b":")
        if name in (b"Dirty", b"Writeback"):
            found += int(value.split()[0]) * 1024
    return found


class SyncFs:
    """The port by `syncfs(2)` of Linux."""

    def __init__(self, root: Path, clock: Clock, call: Callable[[int], int]) -> None:
        """Use the file system of a directory; `call` is the function of the C library."""
        self._root = str(root)
        self._clock = clock
        self._call = call
        self._lock = threading.Lock()
        self._pause = SyncPause()
        self._dirty_bytes = 0
        self._counted_ns = -_CHECK_NS

    def is_ready(self) -> bool:
        """Return True if little is unwritten and the last calls were quick."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if now_ns - self._counted_ns >= _CHECK_NS:
                self._counted_ns = now_ns
                try:
                    self._dirty_bytes = read_dirty_bytes()
                except OSError:
                    self._dirty_bytes = DIRTY_BYTES_MAX + 1
            return self._pause.permits(now_ns=now_ns, dirty_bytes=self._dirty_bytes)

    @contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        """Return a sync, which reports each write that failed since.

        Linux reports a failed write once to each descriptor that was open before.
        """
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield partial(self._sync, fd)
        finally:
            with suppress(OSError):  # the objects have their names and outcomes
                os.close(fd)

    def _sync(self, fd: int) -> None:
        begun_ns = self._clock.monotonic_ns()
        try:
            if self._call(fd) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            now_ns = self._clock.monotonic_ns()
            with self._lock:
                slow = self._pause.ended(now_ns=now_ns, taken_ns=now_ns - begun_ns)
            if slow:
                import structlog  # noqa: PLC0415 - takes 0.1 s to import; rarely needed

                log = structlog.get_logger()
                log.warning("store_sync_slow", taken_ms=(now_ns - begun_ns) // 10**6)


def open_filesystem_sync(root: Path, clock: Clock) -> FileSystemSync:
    """Return `syncfs` for a directory, if the system and the file system are suitable."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        call, statfs = library.syncfs, library.statfs
    except (OSError, AttributeError):
        return NoFileSystemSync()
    if os.uname().sysname != "Linux" or _release() < _REPORTS_ERRORS:
        return NoFileSystemSync()
    found = ctypes.create_string_buffer(512)
    if statfs(os.fsencode(root), found) != 0:
        return NoFileSystemSync()
    kind = ctypes.c_ulong.from_buffer(found).value & 0xFFFFFFFF
    if kind not in _SUITABLE:
        import structlog  # noqa: PLC0415 - takes 0.1 s to import; rarely needed

        log = structlog.get_logger()
        log.info("store_group_sync_unavailable", path=str(root), file_system=hex(kind))
        return NoFileSystemSync()
    return SyncFs(root, clock, call)


def _release() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.split(".")
    digits = "".join(one for one in minor if one.isdigit())
    return int(major), int(digits or 0)
