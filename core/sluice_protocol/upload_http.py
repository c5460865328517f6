"""The HTTP upload: its path, media types and header fields, and the list of several frames.

Field names are in lower case, the form in which signatures cover them (RFC 9421); HTTP compares
field names without case. A list is the body of one upload of several batches:

    header   magic "LMF1", version u16, reserved u16 = 0, count u32
    entries  count times: frame_bytes u32, flags u32, high_water u64, and the bytes of the frame

All numbers are little-endian. The list frames its members and decides nothing about them: each is
validated, accepted or refused separately. A list that breaks a rule is refused as a whole, before
any of its frames is read. Source: `docs/protocol.md`, HTTP; ADR 4.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.units import SEQ_END

UPLOAD_PATH: Final = "/v1/batches"
FRAME_MEDIA_TYPE: Final = "application/vnd.lightmetrics.batch"
UPLOAD_LIST_PATH: Final = "/v1/batches:many"
FRAME_LIST_MEDIA_TYPE: Final = "application/vnd.lightmetrics.batches"
RETRY_HEADER: Final = "sluice-retry"
"""`1` when the sender has sent these bytes before: the gateway reads before it writes."""
HIGH_WATER_HEADER: Final = "sluice-high-water"
"""The highest sequence number that the sender has assigned in this boot."""
SLUICE_HEADERS: Final = (RETRY_HEADER, HIGH_WATER_HEADER)
"""Every field of sluice in a request; a signature covers each one that is present."""
SHED_HEADER: Final = "Sluice-Shed"
"""`1` in a response when the sender should upload its next batches to another gateway."""
_DIGITS_MAX: Final = 19


def parse_high_water(text: str | None) -> int | None:
    """Return the number in a `Sluice-High-Water` field; None if absent or malformed."""
    if text is None or len(text) > _DIGITS_MAX or not (text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number < SEQ_END else None


FRAME_LIST_MAGIC: Final = b"LMF1"
FRAME_LIST_VERSION: Final = 1
FRAMES_MAX: Final = 256
SENT_BEFORE_FLAG: Final = 1
HIGH_WATER_FLAG: Final = 2
_HEADER: Final = struct.Struct("<4sHHI")
_ENTRY: Final = struct.Struct("<IIQ")
LIST_OVERHEAD_BYTES_MAX: Final = _HEADER.size + FRAMES_MAX * _ENTRY.size


class ListedFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of a list, and what the header fields of a single upload contain.

    The frame is not validated. `high_water` is the highest sequence number of its boot; None if not
    reported.
    """

    frame: bytes
    sent_before: bool = False
    high_water: int | None = None


def listed_bytes(frame_bytes: int) -> int:
    """Return the bytes that a frame of this size adds to a list."""
    return _ENTRY.size + frame_bytes


def encode_frame_list(frames: Sequence[ListedFrame]) -> bytes:
    """Return the bytes of a list with at least one frame."""
    _check_count(len(frames))
    parts = [_HEADER.pack(FRAME_LIST_MAGIC, FRAME_LIST_VERSION, 0, len(frames))]
    for one in frames:
        flags = SENT_BEFORE_FLAG if one.sent_before else 0
        if one.high_water is not None:
            flags |= HIGH_WATER_FLAG
        parts += (_ENTRY.pack(len(one.frame), flags, one.high_water or 0), one.frame)
    return b"".join(parts)


def parse_frame_list(body: bytes) -> tuple[ListedFrame, ...]:
    """Return the frames of a list, in its order."""
    if len(body) < _HEADER.size:
        raise InvalidFrame("magic", f"list is shorter than its header of {_HEADER.size} bytes")
    magic, version, reserved, count = _HEADER.unpack_from(body)
    if magic != FRAME_LIST_MAGIC:
        raise InvalidFrame("magic", f"is not {FRAME_LIST_MAGIC.decode()}")
    if version != FRAME_LIST_VERSION:
        raise UnsupportedVersion("list of frames", version, FRAME_LIST_VERSION)
    if reserved:
        raise InvalidFrame("reserved", "must be 0")
    _check_count(count)
    frames: list[ListedFrame] = []
    at = _HEADER.size
    for _ in range(count):
        found, at = _parse_entry(body, at)
        frames.append(found)
    if at != len(body):
        raise InvalidFrame("count", f"list must be exactly {at} bytes, has {len(body)}")
    return tuple(frames)


def _check_count(count: int) -> None:
    if count == 0:
        raise InvalidFrame("count", "list has no frame")
    if count > FRAMES_MAX:
        raise TooLarge("frames of the list", count, FRAMES_MAX)


def _parse_entry(body: bytes, at: int) -> tuple[ListedFrame, int]:
    start = at + _ENTRY.size
    if start > len(body):
        raise InvalidFrame("count", "list ends inside an entry")
    frame_bytes, flags, high_water = _ENTRY.unpack_from(body, at)
    end = start + frame_bytes
    if end > len(body):
        raise InvalidFrame("frame_bytes", "list ends inside a frame")
    if flags & ~(SENT_BEFORE_FLAG | HIGH_WATER_FLAG):
        raise InvalidFrame("flags", "has a bit set that version 1 does not define")
    reported = bool(flags & HIGH_WATER_FLAG)
    if high_water >= SEQ_END or (high_water and not reported):
        raise InvalidFrame("high_water", "is not below 2**63, or its flag is missing")
    found = ListedFrame(
        frame=body[start:end],
        sent_before=bool(flags & SENT_BEFORE_FLAG),
        high_water=high_water if reported else None,
    )
    return found, end
