"""Damaged frames from a known sender: never a 5xx, a store call, or more memory."""

import asyncio
import contextlib
import resource
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gateway import HttpResult, Running, TestKey, frame_of, identity, running

from sluice_protocol.errors import SluiceError
from sluice_protocol.frame import decode_frame

HOST = TestKey("host-1", ("host-1",))
BASES = [
    frame_of(identity(count=3), compress=False),
    frame_of(identity(count=40), "a longer text that compresses well " * 5),
    frame_of(identity(seq=2**62), size=3000),
]
NUMBERS = st.sampled_from([0, 1, 23, 255, 65_536, 65_537, 2**24, 2**26, 2**31, 2**32 - 1])


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """Draw a valid frame with bytes changed, removed, repeated or inserted, or header fields
    changed.
    """
    data = bytearray(draw(st.sampled_from(BASES)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 5)):
            case 0:
                data[place : place + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                del data[place:]
            case 2:
                del data[place : place + draw(st.integers(1, 40))]
            case 3:
                data[place:place] = draw(st.binary(min_size=1, max_size=40))
            case 4:
                data[place:place] = data[: draw(st.integers(1, 200))]
            case _:
                field = draw(st.sampled_from([4, 8, 12, 16, 20]))
                if len(data) >= field + 4:
                    struct.pack_into("<I", data, field, draw(NUMBERS))
    return bytes(data)


class Loop:
    """A gateway that serves on a separate loop between the examples."""

    def __init__(self, tmp_path: Path) -> None:
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.stack = AsyncExitStack()
        self.served: Running = self.runner.run(
            self.stack.enter_async_context(running(tmp_path, HOST, cache_entries_max=0))  # type: ignore[arg-type]
        )

    def upload(self, frame: bytes) -> HttpResult:
        self.served.store.calls.clear()
        return self.runner.run(self.served.client.upload(frame))

    def close(self) -> None:
        self.runner.run(self.stack.aclose())  # type: ignore[arg-type]
        self.runner.close()


@pytest.fixture(name="loop")
def _loop(tmp_path: Path) -> Iterator[Loop]:
    served = Loop(tmp_path)
    yield served
    served.close()


def is_valid(frame: bytes) -> bool:
    with contextlib.suppress(SluiceError):
        decode_frame(frame)
        return True
    return False


def check(loop: Loop, frame: bytes) -> None:
    answer = loop.upload(frame)
    if is_valid(frame):
        assert answer.status in {200, 403, 409}, answer
        return
    assert answer.status in {400, 413}, answer
    assert answer.body["code"] in {"invalid_frame", "unsupported_version", "too_large"}
    assert loop.served.store.calls == []


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(loop: Loop, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(mutations())
    def one(frame: bytes) -> None:
        check(loop, frame)

    before = peak_bytes()
    one()
    assert peak_bytes() - before < 300 * 1024 * 1024


def test_damaged_frames_change_nothing(loop: Loop) -> None:
    """Some hundred mutations; one that still decodes is handled like any frame."""
    fuzz(loop, 400)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_damaged_frames_change_nothing(loop: Loop) -> None:
    fuzz(loop, 50_000)
