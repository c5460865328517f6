"""Transfers the records of a spool to the authority: blob, then manifest.

A transfer is an upload to the authority with the bytes of the local manifest, through the same
acceptance machine. So the rules on age and date apply, also after days without a connection.
A spooled record passes these states:

    accepted here ── transferred ──► local blob deleted ──► marker `landed/v1/<key>` here

A crash between two steps repeats the last one; every step is idempotent. The local blob is deleted
only after a verdict with proof. The marker is written last, because only the deletion of the blob
frees the space for it on a full disk. A record without blob and marker is therefore looked up in
the authority. The local manifest is kept permanently: the spool decides duplicates and conflicts. A
conflict during a transfer creates a quarantine record in the authority and an alert here; nothing
in the authority is overwritten.
Source: ADR 0024.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_gateway.acceptor import AcceptanceRun, Acceptor
from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.spool_blobs import SpoolBlobs
from sluice_gateway.uploads import Upload
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import BadUsage, InvalidRecord, SluiceError, StoreError
from sluice_protocol.frame import decode_head
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
    DECISIONS,
    QUARANTINE_CONFLICTS,
    accepted_key,
    blob_key,
    digest_of,
    parse_accepted_key,
    parse_quarantine_key,
    quarantine_key,
)
from sluice_protocol.manifests import (
    TRANSFER_MARKERS,
    TransferMarker,
    TransferResult,
    decode_accepted,
    encode_record,
    transfer_marker_key,
)
from sluice_protocol.outcomes import Applied, Exists, Found, ObjectInfo
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey
from sluice_store.port import ObjectStore

RECORDS: Final = (ACCEPTED, QUARANTINE_CONFLICTS, DECISIONS)
"""The prefixes of the records that are transferred, in this order."""
CONCURRENCY: Final = 8
FINISH_PASSES_MAX: Final = 3
"""Consecutive passes without progress after which a stopping gateway gives up."""
FINISH_PAUSE_S: Final = 0.2
SCAN_INTERVAL_S: Final = 600.0
"""Time between two scans of the spool. A scan finds records whose upload got no response."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStores:
    """The two stores of a spooling gateway, and what a transfer between them needs.

    Attributes:
        local: The store that accepts.
        remote: The authority.
        acceptor: Accepts into the authority.
        clock: The clocks of this machine.
        ids: The source of attempt ids.
        claim: Claims the authority for this spool; called before the first transfer.
    """

    local: ObjectStore
    remote: ObjectStore
    acceptor: Acceptor
    clock: Clock
    ids: IdSource
    claim: Callable[[], Awaitable[None]]


class SpoolTransfer:
    """Transfers records: accepted ones before the conflicts that refer to them.

    Attributes:
        blobs: The blobs of the spool.
    """

    def __init__(self, spool: SpoolStores, metrics: GatewayMetrics, interval_s: float) -> None:
        """Bind a spool; the first pass scans it."""
        self._spool = spool
        self._metrics = metrics
        self._interval_s = interval_s
        self._pending: dict[ObjectKey, None] = {}
        self._scanned_ns: int | None = None
        self._claimed = False
        self._unsure: dict[ObjectKey, None] = {}
        self.blobs = SpoolBlobs(spool.local)

    @property
    def pending(self) -> int:
        """The number of records that are known and not transferred."""
        return len(self._pending)

    @property
    def is_empty(self) -> bool:
        """Whether the spool was scanned and has no record to transfer."""
        return self._scanned_ns is not None and not self._pending and not self._unsure

    async def accept(self, upload: Upload, acceptor: Acceptor) -> AcceptanceRun:
        """Accept an upload into the spool and add its record.

        Raises:
            StoreError: The spool refused in a way that no further try can change.
        """
        created = False
        async with self.blobs.uploading(upload.digest):
            try:
                run = await acceptor.accept(upload)
                created = self._add(upload, run)
            finally:
                if not created:  # a write whose outcome is unknown may have created the record
                    self._unsure[accepted_key(upload.identity)] = None
                    self._unsure[quarantine_key(upload.identity, upload.digest)] = None
        return run

    def _add(self, upload: Upload, run: AcceptanceRun) -> bool:
        """Add the record that an upload created in the spool; return False if that is unknown."""
        match run.verdict:
            case Accepted():
                self._add_key(accepted_key(upload.identity))
            case Conflict():
                self._add_key(quarantine_key(upload.identity, upload.digest))
            case _:
                return False
        return True

    def _add_key(self, key: ObjectKey) -> None:
        self._pending[key] = None
        self._metrics.spool_pending.set(self.pending)

    async def run(self) -> None:
        """Transfer until cancelled; an error of the authority only delays the transfer.

        Raises:
            BadUsage: Another spool has claimed the authority: the gateway must stop.
        """
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
        if self.blobs.swept:
            return
        try:
            await self.blobs.sweep_page()
        except SluiceError as error:
            log.warning("spool_sweep_delayed", reason=str(error))

    async def finish(self) -> bool:
        """Transfer every record, also those that no upload reported; return whether none is left.

        To be called when no upload runs. It ends early when passes make no progress.

        Raises:
            SluiceError: The spool or the authority cannot be read.
        """
        # Accepted batches are reported by their uploads; operators also write decisions.
        await self._scan((QUARANTINE_CONFLICTS, DECISIONS))
        idle_passes = 0
        while idle_passes < FINISH_PASSES_MAX:
            before = self.pending
            await self.transfer_once()
            if not self.pending and not self._unsure:
                return True
            idle_passes = idle_passes + 1 if self.pending == before else 0
            await self._spool.clock.sleep(min(self._interval_s, FINISH_PAUSE_S))
        return False

    async def transfer_once(self) -> None:
        """Transfer every pending record that the authority accepts.

        Raises:
            BadUsage: Another spool has claimed the authority; nothing was transferred.
            SluiceError: The spool or the authority cannot be read.
        """
        if self._due():
            await self._scan(RECORDS)
            self._scanned_ns = self._spool.clock.monotonic_ns()
        await self._find_unsure()
        if not self._claimed:
            await self._spool.claim()
            self._claimed = True
        for prefix in RECORDS:
            keys = [key for key in self._pending if key.startswith(prefix)]
            for first in range(0, len(keys), CONCURRENCY):
                await asyncio.gather(
                    *(self._transfer(key) for key in keys[first : first + CONCURRENCY])
                )

    def _due(self) -> bool:
        if self._scanned_ns is None:
            return True
        return self._spool.clock.monotonic_ns() - self._scanned_ns > SCAN_INTERVAL_S * NS_PER_S

    async def _scan(self, prefixes: tuple[str, ...]) -> None:
        """Find every record without a marker."""
        async for key in untransferred_keys(self._spool.local, prefixes):
            self._add_key(key)

    async def _find_unsure(self) -> None:
        """Find the records of uploads without a known outcome; the scan finds one that is late."""
        for key in list(self._unsure):
            if isinstance(await self._spool.local.head(key), ObjectInfo):
                self._add_key(key)
            self._unsure.pop(key, None)

    async def _transfer(self, key: ObjectKey) -> None:
        """Transfer one record; it stays pending where that fails."""
        try:
            result = await self._transfer_kind(key)
        except (StoreError, InvalidRecord) as error:
            log.warning("spool_record_pending", key=key, reason=str(error))
            return
        if result is None:
            return
        self._metrics.spool_landed.labels(result).inc()
        self._pending.pop(key, None)
        self._metrics.spool_pending.set(self.pending)

    async def _transfer_kind(self, key: ObjectKey) -> TransferResult | None:
        if key.startswith(ACCEPTED):
            return await self._transfer_accepted(key)
        if key.startswith(QUARANTINE_CONFLICTS):
            return await self._transfer_conflict(key)
        return await self._copy(key)

    async def _transfer_accepted(self, key: ObjectKey) -> TransferResult | None:
        identity = parse_accepted_key(key)
        found = await self._read(key)
        manifest = decode_accepted(key, found.body)
        if await self._is_transferred(key):
            await self.blobs.drop(manifest.digest)
            return "accepted"
        frame = await self._read_blob(manifest.digest)
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

    async def _transfer_conflict(self, key: ObjectKey) -> TransferResult | None:
        """Upload refused bytes to the authority, which refuses and records them too."""
        identity, submitted = parse_quarantine_key(key)
        if await self._is_transferred(key):
            await self.blobs.drop(submitted)
            return "conflict"
        if not await self._is_transferred(accepted_key(identity)):
            return None
        frame = await self._read_blob(submitted)
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
    ) -> TransferResult | None:
        """Mark a record whose blob was deleted after its transfer, as the authority confirms.

        Raises:
            InvalidRecord: The authority does not have these bytes either.
        """
        remote, owner = self._spool.remote, accepted_key(identity)
        result: TransferResult | None = None
        found = await remote.get(owner)
        if isinstance(found, Found) and decode_accepted(owner, found.body).digest == digest:
            result = "accepted"
        elif isinstance(await remote.head(quarantine_key(identity, digest)), ObjectInfo):
            result = "conflict"
        if result is None or not isinstance(await remote.head(blob_key(digest)), ObjectInfo):
            reason = "the spool lost this blob: restore it; its record is not transferred"
            raise InvalidRecord(blob_key(digest), reason)
        await self._mark(key, result)
        return result

    async def _settle(
        self, key: ObjectKey, upload: Upload, run: AcceptanceRun
    ) -> TransferResult | None:
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
        await self.blobs.drop(upload.digest)
        await self._mark(key, result)
        return result

    async def _copy(self, key: ObjectKey) -> TransferResult | None:
        found = await self._read(key)
        match await self._spool.remote.create(key, found.body):
            case Applied() | Exists():
                await self._mark(key, "copied")
                return "copied"
            case _:
                return None

    async def _mark(self, key: ObjectKey, result: TransferResult) -> None:
        marker = TransferMarker(result=result, landed_at_unix_ns=self._spool.clock.now_ns())
        outcome = await self._spool.local.create(transfer_marker_key(key), encode_record(marker))
        if not isinstance(outcome, Applied | Exists):
            raise StoreError(
                "create",
                transfer_marker_key(key),
                "the outcome of the marker is unknown: it is tried again",
            )

    async def _is_transferred(self, key: ObjectKey) -> bool:
        return isinstance(await self._spool.local.head(transfer_marker_key(key)), ObjectInfo)

    async def _read(self, key: ObjectKey) -> Found:
        found = await self._spool.local.get(key)
        if isinstance(found, Found):
            return found
        raise InvalidRecord(key, "the spool lost this record: restore it; it is not transferred")

    async def _read_blob(self, digest: Digest) -> bytes | None:
        """Return the bytes of a blob, or None if the spool does not have it."""
        found = await self._spool.local.get(blob_key(digest))
        if not isinstance(found, Found):
            return None
        if await asyncio.to_thread(digest_of, found.body) != digest:
            raise InvalidRecord(
                found.info.key, "the spool damaged this blob: it is not transferred"
            )
        return found.body


async def untransferred_keys(
    local: ObjectStore, prefixes: tuple[str, ...] = RECORDS
) -> AsyncIterator[ObjectKey]:
    """Yield every record of a spool without a marker; keeps the keys of one prefix in memory."""
    for prefix in prefixes:
        transferred = {key async for key in _keys(local, f"{TRANSFER_MARKERS}{prefix}")}
        async for key in _keys(local, prefix):
            if transfer_marker_key(key) not in transferred:
                yield key


async def _keys(store: ObjectStore, prefix: str) -> AsyncIterator[ObjectKey]:
    async for page in store.list(prefix):
        for item in page.objects:
            yield item.key
