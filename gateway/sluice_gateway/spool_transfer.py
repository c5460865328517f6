"""Transfers the records of a spool to the authority: blob, then manifest.

A transfer is an upload to the authority with the bytes of the local manifest, through the same
acceptance machine. So the rules on age and date apply, also after days without a connection.
A spooled record passes these states:

    accepted here ── transferred ──► marker `landed/v1/<key>` here ──► local blob deleted

A crash between two steps repeats the last one; every step is idempotent. The local blob is deleted
only after the marker is written, the marker only after a verdict with proof. The local manifest is
kept permanently: the spool decides duplicates and conflicts. A conflict during a transfer creates a
quarantine record in the authority and an alert here; nothing in the authority is overwritten.
Source: ADR 0024.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_gateway.acceptor import AcceptanceRun, Acceptor
from sluice_gateway.metrics import GatewayMetrics
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

CONCURRENCY: Final = 8
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
    """Transfers records: accepted ones before the conflicts that refer to them."""

    def __init__(self, spool: SpoolStores, metrics: GatewayMetrics, interval_s: float) -> None:
        """Bind a spool; the first pass scans it."""
        self._spool = spool
        self._metrics = metrics
        self._interval_s = interval_s
        self._pending: dict[ObjectKey, None] = {}
        self._scanned_ns: int | None = None
        self._claimed = False

    @property
    def pending(self) -> int:
        """The number of records that are known and not transferred."""
        return len(self._pending)

    def add(self, upload: Upload, run: AcceptanceRun) -> None:
        """Add the record that an upload created in the spool."""
        match run.verdict:
            case Accepted():
                self._add_key(accepted_key(upload.identity))
            case Conflict():
                self._add_key(quarantine_key(upload.identity, upload.digest))
            case _:
                return

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
            await self._spool.clock.sleep(self._interval_s)

    async def transfer_once(self) -> None:
        """Transfer every pending record that the authority accepts.

        Raises:
            BadUsage: Another spool has claimed the authority; nothing was transferred.
            SluiceError: The spool or the authority cannot be read.
        """
        if not self._claimed:
            await self._spool.claim()
            self._claimed = True
        if self._due():
            await self._scan()
            self._scanned_ns = self._spool.clock.monotonic_ns()
        for prefix in (ACCEPTED, QUARANTINE_CONFLICTS, DECISIONS):
            keys = [key for key in self._pending if key.startswith(prefix)]
            for first in range(0, len(keys), CONCURRENCY):
                await asyncio.gather(
                    *(self._transfer(key) for key in keys[first : first + CONCURRENCY])
                )

    def _due(self) -> bool:
        if self._scanned_ns is None:
            return True
        return self._spool.clock.monotonic_ns() - self._scanned_ns > SCAN_INTERVAL_S * NS_PER_S

    async def _scan(self) -> None:
        """Find every record without a marker."""
        async for key in untransferred_keys(self._spool.local):
            self._add_key(key)

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
            await self._drop_blob(manifest.digest)
            return "accepted"
        frame = await self._read_blob(manifest.digest)
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
            await self._drop_blob(submitted)
            return "conflict"
        if not await self._is_transferred(accepted_key(identity)):
            return None
        upload = await self._refused_upload(identity, submitted)
        return await self._settle(key, upload, await self._spool.acceptor.accept(upload))

    async def _refused_upload(self, identity: Identity, submitted: Digest) -> Upload:
        frame = await self._read_blob(submitted)
        return Upload(
            frame=frame,
            digest=submitted,
            identity=identity,
            envelope=decode_head(frame).envelope,
            principal="",
            attempt_id=self._spool.ids.ulid(),
        )

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
        await self._mark(key, result)
        await self._drop_blob(upload.digest)
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

    async def _drop_blob(self, digest: Digest) -> None:
        key = blob_key(digest)
        info = await self._spool.local.head(key)
        if isinstance(info, ObjectInfo) and info.incarnation is not None:
            await self._spool.local.delete(key, info.incarnation)

    async def _read(self, key: ObjectKey) -> Found:
        found = await self._spool.local.get(key)
        if isinstance(found, Found):
            return found
        raise InvalidRecord(key, "the spool lost this record: restore it; it is not transferred")

    async def _read_blob(self, digest: Digest) -> bytes:
        found = await self._read(blob_key(digest))
        if await asyncio.to_thread(digest_of, found.body) != digest:
            raise InvalidRecord(
                found.info.key, "the spool damaged this blob: it is not transferred"
            )
        return found.body


async def untransferred_keys(local: ObjectStore) -> AsyncIterator[ObjectKey]:
    """Yield every record of a spool without a marker; keeps the keys of one prefix in memory."""
    for prefix in (ACCEPTED, QUARANTINE_CONFLICTS, DECISIONS):
        transferred = {key async for key in _keys(local, f"{TRANSFER_MARKERS}{prefix}")}
        async for key in _keys(local, prefix):
            if transfer_marker_key(key) not in transferred:
                yield key


async def _keys(store: ObjectStore, prefix: str) -> AsyncIterator[ObjectKey]:
    async for page in store.list(prefix):
        for item in page.objects:
            yield item.key
