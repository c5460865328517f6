"""A file system that loses what was not synced, for the spool's crash tests.

The model: names change by operations in one order, as in a journal. Syncing a directory makes every
operation up to the last one in that directory durable. The bytes of a file are durable only after
it was synced; after a power cut an unsynced file may have all, some or none of them.
"""

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path


class Crash(BaseException):
    """The machine stops here."""


class File:
    """An inode: the bytes that programs see and the bytes on the disk."""

    def __init__(self) -> None:
        self.seen = b""
        self.durable: bytes | None = None


Names = dict[Path, File]
Change = Callable[[Names], object]


class SimDisk:
    """An implementation of `Disk`; `tripwire` is called before each operation and may raise."""

    def __init__(self, tripwire: Callable[[str], None] | None = None) -> None:
        self.tripwire = tripwire or (lambda _: None)
        self._durable: Names = {}
        self._seen: Names = {}
        self._journal: list[tuple[frozenset[Path], Change]] = []
        self.locked = False

    # -- crashes ---------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process, but not the machine: everything written remains."""
        self.locked = False

    def power_cut(self, rng: random.Random) -> None:
        """Keep some prefix of the journal, and of unsynced files a random part."""
        self.locked = False
        for _, change in self._journal[: rng.randrange(len(self._journal) + 1)]:
            change(self._durable)
        self._journal = []
        for file in set(self._durable.values()):
            if file.durable is None or file.durable != file.seen:
                kept = file.seen[: rng.randrange(len(file.seen) + 1)]
                file.seen = rng.choice([file.durable or b"", kept, file.seen, b""])
            file.durable = file.seen
        self._seen = dict(self._durable)

    # -- the port --------------------------------------------------------------------------

    def make_dir(self, path: Path, *, sync: bool) -> None:
        self.tripwire("make_dir")

    def write_new(self, path: Path, parts: Sequence[bytes], *, sync: bool) -> None:
        self.tripwire("create")
        file = File()
        self._change({path.parent}, lambda names: names.__setitem__(path, file))
        data = b"".join(parts)
        file.seen = data[: len(data) // 2]
        self.tripwire("write")
        file.seen = data
        if sync:
            self.tripwire("sync")
            file.durable = data

    def rename(self, source: Path, target: Path) -> None:
        self.tripwire("rename")
        if source not in self._seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))

        def change(names: Names) -> None:
            if source in names:
                names[target] = names.pop(source)

        self._change({source.parent, target.parent}, change)

    def sync_dir(self, path: Path) -> None:
        self.tripwire("sync_dir")
        last = max((n for n, (dirs, _) in enumerate(self._journal) if path in dirs), default=-1)
        for _, change in self._journal[: last + 1]:
            change(self._durable)
        del self._journal[: last + 1]

    def read(self, path: Path) -> bytes:
        self.tripwire("read")
        if path not in self._seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return self._seen[path].seen

    def read_head(self, path: Path, size_bytes: int) -> bytes:
        return self.read(path)[:size_bytes]

    def remove(self, path: Path) -> None:
        self.tripwire("remove")
        if path in self._seen:
            self._change({path.parent}, lambda names: names.pop(path, None))

    def list(self, path: Path) -> list[tuple[str, int]]:
        self.tripwire("list")
        return sorted((p.name, len(f.seen)) for p, f in self._seen.items() if p.parent == path)

    def lock(self, path: Path) -> int:
        if self.locked:
            raise BlockingIOError(errno.EAGAIN, "locked", str(path))
        self.locked = True
        return 0

    def unlock(self, handle: int) -> None:
        self.locked = False

    def _change(self, dirs: set[Path], change: Change) -> None:
        change(self._seen)
        self._journal.append((frozenset(dirs), change))


class Tripwire:
    """Raises at the n-th operation; counts them all."""

    def __init__(self, at: int | None, error: Callable[[], BaseException] = Crash) -> None:
        self.at = at
        self.count = 0
        self.error = error

    def __call__(self, _: str) -> None:
        self.count += 1
        if self.count == self.at:
            raise self.error()
