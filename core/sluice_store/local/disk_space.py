"""Errors of the disk as errors of the port, and the space that a directory store has left."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_protocol.errors import (
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)

FULL: Final = "the disk is full: free space or move the store"
READ_ONLY: Final = "the directory is read-only: mount it writable"
_FORM: Final = "a file is where a folder is required, or the reverse: check the path"
_DENIED: Final = "no permission: give this user the directory"
_GONE: Final = "a folder of the store was removed or moved away: move it back"
_FILES: Final = "too many open files: raise the limit (ulimit -n)"

_TABLE: Final[dict[int, tuple[type[StoreError], str]]] = {
    errno.ENOSPC: (StoreMisconfigured, FULL),
    errno.EDQUOT: (StoreMisconfigured, FULL),
    errno.EROFS: (StoreMisconfigured, READ_ONLY),
    errno.ENOTDIR: (StoreMisconfigured, _FORM),
    errno.EISDIR: (StoreMisconfigured, _FORM),
    errno.EEXIST: (StoreMisconfigured, _FORM),
    errno.ENOENT: (StoreUnavailable, _GONE),
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
    """Translate every `OSError` inside the context."""
    try:
        yield
    except OSError as error:
        raise store_error(error, operation, key) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """What the file system of a store reports: the space is for a user who is not root.

    `available_files` is None where the file system has no limit.
    """

    available_bytes: int
    available_files: int | None
    read_only: bool


def read_disk_space(root: Path) -> DiskSpace:
    """Read the space of the file system that contains a directory."""
    with translated("disk_space", str(root)):
        found = os.statvfs(root)
    return DiskSpace(
        available_bytes=found.f_bavail * found.f_frsize,
        available_files=found.f_favail if found.f_files else None,
        read_only=bool(found.f_flag & os.ST_RDONLY),
    )


def describe_disk_problem(space: DiskSpace, needed_bytes: int) -> str:
    """Return why an object of a size cannot be written, and what to do; empty if it can."""
    if space.read_only:
        return READ_ONLY
    if space.available_bytes < needed_bytes:
        return f"{FULL}, available_bytes=`{space.available_bytes}`, needed_bytes=`{needed_bytes}`"
    if space.available_files == 0:
        return f"{FULL}, available_files=`0`"
    return ""
