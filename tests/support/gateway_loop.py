"""A gateway on its own loop, and damaged bytes to send to it: for tests that draw requests."""

import asyncio
import struct
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from hypothesis import strategies as st
from support.gateway import Running, TestKey, running

_Result = TypeVar("_Result")
_HEAD_FIELDS = [4, 8, 12, 16, 20]
"""Places of numbers in the heads of frames and of lists of frames."""


class GatewayLoop:
    """A gateway that serves on a separate loop between the examples."""

    def __init__(self, tmp_path: Path, *senders: TestKey, **settings: Any) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._stack = AsyncExitStack()
        self.served: Running = self._runner.run(
            self._stack.enter_async_context(running(tmp_path, *senders, **settings))
        )

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return self._runner.run(work)

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


@st.composite
def damaged_bytes(
    draw: st.DrawFn,
    bases: st.SearchStrategy[bytes],
    numbers: Sequence[int],
    *,
    changes_max: int,
    run_bytes_max: int,
    repeats_bytes_max: int = 0,
) -> bytes:
    """Draw bytes with some changed, removed or inserted, or with numbers of a head changed.

    Args:
        draw: Draws a value.
        bases: The bytes to change.
        numbers: The numbers for a head.
        changes_max: Number of changes, at most.
        run_bytes_max: Bytes that one change removes or inserts, at most.
        repeats_bytes_max: Bytes of the beginning that one change inserts, at most; 0 for none.
    """
    data = bytearray(draw(bases))
    for _ in range(draw(st.integers(1, changes_max))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 5 if repeats_bytes_max else 4)):
            case 0:
                data[place : place + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                del data[place:]
            case 2:
                del data[place : place + draw(st.integers(1, run_bytes_max))]
            case 3:
                data[place:place] = draw(st.binary(min_size=1, max_size=run_bytes_max))
            case 4:
                field = draw(st.sampled_from(_HEAD_FIELDS))
                if len(data) >= field + 4:
                    struct.pack_into("<I", data, field, draw(st.sampled_from(numbers)))
            case _:
                data[place:place] = data[: draw(st.integers(1, repeats_bytes_max))]
    return bytes(data)
