"""A disk that loses what was not synced: every state in which a crash could leave a directory.

The current state is the real directory. What is durable is recorded at each fsync. A crash keeps
each unsynced name or loses it. Each unsynced file is whole, empty, cut short, or without a page.
"""

import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PAGE: Final = 4096
POINTS: Final = (
    "open",
    "write",
    "setxattr",
    "utime",
    "fsync",
    "mkdir",
    "rmdir",
    "link",
    "replace",
    "rename",
    "unlink",
    "fchmod",
)
"""Calls before which the disk can crash."""
_SHA256: Final = "user.sluice.sha256"
_BOOT: Final = slice(24, 60)
"""The boot id in a clock file: after a crash the machine has another one."""


@dataclass(frozen=True)
class Inode:
    """The contents and the metadata of a file at one time."""

    number: int
    data: bytes
    mode: int
    mtime_ns: int
    digest: bytes | None


Entries = dict[str, int | None]
"""The names in a folder: the inode of a file, None for a folder."""


def read_inode(path: Path) -> Inode:
    found = path.stat()
    try:
        digest = os.getxattr(path, _SHA256)
    except OSError:
        digest = None
    return Inode(found.st_ino, path.read_bytes(), found.st_mode, found.st_mtime_ns, digest)


def read_entries(folder: Path) -> Entries:
    with os.scandir(folder) as found:
        return {one.name: None if one.is_dir() else one.inode() for one in found}


@dataclass
class LossyDisk:
    """The directory `root`, what of it is durable, and a hook for each point of a crash.

    Attributes:
        root: The directory.
        at_point: Called before each call that changes the directory.
        skip: The numbers of the whole syncs that do nothing, to show that a test detects it.
    """

    root: Path
    at_point: Callable[[], None]
    skip: frozenset[int] = frozenset()
    open: Callable[..., int] = os.open
    files: dict[int, Inode] = field(default_factory=dict)
    folders: dict[Path, Entries] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    syncs: int = 0

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        for fd in self.held.values():
            os.close(fd)
        self.held.clear()

    @contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        yield self._sync

    def _sync(self) -> None:
        """The whole file system is durable."""
        self.at_point()
        self.syncs += 1
        if self.syncs - 1 not in self.skip:
            self.sync_everything()
        self.at_point()

    def sync_everything(self) -> None:
        for folder, _, names in os.walk(self.root):
            self.folders[Path(folder)] = read_entries(Path(folder))
            for name in names:
                self._keep(Path(folder, name))

    def _keep(self, path: Path) -> None:
        """Record a file as durable. An open descriptor prevents that its number is used again."""
        found = read_inode(path)
        self.files[found.number] = found
        if found.number not in self.held:
            self.held[found.number] = self.open(path, os.O_RDONLY)

    def _fsync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if not path.is_relative_to(self.root):
            return
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            self.folders[path] = read_entries(path)
        else:
            self._keep(path)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Record the calls of the store; nothing is synced to the real disk."""
        kept = {name: getattr(os, name) for name in POINTS}

        def around(call: Callable[..., Any]) -> Callable[..., Any]:
            def pointed(*args: Any, **kwargs: Any) -> Any:
                self.at_point()
                found = call(*args, **kwargs)
                if call is kept["mkdir"]:  # it contains nothing of a folder that had its name
                    self.folders.pop(Path(args[0]), None)
                return found

            return pointed

        try:
            for name, call in kept.items():
                setattr(os, name, around(self._fsync if name == "fsync" else call))
            yield
        finally:
            for name, call in kept.items():
                setattr(os, name, call)

    def crash(self, into: Path, seed: int) -> None:
        """Write one state after a crash: 0 loses nothing, 1 everything unsynced, others some."""
        choice = Choice(seed)
        made: dict[int, Path] = {}
        pending = [Path()]
        while pending:
            inner = pending.pop()
            (into / inner).mkdir(parents=True)
            for name, number in self._entries_after(self.root / inner, choice).items():
                if number is None:
                    pending.append(inner / name)
                elif number in made:
                    os.link(made[number], into / inner / name)
                else:
                    made[number] = into / inner / name
                    self._write_file(made[number], number, self.root / inner / name, choice)

    def _entries_after(self, folder: Path, choice: "Choice") -> Entries:
        durable = self.folders.get(folder, {})
        current = read_entries(folder) if folder.is_dir() else {}
        kept: Entries = {}
        for name in sorted(durable.keys() | current.keys()):
            source = durable if durable.get(name, -1) == current.get(name, -1) else None
            source = source or (current if choice.keeps() else durable)
            if name in source:
                kept[name] = source[name]
        return kept

    def _write_file(self, path: Path, number: int, now_at: Path, choice: "Choice") -> None:
        durable, current = self.files.get(number), self._current(number, now_at)
        found = current or durable
        assert found is not None
        data = found.data
        if durable is not None and not choice.keeps():
            data = durable.data
        elif durable is None or durable.data != data:
            data = data if path.name == "clock" else choice.torn(data)
        if path.name == "clock":
            data = data[: _BOOT.start] + b"another boot".ljust(36, b"\0")
        dated = durable if durable is not None and not choice.keeps() else found
        path.write_bytes(data)
        if dated.digest is not None:
            os.setxattr(path, _SHA256, dated.digest)
        path.chmod(stat.S_IMODE(dated.mode))
        os.utime(path, ns=(dated.mtime_ns, dated.mtime_ns))

    def _current(self, number: int, path: Path) -> Inode | None:
        if path.is_file() and path.stat().st_ino == number:
            return read_inode(path)
        return None


class Choice:
    """What one crash keeps."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random(seed)

    def keeps(self) -> bool:
        """Return True if an unsynced change survives."""
        if self._seed in (0, 1):
            return self._seed == 0
        return self._rng.random() < 0.5

    def torn(self, data: bytes) -> bytes:
        """Return the unsynced contents of a file after the crash."""
        if self._seed == 0:
            return data
        cut = self._rng.randrange(len(data) + 1)
        page = cut // PAGE * PAGE
        hole = data[:page] + bytes(len(data[page : page + PAGE])) + data[page + PAGE :]
        return b"" if self._seed == 1 else self._rng.choice([data, b"", data[:cut], hole])
