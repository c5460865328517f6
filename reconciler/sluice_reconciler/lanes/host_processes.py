"""Whether a process of this machine has ended, so that its lanes can be taken without a wait.

A process is identified by the boot of the machine, its pid namespace, its pid and its start time.
A process of the same boot and namespace is visible in `/proc` while it exists. Of any other process
nothing is known here: it counts as running until its record lapses.
"""

import os
import socket
from pathlib import Path
from typing import Final, Protocol

import msgspec

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ENDED: Final = ("Z", "X")
"""States of a process that has ended: zombie, dead."""


class HostProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of one machine.

    Attributes:
        boot: Id of the boot of the machine.
        namespace: Number of the pid namespace.
        pid: Its number in that namespace.
        started: Its start, in clock ticks after the boot.
    """

    boot: str
    namespace: int
    pid: int
    started: int


class HostProcesses(Protocol):
    """Port: the processes of this machine."""

    def current(self) -> HostProcess | None:
        """Return this process, or None if the system does not show it."""
        ...

    def has_ended(self, process: HostProcess) -> bool:
        """Return True if a process has ended; False if it runs or nothing is known of it."""
        ...

    def host_name(self) -> str:
        """Return the name of this machine."""
        ...


class SystemProcesses:
    """The processes that `/proc` shows; on a system without it, nothing is known."""

    def current(self) -> HostProcess | None:
        """Return this process, or None if the system does not show it."""
        found = _read_stat(os.getpid())
        try:
            boot = _BOOT_ID.read_text().strip()
            namespace = Path("/proc/self/ns/pid").stat().st_ino
            # A mounted `/proc` of another namespace shows other processes under these numbers.
            is_own = int(Path("/proc/self/stat").read_text().partition(" ")[0]) == os.getpid()
        except (OSError, ValueError):
            return None
        if found is None or not is_own:
            return None
        return HostProcess(boot=boot, namespace=namespace, pid=os.getpid(), started=found[1])

    def has_ended(self, process: HostProcess) -> bool:
        """Return True if a process has ended; False if it runs or nothing is known of it."""
        mine = self.current()
        if mine is None or (mine.boot, mine.namespace) != (process.boot, process.namespace):
            return False
        try:
            os.kill(process.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass  # It exists, and belongs to another user.
        found = _read_stat(process.pid)
        return found is not None and (found[0] in _ENDED or found[1] != process.started)

    def host_name(self) -> str:
        """Return the name of this machine; in a container that of the container or pod."""
        return socket.gethostname()


def _read_stat(pid: int) -> tuple[str, int] | None:
    """Return state and start of a process, or None if they cannot be read."""
    try:
        # The name of the program is in parentheses and may contain any character.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
