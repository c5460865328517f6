"""The file operations of the spool as a port, so that tests can simulate a power cut.

The spool relies on these guarantees: bytes are durable after `write_new` with `sync`, the name of
a file after `sync_dir` of its directory, and those of a directory and its parents after `make_dir`
with `sync`; `rename` is atomic.

Source: `fsync(2)`, `rename(2)`; ADR 17.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class Disk(Protocol):
    """The file system as the spool uses it. Every call may raise `OSError`."""

    def make_dir(self, path: Path, *, sync: bool) -> None:
        """Create a directory and its parents; with `sync` their names are durable on return."""
        ...

    def write_new(self, path: Path, parts: Sequence[bytes], *, sync: bool) -> None:
        """Write a file, replacing an existing one; with `sync` its bytes are durable on return."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically, replacing the target."""
        ...

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        ...

    def read_head(self, path: Path, size_bytes: int) -> bytes:
        """Return at most the first `size_bytes` of a file."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; do nothing if it does not exist."""
        ...

    def list(self, path: Path) -> list[tuple[str, int]]:
        """Return name and size in bytes of every file in a directory, sorted by name."""
        ...

    def lock(self, path: Path) -> int:
        """Acquire a lock that ends with this process, and return its handle.

        Raises:
            BlockingIOError: Another process, or another open file of this one, holds the lock.
        """
        ...

    def unlock(self, handle: int) -> None:
        """Release the lock."""
        ...


class RealDisk:
    """The file system of the operating system."""

    def make_dir(self, path: Path, *, sync: bool) -> None:
        """Create the directory with access for its owner only, because logs may contain secrets.

        An existing one is synced too, because a kill may have followed its creation. A parent that
        this process cannot read was made by another program.
        """
        made = [path, *(one for one in path.parents if not one.exists())]
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for one in made if sync else ():
            with contextlib.suppress(PermissionError):
                self.sync_dir(one.parent)

    def write_new(self, path: Path, parts: Sequence[bytes], *, sync: bool) -> None:
        """Write the file and, with `sync`, call fsync before closing it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0) as file:
            for part in parts:
                _write_all(file.fileno(), part)
            if sync:
                os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Rename with `rename(2)`."""
        source.rename(target)

    def sync_dir(self, path: Path) -> None:
        """Call fsync on the directory."""
        with _opened(path) as number:
            os.fsync(number)

    def read(self, path: Path) -> bytes:
        """Read the whole file."""
        return path.read_bytes()

    def read_head(self, path: Path, size_bytes: int) -> bytes:
        """Read the beginning of the file."""
        with path.open("rb") as file:
            return file.read(size_bytes)

    def remove(self, path: Path) -> None:
        """Unlink the file."""
        path.unlink(missing_ok=True)

    def list(self, path: Path) -> list[tuple[str, int]]:
        """List the directory with scandir, without files that disappear meanwhile."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
        return sorted(found)

    def lock(self, path: Path) -> int:
        """Lock the file with flock, which the kernel releases when the process ends in any way."""
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            raise
        return number

    def unlock(self, handle: int) -> None:
        """Close the lock file."""
        os.close(handle)


def _write_all(number: int, part: bytes) -> None:
    view = memoryview(part)
    while view:
        view = view[os.write(number, view) :]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield number
    finally:
        os.close(number)
