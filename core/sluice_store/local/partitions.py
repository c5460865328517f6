"""Partitions: folders such as `hour=07`, which are removed with their last object.

Keys of derived data contain dates, hours and names of metrics. Their objects are deleted after some
time, and each would leave folders, which take an inode each and which every listing reads. Only
folders with `=` in their names are removed: no process writes to the others for a limited time, so
that a process of an earlier release, which does not expect a folder to disappear, is not disturbed.
A folder of noncurrent versions of one key, which ends in `@`, is removed too.
"""

import os
from contextlib import suppress


def is_partition(folder: str) -> bool:
    """Return True if a folder is removed when it is empty."""
    name = os.path.basename(folder)  # noqa: PTH119 - a path is a string, as in the callers
    return "=" in name or name.endswith("@")


def remove_empty_partitions(folder: str) -> None:
    """Remove a folder and those above it, as long as they are empty partitions.

    The removal is durable once the folder above them is synced.
    """
    with suppress(OSError):  # it is not empty, or another process has removed it
        while is_partition(folder):
            os.rmdir(folder)  # noqa: PTH106 - as above
            folder = os.path.dirname(folder)  # noqa: PTH120 - as above
