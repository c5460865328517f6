"""Where a key lies in the directory, and what may not be a key there."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_protocol.errors import StoreError
from sluice_protocol.units import ObjectKey, ObjectVersion

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
