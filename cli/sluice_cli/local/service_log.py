"""The one log of all services: a file with a maximum size, and the lines for the terminal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

FILE_BYTES_MAX: Final = 32 << 20
LINE_BYTES_MAX: Final = 64 << 10
_SHOWN: Final = frozenset({"warning", "error", "critical"})
_STANDARD: Final = frozenset({"event", "level", "timestamp"})


class ServiceLog:
    """Appends lines of services to a file; a full file replaces the previous one.

    It never has more than two files of `FILE_BYTES_MAX`.
    """

    def __init__(self, path: Path, show: Callable[[str], None], *, verbose: bool) -> None:
        """Open the file.

        Args:
            path: The file; the previous one has the suffix `.1`.
            show: Prints a line on the terminal.
            verbose: Whether to show every line.

        Raises:
            OSError: The file cannot be written.
        """
        self.path = path
        self._show = show
        self._verbose = verbose
        self._file = path.open("ab")
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
        self._file.write(f"{service} {text}\n".encode())
        self._file.flush()
        if self._file.tell() >= FILE_BYTES_MAX:
            self._file.close()
            self.path.replace(self.path.with_suffix(self.path.suffix + ".1"))
            self._file = self.path.open("ab")
        shown = text if self._verbose else warning_of(text)
        if shown is not None and not self._quiet:
            self._show(f"{service}: {shown}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


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
