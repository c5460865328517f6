"""Reuse freed memory while the agent is busy, and return it when the agent is idle.

A batch allocates and frees blocks of several MiB. glibc returns such blocks to the kernel, which
maps and clears their pages again for the next batch: a sixth of the processor time of a busy agent.
Variables of the environment would have to be set by each unit and container, and buffers that are
reused do not help, because numpy, zstd and Python allocate their results themselves.
Source: `mallopt(3)`.
"""

from dataclasses import dataclass
from typing import Final

from sluice_agent.metrics import AgentMetrics
from sluice_web.process_limits import (
    ARENA_MAX,
    MMAP_THRESHOLD,
    TRIM_THRESHOLD,
    set_allocator_options,
)

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
    set_allocator_options(
        {
            MMAP_THRESHOLD: MMAP_BYTES_MAX,
            TRIM_THRESHOLD: KEPT_BYTES_MAX,
            ARENA_MAX: 1,  # memory that one thread freed is reused by all
        }
    )


@dataclass(slots=True, kw_only=True)
class IdleRelease:
    """Decides when freed memory is returned: once after each busy period."""

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
