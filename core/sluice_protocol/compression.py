"""The zstd rules of a column: one frame of a stated size, rejected before memory is allocated.

The window is checked before the library sees the bytes, because it decompresses a frame that fits
its buffer without a check of the window.
"""

from typing import Final

from sluice_protocol.errors import InvalidFrame
from sluice_protocol.zstd_frames import (
    ZstdError,
    ZstdTables,
    compress_zstd,
    decompress_zstd,
    read_zstd_head,
)

WINDOW_BYTES_MAX: Final = 8 << 20
COMPRESSION_LEVEL: Final = 3
LARGE_BYTES: Final = 256 * 1024
"""For larger columns, the tables of the level have 768 KiB: most of the cache of a core."""
LARGE_TABLES: Final = ZstdTables(long_log=16, short_log=14)
"""Tables of 320 KiB. Frames of logs have the same size and need less time (ADR 3)."""
_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def compress_column(raw: bytes) -> bytes:
    """Compress a column into one zstd frame that states its size; no checksum, no dictionary."""
    # The directory of columns has a checksum. The window of this level is at most 2 MiB.
    return compress_zstd(raw, COMPRESSION_LEVEL, LARGE_TABLES if len(raw) > LARGE_BYTES else None)


def decompress_column(field: str, stored: memoryview, raw_bytes: int) -> bytes:
    """Decompress a column to exactly `raw_bytes` bytes.

    Args:
        field: The name of the column, for errors.
        stored: Its bytes as stored; exactly one zstd frame.
        raw_bytes: Size after decompression, at least 1 and already within the limit.

    Raises:
        InvalidFrame: It is not one zstd frame of that size, its window is above 8 MiB, it needs a
            dictionary, or bytes follow it.
    """
    if bytes(stored[:4]) != _MAGIC:
        raise InvalidFrame(field, "is not a zstd frame")
    _check_parameters(field, stored, raw_bytes)
    try:
        raw = decompress_zstd(stored, raw_bytes)
    except ZstdError as error:
        raise InvalidFrame(field, "is not one whole zstd frame of its raw length") from error
    if len(raw) != raw_bytes:
        raise InvalidFrame(field, "has another size after decompression than its raw length")
    return raw


def _check_parameters(field: str, stored: memoryview, raw_bytes: int) -> None:
    try:
        head = read_zstd_head(stored)
    except ZstdError as error:
        raise InvalidFrame(field, "zstd frame header is not valid") from error
    if head.window_bytes > WINDOW_BYTES_MAX:
        raise InvalidFrame(field, f"zstd window is above {WINDOW_BYTES_MAX} bytes")
    if head.dictionary_id != 0:
        raise InvalidFrame(field, "zstd frame needs a dictionary")
    if head.content_bytes not in (raw_bytes, None):
        raise InvalidFrame(field, "zstd frame states another size than its raw length")
