"""Limits and memory of this process: open files, options of glibc's allocator, freed memory.

A shell usually starts programs with a soft limit of 1,024, which is below the default limits of
connections, and with a much higher hard limit. The soft limit protects programs that call
`select(2)`, which fails from the 1,025th file on. The servers here do not call it. Source:
getrlimit(2), select(2).

Other C libraries have no such functions of an allocator and are left as they are. Source:
`mallopt(3)`, `malloc_trim(3)`.
"""

import ctypes
import resource
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

OPEN_FILES_WANTED: Final = 65_536
"""The limit in the units of `deploy/systemd`."""
PORTS_MAX: Final = 4
"""Ports of a process: HTTP, gRPC, forward, and health checks or syslog."""


def raise_open_files_limit(wanted: int = OPEN_FILES_WANTED) -> int:
    """Raise the soft limit of open files as far as the hard limit permits; return the limit.

    Processes that are started later inherit it. A limit that is higher already is not changed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def port_connections_max(wanted: int) -> int:
    """Return the most open connections of one port of a gateway or an agent.

    The ports together use at most half of the open files, so that connections that idle on one of
    them lock out neither the clients of the others nor the store.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 2 // PORTS_MAX))


TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
ARENA_MAX: Final = -8


def set_allocator_options(values: Mapping[int, int]) -> None:
    """Set options of `mallopt`, in this order."""
    set_option = _function("mallopt")
    if set_option is not None:
        for option, value in values.items():
            set_option(option, value)


def trim_heaps() -> None:
    """Return free pages to the operating system; takes some milliseconds."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _function(name: str) -> Callable[..., int] | None:
    """Return a function of glibc; None where the C library does not have it."""
    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return found
