"""The creates of a group: two syncs of the file system make all of them durable.

The order is that of a single create: every body is durable before its object has a name, and every
name is durable before its outcome is reported. A crash leaves complete objects or none.

A new file without a final name is written, dated and synced in the hidden folder of the store.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from sluice_protocol.clock import IdSource
from sluice_protocol.errors import ChecksumRefused, StoreError
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import CreateOutcome, Exists, Unknown, UnknownReason
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_store.local.disk_space import store_error
from sluice_store.local.durability import DurableNames, FileSystemSync, StoreTimes
from sluice_store.local.layout import (
    NEW_FILE,
    Layout,
    Visibility,
    applied_at,
    refuse_folder,
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
        self._visible = visible
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
            state = self._visible.settle_in_group(one.file.fd, now_ns)
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
