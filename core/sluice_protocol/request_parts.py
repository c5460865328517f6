"""The parts of a combined batch: which of its records belong to which request.

A gateway combines small requests of clients that know no sequence numbers into one batch. Its
manifest lists the parts: base64 of 24 bytes for each, in the order of the records.

| offset | bytes | field |
|---|---|---|
| 0 | 16 | the first half of the digest of the request's identity (`request_identity`) |
| 16 | 4 | index of its first record in the batch, little-endian |
| 20 | 4 | number of its records, little-endian |

Records that no part contains belong to requests without an identity. A part is repeated if an
earlier batch of the lane contains the same request; the copy of the manifest in the work list then
names its records in `repeated`. Source: ADR 6.
"""

import base64
import binascii
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import InvalidRecord

REQUEST_BYTES: Final = 16
PARTS_MAX: Final = 1024
"""Parts of one batch, at most; their list has 32 KiB."""
_PLACE: Final = struct.Struct("<II")
PART_BYTES: Final = REQUEST_BYTES + _PLACE.size

RecordRange = tuple[int, int]
"""Records of a batch: index of the first one, and index behind the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPart:
    """The records of one request in a combined batch.

    Attributes:
        request: 16 bytes that name the request.
        start: Index of its first record in the batch.
        count: Number of its records.
    """

    request: bytes
    start: int
    count: int

    @property
    def records(self) -> RecordRange:
        """The range of its records."""
        return self.start, self.start + self.count


def encode_parts(parts: Iterable[RequestPart]) -> str:
    """Return the parts as the manifest contains them."""
    packed = b"".join(one.request + _PLACE.pack(one.start, one.count) for one in parts)
    return base64.b64encode(packed).decode()


def decode_parts(key: str, text: str, record_count: int) -> tuple[RequestPart, ...]:
    """Return the parts that a manifest lists.

    Args:
        key: The key of the manifest, for errors.
        text: The field `parts`.
        record_count: Number of records of the batch.

    Raises:
        InvalidRecord: It is not base64 of whole parts, or they overlap or exceed the batch.
    """
    try:
        packed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRecord(key, f"parts are not base64: {error}") from error
    if len(packed) % PART_BYTES:
        raise InvalidRecord(key, "parts end within a part")
    parts: list[RequestPart] = []
    end = 0
    for at in range(0, len(packed), PART_BYTES):
        start, count = _PLACE.unpack_from(packed, at + REQUEST_BYTES)
        if start < end or not count:
            raise InvalidRecord(key, "parts overlap or are empty")
        end = start + count
        parts.append(RequestPart(request=packed[at : at + REQUEST_BYTES], start=start, count=count))
    if end > record_count:
        raise InvalidRecord(key, "parts have more records than the batch")
    return tuple(parts)


def joined_ranges(ranges: Iterable[RecordRange]) -> tuple[RecordRange, ...]:
    """Return the same records as sorted ranges that do not touch each other."""
    joined: list[RecordRange] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return tuple(joined)


def kept_ranges(record_count: int, repeated: Sequence[RecordRange]) -> tuple[RecordRange, ...]:
    """Return the ranges of the records that are not repeated; ranges beyond the batch are cut."""
    kept: list[RecordRange] = []
    at = 0
    for start, end in joined_ranges(repeated):
        if at < min(start, record_count):
            kept.append((at, min(start, record_count)))
        at = max(at, end)
    if at < record_count:
        kept.append((at, record_count))
    return tuple(kept)
