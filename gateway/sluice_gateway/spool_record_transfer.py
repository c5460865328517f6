"""Transfers one record of a spool to the authority: blob, then manifest.

A transfer is an upload to the authority with the bytes of the local manifest, through the same
acceptance machine. So the rules on age and date apply, also after days without a connection.
A conflict during a transfer creates a quarantine record in the authority and an alert here;
nothing in the authority is overwritten.
Source: ADR 16.
"""

from dataclasses import dataclass

import structlog

from sluice_gateway.acceptor import AcceptanceRun
from sluice_gateway.spool_blobs import SpoolBlobs
from sluice_gateway.spool_records import (
    SpoolStores,
    has_landed,
    is_transferred,
    mark_transferred,
    read_spooled_blob,
    read_spooled_record,
)
from sluice_gateway.uploads import Upload
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.frame import decode_head
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
    QUARANTINE_CONFLICTS,
    accepted_key,
    blob_key,
    parse_accepted_key,
    parse_quarantine_key,
    quarantine_key,
)
from sluice_protocol.manifests import TransferResult, decode_accepted
from sluice_protocol.outcomes import Applied, Exists, Found, ObjectInfo
from sluice_protocol.units import Digest, ObjectKey

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Transferred:
    """The authority has the record, and its marker is written here."""

    result: TransferResult


@dataclass(frozen=True, slots=True)
class NewlyLanded:
    """The authority has the batch; its marker is written after the journal names it.

    Attributes:
        manifest: The bytes of the manifest in the authority.
    """

    manifest: bytes


class RecordTransfer:
    """Transfers single records; each step is idempotent."""

    def __init__(self, spool: SpoolStores, blobs: SpoolBlobs) -> None:
        """Bind a spool and its blobs."""
        self._spool = spool
        self._blobs = blobs

    async def transfer(self, key: ObjectKey) -> Transferred | NewlyLanded | None:
        """Transfer one record; None: it stays pending.

        Raises:
            StoreError: The spool or the authority failed.
            InvalidRecord: The record cannot be read, or its blob is lost.
            InvalidFrame: Its blob is not a frame.
            UnsupportedVersion: Its blob is a frame of another version.
        """
        if key.startswith(ACCEPTED):
            return await self._transfer_accepted(key)
        if key.startswith(QUARANTINE_CONFLICTS):
            return await self._transfer_conflict(key)
        return await self._copy(key)

    async def _transfer_accepted(self, key: ObjectKey) -> Transferred | NewlyLanded | None:
        identity = parse_accepted_key(key)
        found = await read_spooled_record(self._spool.local, key)
        manifest = decode_accepted(key, found.body)
        if await is_transferred(self._spool.local, key):
            await self._blobs.drop(manifest.digest)
            return Transferred("accepted")
        frame = await read_spooled_blob(self._spool.local, manifest.digest)
        if frame is None:
            return await self._confirm(key, identity, manifest.digest)
        upload = Upload(
            frame=frame,
            digest=manifest.digest,
            identity=identity,
            envelope=decode_head(frame).envelope,
            principal=manifest.principal,
            attempt_id=manifest.attempt_id,
            sent_before=True,
            manifest=found.body,
        )
        return await self._settle(key, upload, await self._spool.acceptor.accept(upload))

    async def _transfer_conflict(self, key: ObjectKey) -> Transferred | NewlyLanded | None:
        """Upload refused bytes to the authority, which refuses and records them too."""
        identity, submitted = parse_quarantine_key(key)
        if await is_transferred(self._spool.local, key):
            await self._blobs.drop(submitted)
            return Transferred("conflict")
        if not await has_landed(self._spool.local, accepted_key(identity)):
            return None
        frame = await read_spooled_blob(self._spool.local, submitted)
        if frame is None:
            return await self._confirm(key, identity, submitted)
        upload = Upload(
            frame=frame,
            digest=submitted,
            identity=identity,
            envelope=decode_head(frame).envelope,
            principal="",
            attempt_id=self._spool.ids.ulid(),
        )
        return await self._settle(key, upload, await self._spool.acceptor.accept(upload))

    async def _confirm(
        self, key: ObjectKey, identity: Identity, digest: Digest
    ) -> Transferred | NewlyLanded | None:
        """Mark a record whose blob was deleted after its transfer, as the authority confirms.

        Raises:
            InvalidRecord: The authority does not have these bytes either.
        """
        remote, owner = self._spool.remote, accepted_key(identity)
        found = await remote.get(owner)
        accepted = isinstance(found, Found) and decode_accepted(owner, found.body).digest == digest
        known = accepted or isinstance(
            await remote.head(quarantine_key(identity, digest)), ObjectInfo
        )
        if not known or not isinstance(await remote.head(blob_key(digest)), ObjectInfo):
            reason = "the spool lost this blob: restore it; its record is not transferred"
            raise InvalidRecord(blob_key(digest), reason)
        if isinstance(found, Found) and accepted and key.startswith(ACCEPTED):
            return NewlyLanded(found.body)
        result: TransferResult = "accepted" if accepted else "conflict"
        await mark_transferred(self._spool.local, self._spool.clock, key, result)
        return Transferred(result)

    async def _settle(
        self, key: ObjectKey, upload: Upload, run: AcceptanceRun
    ) -> Transferred | NewlyLanded | None:
        match run.verdict:
            case Accepted():
                result: TransferResult = "accepted"
            case Conflict(accepted_digest=owner):
                result = "conflict"
                if key.startswith(ACCEPTED):
                    log.error("spool_transfer_conflict", key=key, ours=upload.digest, theirs=owner)
            case _:
                log.warning("spool_record_pending", key=key, verdict=repr(run.verdict))
                return None
        await self._blobs.drop(upload.digest)
        if result == "accepted" and key.startswith(ACCEPTED):
            return NewlyLanded(run.manifest)
        await mark_transferred(self._spool.local, self._spool.clock, key, result)
        return Transferred(result)

    async def _copy(self, key: ObjectKey) -> Transferred | NewlyLanded | None:
        found = await read_spooled_record(self._spool.local, key)
        match await self._spool.remote.create(key, found.body):
            case Applied() | Exists():
                await mark_transferred(self._spool.local, self._spool.clock, key, "copied")
                return Transferred("copied")
            case _:
                return None
