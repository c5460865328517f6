"""Group commit of directory fsyncs: who waits together pays together (ADR 0011)."""

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class DirectorySync(Protocol):
    """Makes directory entries durable."""

    def sync(self, directories: Iterable[Path]) -> None:
        """Returns when every entry that stood in these directories at the call is durable.

        Raises:
            OSError: A directory could not be synced: nothing is known of its entries.
        """
        ...


def fsync_directory(directory: Path) -> None:
    """Makes the entries of one directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class SingleSync:
    """Syncs each caller's directories by themselves: the control of the benchmark."""

    def sync(self, directories: Iterable[Path]) -> None:
        """Syncs them one after the other."""
        for directory in directories:
            fsync_directory(directory)


@dataclass(slots=True)
class _Group:
    """Directories whose callers wait for one round of fsyncs."""

    directories: set[Path] = field(default_factory=set)
    done: bool = False
    error: OSError | None = None


class GroupSync:
    """Lets one thread sync for all that came while the round before it was under way."""

    def __init__(self) -> None:
        """Starts with nothing to sync."""
        self._turn = threading.Condition()
        self._open = _Group()
        self._busy = False

    def sync(self, directories: Iterable[Path]) -> None:
        """Joins the open round, and leads it when nobody leads."""
        with self._turn:
            group = self._open
            group.directories.update(directories)
            while self._busy and not group.done:
                self._turn.wait()
            lead = not group.done
            if lead:
                self._busy, self._open = True, _Group()
        if lead:
            self._run(group)
        if group.error is not None:
            raise OSError(group.error.errno, group.error.strerror) from group.error

    def _run(self, group: _Group) -> None:
        try:
            for directory in group.directories:
                fsync_directory(directory)
        except OSError as error:
            group.error = error
        finally:
            with self._turn:
                group.done, self._busy = True, False
                self._turn.notify_all()
