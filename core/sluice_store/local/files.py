"""The verbs of the local store as blocking calls: the operations on files and their order.

A body is written to a hidden file, given its timestamp and synced, and only then gets its name: by
`link(2)`, which fails when the name exists, or under a lock by `rename(2)`, which replaces the old
state atomically. Then its timestamp is checked, because the naming can stall, and the folder is
synced. So a crash leaves the complete object or none.

A state that another process can see but that a crash could still undo is made durable before it is
reported: `create` syncs before it reports `Exists`, and a read syncs the folder of a recent object
(ADR 0010).
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_protocol.clock import IdSource
from sluice_protocol.errors import (
    ChecksumRefused,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import (
    Applied,
    CreateOutcome,
    Deleted,
    DeleteOutcome,
    Exists,
    Found,
    GetOutcome,
    HeadOutcome,
    Mismatch,
    NotFound,
    ObjectInfo,
    OverwriteOutcome,
    ReplaceOutcome,
    Unknown,
    UnknownReason,
)
from sluice_protocol.units import NS_PER_S, Digest, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.local.durability import DirectorySync, DurableNames, LogicalClock
from sluice_store.local.layout import Layout, incarnations_of
from sluice_store.local.visibility import (
    NEW_FILE,
    FileState,
    Visibility,
    read_sha256,
    state_of,
    write_sha256,
)

_YOUNG_NS: Final = 60 * NS_PER_S
"""A folder entry older than this is on disk: every file system writes its metadata sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A synced file, open until it has its final name."""

    path: Path
    fd: int


class LocalFiles:
    """The verbs of one local store. Every method blocks and may be called from any thread."""

    def __init__(
        self, layout: Layout, stamps: LogicalClock, syncer: DirectorySync, ids: IdSource
    ) -> None:
        """Use a layout whose folders exist."""
        self._layout = layout
        self._stamps = stamps
        self._visible = Visibility(stamps)
        self._syncer = syncer
        self._ids = ids
        self._known = DurableNames(layout.root)

    @property
    def visible(self) -> Visibility:
        """The check of timestamps, which listings need too."""
        return self._visible

    def now_ns(self) -> UnixNs:
        """Return the store's time."""
        return self._stamps.now_ns()

    def create(self, key: ObjectKey, body: bytes, sha256: Digest | None) -> CreateOutcome:
        """Write an object under a key that does not exist."""
        path = self._layout.object_of(key)
        with translated("create", key), self._written(key, body, sha256) as written:
            made = self._make_folders(path.parent)
            try:
                os.link(written.path, path)
            except FileExistsError:
                return self._exists(path)
            return self._settle(path, written, made)

    def replace(self, key: ObjectKey, body: bytes, if_match: ETag) -> ReplaceOutcome:
        """Write an object over the state tagged `if_match`.

        Its timestamp is above that state's, because the caller has read the state before.
        """
        path = self._layout.object_of(key)
        with translated("replace", key), self._written(key, body, None) as written:
            with self._locked(key):
                if self._stamp_of(path) != ObjectVersion(if_match):
                    return Mismatch(date_ns=self._stamps.now_ns())
                written.path.replace(path)
            return self._settle(path, written, [])

    def overwrite(self, key: ObjectKey, body: bytes, sha256: Digest | None) -> OverwriteOutcome:
        """Write an object, whether or not the key exists; the old state stays noncurrent."""
        path = self._layout.object_of(key)
        with translated("overwrite", key), self._locked(key):
            made = self._make_folders(path.parent)
            if not path.exists():
                with self._written(key, body, sha256) as written, suppress(FileExistsError):
                    os.link(written.path, path)
                    return self._settle(path, written, made)
            old = self._stamp_of(path)  # settled first, so that the new timestamp is above it
            with self._written(key, body, sha256) as written:
                made += self._keep_old(key, path, old)
                written.path.replace(path)
                return self._settle(path, written, made)

    def get(self, key: ObjectKey, first: int, last: int | None) -> GetOutcome:
        """Read an object or a range of it, all from one object version."""
        with translated("get", key):
            path = self._layout.object_of(key)
            fd = _open(path)
            if fd is None:
                return NotFound(date_ns=self._stamps.now_ns())
            with os.fdopen(fd, "rb", buffering=0):
                info = self._info(key, fd, path, self._visible.settle(fd))
                end = info.size_bytes if last is None else min(last + 1, info.size_bytes)
                return Found(info=info, body=_read_exactly(fd, first, end))

    def read_body(self, key: ObjectKey) -> bytes | None:
        """Read an object without its metadata; None if it does not exist."""
        with translated("get", key):
            fd = _open(self._layout.object_of(key))
            if fd is None:
                return None
            try:
                return _read_exactly(fd, 0, os.fstat(fd).st_size)
            finally:
                os.close(fd)

    def head(self, key: ObjectKey) -> HeadOutcome:
        """Read the metadata of the current object."""
        with translated("head", key):
            return self._head_file(key, self._layout.object_of(key), current=True)

    def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        """Read the metadata of one object version, current or not."""
        with translated("head_incarnation", key):
            current = self._head_file(key, self._layout.object_of(key), current=True)
            if isinstance(current, ObjectInfo) and current.incarnation == incarnation:
                return current
            old = self._layout.generation_of(key, incarnation)
            return self._head_file(key, old, current=False)

    def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        """Delete one object version; the newest noncurrent one replaces a current one."""
        path = self._layout.object_of(key)
        with translated("delete", key):
            with self._locked(key):
                self._remove(key, path, incarnation)
            folders = {path.parent, self._layout.generations_of(key)}
            try:
                self._syncer.sync({folder for folder in folders if folder.is_dir()})
            except OSError as error:
                return Unknown(reason=UnknownReason.SERVER_ERROR, detail=str(error))
            return Deleted(date_ns=self._stamps.now_ns())

    def _remove(self, key: ObjectKey, path: Path, incarnation: ObjectVersion) -> None:
        """Remove one version. The noncurrent name is first: a crash may have left both."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self._layout.generation_of(key, incarnation).unlink()
        if self._stamp_of(path) != incarnation:
            return
        found = incarnations_of(self._layout, key, self._visible.find)
        heir = next((old for old in found if not old.current), None)
        if heir is None:
            path.unlink()
        else:
            self._layout.generation_of(key, heir.incarnation).replace(path)

    def _exists(self, path: Path) -> Exists:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._syncer.sync({path.parent})
        return Exists(date_ns=self._stamps.now_ns())

    def _settle(self, path: Path, written: _Written, made: list[Path]) -> Applied | Unknown:
        """Check the timestamp and make the name durable; after a failure the outcome is unknown."""
        try:
            stamp = UnixNs(self._visible.settle(written.fd).stamp)
            self._syncer.sync({path.parent, *(folder.parent for folder in made)})
        except OSError as error:
            return Unknown(reason=UnknownReason.SERVER_ERROR, detail=str(error))
        self._known.add_folders(made)
        self._known.add_state(path, stamp)
        tag = str(stamp)
        return Applied(etag=ETag(tag), incarnation=ObjectVersion(tag), date_ns=stamp)

    def _keep_old(self, key: ObjectKey, path: Path, stamp: ObjectVersion | None) -> list[Path]:
        """Give the current state a durable second name among the noncurrent versions."""
        old = self._layout.generation_of(key, stamp or ObjectVersion("0"))
        made = self._make_folders(old.parent)
        with suppress(FileExistsError):
            os.link(path, old)
        self._syncer.sync({old.parent, *(folder.parent for folder in made)})
        return made

    def _make_folders(self, folder: Path) -> list[Path]:
        """Create a folder; return those on its path that are not known to be durable."""
        made = self._known.unknown_folders(folder)
        if made:
            folder.mkdir(parents=True, exist_ok=True)
        return made

    def _stamp_of(self, path: Path) -> ObjectVersion | None:
        found = self._visible.find(path)
        return None if found is None else ObjectVersion(str(found.stamp))

    def _head_file(self, key: ObjectKey, path: Path, *, current: bool) -> HeadOutcome:
        fd = _open(path)
        if fd is None:
            return NotFound(date_ns=self._stamps.now_ns())
        try:
            state = self._visible.settle(fd) if current else state_of(os.fstat(fd))
            return self._info(key, fd, path, state)
        finally:
            os.close(fd)

    def _info(self, key: ObjectKey, fd: int, path: Path, state: FileState) -> ObjectInfo:
        stamp, now = state.stamp, self._stamps.now_ns()
        if now - stamp < _YOUNG_NS and not self._known.has_state(path, stamp):
            self._syncer.sync({path.parent})
            self._known.add_state(path, stamp)
        return ObjectInfo(
            key=key,
            size_bytes=state.size_bytes,
            etag=ETag(str(stamp)),
            incarnation=ObjectVersion(str(stamp)),
            last_modified_ns=state.last_modified_ns,
            sha256=read_sha256(fd, stamp),
            date_ns=now,
        )

    @contextmanager
    def _locked(self, key: ObjectKey) -> Iterator[None]:
        """Lock the key's stripe against every other thread and process that changes a state."""
        fd = os.open(self._layout.lock_of(key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def _written(self, key: ObjectKey, body: bytes, sha256: Digest | None) -> Iterator[_Written]:
        """Write and sync a hidden file, and remove its hidden name at the end.

        The sha256 is checked as a remote store would check it.
        """
        digest = digest_of(body)
        if sha256 is not None and digest != sha256:
            raise ChecksumRefused(
                "create", key, ("the body does not match its sha256: send it again")
            )
        path = self._layout.temporary / self._ids.ulid()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE)
        try:
            self._fill(fd, body, digest)
            yield _Written(path=path, fd=fd)
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)

    def _fill(self, fd: int, body: bytes, digest: Digest) -> None:
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(fd, rest) :]
        stamp = self._stamps.next_ns()
        write_sha256(fd, stamp, digest)
        os.utime(fd, ns=(stamp, stamp))
        os.fsync(fd)


def _open(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _read_exactly(fd: int, first: int, end: int) -> bytes:
    """Read the bytes from `first` up to `end`; an object never changes in place."""
    parts: list[bytes] = []
    while first < end:
        part = os.pread(fd, end - first, first)
        if not part:
            raise OSError(errno.EIO, "the file is shorter than it was")
        parts.append(part)
        first += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


_FULL: Final = "the disk is full: free space or move the store"
_READ_ONLY: Final = "the directory is read-only: mount it writable"
_FORM: Final = "a file is where a folder is required, or the reverse: check the path"
_DENIED: Final = "no permission: give this user the directory"
_FILES: Final = "too many open files: raise the limit (ulimit -n)"

_TABLE: Final[dict[int, tuple[type[StoreError], str]]] = {
    errno.ENOSPC: (StoreMisconfigured, _FULL),
    errno.EDQUOT: (StoreMisconfigured, _FULL),
    errno.EROFS: (StoreMisconfigured, _READ_ONLY),
    errno.ENOTDIR: (StoreMisconfigured, _FORM),
    errno.EISDIR: (StoreMisconfigured, _FORM),
    errno.EEXIST: (StoreMisconfigured, _FORM),
    errno.ENAMETOOLONG: (StoreMisconfigured, "the path is too long: use a shorter root"),
    errno.EACCES: (StoreDenied, _DENIED),
    errno.EPERM: (StoreDenied, _DENIED),
    errno.EMFILE: (StoreUnavailable, _FILES),
    errno.ENFILE: (StoreUnavailable, _FILES),
}


def store_error(error: OSError, operation: str, key: str) -> StoreError:
    """Return the error of the port for an error of the operating system."""
    kind, reason = _TABLE.get(
        error.errno or 0, (StoreUnavailable, (f"input or output error: {error}"))
    )
    return kind(operation, key, reason)


@contextmanager
def translated(operation: str, key: str) -> Iterator[None]:
    """Translate every `OSError` inside the context.

    Raises:
        StoreError: Instead of an `OSError`, which is its cause.
    """
    try:
        yield
    except OSError as error:
        raise store_error(error, operation, key) from error
