"""Makes everything that was written to the file system of a store durable, with one system call.

`syncfs(2)` serves a whole group of new objects, but it also waits for what other programs wrote to
the disk. Therefore it is refused while much is unwritten, and for some time after a slow call. It
is only used on file systems for which it is known to be durable and fast (ADR 9).
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S

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
