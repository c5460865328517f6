"""Makes frames of a decoded request: equal requests become equal frames in every gateway.

The identity follows from the request (`request_identity`), the bytes from the canonical records. A
gateway with another version of the encoder may compress differently. The frame therefore names its
encoder in the resource, and the identity proves that other bytes have the same records.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sluice_doors.decoded import DecodedRecords
from sluice_doors.requests import RequestOrigin, identity_of
from sluice_gateway.doors.combined_frames import SmallRequest, combined_bytes
from sluice_protocol.column_slices import slice_columns
from sluice_protocol.columns import Columns
from sluice_protocol.compression import LARGE_TABLES
from sluice_protocol.envelope import ENCODER_KEY, Envelope
from sluice_protocol.errors import TooLarge
from sluice_protocol.frame import decode_head, encode_frame
from sluice_protocol.keys import digest_of
from sluice_protocol.request_identity import IdentitySource, RequestIdentity
from sluice_protocol.units import Digest
from sluice_protocol.zstd_frames import ZSTD_VERSION

_TABLES: Final = f"{LARGE_TABLES.long_log}-{LARGE_TABLES.short_log}"
ENCODER: Final = f"c1 zstd-{ZSTD_VERSION} tables-{_TABLES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFrame:
    """A frame that a gateway made from records of one kind.

    Attributes:
        frame: The bytes.
        digest: Their sha256.
        envelope: The envelope in the frame.
        source: What the identity was derived from.
        reproducible: Whether another gateway makes the same bytes; not where records have the time
            of receipt.
    """

    frame: bytes
    digest: Digest
    envelope: Envelope
    source: IdentitySource
    reproducible: bool

    @property
    def count(self) -> int:
        """Number of records."""
        return self.envelope.count


def make_frames(
    records: DecodedRecords,
    named: DecodedRecords,
    origin: RequestOrigin,
    *,
    own_frame_bytes: int = 0,
) -> tuple[MadeFrame | SmallRequest, ...]:
    """Return the frames of the records of one kind: one, unless it would be too large.

    A request with less than `own_frame_bytes` is returned as it is, to be combined with others.

    Args:
        records: The records, in canonical form.
        named: The same with a constant in place of the time of receipt.
        origin: The sender, and what identifies the request.
        own_frame_bytes: Size of the records from which the request becomes a separate batch.

    Raises:
        TooLarge: A single record is larger than a frame.
        InvalidFrame: The records or their resource break a rule of frames.
        BadUsage: The name of the principal is too long for an agent id.
    """
    identity = identity_of(named, origin)
    size_bytes = combined_bytes(records) if own_frame_bytes else 0
    if size_bytes < own_frame_bytes:
        return (SmallRequest(records=records, identity=identity, size_bytes=size_bytes),)
    resource = (*records.resource, (ENCODER_KEY, ENCODER))
    return tuple(
        MadeFrame(
            frame=frame,
            digest=digest_of(frame),
            envelope=decode_head(frame).envelope,
            source=identity.source,
            reproducible=records.timed,
        )
        for frame in _encode(identity, records.columns, resource, 0)
    )


def _encode(
    identity: RequestIdentity,
    columns: Columns,
    resource: tuple[tuple[str, str], ...],
    seq_start: int,
) -> Iterator[bytes]:
    """Yield one frame, or the frames of both halves where one would be too large."""
    count = len(columns)
    batch = identity.batch(seq_start, count)
    try:
        yield encode_frame(identity=batch, columns=columns, resource=resource)
    except TooLarge:
        if count == 1:
            raise
        half = count // 2
        yield from _encode(identity, slice_columns(columns, 0, half), resource, seq_start)
        yield from _encode(
            identity, slice_columns(columns, half, count), resource, seq_start + half
        )
