"""The verbs of the local store as blocking calls: the operations on files and their order.

A body is written to a hidden file, given its timestamp and synced, and only then gets its name: by
`link(2)`, which fails when the name exists, or under a lock by `rename(2)`, which replaces the old
state atomically. Then its timestamp is checked, because the naming can stall, and the folder is
synced. So a crash leaves the complete object or none.

A state that another process can see but that a crash could still undo is made durable before it is
reported: `create` syncs before it reports `Exists`, and a read syncs the folder of a recent object
(ADR 8).
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sluice_protocol.clock import IdSource
from sluice_protocol.errors import StoreError
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
from sluice_store.local.disk_space import store_error, translated
from sluice_store.local.durability import (
    DirectorySync,
    DurableNames,
    FileSystemSync,
    NoFileSystemSync,
    StoreTimes,
    remove_empty_partitions,
)
from sluice_store.local.group_writes import (
    GroupOutcome,
    GroupWrites,
    HiddenFile,
    HiddenFiles,
    split_groups,
)
from sluice_store.local.layout import (
    FileState,
    Layout,
    Visibility,
    applied_at,
    incarnations_of,
    read_verified,
    refuse_folder,
    state_of,
)
from sluice_store.port import NewObject

_Outcome = TypeVar("_Outcome")

_YOUNG_NS: Final = 60 * NS_PER_S
"""A folder entry older than this is on disk: every file system writes its metadata sooner."""


@dataclass(slots=True, kw_only=True)
class _Reads:
    """The reads of one call, which share a time of the store and the fsyncs of folders.

    `now_ns` is the store's time before the first of them. `young` has path and timestamp of each
    state that was found and may not be durable.
    """

    now_ns: UnixNs
    young: list[tuple[str, int]] = field(default_factory=list)


class LocalFiles:
    """The verbs of one local store. Every method blocks and may be called from any thread."""

    def __init__(
        self,
        layout: Layout,
        stamps: StoreTimes,
        syncer: DirectorySync,
        ids: IdSource,
        filesystem: FileSystemSync | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        """Use a layout whose folders exist. Without `filesystem`, no group is written.

        With `read_only`, a state is reported as it is found: it is neither settled nor synced, and
        a crash may undo one that was being written.
        """
        self._layout = layout
        self._stamps = stamps
        self._read_only = read_only
        self._visible = Visibility(stamps, read_only=read_only)
        self._syncer = syncer
        self._hidden = HiddenFiles(str(layout.temporary), stamps, ids)
        self._known = DurableNames(layout.root)
        self._groups = GroupWrites(
            layout=layout,
            stamps=stamps,
            visible=self._visible,
            hidden=self._hidden,
            known=self._known,
            filesystem=filesystem or NoFileSystemSync(),
        )

    @property
    def visible(self) -> Visibility:
        """The check of timestamps, which listings need too."""
        return self._visible

    def now_ns(self) -> UnixNs:
        """Return the store's time."""
        return self._stamps.now_ns()

    def create(self, key: ObjectKey, body: bytes, sha256: Digest | None) -> CreateOutcome:
        """Write an object under a key that does not exist."""
        path = self._layout.file_of(key)
        with translated("create", key), self._hidden.written(key, body, sha256) as written:
            made, is_named = self._known.link(written.path, path)
            return self._settle(path, written, made) if is_named else self._exists(path, made)

    def create_group(self, objects: Sequence[NewObject]) -> list[GroupOutcome] | None:
        """Create objects that share the syncs; None if no group can be written now."""
        if not self._groups.is_ready():
            return None
        with translated("create", objects[0].key if objects else ""):
            return self._groups.create(objects)

    def create_many(self, objects: Sequence[NewObject]) -> list[GroupOutcome]:
        """Create objects, in groups where that is possible."""
        outcomes: list[GroupOutcome] = []
        for group in split_groups(objects):
            written: list[GroupOutcome] | None = None
            try:
                written = self.create_group(group) if len(group) > 1 else None
            except StoreError:
                written = None  # nothing was written; each create shows its own error
            outcomes += written if written is not None else map(self._create_one, group)
        return outcomes

    def _create_one(self, new: NewObject) -> GroupOutcome:
        try:
            return self.create(new.key, new.body, new.sha256)
        except StoreError as error:
            return error

    def replace(self, key: ObjectKey, body: bytes, if_match: ETag) -> ReplaceOutcome:
        """Write an object over the state tagged `if_match`.

        Its timestamp is above that state's, because the caller has read the state before.
        """
        path = self._layout.file_of(key)
        with translated("replace", key), self._hidden.written(key, body, None) as written:
            with self._locked(key):
                if self._stamp_of(path) != ObjectVersion(if_match):
                    return Mismatch(date_ns=self._stamps.now_ns())
                os.replace(written.path, path)  # noqa: PTH105 - for each register
            return self._settle(path, written, [])

    def overwrite(self, key: ObjectKey, body: bytes, sha256: Digest | None) -> OverwriteOutcome:
        """Write an object, whether or not the key exists; the old state stays noncurrent."""
        path = self._layout.file_of(key)
        with translated("overwrite", key), self._locked(key):
            made = self._known.unknown_folders(_folder_of(path))
            if not os.path.exists(path):  # noqa: PTH110 - as for the other verbs
                with self._hidden.written(key, body, sha256) as written:
                    made, is_named = self._known.link(written.path, path)
                    if is_named:
                        return self._settle(path, written, made)
            old = self._stamp_of(path)  # settled first, so that the new timestamp is above it
            with self._hidden.written(key, body, sha256) as written:
                made += self._keep_old(key, path, old)
                os.replace(written.path, path)  # noqa: PTH105 - as for the other verbs
                return self._settle(path, written, made)

    def get(self, key: ObjectKey, first: int, last: int | None) -> GetOutcome:
        """Read an object or a range of it, all from one object version."""
        with self._reading("get", key) as reads:
            return self._get_file(key, first, last, reads)

    def get_many(self, keys: Sequence[ObjectKey]) -> list[GetOutcome | StoreError]:
        """Read whole objects. Folders that several of them are in are synced once."""
        return self._read_many("get", keys, lambda key, reads: self._get_file(key, 0, None, reads))

    def _read_many(
        self,
        operation: str,
        keys: Sequence[ObjectKey],
        read: Callable[[ObjectKey, _Reads], _Outcome],
    ) -> list[_Outcome | StoreError]:
        outcomes: list[_Outcome | StoreError] = []
        try:
            with self._reading(operation, keys[0] if keys else "") as reads:
                for key in keys:
                    try:
                        outcomes.append(read(key, reads))
                    except OSError as error:
                        outcomes.append(store_error(error, operation, key))
                    except StoreError as error:
                        outcomes.append(error)
        except StoreError as error:  # what was read may not be durable
            return [error for _ in keys]
        return outcomes

    def _get_file(self, key: ObjectKey, first: int, last: int | None, reads: _Reads) -> GetOutcome:
        path = self._layout.file_of(key)
        fd = _open(path)
        if fd is None:
            return NotFound(date_ns=reads.now_ns)
        try:
            info = self._info(key, fd, path, self._visible.settle(fd), reads)
            end = info.size_bytes if last is None else min(last + 1, info.size_bytes)
            return Found(info=info, body=_read_exactly(fd, first, end))
        finally:
            os.close(fd)

    def head(self, key: ObjectKey) -> HeadOutcome:
        """Read the metadata of the current object."""
        with self._reading("head", key) as reads:
            return self._head_file(key, self._layout.file_of(key), reads, current=True)

    def head_many(self, keys: Sequence[ObjectKey]) -> list[HeadOutcome | StoreError]:
        """Read the metadata of current objects, as `get_many` reads them."""
        return self._read_many(
            "head",
            keys,
            lambda key, reads: self._head_file(key, self._layout.file_of(key), reads, current=True),
        )

    def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        """Read the metadata of one object version, current or not."""
        with self._reading("head_incarnation", key) as reads:
            current = self._head_file(key, self._layout.file_of(key), reads, current=True)
            if isinstance(current, ObjectInfo) and current.incarnation == incarnation:
                return current
            old = self._layout.generation_of(key, incarnation)
            return self._head_file(key, str(old), reads, current=False)

    def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        """Delete one object version; the newest noncurrent one replaces a current one."""
        path = self._layout.file_of(key)
        with translated("delete", key):
            with self._locked(key):
                was_current = self._remove(key, path, incarnation)
            folders, old = {_folder_of(path)}, str(self._layout.generations_of(key))
            if not was_current or os.path.isdir(old):  # noqa: PTH112 - strings, as everywhere here
                folders.add(old)
            for folder in folders:
                remove_empty_partitions(folder)
            try:
                self._syncer.sync(folders)
            except OSError as error:
                return Unknown(reason=UnknownReason.SERVER_ERROR, detail=str(error))
            return Deleted(date_ns=self._stamps.now_ns())

    def _remove(self, key: ObjectKey, path: str, incarnation: ObjectVersion) -> bool:
        """Remove one version; return True if it was the current one.

        The noncurrent name is first: a crash may have left both.
        """
        with suppress(FileNotFoundError, NotADirectoryError):
            self._layout.generation_of(key, incarnation).unlink()
        if self._stamp_of(path) != incarnation:
            return False
        found = incarnations_of(self._layout, key, self._visible.find)
        heir = next((old for old in found if not old.current), None)
        if heir is None:
            os.unlink(path)  # noqa: PTH108 - as for the other verbs
        else:
            self._layout.generation_of(key, heir.incarnation).replace(path)
        return True

    def _exists(self, path: str, made: list[str]) -> Exists:
        """Make an object of another writer durable, with its folders, before it is reported."""
        refuse_folder(path)
        self._syncer.sync(_to_sync(_folder_of(path), made))
        self._known.add_folders(made)
        return Exists(date_ns=self._stamps.now_ns())

    def _settle(self, path: str, written: HiddenFile, made: list[str]) -> Applied | Unknown:
        """Check the timestamp and make the name durable; after a failure the outcome is unknown."""
        try:
            stamp = UnixNs(self._visible.settle_new(written.fd).stamp)
            written.remove()  # before the folder is synced: one commit of the file system has both
            self._syncer.sync(_to_sync(_folder_of(path), made))
        except (OSError, StoreError) as error:  # the clock file may be damaged meanwhile
            return Unknown(reason=UnknownReason.SERVER_ERROR, detail=str(error))
        self._known.add_folders(made)
        self._known.add_state(path, stamp)
        return applied_at(stamp)

    def _keep_old(self, key: ObjectKey, path: str, stamp: ObjectVersion | None) -> list[str]:
        """Give the current state a durable second name among the noncurrent versions."""
        old = str(self._layout.generation_of(key, stamp or ObjectVersion("0")))
        made, _ = self._known.link(path, old)
        self._syncer.sync(_to_sync(_folder_of(old), made))
        return made

    def _stamp_of(self, path: str) -> ObjectVersion | None:
        found = self._visible.find(path)
        return None if found is None else ObjectVersion(str(found.stamp))

    @contextmanager
    def _reading(self, operation: str, key: str) -> Iterator[_Reads]:
        """Translate errors, and make what was read durable before it is reported."""
        with translated(operation, key):
            reads = _Reads(now_ns=self._stamps.now_ns())
            yield reads
            if reads.young:
                self._sync_young(reads.young)

    def _sync_young(self, young: list[tuple[str, int]]) -> None:
        """Make states durable, with folders whose writer may have died before it synced them."""
        folders: set[str] = set()
        unknown: set[str] = set()
        for folder in {_folder_of(path) for path, _ in young}:
            made = self._known.unknown_folders(folder)
            unknown.update(made)
            folders |= _to_sync(folder, made)
        self._syncer.sync(folders)
        self._known.add_folders(list(unknown))
        for path, stamp in young:
            self._known.add_state(path, stamp)

    def _head_file(self, key: ObjectKey, path: str, reads: _Reads, *, current: bool) -> HeadOutcome:
        fd = _open(path)
        if fd is None:
            return NotFound(date_ns=reads.now_ns)
        try:
            state = self._visible.settle(fd) if current else state_of(os.fstat(fd))
            return self._info(key, fd, path, state, reads)
        finally:
            os.close(fd)

    def _info(
        self, key: ObjectKey, fd: int, path: str, state: FileState, reads: _Reads
    ) -> ObjectInfo:
        stamp = state.stamp
        # Timestamps and times are of one clock; a state that was written since is the later one.
        now = UnixNs(max(reads.now_ns, stamp, state.last_modified_ns))
        if (
            not self._read_only
            and now - stamp < _YOUNG_NS
            and not self._known.has_state(path, stamp)
        ):
            reads.young.append((path, stamp))
        return ObjectInfo(
            key=key,
            size_bytes=state.size_bytes,
            etag=ETag(str(stamp)),
            incarnation=ObjectVersion(str(stamp)),
            last_modified_ns=state.last_modified_ns,
            sha256=read_verified(fd, stamp),
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


def _folder_of(path: str) -> str:
    return os.path.dirname(path)  # noqa: PTH120 - for each object that is read or written


def _to_sync(folder: str, made: list[str]) -> set[str]:
    """Return the folders whose entries a new object in `folder` needs."""
    return {folder, *map(os.path.dirname, made)}


def _open(path: str) -> int | None:
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
