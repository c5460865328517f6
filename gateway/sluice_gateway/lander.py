"""Carries what a spool accepted to the authority: blob, then manifest, by the acceptance machine.

A landing is an upload to the authority with the local manifest's own bytes, so the age and date
rules hold, also after days without a connection. States of a spooled record, each one move apart:

    accepted here ── lands ──► marker `landed/v1/<key>` here ──► local blob deleted

A crash between two moves repeats the last one; every move is idempotent. The local blob goes only
after the marker, the marker only after a verdict with proof. The local manifest stays for ever:
the spool decides duplicates and conflicts. A conflict met on landing leaves its quarantine record
in the authority and an alert here; nothing there is ever overwritten. Source: ADR 0024.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_gateway.accept import Acceptor, Run
from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.upload import Upload
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

AT_ONCE: Final = 8
SCAN_AFTER_S: Final = 600.0
"""How often everything is looked at again: a record whose 200 nobody could give is found so."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """The two stores of a spooling gateway and what carries from one to the other.

    Attributes:
        local: The store that accepts.
        remote: The authority that is landed on.
        acceptor: Accepts into the authority.
        clock: Clocks.
        ids: Attempt ids.
        claim: Makes sure that no other spool lands there; called before the first landing.
    """

    local: ObjectStore
    remote: ObjectStore
    acceptor: Acceptor
    clock: Clock
    ids: IdSource
    claim: Callable[[], Awaitable[None]]


class Lander:
    """Lands records, accepted ones before the refusals that need them."""

    def __init__(self, spool: Spool, metrics: GatewayMetrics, interval_s: float) -> None:
        """Starts with nothing known; the first pass scans the spool."""
        self._spool = spool
        self._metrics = metrics
        self._interval_s = interval_s
        self._pending: dict[ObjectKey, None] = {}
        self._scanned_ns: int | None = None
        self._claimed = False

    @property
    def pending(self) -> int:
        """Gives how many records are known and not landed."""
        return len(self._pending)

    def note(self, upload: Upload, run: Run) -> None:
        """Takes in what an upload left in the spool."""
        match run.verdict:
            case Accepted():
                self._add(accepted_key(upload.identity))
            case Conflict():
                self._add(quarantine_key(upload.identity, upload.digest))
            case _:
                return

    def _add(self, key: ObjectKey) -> None:
        self._pending[key] = None
        self._metrics.spool_pending.set(self.pending)

    async def run(self) -> None:
        """Lands for as long as the gateway lives; trouble with the authority only delays it.

        Raises:
            BadUsage: Another spool has claimed the authority: the gateway must stop.
        """
        while True:
            try:
                await self.land_once()
            except BadUsage:
                raise
            except SluiceError as error:
                log.warning("landing goes on later", reason=str(error), pending=self.pending)
            await self._spool.clock.sleep(self._interval_s)

    async def land_once(self) -> None:
        """Lands everything that is known to be pending, as far as the authority lets it.

        Raises:
            BadUsage: Another spool has claimed the authority; nothing was landed.
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
            for first in range(0, len(keys), AT_ONCE):
                await asyncio.gather(*(self._land(key) for key in keys[first : first + AT_ONCE]))

    def _due(self) -> bool:
        if self._scanned_ns is None:
            return True
        return self._spool.clock.monotonic_ns() - self._scanned_ns > SCAN_AFTER_S * NS_PER_S

    async def _scan(self) -> None:
        """Finds every record without a marker."""
        async for key in unlanded(self._spool.local):
            self._add(key)

    async def _land(self, key: ObjectKey) -> None:
        """Carries one record; whatever fails stays pending."""
        try:
            result = await self._carry(key)
        except (StoreError, InvalidRecord) as error:
            log.warning("not landed yet", key=key, reason=str(error))
            return
        if result is None:
            return
        self._metrics.spool_landed.labels(result).inc()
        self._pending.pop(key, None)
        self._metrics.spool_pending.set(self.pending)

    async def _carry(self, key: ObjectKey) -> TransferResult | None:
        if key.startswith(ACCEPTED):
            return await self._carry_accepted(key)
        if key.startswith(QUARANTINE_CONFLICTS):
            return await self._carry_conflict(key)
        return await self._copy(key)

    async def _carry_accepted(self, key: ObjectKey) -> TransferResult | None:
        identity = parse_accepted_key(key)
        found = await self._read(key)
        manifest = decode_accepted(key, found.body)
        if await self._is_landed(key):
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

    async def _carry_conflict(self, key: ObjectKey) -> TransferResult | None:
        """Sends refused bytes the way of an upload: the authority refuses and records them too."""
        identity, submitted = parse_quarantine_key(key)
        if await self._is_landed(key):
            await self._drop_blob(submitted)
            return "conflict"
        if not await self._is_landed(accepted_key(identity)):
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

    async def _settle(self, key: ObjectKey, upload: Upload, run: Run) -> TransferResult | None:
        match run.verdict:
            case Accepted():
                result: TransferResult = "accepted"
            case Conflict(accepted_digest=owner):
                result = "conflict"
                if key.startswith(ACCEPTED):
                    log.error("conflict on landing", key=key, ours=upload.digest, theirs=owner)
            case _:
                log.warning("not landed yet", key=key, verdict=repr(run.verdict))
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
                "create", transfer_marker_key(key), "the marker may be missing: tried again"
            )

    async def _is_landed(self, key: ObjectKey) -> bool:
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
        raise InvalidRecord(key, "the spool lost this record: restore it, nothing was landed")

    async def _read_blob(self, digest: Digest) -> bytes:
        found = await self._read(blob_key(digest))
        if await asyncio.to_thread(digest_of, found.body) != digest:
            raise InvalidRecord(found.info.key, "the spool damaged this blob: it is not landed")
        return found.body


async def unlanded(local: ObjectStore) -> AsyncIterator[ObjectKey]:
    """Gives every record of a spool without a marker; holds the keys of one prefix in memory."""
    for prefix in (ACCEPTED, QUARANTINE_CONFLICTS, DECISIONS):
        landed = {key async for key in _keys(local, f"{TRANSFER_MARKERS}{prefix}")}
        async for key in _keys(local, prefix):
            if transfer_marker_key(key) not in landed:
                yield key


async def _keys(store: ObjectStore, prefix: str) -> AsyncIterator[ObjectKey]:
    async for page in store.list(prefix):
        for item in page.objects:
            yield item.key
