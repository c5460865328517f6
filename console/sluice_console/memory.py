"""The allocator of the console: large blocks are returned to the kernel when they are freed.

A sample with the last hour is a JSON document of some 70 KB. glibc raises its limit for mapped
blocks after a large one was freed. It then takes such documents from the heap, where small blocks
between them keep the pages: 8.6 MB of free memory after half a day of samples. A fixed limit costs
one mapping for each document, and there is one in ten seconds.
Source: `mallopt(3)`.
"""

from typing import Final

from sluice_web.process_memory import MMAP_THRESHOLD, set_allocator_options

MAPPED_BYTES_MIN: Final = 64 * 1024
"""Blocks of this size are mapped separately."""


def return_large_blocks() -> None:
    """Set the allocator of this process."""
    set_allocator_options({MMAP_THRESHOLD: MAPPED_BYTES_MIN})
