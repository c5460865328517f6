"""Folders of new objects, and a memory of the folders and states that are durable.

Partitions: folders such as `hour=07`, which are removed with their last object.

Keys of derived data contain dates, hours and names of metrics. Their objects are deleted after some
time, and each would leave folders, which take an inode each and which every listing reads. Other
folders stay, because no process writes to them for a limited time only. A folder of noncurrent
versions of one key, which ends in `@`, is removed too.

A process cannot know that a partition is durable: another one may have removed it and made it again
since, and may have died before it synced it. So each new object in one syncs the folders above it.
"""

import os
import stat
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
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


_STATES_MAX: Final = 65_536
_FOLDERS_MAX: Final = 65_536
_TRIES: Final = 16
"""Tries to name a file whose folder is removed each time."""


class DurableNames:
    """A bounded set of folders and states known to be durable; a lost entry costs one fsync."""

    def __init__(self, root: Path) -> None:
        """Start with the root, which is durable once the store is open."""
        self._root = str(root)
        self._lock = threading.Lock()
        self._folders: set[str] = set()
        self._states: OrderedDict[tuple[str, int], None] = OrderedDict()

    def unknown_folders(self, folder: str) -> list[str]:
        """Return the folders on a path below the root that are not known to be durable.

        `folder` is the first of them, and the folder that is closest to the root is the last.
        """
        unknown: list[str] = []
        while folder not in self._folders and folder != self._root:
            unknown.append(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120 - several times for each new object
        return unknown

    def add_folders(self, folders: list[str]) -> None:
        """Record folders whose names were synced; partitions may be others at any time."""
        permanent = [one for one in folders if not is_partition(one)]
        with self._lock:
            if len(self._folders) + len(permanent) > _FOLDERS_MAX:
                self._folders = set()
            self._folders.update(permanent)

    def forget_folders(self, folder: str) -> None:
        """Forget a folder that does not exist, and every folder above it."""
        with self._lock:
            while folder != self._root:
                self._folders.discard(folder)
                folder = os.path.dirname(folder)  # noqa: PTH120 - as above

    def has_state(self, path: str, stamp: int) -> bool:
        """Return True when this state of a file is known to be durable."""
        return (path, stamp) in self._states

    def add_state(self, path: str, stamp: int) -> None:
        """Record that a state is durable."""
        with self._lock:
            self._states[path, stamp] = None
            while len(self._states) > _STATES_MAX:
                self._states.popitem(last=False)

    def _make_folders(self, folder: str) -> list[str]:
        """Create a folder; return those on its path that are not known to be durable."""
        made = self.unknown_folders(folder)
        for one in reversed(made):
            try:
                os.mkdir(one)  # noqa: PTH102 - several times for each new object
            except FileExistsError:
                # One that was removed in between is FileNotFoundError here.
                if not stat.S_ISDIR(os.stat(one).st_mode):  # noqa: PTH116 - as above
                    raise
        return made

    def link(self, source: str, path: str) -> tuple[list[str], bool]:
        """Give a file another name, and create the folders that the name needs.

        A folder that another process removes in between is created again.

        Returns:
            The folders on the path that are not known to be durable, and whether the file has the
            name now; False if the name existed.

        Raises:
            OSError: The name could not be given.
        """
        folder = os.path.dirname(path)  # noqa: PTH120 - for each new object
        tries = 0
        while True:
            try:
                made = self._make_folders(folder)
                try:
                    os.link(source, path)
                except FileExistsError:
                    return made, False
            except FileNotFoundError:  # a folder was removed after it was known or created
                tries += 1
                if tries == _TRIES or not os.path.lexists(source):
                    raise
                self.forget_folders(folder)
            else:
                return made, True
