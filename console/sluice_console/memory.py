"""The allocator of the console: large blocks are returned to the kernel when they are freed.

A sample with the last hour is a JSON document of more than 128 KiB. glibc maps the first such
block, raises its limit when that block is freed, and takes the later ones from the heap, where the
small blocks that remain between them keep the pages: 9 MB of free memory after half a day of
samples. A fixed limit costs one mapping each time, which is nothing at one sample in ten seconds.
Source: `mallopt(3)`.
"""

from typing import Final

from sluice_web.process_memory import MMAP_THRESHOLD, set_allocator_options

MAPPED_BYTES_MIN: Final = 64 * 1024
"""Blocks of this size are mapped separately."""


def return_large_blocks() -> None:
    """Set the allocator of this process."""
    set_allocator_options({MMAP_THRESHOLD: MAPPED_BYTES_MIN})
