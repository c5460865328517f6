"""Accepts the records of a large request as batches of this request only.

Their identities follow from the request, so a repetition through any gateway is a duplicate.
"""

import structlog

from sluice_gateway.doors.frames import MadeFrame
from sluice_gateway.metrics import UploadPhases
from sluice_gateway.uploads.principals import VerifiedSender
from sluice_gateway.uploads.service import UploadService
from sluice_gateway.uploads.upload import AcceptedResponse, Upload
from sluice_protocol.errors import ErrorCode
from sluice_protocol.frame import decode_head
from sluice_protocol.identity import format_identity
from sluice_protocol.keys import accepted_key, blob_key, digest_of
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found
from sluice_store.port import ObjectStore
from sluice_web.problems import HttpRefusal, Problem

log = structlog.get_logger()


class OwnBatches:
    """Accepts the frames of large requests."""

    def __init__(self, uploads: UploadService, store: ObjectStore) -> None:
        self._uploads = uploads
        self._store = store

    async def accept(self, made: MadeFrame, sender: VerifiedSender) -> bool:
        """Accept one frame; return whether its records were accepted before.

        Raises:
            SluiceError: It is not accepted, or the outcome is unknown.
        """
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
