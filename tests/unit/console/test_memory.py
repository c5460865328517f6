"""Large blocks are mapped, also after larger ones were freed."""

import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys
from sluice_console.app import MAPPED_BYTES_MIN
from sluice_web.process_limits import MMAP_THRESHOLD, set_allocator_options

class State(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

read = ctypes.CDLL(None).mallinfo2
read.restype = State
if sys.argv[1] == "set":
    set_allocator_options({MMAP_THRESHOLD: MAPPED_BYTES_MIN})
larger = bytes(1_000_000)
del larger
before = read().hblkhd
documents = [bytes(100_000) for _ in range(100)]
print(read().hblkhd - before)
"""


@pytest.mark.long
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library has no mallinfo2"
)
@pytest.mark.parametrize(("option", "mapped"), [("set", True), ("default", False)])
def test_documents_are_mapped_after_a_larger_block_was_freed(option: str, mapped: bool) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", SCRIPT, option], capture_output=True, text=True, check=True
    )
    assert (int(shown.stdout) > 5_000_000) == mapped
