import asyncio
import threading

import numpy as np
import pytest
from sluice_protocol.short_cbor import SHORT_TEXTS_MAX
from support.gateway import frame_of, identity

from sluice_gateway.frame_reader import (
    BLOCK_BYTES_MIN,
    INLINE_COMPRESSED_BYTES_MAX,
    INLINE_PLAIN_BYTES_MAX,
    INLINE_RAW_BYTES_MAX,
    BodyBuffer,
    FrameReader,
    announced_raw_bytes,
    decodes_inline,
)
from sluice_protocol.columns import MetricColumns
from sluice_protocol.errors import InvalidFrame, TooLarge
from sluice_protocol.frame import decode_head, encode_frame, is_compressed
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
    small, large = frame_of(identity()), frame_of(identity(), size=2 * INLINE_PLAIN_BYTES_MAX)
    assert decodes_inline(small)
    assert not decodes_inline(large)

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


def test_the_size_decides_where_a_frame_is_decoded() -> None:
    """A plain payload costs less than one that is decompressed first."""
    text_bytes = INLINE_RAW_BYTES_MAX
    plain = frame_of(identity(), size=text_bytes, compress=False)
    compressed = frame_of(identity(), "a" * text_bytes)
    assert not is_compressed(plain)
    assert decodes_inline(plain)
    assert len(compressed) < INLINE_COMPRESSED_BYTES_MAX
    assert is_compressed(compressed)
    assert not decodes_inline(compressed)
    assert decodes_inline(frame_of(identity(), "a" * (text_bytes // 2)))
    random_text = frame_of(identity(), np.random.default_rng(1).bytes(50_000).hex())
    assert is_compressed(random_text)
    assert len(random_text) <= INLINE_COMPRESSED_BYTES_MAX
    assert decodes_inline(random_text)
    assert decodes_inline(b"")
    assert not decodes_inline(bytes(INLINE_PLAIN_BYTES_MAX + 1))


@pytest.mark.parametrize("names", [1, SHORT_TEXTS_MAX, SHORT_TEXTS_MAX + 1])
@pytest.mark.parametrize("points", [SHORT_TEXTS_MAX + 1, 20_000])
def test_a_frame_with_many_names_is_decoded_in_a_thread(
    names: int, points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names cost more time than other bytes; both readers of payloads are tried."""
    columns = MetricColumns(
        ts=np.zeros(points, np.int64),
        names=tuple(f"name{number}" for number in range(names)),
        name=(np.arange(points) % names).astype(np.uint32),
        value=np.zeros(points),
        type=np.zeros(points, np.uint8),
    )
    frame = encode_frame(identity=identity(count=points), columns=columns, compress=False)
    assert decodes_inline(frame)
    decoded_in: list[str] = []
    check = FrameReader._check

    def watched(self: FrameReader, data: bytes) -> object:
        decoded_in.append(threading.current_thread().name)
        return check(self, data)

    monkeypatch.setattr(FrameReader, "_check", watched)

    async def run() -> None:
        frames = FrameReader(frame_bytes_max=len(frame), pace=PACE)
        assert (await frames.decode(frame)).identity == identity(count=points)
        with pytest.raises(InvalidFrame):
            await frames.decode(frame[:-1])
        frames.close()

    asyncio.run(run())
    if names > SHORT_TEXTS_MAX:
        assert [one.startswith("decode") for one in decoded_in] == [True]
    else:
        assert decoded_in == []
