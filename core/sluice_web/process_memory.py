"""The allocator of this process: options of glibc, and the return of freed memory.

Other C libraries have no such functions and are left as they are. Source: `mallopt(3)`,
`malloc_trim(3)`.
"""

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

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
