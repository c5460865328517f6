"""Makes the batches of one large request, and accepts them: a repetition is a duplicate everywhere.

The identity follows from the request (`identity`), the bytes from the canonical records. A
gateway with another version of the encoder may compress differently. The frame therefore names its
encoder in the resource, and the identity proves that other bytes have the same records.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_doors.decoded import DecodedRecords
from sluice_doors.requests import RequestOrigin, identity_of
from sluice_gateway.doors.combined_frames import SmallRequest, combined_bytes
from sluice_gateway.metrics import UploadPhases
from sluice_gateway.uploads.principals import VerifiedSender
from sluice_gateway.uploads.service import UploadService
from sluice_gateway.uploads.upload import AcceptedResponse, Upload
from sluice_protocol.columns import Columns, slice_columns
from sluice_protocol.compression import LARGE_TABLES, ZSTD_VERSION
from sluice_protocol.errors import ErrorCode, TooLarge
from sluice_protocol.frame import ENCODER_KEY, Envelope, decode_head, encode_frame
from sluice_protocol.identity import IdentitySource, RequestIdentity, format_identity
from sluice_protocol.keys import accepted_key, blob_key, digest_of
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest
from sluice_store.port import ObjectStore
from sluice_web.problems import HttpRefusal, Problem

_TABLES: Final = f"{LARGE_TABLES.long_log}-{LARGE_TABLES.short_log}"
ENCODER: Final = f"c1 zstd-{ZSTD_VERSION} tables-{_TABLES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFrame:
    """A frame made from records; `reproducible` unless the records have the time of receipt."""

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
    `named` are the same records with a constant in place of the time of receipt. A record that is
    larger than a frame is `TooLarge`.
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


log = structlog.get_logger()


class OwnBatches:
    """Accepts the frames of large requests."""

    def __init__(self, uploads: UploadService, store: ObjectStore) -> None:
        self._uploads = uploads
        self._store = store

    async def accept(self, made: MadeFrame, sender: VerifiedSender) -> bool:
        """Accept one frame; return whether its records were accepted before."""
        accepted = None if made.reproducible else await self._accepted_frame(made)
        if accepted is None:
            result = await self._upload(made.frame, sender)
            if isinstance(result, AcceptedResponse):
                return result.duplicate
            if result.code is not ErrorCode.IDENTITY_CONFLICT:
                raise HttpRefusal(result.code, result.detail)
            log.error(
                "door_frames_differ",
                identity=format_identity(made.envelope.identity),
                digest=made.digest,
            )
            accepted = await self._accepted_frame(made)
        if accepted is None:
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, "the accepted frame cannot be read")
        again = await self._upload(accepted, sender)
        if not isinstance(again, AcceptedResponse):
            raise HttpRefusal(again.code, again.detail)
        return True

    async def _upload(self, frame: bytes, sender: VerifiedSender) -> AcceptedResponse | Problem:
        envelope = decode_head(frame).envelope
        upload = Upload(
            frame=frame,
            digest=digest_of(frame),
            identity=envelope.identity,
            envelope=envelope,
            principal=sender.principal,
            attempt_id=self._uploads.ids.ulid(),
        )
        return await self._uploads.accept_made(upload, UploadPhases(self._uploads.clock))

    async def _accepted_frame(self, made: MadeFrame) -> bytes | None:
        """Return the frame that owns the identity; None where nothing owns it.

        It has the same records, because the identity follows from them. It is uploaded again in
        place of the new frame, so that the acceptance journal of this gateway names it too.
        """
        key = accepted_key(made.envelope.identity)
        found = await self._store.get(key)
        if not isinstance(found, Found):
            return None
        blob = await self._store.get(blob_key(decode_accepted(key, found.body).digest))
        return blob.body if isinstance(blob, Found) else None
