"""Reuse freed memory while the agent is busy, and return it when the agent is idle.

A batch allocates and frees blocks of several MiB. glibc returns such blocks to the kernel, which
maps and clears their pages again for the next batch: a sixth of the processor time of a busy agent.
Other C libraries have no such functions and are left as they are. Source: `mallopt(3)`, ADR 0110.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice_agent.metrics import AgentMetrics

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_MIB: Final = 1024 * 1024
KEPT_BYTES_MAX: Final = 128 * _MIB
"""Freed memory at the end of the heap that stays mapped."""
MMAP_BYTES_MAX: Final = 32 * _MIB
"""Larger blocks are mapped each time. It is the maximum of glibc."""
BUSY_BYTES: Final = _MIB
"""Frames of this size since the last release make a release worthwhile."""
IDLE_S: Final = 10.0


def keep_freed_memory() -> None:
    """Set the allocator of this process to reuse freed memory."""
    set_option = _allocator_function("mallopt")
    if set_option is None:
        return
    set_option(_MMAP_THRESHOLD, MMAP_BYTES_MAX)
    set_option(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
    set_option(_ARENA_MAX, 1)  # memory that one thread freed is reused by all


def release_freed_memory() -> None:
    """Return freed memory to the system; takes some milliseconds."""
    trim = _allocator_function("malloc_trim")
    if trim is not None:
        trim(0)


def _allocator_function(name: str) -> Callable[..., int] | None:
    """Return a function of glibc; None where the C library does not have it."""
    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return found


@dataclass(slots=True, kw_only=True)
class IdleRelease:
    """Decides when freed memory is returned: once after each busy period.

    Attributes:
        metrics: The metrics of the agent.
    """

    metrics: AgentMetrics
    _released_bytes: int = 0
    _seen_bytes: int = 0
    _busy_s: float = 0.0

    def is_due(self, *, now_s: float) -> bool:
        """Return True once, when a busy agent has been idle for `IDLE_S`."""
        sealed_bytes = self.metrics.sealed_bytes
        if sealed_bytes - self._seen_bytes >= BUSY_BYTES:
            self._seen_bytes, self._busy_s = sealed_bytes, now_s
        if self._seen_bytes == self._released_bytes or now_s - self._busy_s < IDLE_S:
            return False
        self._seen_bytes = self._released_bytes = sealed_bytes
        return True
