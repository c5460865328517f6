"""The spool's directory on a disk: its folders, its lock, and each durable step as one call."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sluice_agent.disk import Disk
from sluice_agent.errors import CorruptEntry, SpoolBroken, SpoolLocked, SpoolUnwritable
from sluice_agent.spool_format import (
    PREFIX,
    EntryHeader,
    SpoolState,
    decode_entry,
    decode_header,
    decode_state,
    encode_state,
    header_end,
)
from sluice_protocol.errors import BadUsage

STATE: Final = "state.json"
FOLDERS: Final = ("ready", "parked", "again", "corrupt")


class SpoolDirectory:
    """The files of one spool. Every call may raise `OSError` unless it says otherwise."""

    def __init__(self, directory: Path, disk: Disk, *, sync: bool) -> None:
        """Takes the place; `open` makes and locks it."""
        self.set_aside: list[tuple[str, str]] = []
        self._directory = directory
        self._disk = disk
        self._sync = sync
        self._lock = 0

    def path(self, folder: str, name: str = "") -> Path:
        """Gives the path of a folder or of a file in it."""
        return self._directory / folder / name

    def open(self) -> None:
        """Makes the folders and takes the lock.

        Raises:
            SpoolLocked: Another process holds it.
        """
        for folder in FOLDERS:
            self._disk.make_dir(self.path(folder))
        try:
            self._lock = self._disk.lock(self._directory / "lock")
        except BlockingIOError as error:
            raise SpoolLocked(str(self._directory)) from error

    def close(self) -> None:
        """Gives the lock back."""
        self._disk.unlock(self._lock)

    def list(self, folder: str) -> list[tuple[str, int]]:
        """Gives name and size in bytes of every file in a folder, by name."""
        return self._disk.list(self.path(folder))

    def publish(self, name: str, parts: tuple[bytes, ...]) -> None:
        """Puts a batch into `ready/`: when it returns, bytes and name are durable.

        Raises:
            SpoolUnwritable: It is not there; the same bytes may be put again.
            SpoolBroken: Nobody knows whether it is.
        """
        temporary, target = self.path("ready", f"{name}.tmp"), self.path("ready", name)
        try:
            self._disk.write_new(temporary, parts, sync=self._sync)
        except OSError as error:
            with contextlib.suppress(OSError):  # else the next try or the next life removes it
                self._disk.remove(temporary)
            raise SpoolUnwritable(str(temporary), _why(error)) from error
        try:
            self._disk.rename(temporary, target)
            self.sync("ready")
        except OSError as error:
            raise SpoolBroken(str(target), _why(error)) from error

    def read(self, name: str) -> bytes:
        """Gives the frame of a batch in `ready/`.

        Raises:
            CorruptEntry: It is not what was written; what there is now stands in `corrupt/`.
        """
        try:
            return decode_entry(self._disk.read(self.path("ready", name)))[1]
        except FileNotFoundError as error:
            raise CorruptEntry("the file is gone") from error
        except CorruptEntry as error:
            self._put_aside("ready", name, error.reason)
            raise

    def read_header(self, folder: str, name: str, size_bytes: int) -> EntryHeader | None:
        """Gives a batch's note; none when it is not what was written, and it is put aside."""
        path = self.path(folder, name)
        try:
            end = header_end(self._disk.read_head(path, PREFIX.size))
            return decode_header(self._disk.read_head(path, end), file_bytes=size_bytes)
        except CorruptEntry as error:
            self._put_aside(folder, name, error.reason)
            return None

    def park(self, name: str, reason: bytes) -> None:
        """Moves a batch to `parked/`, its reason first; may be called again after an error."""
        self._disk.write_new(self.path("parked", f"{name}.json"), [reason], sync=self._sync)
        try:
            self._disk.rename(self.path("ready", name), self.path("parked", name))
        except FileNotFoundError:  # an earlier try moved it and failed after that
            self._disk.read_head(self.path("parked", name), PREFIX.size)
        self.sync("parked", "ready")

    def adopt(self, name: str) -> None:
        """Moves a batch from `again/` to `ready/`."""
        self._disk.rename(self.path("again", name), self.path("ready", name))
        self.sync("ready", "again")

    def remove(self, name: str) -> None:
        """Removes a file of `ready/`; it may come back after a power cut, which does no harm."""
        self._disk.remove(self.path("ready", name))

    def read_state(self) -> SpoolState:
        """Gives the state; an empty one when there is none yet.

        Raises:
            BadUsage: It is damaged, and a person must decide.
        """
        path = self._directory / STATE
        try:
            return decode_state(self._disk.read(path))
        except FileNotFoundError:
            return SpoolState()
        except CorruptEntry as error:
            raise BadUsage(
                "spool's state is corrupt: restore it, or remove it to read every file again from"
                f" its start, which may send lines twice, reason=`{error.reason}`, path=`{path}`"
            ) from error

    def write_state(self, state: SpoolState) -> None:
        """Replaces the state durably, also without `sync`: torn it would stop the next life."""
        path = self._directory / STATE
        temporary = path.with_suffix(".tmp")
        self._disk.write_new(temporary, [encode_state(state)], sync=True)
        self._disk.rename(temporary, path)
        self._disk.sync_dir(path.parent)

    def sync(self, *folders: str) -> None:
        """Makes the names in folders durable; without `sync` it does nothing."""
        if self._sync:
            for folder in folders:
                self._disk.sync_dir(self.path(folder))

    def _put_aside(self, folder: str, name: str, reason: str) -> None:
        self._disk.rename(self.path(folder, name), self.path("corrupt", name))
        self.sync("corrupt", folder)
        self.set_aside.append((name, reason))


@contextlib.contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Turns the system's errors into one that says what to do."""
    try:
        yield
    except OSError as error:
        raise SpoolUnwritable(str(path), _why(error)) from error


def _why(error: OSError) -> str:
    return error.strerror or str(error)
