import asyncio

import pytest
from support.gateway import frame_of, identity

from sluice_gateway.frame_reader import (
    BLOCK_BYTES_MIN,
    INLINE_BYTES_MAX,
    INLINE_RAW_BYTES_MAX,
    BodyBuffer,
    FrameReader,
    announced_raw_bytes,
)
from sluice_protocol.errors import InvalidFrame, TooLarge
from sluice_protocol.frame import decode_head
from sluice_web.connection_guard import BodyPace

PACE = BodyPace(grace_s=1.0, rate_min=1)


@pytest.mark.parametrize("length_bytes", [10, BLOCK_BYTES_MIN + 10])
def test_a_body_is_the_concatenation_of_its_chunks(length_bytes: int) -> None:
    """In both forms of the buffer, also where fewer bytes arrive than were announced."""
    buffer = BodyBuffer(length_bytes)
    for chunk in (b"abc", b"", b"defg"):
        buffer.add(chunk)
    assert buffer.size_bytes == 7
    assert buffer.whole() == b"abcdefg"


def test_a_frame_announces_its_decompressed_size() -> None:
    frame = frame_of(identity(count=100), "a text")
    assert announced_raw_bytes(frame) == decode_head(frame).payload_raw_bytes
    assert announced_raw_bytes(b"") == 0


def test_small_and_large_frames_are_validated_alike() -> None:
    """Inline and in a thread: the same envelope, and the same errors."""
    small, large = frame_of(identity()), frame_of(identity(), size=2 * INLINE_RAW_BYTES_MAX)
    assert len(small) < INLINE_BYTES_MAX < len(large)

    async def run() -> None:
        frames = FrameReader(frame_bytes_max=len(large), pace=PACE)
        for frame in (small, large):
            assert (await frames.decode(frame)).identity == identity()
            with pytest.raises(InvalidFrame):
                await frames.decode(frame[:-1])
        frames.close()
        strict = FrameReader(frame_bytes_max=len(large) - 1, pace=PACE)
        with pytest.raises(TooLarge):
            await strict.decode(large)
        strict.close()

    asyncio.run(run())
