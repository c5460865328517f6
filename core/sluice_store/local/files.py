"""The verbs of the local store as blocking calls: the operations on files and their order.

A body is written to a hidden file, given its timestamp and synced, and only then gets its name: by
`link(2)`, which fails when the name exists, or under a lock by `rename(2)`, which replaces the old
state atomically. Then its timestamp is checked, because the naming can stall, and the folder is
synced. So a crash leaves the complete object or none.

A state that another process can see but that a crash could still undo is made durable before it is
reported: `create` syncs before it reports `Exists`, and a read syncs the folder of a recent object
(ADR 8).

Two syncs of the file system make all creates of a group durable, in the order of a single create:
every body is durable before its object has a name, and every name is durable before its outcome is
reported.
"""

import errno
import fcntl
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sluice_protocol.clock import IdSource
from sluice_protocol.errors import ChecksumRefused, StoreError
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
from sluice_store.local.disk_space import store_error, translated
from sluice_store.local.durability import (
    DirectorySync,
    DurableNames,
    FileSystemSync,
    NoFileSystemSync,
    StoreTimes,
    remove_empty_partitions,
)
from sluice_store.local.layout import (
    NEW_FILE,
    FileState,
    Layout,
    Visibility,
    applied_at,
    incarnations_of,
    read_verified,
    refuse_folder,
    state_of,
    write_verified,
)
from sluice_store.port import NewObject

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass(slots=True)
class HiddenFile:
    """A file without a final name, open until its timestamp is checked.

    The path is empty after `remove`, and the descriptor is -1 after `close`.
    """

    path: str
    fd: int

    def close(self) -> None:
        """Close the descriptor, which also ends a lock of the file."""
        fd, self.fd = self.fd, -1
        if fd != -1:
            os.close(fd)

    def remove(self) -> None:
        """Close the file and remove its hidden name; a final name remains."""
        self.close()
        path, self.path = self.path, ""
        if path:
            with suppress(FileNotFoundError):  # a rename has taken the name
                os.unlink(path)  # noqa: PTH108 - for each new object


class HiddenFiles:
    """Writes the files of new states. Every method may be called from any thread."""

    def __init__(self, folder: str, stamps: StoreTimes, ids: IdSource) -> None:
        self._prefix = f"{folder}/{ids.ulid()}-"
        self._numbers = itertools.count()
        self._stamps = stamps

    @contextmanager
    def written(self, key: ObjectKey, body: bytes, sha256: Digest | None) -> Iterator[HiddenFile]:
        """Write and sync a hidden file, and remove its hidden name at the end."""
        made = self.prepare(key, body, sha256)
        try:
            os.fsync(made.fd)
            yield made
        finally:
            made.remove()

    def prepare(
        self, key: ObjectKey, body: bytes, sha256: Digest | None, stamp: UnixNs | None = None
    ) -> HiddenFile:
        """Write and date a hidden file, which may not be durable; the caller removes it.

        Its timestamp is the next one when `stamp` is None. A wrong sha256 is refused, as a remote
        store would refuse it.
        """
        digest = digest_of(body)
        if sha256 is not None and digest != sha256:
            raise ChecksumRefused(
                "create", key, ("the body does not match its sha256: send it again")
            )
        path = f"{self._prefix}{next(self._numbers)}"
        made = HiddenFile(path, os.open(path, _NEW, NEW_FILE))
        try:
            _write_all(made.fd, body)
            dated = self._stamps.next_ns() if stamp is None else stamp
            write_verified(made.fd, dated, digest)
            os.utime(made.fd, ns=(dated, dated))
        except BaseException:
            made.remove()
            raise
        return made


def _write_all(fd: int, body: bytes) -> None:
    done = os.write(fd, body)
    while done < len(body):
        done += os.write(fd, memoryview(body)[done:])


GROUP_OBJECTS_MAX: Final = 64
"""Creates of one group; each has an open file."""
GROUP_BYTES_MAX: Final = 8 * 2**20
LOCK_TRIES: Final = 50
_LOCK_PAUSE_S: Final = 0.01

GroupOutcome = CreateOutcome | StoreError


@dataclass(slots=True)
class _Create:
    """One create of a group.

    `dated` is its timestamp before it was named, and `stamp` the one that was checked after that.
    `made` are the folders on its path that are not known to be durable.
    """

    new: NewObject
    dated: UnixNs
    path: str = ""
    file: HiddenFile = field(default_factory=lambda: HiddenFile("", -1))
    made: list[str] = field(default_factory=list)
    stamp: UnixNs | None = None
    found: bool = False
    outcome: GroupOutcome | None = None


class GroupWrites:
    """Creates objects in groups. Blocks, and may be called from any thread."""

    def __init__(
        self,
        *,
        layout: Layout,
        stamps: StoreTimes,
        visible: Visibility,
        hidden: HiddenFiles,
        known: DurableNames,
        filesystem: FileSystemSync,
    ) -> None:
        self._layout = layout
        self._stamps = stamps
        self.visible = visible
        self._hidden = hidden
        self._known = known
        self._filesystem = filesystem

    def is_ready(self) -> bool:
        """Return True if a group may be written now; otherwise create each object separately."""
        return self._filesystem.is_ready()

    def create(self, objects: Sequence[NewObject]) -> list[GroupOutcome]:
        """Create objects; return one outcome or error for each, in order.

        Raises:
            OSError, StoreError: The clock or the directory was unreadable; nothing was written.
        """
        stamp = self._stamps.next_range_ns(len(objects))
        group = [_Create(one, UnixNs(stamp + at)) for at, one in enumerate(objects)]
        with self._filesystem.watched() as sync:
            try:
                for one in group:
                    self._prepare(one)
                _sync_bodies(group, sync)
                self._name_all(group, sync)
            finally:
                _remove_hidden(group)
        return [self._report(one) for one in group]

    def _prepare(self, one: _Create) -> None:
        new = one.new
        try:
            one.path = self._layout.file_of(new.key)
            one.file = self._hidden.prepare(new.key, new.body, new.sha256, one.dated)
        except (OSError, StoreError) as error:
            one.outcome = _error_of(error, new)

    def _name_all(self, group: list[_Create], sync: Callable[[], None]) -> None:
        """Give durable bodies their names, and make the names durable."""
        for one in _undecided(group):
            self._name(one)
        self._settle([one for one in _undecided(group) if not one.found])
        _remove_hidden(group)
        _sync_names(group, sync)

    def _name(self, one: _Create) -> None:
        try:
            one.made, is_named = self._known.link(one.file.path, one.path)
            if not is_named:
                refuse_folder(one.path)
                one.found = True
        except OSError as error:
            one.outcome = _error_of(error, one.new)

    def _settle(self, named: list[_Create]) -> None:
        """Check the timestamps of named objects against a time at which all of them are visible.

        A reader may have locked a file to check it first. A reader that was stopped must not stop
        the group, so the outcome of its object is unknown after some tries.
        """
        try:
            now_ns = self._stamps.read_ns() if named else UnixNs(0)
            for _ in range(LOCK_TRIES):
                named = [one for one in named if not self._settle_one(one, now_ns)]
                if not named:
                    return
                time.sleep(_LOCK_PAUSE_S)
            detail = "another process has locked the file"
        except (OSError, StoreError) as error:
            detail = str(error)
        for one in named:
            one.outcome = _unknown(detail)

    def _settle_one(self, one: _Create, now_ns: UnixNs) -> bool:
        """Return False while another process has the file locked."""
        try:
            state = self.visible.settle_in_group(one.file.fd, now_ns)
        except (OSError, StoreError) as error:
            one.outcome = _unknown(str(error))
            return True
        if state is not None:
            one.stamp = UnixNs(state.stamp)
        return state is not None

    def _report(self, one: _Create) -> GroupOutcome:
        """Return the decided outcome, or the outcome of a create whose name is durable."""
        if one.outcome is not None:
            return one.outcome
        if one.stamp is None:
            try:
                return Exists(date_ns=self._stamps.now_ns())
            except (OSError, StoreError) as error:
                return _error_of(error, one.new)
        self._known.add_folders(one.made)
        self._known.add_state(one.path, one.stamp)
        return applied_at(one.stamp)


def _remove_hidden(group: list[_Create]) -> None:
    for one in group:
        with suppress(OSError):  # a hidden name that remains is removed after an hour
            one.file.remove()


def split_groups(objects: Sequence[NewObject]) -> Iterator[list[NewObject]]:
    """Yield groups of at most `GROUP_OBJECTS_MAX` and `GROUP_BYTES_MAX`; a large one is alone."""
    group: list[NewObject] = []
    size_bytes = 0
    for one in objects:
        full = len(group) == GROUP_OBJECTS_MAX or size_bytes + len(one.body) > GROUP_BYTES_MAX
        if group and full:
            yield group
            group, size_bytes = [], 0
        group.append(one)
        size_bytes += len(one.body)
    if group:
        yield group


def _sync_bodies(group: list[_Create], sync: Callable[[], None]) -> None:
    """Make the hidden files durable; after a failure no object gets a name."""
    undecided = _undecided(group)
    if undecided:
        try:
            sync()
        except OSError as error:
            for one in undecided:
                one.outcome = _error_of(error, one.new)


def _sync_names(group: list[_Create], sync: Callable[[], None]) -> None:
    """Make the names durable; after a failure no outcome is certain."""
    undecided = _undecided(group)
    if undecided:
        try:
            sync()
        except OSError as error:
            for one in undecided:
                one.outcome = _error_of(error, one.new) if one.found else _unknown(str(error))


def _undecided(group: list[_Create]) -> list[_Create]:
    return [one for one in group if one.outcome is None]


def _error_of(error: OSError | StoreError, new: NewObject) -> StoreError:
    return error if isinstance(error, StoreError) else store_error(error, "create", new.key)


def _unknown(detail: str) -> Unknown:
    return Unknown(reason=UnknownReason.SERVER_ERROR, detail=detail)


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
        self.visible = Visibility(stamps, read_only=read_only)
        self._syncer = syncer
        self._hidden = HiddenFiles(str(layout.temporary), stamps, ids)
        self._known = DurableNames(layout.root)
        self._groups = GroupWrites(
            layout=layout,
            stamps=stamps,
            visible=self.visible,
            hidden=self._hidden,
            known=self._known,
            filesystem=filesystem or NoFileSystemSync(),
        )

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
            info = self._info(key, fd, path, self.visible.settle(fd), reads)
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
        found = incarnations_of(self._layout, key, self.visible.find)
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
            stamp = UnixNs(self.visible.settle_new(written.fd).stamp)
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
        found = self.visible.find(path)
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
            state = self.visible.settle(fd) if current else state_of(os.fstat(fd))
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
