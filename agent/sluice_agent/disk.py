"""The few file operations that the spool rests on, as a port, so that a power cut can be played.

What each promises, on which the spool's proof stands: bytes are durable after `write_new` with
`sync`; a name is durable after `sync_dir` of its directory; `rename` is atomic. Nothing else is.

Source: `fsync(2)`, `rename(2)`; ADR 0030.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class Disk(Protocol):
    """A file system, seen from the spool. Every call may raise `OSError`."""

    def make_dir(self, path: Path) -> None:
        """Makes a directory and its parents; one that exists is left alone."""
        ...

    def write_new(self, path: Path, parts: Sequence[bytes], *, sync: bool) -> None:
        """Writes a file anew; with `sync` its bytes are durable on return."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Gives a file another name, atomically; the target is replaced."""
        ...

    def sync_dir(self, path: Path) -> None:
        """Makes the names in a directory durable."""
        ...

    def read(self, path: Path) -> bytes:
        """Gives a file's bytes."""
        ...

    def read_head(self, path: Path, size_bytes: int) -> bytes:
        """Gives at most the first `size_bytes` of a file."""
        ...

    def remove(self, path: Path) -> None:
        """Removes a file; one that is not there is no error."""
        ...

    def list(self, path: Path) -> list[tuple[str, int]]:
        """Gives name and size in bytes of every file in a directory, by name."""
        ...

    def lock(self, path: Path) -> int:
        """Takes a lock that ends with this process.

        Raises:
            BlockingIOError: Another process, or another opening of it, holds it.
        """
        ...

    def unlock(self, handle: int) -> None:
        """Gives the lock back."""
        ...


class RealDisk:
    """The machine's own file system."""

    def make_dir(self, path: Path) -> None:
        """Makes a directory, readable by its owner alone: logs may hold secrets."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write_new(self, path: Path, parts: Sequence[bytes], *, sync: bool) -> None:
        """Writes and, with `sync`, calls fsync before the close."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0) as file:
            for part in parts:
                _write_all(file.fileno(), part)
            if sync:
                os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Calls the system's rename."""
        source.rename(target)

    def sync_dir(self, path: Path) -> None:
        """Calls fsync on the directory."""
        with _opened(path) as number:
            os.fsync(number)

    def read(self, path: Path) -> bytes:
        """Reads the whole file."""
        return path.read_bytes()

    def read_head(self, path: Path, size_bytes: int) -> bytes:
        """Reads its beginning."""
        with path.open("rb") as file:
            return file.read(size_bytes)

    def remove(self, path: Path) -> None:
        """Unlinks it."""
        path.unlink(missing_ok=True)

    def list(self, path: Path) -> list[tuple[str, int]]:
        """Lists it by scandir; a file that goes meanwhile is left out."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
        return sorted(found)

    def lock(self, path: Path) -> int:
        """Locks by flock, which the system gives back when the process ends in any way."""
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            raise
        return number

    def unlock(self, handle: int) -> None:
        """Closes the lock's file."""
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
