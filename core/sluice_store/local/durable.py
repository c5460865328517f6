"""What this process knows to be durable, so that it syncs no folder twice for the same name."""

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

_STATES_MAX: Final = 65_536
_FOLDERS_MAX: Final = 65_536


class DurableNames:
    """A bounded memory of durable folders and states; forgetting costs an fsync, nothing else."""

    def __init__(self, root: Path) -> None:
        """Starts with the root, which was made durable when the store was opened."""
        self._root = root
        self._lock = threading.Lock()
        self._folders: set[Path] = set()
        self._states: OrderedDict[tuple[Path, int], None] = OrderedDict()

    def unknown_folders(self, folder: Path) -> list[Path]:
        """Gives `folder` and those above it, up to the root, that are not known to be durable."""
        unknown: list[Path] = []
        while folder != self._root and folder not in self._folders:
            unknown.append(folder)
            folder = folder.parent
        return unknown

    def add_folders(self, folders: list[Path]) -> None:
        """Remembers folders whose names were synced."""
        with self._lock:
            if len(self._folders) + len(folders) > _FOLDERS_MAX:
                self._folders = set()
            self._folders.update(folders)

    def has_state(self, path: Path, stamp: int) -> bool:
        """Tells whether this state of a file is known to be durable."""
        return (path, stamp) in self._states

    def add_state(self, path: Path, stamp: int) -> None:
        """Remembers that a state is durable."""
        with self._lock:
            self._states[path, stamp] = None
            while len(self._states) > _STATES_MAX:
                self._states.popitem(last=False)
