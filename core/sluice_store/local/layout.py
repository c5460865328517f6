"""Where a key is in the directory, and listings in key order."""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_protocol.errors import StoreError
from sluice_protocol.units import ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.port import ListedIncarnation, ListedObject

HIDDEN: Final = ".sluice"
"""The folder of the store's own state; no key may start with it."""
NAME_BYTES_MAX: Final = 255
LOCK_STRIPES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The folders of one local store."""

    root: Path

    @property
    def clock(self) -> Path:
        """The file of the highest stamp."""
        return self.root / HIDDEN / "clock"

    @property
    def temporary(self) -> Path:
        """Where bodies are written before they get their name; in the same file system."""
        return self.root / HIDDEN / "tmp"

    @property
    def locks(self) -> Path:
        """Where the lock files stand."""
        return self.root / HIDDEN / "locks"

    @property
    def generations(self) -> Path:
        """Where noncurrent incarnations stand, one folder per key."""
        return self.root / HIDDEN / "generations"

    def lock_of(self, key: ObjectKey) -> Path:
        """Gives the lock file of a key's stripe."""
        return self.locks / f"{zlib.crc32(key.encode()) % LOCK_STRIPES:02d}"

    def object_of(self, key: ObjectKey) -> Path:
        """Gives the file of a current object.

        Raises:
            StoreError: No file can have this name.
        """
        check_key(key)
        return self.root / key

    def generations_of(self, key: ObjectKey) -> Path:
        """Gives the folder of a key's noncurrent incarnations; `@` cannot end a folder of a key."""
        check_key(key)
        return self.generations / f"{key}@"

    def generation_of(self, key: ObjectKey, incarnation: ObjectVersion) -> Path:
        """Gives the file of one noncurrent incarnation."""
        number = int(incarnation) if incarnation.isascii() and incarnation.isdigit() else 0
        return self.generations_of(key) / f"{number:020d}"


def check_key(key: str) -> None:
    """Refuses a key that would leave the directory, or that a file system cannot hold.

    Raises:
        StoreError: The key has an empty, dotted, hidden or too long segment, or a NUL.
    """
    segments = key.split("/")
    wrong = {"", ".", ".."}.intersection(segments) or segments[0] == HIDDEN or "\0" in key
    if wrong or any(len(segment.encode()) >= NAME_BYTES_MAX for segment in segments):
        raise StoreError("local", key, "a directory cannot hold this key: use another")


def _entries(folder: Path) -> list[str]:
    """Gives the names of a folder, a folder's with `/`, in the order of the keys they start."""
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
    """Tells whether no key that starts with `start` can be asked for."""
    if not (start.startswith(prefix) or prefix.startswith(start)):
        return True
    before = start.encode() < after.encode() and not after.startswith(start)
    past = end is not None and start.encode() > end.encode()
    return before or past


def walk_keys(root: Path, prefix: str, after: str, end: str | None) -> Iterator[str]:
    """Gives the keys under `root` with `after < key <= end`, in the order of their UTF-8 bytes."""
    top = prefix.rpartition("/")[0]
    steps = top.split("/") if top else []
    if {"", ".", ".."}.intersection(steps) or steps[:1] == [HIDDEN]:
        return  # no key has such a segment, and the walk must not leave the directory
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


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None  # deleted between the listing and the look: no longer an object


def walk_objects(
    layout: Layout, prefix: str, after: str, end: str | None
) -> Iterator[ListedObject]:
    """Gives the current objects with `after < key <= end`, in key order."""
    for key in walk_keys(layout.root, prefix, after, end):
        found = _stat(layout.root / key)
        if found is not None:
            yield ListedObject(
                key=ObjectKey(key),
                size_bytes=found.st_size,
                etag=ETag(str(found.st_mtime_ns)),
                last_modified_ns=UnixNs(found.st_mtime_ns),
            )


def _incarnation(key: str, found: os.stat_result, *, current: bool) -> ListedIncarnation:
    return ListedIncarnation(
        key=ObjectKey(key),
        incarnation=ObjectVersion(str(found.st_mtime_ns)),
        current=current,
        marker=False,
        size_bytes=found.st_size,
        etag=ETag(str(found.st_mtime_ns)),
        last_modified_ns=UnixNs(found.st_mtime_ns),
    )


def incarnations_of(layout: Layout, key: ObjectKey) -> Iterator[ListedIncarnation]:
    """Gives the incarnations of one key, newest first.

    A crash may leave the current state in the folder of generations too, as a second name of the
    same file: it is told apart by its stamp.
    """
    current = _stat(layout.root / key)
    if current is not None:
        yield _incarnation(key, current, current=True)
    folder = layout.generations_of(key)
    for name in reversed(_entries(folder)):
        found = _stat(folder / name)
        if found is not None and (current is None or found.st_mtime_ns != current.st_mtime_ns):
            yield _incarnation(key, found, current=False)


def walk_incarnations(
    layout: Layout, prefix: str, after: str, end: str | None
) -> Iterator[ListedIncarnation]:
    """Gives every incarnation with `after < key <= end`, in key order, newest first within a key.

    A key always has a current object: deleting the current one brings the next back.
    """
    for key in walk_keys(layout.root, prefix, after, end):
        yield from incarnations_of(layout, ObjectKey(key))
