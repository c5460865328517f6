"""The space that a directory store has left, and why a write may fail."""

import os
from dataclasses import dataclass
from pathlib import Path

from sluice_store.local.disk_errors import FULL, READ_ONLY, translated


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """What the file system of a store reports.

    Attributes:
        available_bytes: Space for a user who is not root.
        available_files: Files that can be created; None where the file system has no limit.
        read_only: Whether it is mounted read-only.
    """

    available_bytes: int
    available_files: int | None
    read_only: bool


def read_disk_space(root: Path) -> DiskSpace:
    """Read the space of the file system that contains a directory.

    Raises:
        StoreError: The directory does not exist, or cannot be read.
    """
    with translated("disk_space", str(root)):
        found = os.statvfs(root)
    return DiskSpace(
        available_bytes=found.f_bavail * found.f_frsize,
        available_files=found.f_favail if found.f_files else None,
        read_only=bool(found.f_flag & os.ST_RDONLY),
    )


def describe_disk_problem(space: DiskSpace, needed_bytes: int) -> str:
    """Return why an object of a size cannot be written, and what to do; empty if it can.

    The reasons are those of a failed write, which `/readyz` of a gateway reports.
    """
    if space.read_only:
        return READ_ONLY
    if space.available_bytes < needed_bytes:
        return f"{FULL}, available_bytes=`{space.available_bytes}`, needed_bytes=`{needed_bytes}`"
    if space.available_files == 0:
        return f"{FULL}, available_files=`0`"
    return ""
