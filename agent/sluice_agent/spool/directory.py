"""The spool's directory: its folders, its lock, and each durable step as one call."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sluice_agent.errors import CorruptEntry, SpoolBroken, SpoolLocked, SpoolUnwritable
from sluice_agent.spool.disk import Disk
from sluice_agent.spool.format import (
    PREFIX,
    EntryHeader,
    SpoolState,
    decode_header,
    decode_spool_entry,
    decode_state,
    encode_state,
    header_end,
)
from sluice_protocol.errors import BadUsage, UnsupportedVersion

STATE: Final = "state.json"
FOLDERS: Final = ("ready", "parked", "again", "corrupt")


class SpoolDirectory:
    """The files of one spool. Every call may raise `OSError` unless documented otherwise."""

    def __init__(self, directory: Path, disk: Disk, *, sync: bool) -> None:
        self.corrupt_files: list[tuple[str, str]] = []
        self._directory = directory
        self._disk = disk
        self._sync = sync
        self._lock = 0

    def path(self, folder: str, name: str = "") -> Path:
        """Return the path of a folder or of a file in it."""
        return self._directory / folder / name

    def open(self) -> None:
        """Create the folders and acquire the lock."""
        for path in (self._directory, *(self.path(folder) for folder in FOLDERS)):
            self._disk.make_dir(path, sync=self._sync)
        try:
            self._lock = self._disk.lock(self._directory / "lock")
        except BlockingIOError as error:
            raise SpoolLocked(str(self._directory)) from error

    def close(self) -> None:
        """Release the lock."""
        self._disk.unlock(self._lock)

    def list(self, folder: str) -> list[tuple[str, int]]:
        """Return name and size in bytes of every file in a folder, sorted by name."""
        return self._disk.list(self.path(folder))

    def publish(self, name: str, parts: tuple[bytes, ...]) -> None:
        """Write a batch to `ready/`; on return, its bytes and its name are durable.

        Raises:
            SpoolUnwritable: It does not exist; the same bytes may be published again.
            SpoolBroken: It is unknown whether it exists durably.
        """
        temporary, target = self.path("ready", f"{name}.tmp"), self.path("ready", name)
        try:
            self._disk.write_new(temporary, parts, sync=self._sync)
        except OSError as error:
            with contextlib.suppress(OSError):  # else the next attempt or the next boot removes it
                self._disk.remove(temporary)
            raise SpoolUnwritable(str(temporary), _reason(error)) from error
        try:
            self._disk.rename(temporary, target)
            self.sync("ready")
        except OSError as error:
            raise SpoolBroken(str(target), _reason(error)) from error

    def read(self, name: str) -> bytes:
        """Return the frame of a batch in `ready/`.

        Raises:
            CorruptEntry: The file differs from what was written; it was moved to `corrupt/`.
        """
        path = self.path("ready", name)
        try:
            with _naming_file(path):
                return decode_spool_entry(self._disk.read(path))[1]
        except FileNotFoundError as error:
            raise CorruptEntry("the file does not exist") from error
        except CorruptEntry as error:
            self._move_to_corrupt("ready", name, error.reason)
            raise

    def read_header(self, folder: str, name: str, size_bytes: int) -> EntryHeader | None:
        """Return a batch's header; move a corrupt file to `corrupt/` and return None."""
        try:
            return read_entry_header(self._disk, self.path(folder, name), size_bytes)
        except CorruptEntry as error:
            self._move_to_corrupt(folder, name, error.reason)
            return None

    def park(self, name: str, reason: bytes) -> None:
        """Move a batch to `parked/`, its reason first; may be called again after an error."""
        self._disk.write_new(self.path("parked", f"{name}.json"), [reason], sync=self._sync)
        try:
            self._disk.rename(self.path("ready", name), self.path("parked", name))
        except FileNotFoundError:  # an earlier attempt moved it and failed afterwards
            self._disk.read_head(self.path("parked", name), PREFIX.size)
        self.sync("parked", "ready")

    def requeue(self, name: str) -> None:
        """Move a batch from `again/` to `ready/`."""
        self._disk.rename(self.path("again", name), self.path("ready", name))
        self.sync("ready", "again")

    def remove(self, name: str) -> None:
        """Remove a file from `ready/`; it may reappear after a power cut, which is harmless."""
        self._disk.remove(self.path("ready", name))

    def read_state(self) -> SpoolState:
        """Return the state, or an empty one if there is none yet.

        Raises:
            BadUsage: It is corrupt, and an operator must decide.
        """
        path = self._directory / STATE
        try:
            with _naming_file(path):
                return decode_state(self._disk.read(path))
        except FileNotFoundError:
            return SpoolState()
        except CorruptEntry as error:
            raise BadUsage(
                f"state of spool is corrupt: restore it, or remove it to read every file from "
                f"its start, which may send lines twice, reason=`{error.reason}`, path=`{path}`"
            ) from error

    def write_state(self, state: SpoolState) -> None:
        """Replace the state durably, even without `sync`: no boot can start with a torn state."""
        path = self._directory / STATE
        temporary = path.with_suffix(".tmp")
        self._disk.write_new(temporary, [encode_state(state)], sync=True)
        self._disk.rename(temporary, path)
        self._disk.sync_dir(path.parent)

    def sync(self, *folders: str) -> None:
        """Make the names in folders durable; do nothing without `sync`."""
        if self._sync:
            for folder in folders:
                self._disk.sync_dir(self.path(folder))

    def _move_to_corrupt(self, folder: str, name: str, reason: str) -> None:
        self._disk.rename(self.path(folder, name), self.path("corrupt", name))
        self.sync("corrupt", folder)
        self.corrupt_files.append((name, reason))


def read_entry_header(disk: Disk, path: Path, size_bytes: int) -> EntryHeader:
    """Return the header of an entry's file; raise `CorruptEntry` on damage."""
    with _naming_file(path):
        end = header_end(disk.read_head(path, PREFIX.size))
        return decode_header(disk.read_head(path, end), file_bytes=size_bytes)


@contextlib.contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Add the path to `UnsupportedVersion`."""
    try:
        yield
    except UnsupportedVersion as error:
        raise UnsupportedVersion(error.what, error.found, error.known, str(path)) from error


@contextlib.contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Raise `OSError` as `SpoolUnwritable` with the path."""
    try:
        yield
    except OSError as error:
        raise SpoolUnwritable(str(path), _reason(error)) from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
