"""Partitions: folders such as `hour=07`, which are removed with their last object.

Keys of derived data contain dates, hours and names of metrics. Their objects are deleted after some
time, and each would leave folders, which take an inode each and which every listing reads. Other
folders stay, because no process writes to them for a limited time only. A folder of noncurrent
versions of one key, which ends in `@`, is removed too.

A process cannot know that a partition is durable: another one may have removed it and made it again
since, and may have died before it synced it. So each new object in one syncs the folders above it.
"""

import os
from contextlib import suppress
from typing import Final

_PARTITIONS: Final = ("date=", "hour=", "window=", "metric=")


def is_partition(folder: str) -> bool:
    """Return True if a folder is removed when it is empty."""
    name = os.path.basename(folder)  # noqa: PTH119 - a path is a string, as in the callers
    return name.startswith(_PARTITIONS) or name.endswith("@")


def remove_empty_partitions(folder: str) -> None:
    """Remove a folder and those above it, as long as they are empty partitions.

    The removal is durable once the folder above them is synced.
    """
    with suppress(OSError):  # it is not empty, or another process has removed it
        while is_partition(folder):
            os.rmdir(folder)  # noqa: PTH106 - as above
            folder = os.path.dirname(folder)  # noqa: PTH120 - as above
