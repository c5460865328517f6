import asyncio
import threading

import numpy as np
import pytest
from support.gateway import frame_of, identity

from sluice_gateway.uploads import frame_reader
from sluice_gateway.uploads.frame_reader import (
    BLOCK_BYTES_MIN,
    INLINE_COMPRESSED_BYTES_MAX,
    INLINE_NAMES_BYTES_MAX,
    INLINE_PLAIN_BYTES_MAX,
    INLINE_RAW_BYTES_MAX,
    BodyBuffer,
    FrameReader,
    decodes_inline,
)
from sluice_protocol.columns import MetricColumns, NameColumn
from sluice_protocol.errors import InvalidFrame, TooLarge
from sluice_protocol.frame import FrameHead, decode_body, decode_head, encode_frame
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


async def test_small_and_large_frames_are_validated_alike() -> None:
    """Inline and in a thread: the same envelope, and the same errors."""
    small, large = frame_of(identity()), frame_of(identity(), size=2 * INLINE_PLAIN_BYTES_MAX)
    assert decodes_inline(decode_head(small))
    assert not decodes_inline(decode_head(large))
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


def test_the_size_decides_where_a_frame_is_decoded() -> None:
    """A plain payload costs less than one that is decompressed first."""
    text_bytes = INLINE_RAW_BYTES_MAX
    plain = decode_head(frame_of(identity(), size=text_bytes, compress=False))
    compressed = decode_head(frame_of(identity(), "a" * text_bytes))
    assert not plain.is_compressed
    assert decodes_inline(plain)
    assert compressed.frame_bytes < INLINE_COMPRESSED_BYTES_MAX
    assert compressed.is_compressed
    assert not decodes_inline(compressed)
    assert decodes_inline(decode_head(frame_of(identity(), "a" * (text_bytes // 2))))
    random_text = decode_head(frame_of(identity(), np.random.default_rng(1).bytes(50_000).hex()))
    assert random_text.is_compressed
    assert random_text.frame_bytes <= INLINE_COMPRESSED_BYTES_MAX
    assert decodes_inline(random_text)
    large = frame_of(identity(), size=INLINE_PLAIN_BYTES_MAX + 1, compress=False)
    assert not decodes_inline(decode_head(large))


@pytest.mark.parametrize("names", [1, 500, 2 * INLINE_NAMES_BYTES_MAX // 7])
def test_a_frame_with_many_names_is_decoded_in_a_thread(
    names: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names cost more time than other bytes."""
    points = 2 * INLINE_NAMES_BYTES_MAX // 7
    columns = MetricColumns(
        ts=np.zeros(points, np.int64),
        name=NameColumn(
            names=tuple(f"name{number}" for number in range(names)),
            indexes=(np.arange(points) % names).astype(np.uint32),
        ),
        value=np.zeros(points),
        type=np.zeros(points, np.uint8),
    )
    frame = encode_frame(identity=identity(count=points), columns=columns, compress=False)
    decoded_in: list[str] = []

    def watched(head: FrameHead, data: bytes) -> object:
        decoded_in.append(threading.current_thread().name)
        return decode_body(head, data)

    monkeypatch.setattr(frame_reader, "decode_body", watched)

    async def run() -> None:
        frames = FrameReader(frame_bytes_max=len(frame), pace=PACE)
        assert (await frames.decode(frame)).identity == identity(count=points)
        with pytest.raises(InvalidFrame):
            await frames.decode(frame[:-1])
        frames.close()

    asyncio.run(run())
    is_many = names == points
    assert [one.startswith("decode") for one in decoded_in] == [is_many] * 2
