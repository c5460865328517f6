"""The files of a local store: where each key is, listings in key order, and times of visibility.

No timestamp is much older than the moment at which its object became visible. A writer assigns it
before it names the file, and the naming can stall for any length of time. Therefore a file is
created with a mark, the sticky bit, which means: this timestamp has not been checked since the file
became visible. `Visibility.settle` checks it under a lock of the file. If more than
`VISIBILITY_S_MAX` have passed since the timestamp, the file gets a new one. Then the mark is
removed, and the timestamp never changes again.

The writer settles its file after naming it, and every reader settles a marked file before it
reports the timestamp. No reader therefore relies on a timestamp that a stalled writer or a dead one
did not check (ADR 8).

The sha256 of an object that was verified when it was written is in an attribute of its file. The
value contains the timestamp of the state: a file that was edited has another modification time, and
its attribute is ignored. Readers then hash the bytes.

A value has 40 bytes, so that it fits into an inode of 256 bytes, the default of ext4. A value of
more than 56 bytes needs a separate block of 4 KiB for each object. Source: "Extended Attributes" in
https://docs.kernel.org/filesystems/ext4/ (ADR 8).
"""

import errno
import fcntl
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sluice_protocol.authority import VISIBILITY_S_MAX
from sluice_protocol.errors import StoreError
from sluice_protocol.outcomes import Applied
from sluice_protocol.units import NS_PER_S, Digest, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.local.durability import StoreTimes
from sluice_store.port import ListedIncarnation, ListedObject
from sluice_store.url import HIDDEN

ATTRIBUTE: Final = "user.sluice.sha256"
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
_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


class FileState(msgspec.Struct, frozen=True, kw_only=True):
    """What the store reports about a file.

    `stamp` is also its version and its ETag. Readers may rely on `last_modified_ns`, which equals
    `stamp` unless this process may not write to the store.
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

        `now_ns` is a time of the store's clock at which the file was visible.
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


FindFile = Callable[[Path], FileState | None]
"""Returns the state of a current object; listings take it as an argument."""

PROBE: Final = "probe-"
"""Prefix of the hidden files that test the file system, and whose timestamps mean nothing."""
NAME_BYTES_MAX: Final = 255
LOCK_STRIPES: Final = 64
_SEGMENT: Final = r"[A-Za-z0-9_%=@+,:-][A-Za-z0-9_%=@+,:.-]{0,250}"
_PLAIN_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*", re.ASCII)
"""Matches almost every key of the layout, and none that `check_key` refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The folders of one local store."""

    root: Path

    @property
    def clock(self) -> Path:
        """The file of the highest timestamp."""
        return self.root / HIDDEN / "clock"

    @property
    def temporary(self) -> Path:
        """Folder of bodies without a final name; in the same file system."""
        return self.root / HIDDEN / "tmp"

    @property
    def locks(self) -> Path:
        """Folder of the lock files."""
        return self.root / HIDDEN / "locks"

    @property
    def generations(self) -> Path:
        """Folder of noncurrent object versions, one folder per key."""
        return self.root / HIDDEN / "generations"

    def lock_of(self, key: ObjectKey) -> Path:
        """Return the lock file of a key's stripe."""
        return self.locks / f"{zlib.crc32(key.encode()) % LOCK_STRIPES:02d}"

    def object_of(self, key: ObjectKey) -> Path:
        """Return the file of a current object."""
        return Path(self.file_of(key))

    def file_of(self, key: ObjectKey) -> str:
        """Return the path of `object_of` as a string, which costs a tenth of a `Path`."""
        check_key(key)
        return f"{self.root}/{key}"

    def generations_of(self, key: ObjectKey) -> Path:
        """Return the folder of a key's noncurrent versions; no folder of a key ends in `@`."""
        check_key(key)
        return self.generations / f"{key}@"

    def generation_of(self, key: ObjectKey, incarnation: ObjectVersion) -> Path:
        """Return the file of one noncurrent version."""
        number = int(incarnation) if incarnation.isascii() and incarnation.isdigit() else 0
        return self.generations_of(key) / f"{number:020d}"


def check_key(key: str) -> None:
    """Raise for a key that would be outside the directory or that a file system cannot store.

    Raises:
        StoreError: The key has an empty, dotted, hidden or too long segment, or a NUL.
    """
    if _PLAIN_KEY.fullmatch(key):
        return
    segments = key.split("/")
    wrong = {"", ".", ".."}.intersection(segments) or segments[0] == HIDDEN or "\0" in key
    if wrong or any(len(segment.encode()) >= NAME_BYTES_MAX for segment in segments):
        raise StoreError("local", key, "a directory cannot store this key: use another key")


def refuse_folder(path: str) -> None:
    """Raise if a path that should be a file is a folder."""
    if os.path.isdir(path):  # noqa: PTH112 - a path is a string on frequent calls
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _entries(folder: Path) -> list[str]:
    """Return the names in a folder, with `/` after a folder's, in the order of their keys."""
    try:
        with os.scandir(folder) as found:
            names = [
                entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in found
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(names, key=os.fsencode)


def _outside(start: str, prefix: str, after: str, end: str | None) -> bool:
    """Return True when no key that starts with `start` is within the bounds."""
    if not (start.startswith(prefix) or prefix.startswith(start)):
        return True
    before = start.encode() < after.encode() and not after.startswith(start)
    past = end is not None and start.encode() > end.encode()
    return before or past


def walk_keys(root: Path, prefix: str, after: str, end: str | None) -> Iterator[str]:
    """Yield the keys under `root` with `after < key <= end`, in the order of their UTF-8 bytes."""
    top = prefix.rpartition("/")[0]
    steps = top.split("/") if top else []
    if {"", ".", ".."}.intersection(steps) or steps[:1] == [HIDDEN]:
        return  # no key has such a segment, and the listing must stay inside the directory
    pending = [f"{top}/" if top else ""]
    while pending:
        start = pending.pop()
        if start and not start.endswith("/"):
            yield start
            continue
        inner = [
            start + name
            for name in _entries(root / start)
            if (start or name != f"{HIDDEN}/") and _wanted(start + name, prefix, after, end)
        ]
        pending.extend(reversed(inner))


def _wanted(start: str, prefix: str, after: str, end: str | None) -> bool:
    if start.endswith("/"):
        return not _outside(start, prefix, after, end)
    raw = start.encode()
    in_bounds = raw > after.encode() and (end is None or raw <= end.encode())
    return start.startswith(prefix) and in_bounds


def _find_old(path: Path) -> FileState | None:
    """Return the state of a noncurrent version, whose timestamp is part of its name."""
    try:
        return state_of(path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return None  # deleted since the listing


def walk_objects(
    layout: Layout, find: FindFile, prefix: str, after: str, end: str | None
) -> Iterator[ListedObject]:
    """Yield the current objects with `after < key <= end`, in key order."""
    for key in walk_keys(layout.root, prefix, after, end):
        found = find(layout.root / key)
        if found is not None:
            yield ListedObject(
                key=ObjectKey(key),
                size_bytes=found.size_bytes,
                etag=ETag(str(found.stamp)),
                last_modified_ns=found.last_modified_ns,
            )


def newest_timestamp(layout: Layout) -> int | None:
    """Return the highest timestamp of a file of the store, or None for a store without files.

    Noncurrent states count, and so do hidden files, which their writers may still link. Lock files
    (also of a spool), the clock file and probes have no timestamps of the store.
    """
    newest: int | None = None
    pending = [layout.root]
    while pending:
        with suppress(FileNotFoundError), os.scandir(pending.pop()) as found:
            for entry in found:
                path = Path(entry.path)
                if path in (layout.clock, layout.locks) or entry.name.startswith(PROBE):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif path.parent == layout.root and entry.name.startswith("."):
                    continue  # no object: no key of sluice starts with a dot
                elif (status := _find_old(path)) is not None:
                    newest = max(newest or 0, status.stamp)
    return newest


def _incarnation(key: str, found: FileState, *, current: bool) -> ListedIncarnation:
    return ListedIncarnation(
        key=ObjectKey(key),
        incarnation=ObjectVersion(str(found.stamp)),
        current=current,
        marker=False,
        size_bytes=found.size_bytes,
        etag=ETag(str(found.stamp)),
        last_modified_ns=found.last_modified_ns,
    )


def incarnations_of(layout: Layout, key: ObjectKey, find: FindFile) -> Iterator[ListedIncarnation]:
    """Yield the object versions of one key, newest first.

    A crash may leave the current state in the folder of noncurrent versions too, as a second name
    of the same file. Its timestamp identifies it.
    """
    current = find(layout.root / key)
    if current is not None:
        yield _incarnation(key, current, current=True)
    folder = layout.generations_of(key)
    for name in reversed(_entries(folder)):
        found = _find_old(folder / name)
        if found is not None and (current is None or found.stamp != current.stamp):
            yield _incarnation(key, found, current=False)


def walk_incarnations(
    layout: Layout, find: FindFile, prefix: str, after: str, end: str | None
) -> Iterator[ListedIncarnation]:
    """Yield every object version with `after < key <= end`, newest first within a key.

    A key always has a current object: deleting the current one makes the next one current.
    """
    for key in walk_keys(layout.root, prefix, after, end):
        yield from incarnations_of(layout, ObjectKey(key), find)
