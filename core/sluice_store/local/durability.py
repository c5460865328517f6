"""What makes a local write durable and ordered: logical timestamps, and syncs that writers share.

Timestamps rise strictly for every process and across crashes (ADR 8). Concurrent writers share the
fsyncs of directories (ADR 9), and a memory of the folders and states that are durable saves more of
them.

`syncfs(2)` serves a whole group of new objects, but it also waits for what other programs wrote to
the disk. Therefore it is refused while much is unwritten, and for some time after a slow call. It
is only used on file systems for which it is known to be durable and fast (ADR 9).

Partitions are folders such as `hour=07`, which are removed with their last object. Keys of derived
data contain dates, hours and names of metrics. Their objects are deleted after some time, and each
would leave folders, which take an inode each and which every listing reads. Other folders stay,
because no process writes to them for a limited time only. A folder of noncurrent versions of one
key, which ends in `@`, is removed too.

A process cannot know that a partition is durable: another one may have removed it and made it again
since, and may have died before it synced it. So each new object in one syncs the folders above it.
"""

import ctypes
import fcntl
import os
import stat
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from sluice_protocol.clock import Clock
from sluice_protocol.errors import NoStore, StoreMisconfigured, describe_version
from sluice_protocol.units import NS_PER_S, UnixNs

_RECORD: Final = struct.Struct("<8sQQ36s")
_FAMILY: Final = b"SLUICEC"
_VERSION: Final = 1
_MAGIC: Final = b"%b%d" % (_FAMILY, _VERSION)
_RESERVE_NS: Final = NS_PER_S
"""How far the durable bound is ahead: one fsync a second, one second lost at a crash."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def _read_boot_id() -> bytes:
    """Return the id of this boot, or nothing on a system without one; then no boot is trusted."""
    try:
        return _BOOT_ID.read_bytes().strip()[:36]
    except OSError:
        return b""


class StoreTimes(Protocol):
    """Port: the times of a store."""

    def now_ns(self) -> UnixNs:
        """Return the store's time, which never moves back for this process."""
        ...

    def read_ns(self) -> UnixNs:
        """Return a time to compare with, at or above every time that was given before."""
        ...

    def next_ns(self) -> UnixNs:
        """Return a timestamp for a new state, above every earlier one."""
        ...

    def next_range_ns(self, count: int) -> UnixNs:
        """Return the first of `count` consecutive timestamps for new states."""
        ...

    def close(self) -> None:
        """Release the file, if one is open."""
        ...


class ReadingClock:
    """The times of a store that is opened for reading: nothing is locked or written.

    A time is the machine's, or the highest time in the clock file if that is later. It is not
    recorded, so it is never given to a state.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._last_ns = 0

    def now_ns(self) -> UnixNs:
        """Return the store's time, which never moves back for this process."""
        self._last_ns = max(self._last_ns, self._clock.now_ns(), self._highest_ns())
        return UnixNs(self._last_ns)

    read_ns = now_ns

    def next_ns(self) -> UnixNs:
        """Refuse: a new state needs a recorded time."""
        return self.next_range_ns(1)

    def next_range_ns(self, count: int) -> UnixNs:
        """Refuse, as `next_ns` does."""
        raise StoreMisconfigured(
            "write", str(self._path), f"the store is opened for reading, states=`{count}`"
        )

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _highest_ns(self) -> int:
        """Return the highest recorded time; 0 if the file is missing or damaged."""
        try:
            raw = self._path.read_bytes()
        except OSError:
            return 0
        if len(raw) != _RECORD.size or not raw.startswith(_MAGIC):
            return 0
        _, highest, _, _ = _RECORD.unpack(raw)
        return int(highest)


class LogicalClock:
    """Source of strictly rising timestamps, which all processes share through a locked file.

    A timestamp is Last-Modified, object version and ETag of a write. The file contains the highest
    timestamp given, and a durable bound ahead of it. A crash of the machine can lose the highest
    timestamp, so the first process of a new boot starts from the bound (ADR 8).

    A lost or damaged file is rebuilt when the store is opened: it continues above the newest file
    of the store. While the store is open, a file that was removed or replaced is an error, because
    two processes would otherwise assign timestamps from two files.

    A forked child would share the lock with its parent, so every process opens the file itself.
    """

    def __init__(
        self, path: Path, clock: Clock, newest: Callable[[], int | None] = lambda: None
    ) -> None:
        """Open or create the file; after a reboot, start from the durable bound.

        `newest` reads the highest timestamp of the store's files; None for a new store.
        """
        self._path = path
        self._clock = clock
        self._newest = newest
        self._threads = threading.Lock()
        self._name = str(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._inode = os.fstat(self._fd).st_ino
        self._boot = _read_boot_id().ljust(36, b"\0")
        try:
            self._take_over()
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def next_ns(self) -> UnixNs:
        """Return a timestamp above every timestamp and time that any process was given before."""
        return self.next_range_ns(1)

    def next_range_ns(self, count: int) -> UnixNs:
        """Return the first of `count` consecutive timestamps, all as `next_ns` returns them."""
        with self._locked():
            highest, reserved, _ = self._read()
            first = max(self._clock.now_ns(), highest + 1)
            self._give(first + count - 1, reserved)
            return UnixNs(first)

    def now_ns(self) -> UnixNs:
        """Return the store's time, which never moves back, whatever the machine's clock does."""
        with self._locked():
            highest, reserved, _ = self._read()
            return self._give(max(self._clock.now_ns(), highest), reserved)

    def read_ns(self) -> UnixNs:
        """Return the store's time without recording it.

        It is at or above every time that was given before. It may be compared but not reported:
        after the machine's clock moved back, a later timestamp may be below it.
        """
        with self._threads:
            fcntl.flock(self._fd, fcntl.LOCK_SH)
            try:
                highest = self._read()[0]
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        return UnixNs(max(self._clock.now_ns(), highest))

    def _give(self, stamp: int, reserved: int) -> UnixNs:
        if stamp > reserved:
            self._write(stamp, stamp + _RESERVE_NS)
            os.fsync(self._fd)
        else:
            self._write(stamp, reserved)
        return UnixNs(stamp)

    def _take_over(self) -> None:
        with self._locked():
            raw = os.pread(self._fd, _RECORD.size, 0)
            if len(raw) != _RECORD.size or not raw.startswith(_MAGIC):
                self._rebuild(raw)
                return
            highest, reserved, boot = self._read()
            if boot != self._boot or not boot.strip(b"\0"):
                self._write(max(highest, reserved), reserved)

    def _rebuild(self, raw: bytes) -> None:
        """Write a file that continues above every timestamp in the store."""
        version = raw[len(_FAMILY) : len(_MAGIC)]
        if raw.startswith(_FAMILY) and version.isdigit() and int(version) != _VERSION:
            reason = describe_version("clock file", int(version), _VERSION)
            raise StoreMisconfigured("open", str(self._path), reason)
        newest = self._newest()
        # Times were given to readers up to the durable bound, which was ahead of the last write.
        bound = 0 if newest is None else newest + _RESERVE_NS
        os.ftruncate(self._fd, 0)
        self._write(bound, bound)
        os.fsync(self._fd)
        fsync_directory(self._path.parent)
        if newest is not None:
            import structlog  # noqa: PLC0415 - takes 0.1 s to import; rarely needed

            log = structlog.get_logger()
            log.warning("store_clock_rebuilt", path=str(self._path), continues_at_ns=bound)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._threads:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                self._check_current()
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _check_current(self) -> None:
        """Raise if the path no longer names the file that this process locked."""
        try:
            if os.stat(self._name).st_ino == self._inode:  # noqa: PTH116 - once per timestamp
                return
        except FileNotFoundError:
            if not self._path.parent.exists():
                raise NoStore(
                    str(self._path.parent.parent),
                    "its folder was removed or moved away: move it back, and the running services"
                    " continue",
                ) from None
        raise self._damage("was removed or replaced")

    def _damage(self, what: str) -> StoreMisconfigured:
        return StoreMisconfigured(
            "clock",
            str(self._path),
            f"the clock file {what}: restart every process of the store, an open rebuilds the file",
        )

    def _read(self) -> tuple[int, int, bytes]:
        raw = os.pread(self._fd, _RECORD.size, 0)
        if len(raw) != _RECORD.size or not raw.startswith(_MAGIC):
            raise self._damage("is damaged")
        _, highest, reserved, boot = _RECORD.unpack(raw)
        return highest, reserved, boot

    def _write(self, highest: int, reserved: int) -> None:
        os.pwrite(self._fd, _RECORD.pack(_MAGIC, highest, reserved, self._boot), 0)


class DirectorySync(Protocol):
    """Port: makes directory entries durable."""

    def sync(self, directories: Iterable[str]) -> None:
        """Return when every entry that existed in these directories at the call is durable.

        If a directory was removed, its removal is durable.

        Raises:
            OSError: A directory could not be synced; its entries may or may not be durable.
        """
        ...


def fsync_directory(directory: Path | str) -> None:
    """Make the entries of one directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _fsync_existing(directory: str) -> None:
    """Sync a directory; if another caller removed it, sync the nearest directory above it."""
    while True:
        try:
            fsync_directory(directory)
        except FileNotFoundError:
            directory = os.path.dirname(directory)  # noqa: PTH120 - a string, as in the callers
        else:
            return


@dataclass(slots=True)
class _Round:
    """One fsync of one directory and the callers that wait for it."""

    waiting: int = 0
    begun: bool = False
    done: bool = False
    error: OSError | None = None


@dataclass(slots=True)
class _Folder:
    """The rounds of one directory: the current one, and the one that new callers join.

    Each directory has a separate `turn`, so that the end of a round wakes no caller of another one.
    The first caller that waits creates it: most directories have one caller.
    """

    busy: bool = False
    next: _Round = field(default_factory=_Round)
    turn: threading.Condition | None = None


class GroupSync:
    """Group commit: one fsync of a directory serves every caller that arrived before it began.

    Directories are synced concurrently. A single leader that syncs the directories of all callers
    in turn was four times slower than no grouping, because the file system groups concurrent fsyncs
    (ADR 9).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: dict[str, _Folder] = {}

    def sync(self, directories: Iterable[str]) -> None:
        """Join the next round of each directory, and lead it when it has no leader.

        The deepest directory is first. Usually only this caller uses it, and its commit makes the
        fsyncs of the shared directories above it quick. The opposite order took twice as long.
        """
        for directory in sorted(directories, key=lambda path: -path.count(os.sep)):
            self._sync_one(directory)

    def _sync_one(self, directory: str) -> None:
        with self._lock:
            folder = self._folders.get(directory)
            if folder is None:
                folder = self._folders[directory] = _Folder()
            joined = folder.next
            joined.waiting += 1
            while not joined.done and (folder.busy or joined.begun):
                if folder.turn is None:
                    folder.turn = threading.Condition(self._lock)
                folder.turn.wait()
            lead = not joined.done
            if lead:
                folder.busy, joined.begun, folder.next = True, True, _Round()
        if lead:
            self._run(directory, folder, joined)
        if joined.error is not None:
            raise OSError(joined.error.errno, joined.error.strerror) from joined.error

    def _run(self, directory: str, folder: _Folder, joined: _Round) -> None:
        try:
            _fsync_existing(directory)
        except OSError as error:
            joined.error = error
        finally:
            with self._lock:
                joined.done, folder.busy = True, False
                if not folder.next.waiting:
                    self._folders.pop(directory, None)
                if folder.turn is not None:
                    folder.turn.notify_all()


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
        """Record folders whose names were synced, except partitions: they may be replaced."""
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

        A folder that another process removes in between is created again. Return the folders on the
        path that are not known to be durable, and False if the name existed.
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
    """Decides from past calls and unwritten bytes whether the next call may be made."""

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
    """Return the bytes that were written by any program and are not on a disk."""
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
