"""The zstd rules of a payload: one frame of a stated size, rejected before memory is allocated.

`ZstdDecompressor.decompress` ignores its size limit when the frame states a size. A streaming
reader accepts truncated and repeated frames without an error. The checks here exclude both.
"""

from typing import Final

import zstandard

from sluice_protocol.errors import InvalidFrame

WINDOW_BYTES_MAX: Final = 8 << 20
COMPRESSION_LEVEL: Final = 3
_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def compress_payload(raw: bytes) -> bytes:
    """Compress a payload into one zstd frame that states its size; no checksum, no dictionary."""
    # A checksum would repeat the frame's sha256. The window log is set so that a large payload does
    # not
    # become a single segment, whose window is the whole content.
    parameters = zstandard.ZstdCompressionParameters.from_level(
        COMPRESSION_LEVEL,
        source_size=min(len(raw), WINDOW_BYTES_MAX),
        write_content_size=True,
        write_checksum=False,
        write_dict_id=False,
        threads=0,
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(raw)


def decompress_payload(stored: memoryview, raw_bytes: int) -> bytes:
    """Decompress a payload to exactly `raw_bytes` bytes.

    Args:
        stored: The payload as stored; exactly one zstd frame.
        raw_bytes: Size after decompression, at least 1 and already within the limit.

    Raises:
        InvalidFrame: It is not one zstd frame of that size, its window is above 8 MiB, it needs a
            dictionary, or bytes follow it.
    """
    if bytes(stored[:4]) != _MAGIC:
        raise InvalidFrame("payload", "is not a zstd frame")
    _check_parameters(stored, raw_bytes)
    try:
        raw = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompress(
            stored, max_output_size=raw_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise InvalidFrame("payload", "is not one whole zstd frame of payload_raw_bytes") from error
    if len(raw) != raw_bytes:
        raise InvalidFrame("payload_raw_bytes", "is not the size of the decompressed payload")
    return raw


def _check_parameters(stored: memoryview, raw_bytes: int) -> None:
    try:
        parameters = zstandard.get_frame_parameters(stored)
    except zstandard.ZstdError as error:
        raise InvalidFrame("payload", "zstd frame header is not valid") from error
    if parameters.window_size > WINDOW_BYTES_MAX:
        raise InvalidFrame("payload", f"zstd window is above {WINDOW_BYTES_MAX} bytes")
    if parameters.dict_id != 0:
        raise InvalidFrame("payload", "zstd frame needs a dictionary")
    if parameters.content_size not in (raw_bytes, zstandard.CONTENTSIZE_UNKNOWN):
        raise InvalidFrame("payload_raw_bytes", "is not the size that the zstd frame states")
