"""Group commit of directory fsyncs: who waits together pays together (ADR 0011)."""

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
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
    """Syncs each caller's directories by themselves: a control of the benchmark."""

    def sync(self, directories: Iterable[Path]) -> None:
        """Syncs them one after the other."""
        for directory in directories:
            fsync_directory(directory)


class SerialSync:
    """Lets one fsync run at a time, so that none shares a commit: a control of the benchmark."""

    def __init__(self) -> None:
        """Starts idle."""
        self._turn = threading.Lock()

    def sync(self, directories: Iterable[Path]) -> None:
        """Syncs them one after the other, alone."""
        for directory in directories:
            with self._turn:
                fsync_directory(directory)


@dataclass(slots=True)
class _Round:
    """One fsync of one directory and those who wait for it."""

    waiting: int = 0
    begun: bool = False
    done: bool = False
    error: OSError | None = None


class _Folder:
    """The rounds of one directory: the one under way, and the one that newcomers join."""

    __slots__ = ("busy", "next", "turn")

    def __init__(self, lock: threading.Lock) -> None:
        self.busy = False
        self.next = _Round()
        self.turn = threading.Condition(lock)
        """Of its own: the end of a round wakes nobody who waits for another directory."""


class GroupSync:
    """One fsync of a directory serves all who came before it began; directories run side by side.

    A single leader that syncs the directories of everybody in turn was four times slower than no
    grouping at all: the file system groups fsyncs that run at once by itself (ADR 0011).
    """

    def __init__(self) -> None:
        """Starts with nothing to sync."""
        self._lock = threading.Lock()
        self._folders: dict[Path, _Folder] = {}

    def sync(self, directories: Iterable[Path]) -> None:
        """Joins the next round of each directory, and leads it when nobody does.

        The deepest comes first: it is the caller's own, and its commit makes the rounds of the
        folders above, which many share, quick ones. The other way round took twice as long.
        """
        for directory in sorted(directories, key=lambda path: -len(path.parts)):
            self._sync_one(directory)

    def _sync_one(self, directory: Path) -> None:
        with self._lock:
            folder = self._folders.get(directory)
            if folder is None:
                folder = self._folders[directory] = _Folder(self._lock)
            joined = folder.next
            joined.waiting += 1
            while not joined.done and (folder.busy or joined.begun):
                folder.turn.wait()
            lead = not joined.done
            if lead:
                folder.busy, joined.begun, folder.next = True, True, _Round()
        if lead:
            self._run(directory, folder, joined)
        if joined.error is not None:
            raise OSError(joined.error.errno, joined.error.strerror) from joined.error

    def _run(self, directory: Path, folder: _Folder, joined: _Round) -> None:
        try:
            fsync_directory(directory)
        except OSError as error:
            joined.error = error
        finally:
            with self._lock:
                joined.done, folder.busy = True, False
                if not folder.next.waiting:
                    self._folders.pop(directory, None)
                folder.turn.notify_all()
