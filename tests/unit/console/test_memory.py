"""Large blocks are mapped, also after larger ones were freed."""

import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys
from sluice_console.memory import return_large_blocks

class State(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

read = ctypes.CDLL(None).mallinfo2
read.restype = State
if sys.argv[1] == "set":
    return_large_blocks()
larger = bytes(1_000_000)
del larger
before = read().hblkhd
documents = [bytes(100_000) for _ in range(100)]
print(read().hblkhd - before)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library has no mallinfo2"
)
@pytest.mark.parametrize(("option", "mapped"), [("set", True), ("default", False)])
def test_documents_are_mapped_after_a_larger_block_was_freed(option: str, mapped: bool) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", SCRIPT, option], capture_output=True, text=True, check=True
    )
    assert (int(shown.stdout) > 5_000_000) == mapped
