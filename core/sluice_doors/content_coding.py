"""Decompression of request bodies, bounded before it starts and while it runs.

Nothing allocates much more than the limit, whatever a header claims. Several members of gzip and
several frames of zstd are concatenated, as RFC 1952 and RFC 8878 define. Bytes after the end of the
compressed data are an error.
"""

import zlib
from collections.abc import Callable
from typing import Final

from sluice_doors.decoded import BodyTooLarge, BodyUnreadable
from sluice_protocol.compression import ZstdError, open_zstd, read_zstd_head
from sluice_protocol.distribution import describe_missing_package

MEMBERS_MAX: Final = 1_000
"""Limit of gzip members and zstd frames in a body: each one copies the bytes after it."""
_ZSTD_WINDOW_LOG_MAX: Final = 23
"""RFC 8878, section 3.1.1.1.2: decoders should support windows of 8 MiB and may refuse larger."""
_GZIP_WBITS: Final = 31
_ZLIB_WBITS: Final = 15
_RAW_DEFLATE_WBITS: Final = -15
_SNAPPY_STREAM: Final = b"\xff\x06\x00\x00sNaPpY"
_ZLIB_METHOD_DEFLATE: Final = 8
_ZLIB_CHECK: Final = 31
_CHUNK_HEAD_BYTES: Final = 4
_CHUNK_CRC_BYTES: Final = 4


def decompress(body: bytes, coding: str, *, bytes_max: int) -> bytes:
    """Return the body without its content coding.

    `coding` is `identity` or empty, `gzip`, `x-gzip`, `deflate`, `zstd`, or `snappy` (a block, or a
    stream if it starts with the stream identifier), in upper or lower case.
    """
    name = coding.strip().lower()
    if name not in _CODINGS:
        known = ", ".join(sorted(_CODINGS.keys() - {""}))
        raise BodyUnreadable(
            f"cannot decompress body: content coding is not supported, coding=`{coding[:40]}`;"
            f" use one of {known}"
        )
    return _CODINGS[name](body, bytes_max)


def _identity(body: bytes, bytes_max: int) -> bytes:
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    return body


def _gzip(body: bytes, bytes_max: int) -> bytes:
    found = bytearray()
    rest = body
    for _ in range(MEMBERS_MAX):
        rest = _inflate(rest, _GZIP_WBITS, found, bytes_max)
        if not rest:
            return bytes(found)
    raise _damaged("gzip", f"data has more than {MEMBERS_MAX} members")


def _deflate(body: bytes, bytes_max: int) -> bytes:
    # RFC 9110 section 8.4.1.2: `deflate` is the zlib format, but some clients send raw deflate.
    found = bytearray()
    wbits = _ZLIB_WBITS if _has_zlib_head(body) else _RAW_DEFLATE_WBITS
    if _inflate(body, wbits, found, bytes_max):
        raise _damaged("deflate", "other bytes follow the compressed data")
    return bytes(found)


def _has_zlib_head(body: bytes) -> bool:
    head = int.from_bytes(body[:2], "big")
    return (head >> 8) & 15 == _ZLIB_METHOD_DEFLATE and head % _ZLIB_CHECK == 0


def _inflate(body: bytes, wbits: int, found: bytearray, bytes_max: int) -> bytes:
    """Append one member to `found` and return the bytes after it."""
    name = "gzip" if wbits == _GZIP_WBITS else "deflate"
    decompressor = zlib.decompressobj(wbits)
    rest = body
    while not decompressor.eof:
        try:
            # zlib allocates the result as it grows, and at most this many bytes.
            step = decompressor.decompress(rest, bytes_max - len(found) + 1)
        except zlib.error as error:
            raise _damaged(name, str(error)) from error
        found += step
        if len(found) > bytes_max:
            raise _too_large(bytes_max)
        rest = decompressor.unconsumed_tail
        if not step and not rest and not decompressor.eof:
            raise _damaged(name, "data is truncated")
    return decompressor.unused_data


def _zstd(body: bytes, bytes_max: int) -> bytes:
    found = bytearray()
    rest = body
    for _ in range(MEMBERS_MAX):
        rest = _zstd_frame(rest, found, bytes_max)
        if not rest:
            return bytes(found)
    raise _damaged("zstd", f"data has more than {MEMBERS_MAX} frames")


def _zstd_frame(body: bytes, found: bytearray, bytes_max: int) -> bytes:
    """Append one frame to `found` and return the bytes after it."""
    room = bytes_max - len(found)
    try:
        stated_bytes = read_zstd_head(body).content_bytes
        if stated_bytes is not None and stated_bytes > room:
            raise _too_large(room)
        decompressor = open_zstd(window_log_max=_ZSTD_WINDOW_LOG_MAX)
        # At most one byte above the limit, whatever the frame states.
        found += decompressor.decompress(body, room + 1)
    except ZstdError as error:
        raise _damaged("zstd", str(error)) from error
    if len(found) > bytes_max:
        raise _too_large(bytes_max)
    if not decompressor.eof:
        raise _damaged("zstd", "data is truncated")
    return decompressor.unused_data


def _snappy(body: bytes, bytes_max: int) -> bytes:
    # Imported here: without the extra `doors` every other coding still works.
    try:
        from cramjam import DecompressionError, snappy  # noqa: PLC0415
    except ImportError as error:
        missing = describe_missing_package("doors", error.name)
        raise BodyUnreadable(f"cannot decompress body: {missing}") from error
    framed = body.startswith(_SNAPPY_STREAM)
    try:
        if framed:
            size = _framed_bytes(body, bytes_max, snappy.decompress_raw_len)
            result = bytearray(size)
            snappy.decompress_into(body, result)
            return bytes(result)
        if not body:
            raise _damaged("snappy", "data is empty")
        if snappy.decompress_raw_len(body) > bytes_max:
            raise _too_large(bytes_max)
        return bytes(snappy.decompress_raw(body))
    except DecompressionError as error:
        if body.lstrip().startswith((b"{", b"[")):  # for example of curl, which names another type
            raise BodyUnreadable(
                "cannot decompress body: it is no snappy block and begins like JSON, which needs"
                " `Content-Type: application/json`"
            ) from error
        raise _damaged("snappy", str(error)) from error


def _framed_bytes(body: bytes, bytes_max: int, raw_len: Callable[[bytes], int]) -> int:
    """Return the size of a snappy stream after decompression, from the heads of its chunks."""
    total = start = 0
    while start < len(body):
        head = body[start : start + _CHUNK_HEAD_BYTES]
        size = int.from_bytes(head[1:], "little")
        data = start + _CHUNK_HEAD_BYTES
        if len(head) < _CHUNK_HEAD_BYTES or data + size > len(body):
            raise _damaged("snappy", "data is truncated")
        if head[0] == 0:
            total += raw_len(body[data + _CHUNK_CRC_BYTES : data + _CHUNK_CRC_BYTES + 10])
        elif head[0] == 1:
            total += max(0, size - _CHUNK_CRC_BYTES)
        if total > bytes_max:
            raise _too_large(bytes_max)
        start = data + size
    return total


def _too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"body is too large: it has more than {bytes_max} bytes after decompression;"
        " send smaller requests"
    )


def _damaged(coding: str, reason: str) -> BodyUnreadable:
    return BodyUnreadable(f"cannot decompress body: {reason}, coding={coding}")


_CODINGS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "": _identity,
    "identity": _identity,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
    "snappy": _snappy,
}
