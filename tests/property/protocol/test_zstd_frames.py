"""A compressed payload is accepted exactly if a second zstd implementation accepts it."""

import os
import random
import tracemalloc

import pytest
import zstandard

from sluice_protocol.compression import (
    LARGE_BYTES,
    WINDOW_BYTES_MAX,
    ZstdError,
    compress_column,
    compress_zstd,
    decompress_column,
    decompress_zstd,
)
from sluice_protocol.errors import InvalidFrame

SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"


def expected(stored: bytes, raw_bytes: int) -> bytes | None:
    """Return the payload by the rules of ADR 3, or None if it must be refused."""
    if stored[:4] != b"\x28\xb5\x2f\xfd":
        return None
    try:
        head = zstandard.get_frame_parameters(stored)
        if head.content_size not in (raw_bytes, zstandard.CONTENTSIZE_UNKNOWN):
            return None  # the library would allocate the size that the frame states
        raw = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompress(
            stored, max_output_size=raw_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError:
        return None
    narrow = head.window_size <= WINDOW_BYTES_MAX and head.dict_id == 0
    return raw if narrow and len(raw) == raw_bytes else None


def accepted(stored: bytes, raw_bytes: int) -> bytes | None:
    try:
        return decompress_column("body", memoryview(stored), raw_bytes)
    except InvalidFrame:
        return None


def damaged_frame(rng: random.Random) -> tuple[bytes, int]:
    """Return a frame, most of them damaged or with a wrong size, and the size to expect."""
    raw = rng.choice(
        [b"x" * rng.randrange(1, 5000), rng.randbytes(rng.randrange(1, 3000)), b"a line\n" * 20_000]
    )
    stored = bytearray(
        zstandard.ZstdCompressor(
            level=rng.choice([1, 3, 9]),
            write_content_size=rng.random() < 0.6,
            write_checksum=rng.random() < 0.4,
        ).compress(raw)
    )
    stored[:0] = rng.choice([b"", b"", b"", SKIPPABLE])
    stored += rng.choice([b"", b"", b"", b"\0", SKIPPABLE, bytes(stored)])
    for _ in range(rng.choice([0, 0, 1, 2])):
        stored[rng.choice([rng.randrange(18), rng.randrange(len(stored))]) % len(stored)] = (
            rng.randrange(256)
        )
    kept = rng.choice([None, None, None, rng.randrange(len(stored))])
    return bytes(stored[:kept]), max(1, len(raw) + rng.choice([0, 0, 0, 1, -1]))


def test_both_libraries_accept_the_same_payloads() -> None:
    seed = int(os.environ.get("SLUICE_FUZZ_SEED", "2026"))
    rng, taken = random.Random(seed), 0
    for number in range(4000):
        stored, raw_bytes = damaged_frame(rng)
        found = accepted(stored, raw_bytes)
        taken += found is not None
        assert found == expected(stored, raw_bytes), f"seed={seed} number={number}"
    assert 400 < taken < 3600


@pytest.mark.parametrize("stated", [True, False])
def test_a_frame_allocates_little_more_than_its_limit(*, stated: bool) -> None:
    """A size that is not stated, or a false one, is found after one byte above the limit."""
    bomb = zstandard.ZstdCompressor(write_content_size=stated).compress(bytes(256 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ZstdError, match="larger than"):
            decompress_zstd(bomb, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < (4 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size_bytes", [0, 1, 300, 70_000, (2 << 20) + 5])
def test_frames_are_read_by_both_libraries(size_bytes: int) -> None:
    raw = random.Random(size_bytes).randbytes(size_bytes // 2) + bytes(size_bytes - size_bytes // 2)
    frame = compress_zstd(raw, 3)
    assert zstandard.get_frame_parameters(frame).content_size == size_bytes
    assert zstandard.ZstdDecompressor().decompress(frame) == raw
    assert decompress_zstd(frame, size_bytes) == raw


@pytest.mark.parametrize("size_bytes", [1, LARGE_BYTES, LARGE_BYTES + 1, 3 * 2**20])
def test_another_implementation_reads_a_payload_of_any_size(size_bytes: int) -> None:
    """The size of the tables is a matter of the encoder only."""
    rng = random.Random(size_bytes)
    lines = b"".join(
        b"2026-11-21 GET /cart/%d 200\n" % rng.randrange(10**6) for _ in range(110_000)
    )
    raw = lines[:size_bytes]
    frame = compress_column(raw)
    assert expected(frame, len(raw)) == raw
    assert zstandard.get_frame_parameters(frame).window_size <= 2 << 20


def test_large_payloads_are_compressed_with_small_tables() -> None:
    """With other tables the frame has other bytes; its size hardly differs."""
    rng = random.Random(7)
    raw = b"".join(b"2026-11-21 GET /cart/%d 200\n" % rng.randrange(10**6) for _ in range(50_000))
    frame, plain = compress_column(raw), compress_zstd(raw, 3)
    assert frame != plain
    assert len(frame) < 1.02 * len(plain)
    assert compress_column(raw[:LARGE_BYTES]) == compress_zstd(raw[:LARGE_BYTES], 3)
