"""Transfers a spool to the authority, pass by pass, and counts what is left.

A spooled record passes these states:

    accepted here ── transferred ──► local blob deleted ── named in the acceptance journal of the
      authority ──► marker `transferred/v1/<key>` here

A crash between two steps repeats the last one; every step is idempotent. The local blob is deleted
only after a verdict with proof. The marker is written last, because only the deletion of the blob
frees the space for it on a full disk. A record without blob and marker is therefore looked up in
the authority. A batch with a marker is in a journal, so the next process journals the others only.
The local manifest decides duplicates and conflicts until it expires; then the authority decides
(`expiry`).

A transfer is an upload to the authority with the bytes of the local manifest, through the same
acceptance machine: blob, then manifest. So the rules on age and date apply, also after days without
a connection. A conflict during a transfer creates a quarantine record in the authority and an alert
here; nothing in the authority is overwritten.
Source: ADR 16.
"""

from dataclasses import dataclass
from typing import Final

import structlog

from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.spool.acceptor import SpoolAcceptor
from sluice_gateway.spool.records import (
    RECORDS,
    SpoolBlobs,
    SpoolStores,
    authority_has_owner,
    is_transferred,
    mark_transferred,
    read_spooled_blob,
    read_spooled_record,
    untransferred_keys,
)
from sluice_gateway.uploads.acceptor import AcceptanceRun, Upload
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.errors import (
    BadUsage,
    InvalidFrame,
    InvalidRecord,
    SluiceError,
    StoreError,
    UnsupportedVersion,
)
from sluice_protocol.frame import decode_head
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
    DECISIONS,
    QUARANTINE_CONFLICTS,
    accepted_key,
    blob_key,
    parse_accepted_key,
    parse_quarantine_key,
    quarantine_key,
)
from sluice_protocol.manifests import TransferResult, decode_accepted
from sluice_protocol.outcomes import Applied, Exists, Found, ObjectInfo
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey
from sluice_store.port import run_concurrently

CONCURRENCY: Final = 8
TRANSFERRED_MAX: Final = 512
"""Batches that have reached the authority and share one journal object, before their markers."""
FINISH_PASSES_MAX: Final = 3
"""Consecutive passes without progress after which a stopping gateway gives up."""
FINISH_PAUSE_S: Final = 0.2
SCAN_INTERVAL_S: Final = 600.0
"""Time between two scans of the spool. A scan finds records whose upload got no response."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Transferred:
    """The authority has the record, and its marker is written here."""

    result: TransferResult


@dataclass(frozen=True, slots=True)
class NewlyTransferred:
    """The authority has this manifest; its marker is written after the journal names it."""

    manifest: bytes


class RecordTransfer:
    """Transfers single records; each step is idempotent."""

    def __init__(self, spool: SpoolStores, blobs: SpoolBlobs) -> None:
        self._spool = spool
        self._blobs = blobs

    async def transfer(self, key: ObjectKey) -> Transferred | NewlyTransferred | None:
        """Transfer one record; None: it stays pending. A lost blob raises `InvalidRecord`."""
        if key.startswith(ACCEPTED):
            return await self._transfer_accepted(key)
        if key.startswith(QUARANTINE_CONFLICTS):
            return await self._transfer_conflict(key)
        return await self._copy(key)

    async def _transfer_accepted(self, key: ObjectKey) -> Transferred | NewlyTransferred | None:
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

    async def _transfer_conflict(self, key: ObjectKey) -> Transferred | NewlyTransferred | None:
        """Upload refused bytes to the authority, which refuses and records them too."""
        identity, submitted = parse_quarantine_key(key)
        if await is_transferred(self._spool.local, key):
            await self._blobs.drop(submitted)
            return Transferred("conflict")
        if not await authority_has_owner(self._spool.local, accepted_key(identity)):
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
    ) -> Transferred | NewlyTransferred | None:
        """Mark a record whose blob was deleted after its transfer, if the authority has it."""
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
            return NewlyTransferred(found.body)
        result: TransferResult = "accepted" if accepted else "conflict"
        await mark_transferred(self._spool.local, self._spool.clock, key, result)
        return Transferred(result)

    async def _settle(
        self, key: ObjectKey, upload: Upload, run: AcceptanceRun
    ) -> Transferred | NewlyTransferred | None:
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
            return NewlyTransferred(run.manifest)
        await mark_transferred(self._spool.local, self._spool.clock, key, result)
        return Transferred(result)

    async def _copy(self, key: ObjectKey) -> Transferred | NewlyTransferred | None:
        found = await read_spooled_record(self._spool.local, key)
        match await self._spool.remote.create(key, found.body):
            case Applied() | Exists():
                await mark_transferred(self._spool.local, self._spool.clock, key, "copied")
                return Transferred("copied")
            case _:
                return None


class SpoolTransfer:
    """Transfers records: accepted ones before the conflicts that refer to them."""

    def __init__(
        self,
        spool: SpoolStores,
        accepted: SpoolAcceptor,
        metrics: GatewayMetrics,
        interval_s: float,
    ) -> None:
        """Bind a spool; the first pass scans it."""
        self._spool = spool
        self._accepted = accepted
        self._metrics = metrics
        self._interval_s = interval_s
        self._scanned_ns: int | None = None
        self._unmarked: dict[ObjectKey, int] = {}
        self._records = RecordTransfer(spool, accepted.blobs)

    @property
    def pending(self) -> int:
        """The number of records that are known and not transferred."""
        return len(self._accepted.pending)

    @property
    def is_empty(self) -> bool:
        """Whether the spool was scanned and has no record to transfer."""
        return self._scanned_ns is not None and not self.pending and not self._accepted.unsure

    async def run(self) -> None:
        """Transfer until cancelled. An unreachable authority delays it; a foreign claim ends it."""
        while True:
            try:
                await self.transfer_once()
            except BadUsage:
                raise
            except SluiceError as error:
                log.warning("spool_transfer_delayed", reason=str(error), pending=self.pending)
            await self._sweep()
            await self._spool.clock.sleep(self._interval_s)

    async def _sweep(self) -> None:
        try:
            if not self._accepted.blobs.swept:
                await self._accepted.blobs.sweep_page()
            self._metrics.spool_expired.inc(await self._accepted.expiry.expire_page())
        except SluiceError as error:
            log.warning("spool_sweep_delayed", reason=str(error))

    async def finish(self) -> bool:
        """Transfer every record, also those that no upload reported; return whether none is left.

        To be called when no upload runs. It ends early when passes make no progress.
        """
        # Accepted batches are reported by their uploads; operators also write decisions.
        await self._scan((QUARANTINE_CONFLICTS, DECISIONS))
        idle_passes = 0
        while idle_passes < FINISH_PASSES_MAX:
            before = self.pending
            await self.transfer_once()
            if not self.pending and not self._accepted.unsure:
                return True
            idle_passes = idle_passes + 1 if self.pending == before else 0
            await self._spool.clock.sleep(min(self._interval_s, FINISH_PAUSE_S))
        return False

    async def transfer_once(self) -> None:
        """Transfer every pending record that the authority accepts."""
        if self._due():
            await self._scan(RECORDS)
            await self._accepted.blobs.count()
            self._scanned_ns = self._spool.clock.monotonic_ns()
            self._spool.journal.rules.transferred.scanned = True
        await self._find_unsure()
        await self._spool.journal.prepare()
        for prefix in RECORDS:
            left = [key for key in self._accepted.pending if key.startswith(prefix)]
            keys = [key for key in left if key not in self._unmarked]
            for first in range(0, max(1, len(keys)), TRANSFERRED_MAX):
                some = keys[first : first + TRANSFERRED_MAX]
                await run_concurrently(some, self._transfer, concurrency=CONCURRENCY)
                await self._mark_transferred()

    async def _mark_transferred(self) -> None:
        """Write the journal, then the markers of the batches that it names."""
        unmarked = list(self._unmarked)
        if not unmarked:
            return
        try:
            await self._spool.journal.flush()
        except SluiceError as error:
            log.warning("spool_journal_not_written", batches=len(unmarked), reason=str(error))
            return
        await run_concurrently(unmarked, self._mark_one, concurrency=CONCURRENCY)

    async def _mark_one(self, key: ObjectKey) -> None:
        try:
            await mark_transferred(self._spool.local, self._spool.clock, key, "accepted")
        except StoreError as error:
            log.warning("spool_record_pending", key=key, reason=str(error))
            return
        self._spool.journal.rules.transferred.remove(key)
        self._finish(key, "accepted", self._unmarked.pop(key))

    def _finish(self, key: ObjectKey, result: TransferResult, added: int) -> None:
        """Forget a record, unless an upload added it again: then a further pass drops its blob."""
        if self._accepted.pending.get(key) != added:
            return
        del self._accepted.pending[key]
        self._metrics.spool_transferred.labels(result).inc()
        self._metrics.spool_pending.set(self.pending)

    def _due(self) -> bool:
        if self._scanned_ns is None:
            return True
        return self._spool.clock.monotonic_ns() - self._scanned_ns > SCAN_INTERVAL_S * NS_PER_S

    async def _scan(self, prefixes: tuple[str, ...]) -> None:
        """Find every record without a marker."""
        async for key in untransferred_keys(self._spool.local, prefixes):
            self._accepted.add(key)

    async def _find_unsure(self) -> None:
        """Find the records of uploads without a known outcome; the scan finds one that is late."""
        for key in list(self._accepted.unsure):
            if isinstance(await self._spool.local.head(key), ObjectInfo):
                self._accepted.add(key)
            self._accepted.unsure.pop(key, None)

    async def _transfer(self, key: ObjectKey) -> None:
        """Transfer one record; it stays pending where that fails, or until it is journaled."""
        added = self._accepted.pending[key]
        try:
            outcome = await self._records.transfer(key)
        except (StoreError, InvalidRecord, InvalidFrame, UnsupportedVersion) as error:
            log.warning("spool_record_pending", key=key, reason=str(error))
            return
        match outcome:
            case Transferred(result=result):
                self._spool.journal.rules.transferred.remove(key)
                self._finish(key, result, added)
            case NewlyTransferred(manifest=manifest):
                self._unmarked[key] = added
                self._spool.journal.note_transferred(manifest)
            case None:
                pass
