"""The chunks of a connection that are accepted at the same time: limits, errors, cancellation."""

import asyncio
import random

import pytest

from sluice_doors.forward.server import CHUNKS_MAX, READ_AHEAD_BYTES, ForwardStream, RunningChunks
from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.uploads.admission import BodyBudget
from sluice_web.connection_guard import BodyPace


class Chunks:
    """Chunks that end when they are released."""

    def __init__(self) -> None:
        budget = BodyBudget(1 << 20, GatewayMetrics(), random.Random(1))
        self.stream = ForwardStream(1 << 20, budget, BodyPace(grace_s=1.0, rate_min=1000))
        self.released = asyncio.Event()
        self.ended = 0
        self.cancelled = 0

    async def accept(self) -> None:
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.ended += 1

    async def fail(self) -> None:
        raise ValueError("refused")


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("size_bytes", "fits"), [(1, CHUNKS_MAX), (READ_AHEAD_BYTES // 2, 2), (READ_AHEAD_BYTES, 1)]
)
async def test_number_and_size_are_limited(size_bytes: int, fits: int) -> None:
    chunks = Chunks()
    async with RunningChunks(chunks.stream) as running:
        for _ in range(fits):
            await asyncio.wait_for(running.room(), 1)
            running.start(chunks.accept, size_bytes)
        waiting = asyncio.create_task(running.room())
        await turns()
        assert not waiting.done()
        chunks.released.set()
        await waiting
    assert chunks.ended == fits


async def test_an_error_ends_the_stream_and_the_others_are_finished() -> None:
    chunks = Chunks()

    async def serve() -> None:
        async with RunningChunks(chunks.stream) as running:
            running.start(chunks.accept, 1)
            running.start(chunks.fail, 1)
            asyncio.get_running_loop().call_later(0.05, chunks.released.set)
            await chunks.stream.next_group()

    with pytest.raises(ValueError, match="refused"):
        await serve()
    assert (chunks.ended, chunks.cancelled) == (1, 0)


async def test_an_error_after_the_end_of_the_stream_is_raised() -> None:
    chunks = Chunks()
    with pytest.raises(ValueError, match="refused"):
        async with RunningChunks(chunks.stream) as running:
            running.start(chunks.fail, 1)


@pytest.mark.parametrize("in_block", [True, False])
async def test_cancellation_ends_every_chunk(*, in_block: bool) -> None:
    """In the block, and while it waits for the last chunks."""
    chunks = Chunks()

    async def serve() -> None:
        async with RunningChunks(chunks.stream) as running:
            running.start(chunks.accept, 1)
            running.start(chunks.accept, 1)
            if in_block:
                await chunks.stream.next_group()

    task = asyncio.create_task(serve())
    await turns()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert (chunks.ended, chunks.cancelled) == (0, 2)
