"""The one log of all services: a file with a maximum size, and the lines for the terminal."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

FILE_BYTES_MAX: Final = 32 << 20
LINE_BYTES_MAX: Final = 64 << 10
_SHOWN: Final = frozenset({"warning", "error", "critical"})
_STANDARD: Final = frozenset({"event", "level", "timestamp"})


class ServiceLog:
    """Appends lines of services to a file; a full file replaces the previous one.

    It never has more than two files of `FILE_BYTES_MAX`. A line that cannot be written, because the
    disk is full or the folder is unreachable, is counted and shown instead; the next one is
    tried again.
    A file that was renamed or removed is replaced by a new one.
    """

    def __init__(self, path: Path, show: Callable[[str], None], *, verbose: bool) -> None:
        """Open the file; the previous one has the suffix `.1`."""
        self.path = path
        self._show = show
        self._verbose = verbose
        self._file: IO[bytes] | None = path.open("ab", buffering=0)
        self._lost = 0
        self._last: dict[str, str] = {}
        self._quiet = False

    def hide(self) -> None:
        """Show no further lines: services that stop warn of what they leave."""
        self._quiet = True

    def last_line(self, service: str) -> str:
        """Return the newest line of a service."""
        return self._last.get(service, "")

    def add(self, service: str, line: bytes) -> None:
        """Append one line of a service, and show it if an operator should see it."""
        text = line[:LINE_BYTES_MAX].decode(errors="replace").rstrip()
        if not text:
            return
        self._last[service] = text
        self._append(f"{service} {text}\n".encode())
        shown = text if self._verbose else warning_of(text)
        if shown is not None and not self._quiet:
            self._show(f"{service}: {shown}")

    def _append(self, line: bytes) -> None:
        """Write a line; after a failure the file is opened again for the next one."""
        try:
            file = self._current()
            if self._lost:
                file.write(f"up {self._lost} lines could not be written to this log\n".encode())
            while line:  # a disk that becomes full takes a part of it
                line = line[file.write(line) :]
            self._lost = 0
            if file.tell() >= FILE_BYTES_MAX:
                self.path.replace(self.path.with_suffix(self.path.suffix + ".1"))
        except OSError as error:
            if not self._lost:
                self._show(
                    f"cannot write the log: {error.strerror or error}; lines are lost until it can"
                    f" be written again, log={self.path}"
                )
            self._lost += 1
            self.close()

    def _current(self) -> IO[bytes]:
        """Return the file that the path names now, opened again if it is another one."""
        file = self._file
        if file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):  # noqa: PTH116 - with fstat
                    return file
            file.close()
        self._file = self.path.open("ab", buffering=0)
        return self._file

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


def warning_of(text: str) -> str | None:
    """Return a short form of a warning or an error, or None for every other line."""
    if not text.startswith("{"):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if fields.get("level") not in _SHOWN:
        return None
    rest = (f"{name}={value}" for name, value in fields.items() if name not in _STANDARD)
    return f"{fields['level']} {fields.get('event', '')} {' '.join(rest)}"[:500].rstrip()
