"""Damaged frames from a known sender: never a 5xx, a store call, or more memory."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gateway import HttpResult, TestKey, frame_of, identity
from support.gateway_loop import GatewayLoop, damaged_bytes
from support.repetitions import times

from sluice_protocol.errors import SluiceError
from sluice_protocol.frame import decode_frame

HOST = TestKey("host-1", ("host-1",))
BASES = [
    frame_of(identity(count=3), compress=False),
    frame_of(identity(count=40), "a longer text that compresses well " * 5),
    frame_of(identity(seq=2**62), size=3000),
]
NUMBERS = (0, 1, 23, 255, 65_536, 65_537, 2**24, 2**26, 2**31, 2**32 - 1)


MUTATIONS = damaged_bytes(
    st.sampled_from(BASES), NUMBERS, changes_max=4, run_bytes_max=40, repeats_bytes_max=200
)


def upload(loop: GatewayLoop, frame: bytes) -> HttpResult:
    loop.served.store.calls.clear()
    return loop.run(loop.served.client.upload(frame))


@pytest.fixture(name="loop")
def _loop(tmp_path: Path) -> Iterator[GatewayLoop]:
    served = GatewayLoop(tmp_path, HOST, cache_entries_max=0)
    yield served
    served.close()


def is_valid(frame: bytes) -> bool:
    with contextlib.suppress(SluiceError):
        decode_frame(frame)
        return True
    return False


def check(loop: GatewayLoop, frame: bytes) -> None:
    answer = upload(loop, frame)
    if is_valid(frame):
        assert answer.status in {200, 403, 409}, answer
        return
    assert answer.status in {400, 413}, answer
    assert answer.body["code"] in {"invalid_frame", "unsupported_version", "too_large"}
    assert loop.served.store.calls == []


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(loop: GatewayLoop, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(MUTATIONS)
    def one(frame: bytes) -> None:
        check(loop, frame)

    before = peak_bytes()
    one()
    assert peak_bytes() - before < 300 * 1024 * 1024


def test_damaged_frames_change_nothing(loop: GatewayLoop) -> None:
    """Some hundred mutations; one that still decodes is handled like any frame."""
    fuzz(loop, 150)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_damaged_frames_change_nothing(loop: GatewayLoop) -> None:
    fuzz(loop, times(2_000))
