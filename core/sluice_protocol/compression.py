"""zstd: compress in one call, decompress exactly one frame within a limit.

A column is one frame of a stated size, rejected before memory is allocated. The window is checked
before the library sees the bytes, because it decompresses a frame that fits its buffer without a
check of the window. The library is `compression.zstd` of Python 3.14, or its backport.
Source: PEP 784; RFC 8878, section 3.1.1.1; ADR 3.
"""

import sys
import threading
from typing import Final, NamedTuple

from sluice_protocol.errors import InvalidFrame

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZSTD_VERSION: Final = zstd.zstd_version
"""The version of the C library. Another one may compress the same bytes differently."""
ZstdError = zstd.ZstdError
_DESCRIPTOR_AT: Final = 4
_SINGLE_SEGMENT: Final = 0x20
_HEAD_BYTES_MAX: Final = 18
_OF_THREAD: Final = threading.local()


class ZstdHead(NamedTuple):
    """What the header of a frame states.

    `window_bytes` is the memory that a streaming decoder needs. `content_bytes` is the size after
    decompression; None if it is not stated. `dictionary_id` is 0 for none.
    """

    window_bytes: int
    content_bytes: int | None
    dictionary_id: int


class ZstdTables(NamedTuple):
    """The sizes of the tables in which the encoder finds earlier bytes, as powers of two.

    Entries have 4 bytes. `long_log` is for long matches, and `short_log` for short ones.
    """

    long_log: int
    short_log: int


def compress_zstd(raw: bytes | memoryview, level: int, tables: ZstdTables | None = None) -> bytes:
    """Return one frame with its size, without checksum and dictionary, for any reader.

    Readers need not know the `tables`.
    """
    compressor = _compressor(level, tables)
    try:
        return compressor.compress(raw, compressor.FLUSH_FRAME)
    except BaseException:
        _OF_THREAD.__dict__.clear()  # it may have kept a part of these bytes
        raise


def _compressor(level: int, tables: ZstdTables | None) -> zstd.ZstdCompressor:
    """Return this thread's compressor; a new one for each frame costs more than a small frame."""
    known: dict[object, zstd.ZstdCompressor] = _OF_THREAD.__dict__.setdefault("known", {})
    found = known.get((level, tables))
    if found is None:
        parameter = zstd.CompressionParameter
        options: dict[int, int] = {parameter.compression_level: level}
        if tables is not None:
            options[parameter.hash_log] = tables.long_log
            options[parameter.chain_log] = tables.short_log
        found = known[level, tables] = zstd.ZstdCompressor(options=options)
    return found


def decompress_zstd(frame: bytes | memoryview, bytes_max: int) -> bytes:
    """Decompress exactly one frame; at most one byte above the limit is decompressed."""
    decompressor = zstd.ZstdDecompressor()
    raw = decompressor.decompress(frame, bytes_max + 1)
    if len(raw) > bytes_max:
        raise ZstdError(f"frame is larger than {bytes_max} bytes")
    if not decompressor.eof:
        raise ZstdError("frame is cut off")
    if decompressor.unused_data:
        raise ZstdError("bytes follow the frame")
    return raw


def open_zstd(*, window_log_max: int) -> zstd.ZstdDecompressor:
    """Return a decompressor of one frame that refuses larger windows."""
    return zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: window_log_max}
    )


def read_zstd_head(frame: bytes | memoryview) -> ZstdHead:
    """Read the header of a frame that begins with the magic of zstd."""
    info = zstd.get_frame_info(frame[:_HEAD_BYTES_MAX])
    descriptor = frame[_DESCRIPTOR_AT]
    if descriptor & _SINGLE_SEGMENT:
        window_bytes = info.decompressed_size or 0
    else:
        window = frame[_DESCRIPTOR_AT + 1]
        base_bytes = 1 << (10 + (window >> 3))
        window_bytes = base_bytes + (base_bytes >> 3) * (window & 7)
    return ZstdHead(
        window_bytes=window_bytes,
        content_bytes=info.decompressed_size,
        dictionary_id=info.dictionary_id,
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

    `field` is for errors. `raw_bytes` is at least 1 and already within the limit. The frame has
    that size, a window of at most 8 MiB and no dictionary, and no bytes follow it.
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
