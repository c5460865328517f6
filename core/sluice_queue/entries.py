"""One queue entry, as bytes: the key of a work list and a summary of its batches.

`docs/queue.md` has the table of its bytes. Source: ADR 23.
"""

import struct
from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_queue.errors import LaneDamaged

METADATA_BYTES_MAX: Final = 512
LOCATION_BYTES_MAX: Final = 512
LENGTH: Final = struct.Struct("<I")
_FIXED: Final = struct.Struct("<QQIQQQQHH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An entry before a swap assigns its sequence.

    `ingested_at_ns` is the store's clock shortly before the append. `metadata` has at most 512
    bytes.
    """

    location: ObjectKey
    size_bytes: int
    batches: int
    frame_bytes: int
    first_accepted_at_ns: UnixNs
    last_accepted_at_ns: UnixNs
    ingested_at_ns: UnixNs
    metadata: bytes = b""

    def __post_init__(self) -> None:
        if len(self.metadata) > METADATA_BYTES_MAX:
            raise BadUsage(
                f"metadata is at most {METADATA_BYTES_MAX} bytes, found=`{len(self.metadata)}`"
            )
        if not 0 < len(self.location.encode()) <= LOCATION_BYTES_MAX:
            raise BadUsage(
                f"location is 1 to {LOCATION_BYTES_MAX} bytes, location=`{self.location}`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """One entry of a lane, as a consumer reads it; the other fields are those of `Draft`.

    `sequence` is its number in the lane: 1, 2, 3 … without gaps.
    """

    sequence: int
    location: ObjectKey
    size_bytes: int
    batches: int
    frame_bytes: int
    first_accepted_at_ns: UnixNs
    last_accepted_at_ns: UnixNs
    ingested_at_ns: UnixNs
    metadata: bytes = b""


def encode_queue_entry(sequence: int, draft: Draft) -> bytes:
    """Encode an entry, with its length first."""
    location = draft.location.encode()
    fixed = _FIXED.pack(
        sequence,
        draft.size_bytes,
        draft.batches,
        draft.frame_bytes,
        draft.first_accepted_at_ns,
        draft.last_accepted_at_ns,
        draft.ingested_at_ns,
        len(location),
        len(draft.metadata),
    )
    tail = location + draft.metadata
    return LENGTH.pack(len(fixed) + len(tail)) + fixed + tail


def decode_queue_entry(key: str, record: bytes) -> Descriptor:
    """Decode one entry without its length."""
    if len(record) < _FIXED.size:
        raise LaneDamaged(key, "queue entry is shorter than its fixed part")
    sequence, size, batches, frames, first, last, at, place_bytes, meta_bytes = _FIXED.unpack_from(
        record
    )
    tail = record[_FIXED.size :]
    if len(tail) != place_bytes + meta_bytes:
        raise LaneDamaged(key, f"queue entry {sequence} does not end where its lengths state")
    return Descriptor(
        sequence=sequence,
        location=_location(key, tail[:place_bytes]),
        size_bytes=size,
        batches=batches,
        frame_bytes=frames,
        first_accepted_at_ns=UnixNs(first),
        last_accepted_at_ns=UnixNs(last),
        ingested_at_ns=UnixNs(at),
        metadata=tail[place_bytes:],
    )


def _location(key: str, raw: bytes) -> ObjectKey:
    try:
        return ObjectKey(raw.decode())
    except UnicodeDecodeError as error:
        raise LaneDamaged(key, "the location of a queue entry is not UTF-8") from error


def skip_entries(key: str, body: bytes | memoryview, start: int, count: int) -> int:
    """Return the offset after `count` entries from `start`, reading only their lengths."""
    at = start
    for _ in range(count):
        if at + LENGTH.size > len(body):
            raise LaneDamaged(key, "queue entries end too early")
        at += LENGTH.size + LENGTH.unpack_from(body, at)[0]
    if at > len(body):
        raise LaneDamaged(key, "queue entries end too early")
    return at


def decode_entries(
    key: str, body: bytes | memoryview, first_sequence: int
) -> tuple[Descriptor, ...]:
    """Decode entries that fill `body` completely and count up from `first_sequence`."""
    found: list[Descriptor] = []
    at = 0
    while at < len(body):
        end = skip_entries(key, body, at, 1)
        entry = decode_queue_entry(key, bytes(body[at + LENGTH.size : end]))
        if entry.sequence != first_sequence + len(found):
            raise LaneDamaged(key, f"queue entry {entry.sequence} is out of sequence")
        found.append(entry)
        at = end
    return tuple(found)
