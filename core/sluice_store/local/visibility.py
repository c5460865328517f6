"""Timestamps that are never much older than the moment at which their object became visible.

A writer assigns the timestamp before it names the file, and the naming can stall for any length of
time. Therefore a file is created with a mark, the sticky bit, which means: this timestamp has not
been checked since the file became visible. `Visibility.settle` checks it under a lock of the file.
If more than `VISIBILITY_S_MAX` have passed since the timestamp, the file gets a new one. Then the
mark is removed, and the timestamp never changes again.

The writer settles its file after naming it, and every reader settles a marked file before it
reports the timestamp. No reader therefore relies on a timestamp that a stalled writer or a dead one
did not check (ADR 8).

The sha256 of an object that was verified when it was written is in an attribute of its file.

The value contains the timestamp of the state: a file that was edited has another modification time,
and its attribute is ignored. Readers then hash the bytes.

A value has 40 bytes, so that it fits into an inode of 256 bytes, the default of ext4. A value of
more than 56 bytes needs a separate block of 4 KiB for each object. Source: "Extended Attributes" in
https://docs.kernel.org/filesystems/ext4/ (ADR 8).
"""

import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from sluice_protocol.authority import VISIBILITY_S_MAX
from sluice_protocol.outcomes import Applied
from sluice_protocol.units import NS_PER_S, Digest, ETag, ObjectVersion, UnixNs
from sluice_store.local.durability import StoreTimes

ATTRIBUTE: Final = "user.sluice.sha256"
"""The name of the attribute."""
_VALUE: Final = struct.Struct(">q32s")


def encode_verified(stamp: int, sha256: Digest) -> bytes:
    """Return the value for a state: its timestamp in nanoseconds, then its sha256 in bytes."""
    return _VALUE.pack(stamp, bytes.fromhex(sha256))


def decode_verified(value: bytes, stamp: int) -> Digest | None:
    """Return the sha256 that a value states, or None if it is damaged or of another state."""
    if len(value) != _VALUE.size:
        return None
    written, digest = _VALUE.unpack(value)
    return Digest(digest.hex()) if written == stamp else None


def write_verified(fd: int, stamp: int, sha256: Digest) -> None:
    """Store the digest of a file, where the file system has attributes."""
    if hasattr(os, "setxattr"):
        with suppress(OSError):
            os.setxattr(fd, ATTRIBUTE, encode_verified(stamp, sha256))


def read_verified(fd: int, stamp: int) -> Digest | None:
    """Return the digest that was verified when this state of a file was written, or None."""
    if not hasattr(os, "getxattr"):
        return None
    try:
        return decode_verified(os.getxattr(fd, ATTRIBUTE), stamp)
    except OSError:
        return None


MARK: Final = stat.S_ISVTX
"""The mark of an unchecked timestamp. Linux ignores the sticky bit of a regular file."""
NEW_FILE: Final = MARK | 0o644
"""The mode of a new file."""
_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


class FileState(msgspec.Struct, frozen=True, kw_only=True):
    """What the store reports about a file.

    Attributes:
        size_bytes: Its length.
        stamp: Its timestamp, which is also its version and its ETag.
        last_modified_ns: The time that readers may rely on; equal to `stamp` unless this process
            may not write to the store.
    """

    size_bytes: int
    stamp: int
    last_modified_ns: UnixNs


def state_of(found: os.stat_result) -> FileState:
    """Return the state of a file whose timestamp is not checked."""
    stamp = found.st_mtime_ns
    return FileState(size_bytes=found.st_size, stamp=stamp, last_modified_ns=UnixNs(stamp))


def applied_at(stamp: UnixNs) -> Applied:
    """Return the outcome of a durable write with this timestamp."""
    tag = str(stamp)
    return Applied(etag=ETag(tag), incarnation=ObjectVersion(tag), date_ns=stamp)


def is_late(stamp_ns: int, now_ns: int, bound_ns: int = VISIBILITY_S_MAX * NS_PER_S) -> bool:
    """Return True if a timestamp is too old for an object that was first visible by `now_ns`."""
    return now_ns - stamp_ns > bound_ns


class Visibility:
    """Checks the timestamps of files that have become visible."""

    def __init__(self, stamps: StoreTimes, *, read_only: bool = False) -> None:
        """Use the store's times; with `read_only`, no file is changed."""
        self._stamps = stamps
        self._read_only = read_only

    def find(self, path: Path | str) -> FileState | None:
        """Return the state of the current object at a path, or None."""
        try:
            found = os.stat(path)  # noqa: PTH116 - a path is a string on frequent calls
            if not found.st_mode & MARK or not stat.S_ISREG(found.st_mode):
                return state_of(found)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return self.settle(fd)
        finally:
            os.close(fd)

    def settle(self, fd: int) -> FileState:
        """Return the state of a visible file, with a timestamp that never changes again."""
        found = os.fstat(fd)
        if not found.st_mode & MARK:
            return state_of(found)
        if self._read_only:
            return self._visible_now(found)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            return self._settle_locked(fd)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            return self._visible_now(found)  # this process cannot write
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _visible_now(self, found: os.stat_result) -> FileState:
        """Return a state that stays unchecked: the file is visible now, the safe time to report."""
        return FileState(
            size_bytes=found.st_size,
            stamp=found.st_mtime_ns,
            last_modified_ns=self._stamps.now_ns(),
        )

    def settle_new(self, fd: int) -> FileState:
        """Return the state of a file that this process has just named, as `settle` does.

        The file stays locked until the caller closes it, which must be soon: readers wait.
        """
        fcntl.flock(fd, fcntl.LOCK_EX)
        return self._settle_locked(fd)

    def settle_in_group(self, fd: int, now_ns: UnixNs) -> FileState | None:
        """Return the state as `settle_new` does, or None while another process has the lock.

        Args:
            fd: The file.
            now_ns: A time of the store's clock at which the file was visible.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return self._settle_locked(fd, now_ns)

    def _settle_locked(self, fd: int, now_ns: UnixNs | None = None) -> FileState:
        found = os.fstat(fd)
        if not found.st_mode & MARK:
            return state_of(found)
        late = is_late(found.st_mtime_ns, self._stamps.read_ns() if now_ns is None else now_ns)
        if late:
            digest, stamp = read_verified(fd, found.st_mtime_ns), self._stamps.next_ns()
            os.utime(fd, ns=(stamp, stamp))
            if digest is not None:
                write_verified(fd, stamp, digest)
        os.fchmod(fd, stat.S_IMODE(found.st_mode) & ~MARK)
        if not late:
            return state_of(found)
        os.fsync(fd)
        return state_of(os.fstat(fd))
