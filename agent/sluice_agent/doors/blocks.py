"""Turn the body of a request into the record blocks that the batcher accepts; pure.

Records of many requests share a frame, so each has the pairs of its resource as attributes. A large
request becomes several parts, cut at the same places in every retry: a crash may make only some of
them durable, and the retry adds the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sluice_agent.batch_limits import BATCH_BYTES_MAX
from sluice_agent.spool.batching import RECORD_COST_BYTES, RecordBlock
from sluice_agent.spool.request_window import part_digest
from sluice_doors.attributes import with_resource_in_records
from sluice_doors.content_coding import decompress
from sluice_doors.decoded import BodyTooLarge, DecodedRecords
from sluice_doors.requests import DoorRequest, RequestOrigin, canonical_records, identity_of
from sluice_protocol.column_slices import slice_columns, text_bytes
from sluice_protocol.columns import SignalColumns
from sluice_protocol.identity import IdentitySource
from sluice_protocol.units import UnixNs

PART_BYTES_MAX: Final = BATCH_BYTES_MAX // 2
"""A constant and no setting: parts of a request must not change between two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What the body of a request contains.

    Attributes:
        blocks: The records, each block with the digest of its part of the request.
        unreadable: Records that were kept raw.
    """

    blocks: tuple[RecordBlock, ...]
    records: int
    unreadable: int
    source: IdentitySource


def read_request(
    body: bytes, wanted: DoorRequest, *, sender: str, received_ns: UnixNs, bytes_max: int
) -> ReadRequest:
    """Return the blocks of a body.

    Requests of two senders are different requests even if their bytes are equal. `bytes_max` limits
    the body after decompression.

    Raises:
        BodyUnreadable: No record can be read.
        BodyTooLarge: The limit after decompression is exceeded.
    """
    plain = decompress(body, wanted.coding, bytes_max=bytes_max)
    origin = RequestOrigin(principal=sender, door=wanted.door, key=wanted.key, unique=b"")
    blocks: list[RecordBlock] = []
    source: IdentitySource = "none"
    records = unreadable = 0
    for found in canonical_records(plain, wanted, received_ns):
        identity = identity_of(found.named, origin)
        source = identity.source
        request = b"" if source == "none" else identity.digest
        blocks += _blocks(found.records, request)
        records += len(found.records.columns)
        unreadable += found.records.unreadable
    return ReadRequest(blocks=tuple(blocks), records=records, unreadable=unreadable, source=source)


def cost_bytes(columns: SignalColumns) -> int:
    """Return the approximate size of records in a frame before compression, bytes."""
    pairs = 0 if columns.attributes is None else len(columns.attributes.keys)
    return text_bytes(columns) + 8 * pairs + RECORD_COST_BYTES * len(columns)


def _blocks(records: DecodedRecords, request: bytes) -> Iterator[RecordBlock]:
    columns = with_resource_in_records(records).columns
    for start, part in _parts(columns, 0):
        yield RecordBlock(
            columns=part,
            cost_bytes=cost_bytes(part),
            request=part_digest(request, start, len(part)) if request else b"",
        )


def _parts(columns: SignalColumns, start: int) -> Iterator[tuple[int, SignalColumns]]:
    """Yield the records with the number of the first, in halves where they are too large."""
    cost, count = cost_bytes(columns), len(columns)
    if cost <= PART_BYTES_MAX or (count == 1 and cost <= BATCH_BYTES_MAX):
        yield start, columns
        return
    if count == 1:
        raise BodyTooLarge(
            f"record is too large: it has more than {BATCH_BYTES_MAX} bytes; send smaller records"
        )
    half = count // 2
    yield from _parts(slice_columns(columns, 0, half), start)
    yield from _parts(slice_columns(columns, half, count), start + half)
