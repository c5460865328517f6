"""Returns the memory that decoders have freed to the operating system.

After a body of 20 MiB the allocators keep 5 to 100 MB of free pieces: glibc in the arena of the
thread, Arrow in its pool. They do not reuse each other's, so bodies of several doors in a row add
up, also smaller ones. Returning the pieces takes some milliseconds, so it is done once for several
of them.
"""

import sys
from typing import Final

from sluice_web.process_limits import MMAP_THRESHOLD, set_allocator_options, trim_heaps

RETURNED_BYTES: Final = 4 * 1024 * 1024
"""Bodies of this size together leave enough free memory to return it."""

LARGE_BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Blocks from this size on are returned to the operating system as soon as they are freed."""


def separate_large_blocks() -> None:
    """Let the allocator of this process keep large blocks out of its heaps.

    Otherwise glibc raises its limit to 32 MiB when the first large block is freed. Bodies of 20 MiB
    are then in the heaps, below small blocks that are still used, and cannot be returned.
    """
    set_allocator_options({MMAP_THRESHOLD: LARGE_BLOCK_BYTES})


class FreedMemory:
    """Counts the bodies that threads have decoded since free memory was returned."""

    def __init__(self) -> None:
        self._decoded_bytes = 0

    def decoded(self, size_bytes: int) -> None:
        """Count a body, and return free memory if the bodies since the last time were large enough.

        Threads may call it concurrently: a lost addition only delays the next return.
        """
        self._decoded_bytes += size_bytes
        if self._decoded_bytes >= RETURNED_BYTES:
            self._decoded_bytes = 0
            _return_freed_memory()


def _return_freed_memory() -> None:
    """Return free pages of this process, as far as its allocators can."""
    arrow = sys.modules.get("pyarrow")  # without it, no decoder has used its pool
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    trim_heaps()
