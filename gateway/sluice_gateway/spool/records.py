"""The stores of a spool, its records, and its blobs: which are needed, and the deletion of others.

A record without the marker `transferred/v1/<key>` is not transferred, or its transfer is not in the
acceptance journal yet.

A blob is needed while a record names it that is not transferred. A killed gateway may leave others:
the transfer ended between two steps, an upload ended before its record, or a duplicate of a
transferred batch stored its bytes again. The sweep after a start finds them. It checks one page of
blobs per pass with a few local reads per blob, keeps no list, and starts again after a crash. The
bytes of a blob contain its identity, so one read of its head names every record that can need it.
The sweep skips blobs that are younger than this process and blobs of running uploads.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_gateway.spool.capacity import SpoolCapacity
from sluice_gateway.spool.journal import SpoolJournal
from sluice_gateway.uploads.acceptor import Acceptor
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import InvalidRecord, SluiceError, StoreError
from sluice_protocol.frame import HEAD_BYTES_MAX, decode_head
from sluice_protocol.keys import (
    ACCEPTED,
    DECISIONS,
    QUARANTINE_CONFLICTS,
    RAW_BLOBS,
    accepted_key,
    blob_key,
    digest_of,
    parse_digest,
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
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_store.port import ListPage, ObjectStore
from sluice_store.retry import delete_versions

RECORDS: Final = (ACCEPTED, QUARANTINE_CONFLICTS, DECISIONS)
"""The prefixes of the records that are transferred, in this order."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStores:
    """The two stores of a spooling gateway, and what a transfer between them needs.

    `local` accepts. `remote` is the authority, into which `acceptor` accepts. `journal` names the
    batches that the authority has; it registers before the first transfer.
    """

    local: ObjectStore
    remote: ObjectStore
    acceptor: Acceptor
    clock: Clock
    ids: IdSource
    journal: SpoolJournal
    capacity: SpoolCapacity
    authority: Authority


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


async def read_spooled_record(local: ObjectStore, key: ObjectKey) -> Found:
    """Return a record of the spool; raise `InvalidRecord` if it does not exist any more."""
    found = await local.get(key)
    if isinstance(found, Found):
        return found
    raise InvalidRecord(key, "the spool lost this record: restore it; it is not transferred")


async def read_spooled_blob(local: ObjectStore, digest: Digest) -> bytes | None:
    """Return the bytes of a blob, checked by its name, or None if the spool does not have it."""
    found = await local.get(blob_key(digest))
    if not isinstance(found, Found):
        return None
    if await asyncio.to_thread(digest_of, found.body) != digest:
        raise InvalidRecord(found.info.key, "the spool damaged this blob: it is not transferred")
    return found.body


async def mark_transferred(
    local: ObjectStore, clock: Clock, key: ObjectKey, result: TransferResult
) -> None:
    """Write the marker of a record that the authority has; the call may be repeated."""
    marker = TransferMarker(result=result, transferred_at_unix_ns=clock.now_ns())
    outcome = await local.create(transfer_marker_key(key), encode_record(marker))
    if not isinstance(outcome, Applied | Exists):
        reason = "the outcome of the marker is unknown: it is tried again"
        raise StoreError("create", transfer_marker_key(key), reason)


async def is_transferred(local: ObjectStore, key: ObjectKey) -> bool:
    """Return True if a record has its marker."""
    return isinstance(await local.head(transfer_marker_key(key)), ObjectInfo)


async def authority_has_owner(local: ObjectStore, owner: ObjectKey) -> bool:
    """Return True if the authority has the owner of a conflict; its manifest may have expired."""
    if await is_transferred(local, owner):
        return True
    return not isinstance(await local.head(owner), ObjectInfo)


class SpoolBlobs:
    """Deletes blobs that no record needs; `swept` once all from before the start are checked."""

    def __init__(self, local: ObjectStore, capacity: SpoolCapacity) -> None:
        self._local = local
        self._capacity = capacity
        self._uploading: Counter[Digest] = Counter()
        self._checking: Digest | None = None
        self._checked = asyncio.Condition()
        self._after = ""
        self._started_ns: UnixNs | None = None
        self.swept = False

    @asynccontextmanager
    async def uploading(self, digest: Digest) -> AsyncIterator[None]:
        """Keep the sweep from a blob while an upload may rely on it."""
        if self._checking == digest:
            async with self._checked:
                await self._checked.wait_for(lambda: self._checking != digest)
        self._uploading[digest] += 1
        try:
            yield
        finally:
            self._uploading[digest] -= 1
            if not self._uploading[digest]:
                del self._uploading[digest]

    async def drop(self, digest: Digest) -> None:
        """Delete every version of a blob."""
        await delete_versions(self._local, blob_key(digest))
        self._capacity.dropped(blob_key(digest))

    async def count(self) -> None:
        """Count the bytes of all blobs again."""
        self._capacity.begin_count()
        listed: Counter[ObjectKey] = Counter()
        async for page in self._local.list(RAW_BLOBS):
            for item in page.objects:
                listed[item.key] += item.size_bytes
        self._capacity.end_count(listed)

    async def sweep_page(self) -> int:
        """Check the next page of blobs; return the number of deleted ones.

        After an error the same page is checked again.
        """
        page = await anext(self._local.list(RAW_BLOBS, start_after=self._after))
        self._started_ns = self._started_ns or page.date_ns
        dropped = 0
        for key in _older(page, self._started_ns):
            dropped += await self._sweep_one(key)
        if dropped:
            log.info("spool_blobs_swept", dropped=dropped)
        self._after = page.objects[-1].key if page.objects else self._after
        self.swept = page.last
        return dropped

    async def _sweep_one(self, key: ObjectKey) -> bool:
        digest = _digest_in(key)
        if digest is None or digest in self._uploading:
            return False
        self._checking = digest
        try:
            if await self._is_needed(digest):
                return False
            await self.drop(digest)
        finally:
            async with self._checked:
                self._checking = None
                self._checked.notify_all()
        return True

    async def _is_needed(self, digest: Digest) -> bool:
        """Return True if a record needs the blob, or if that cannot be read."""
        head = await self._local.get(blob_key(digest), last=HEAD_BYTES_MAX - 1)
        if not isinstance(head, Found):
            return False
        try:
            identity = decode_head(head.body).envelope.identity
        except SluiceError as error:
            log.warning("spool_blob_unreadable", key=head.info.key, reason=str(error))
            return True
        owner = accepted_key(identity)
        found = await self._local.get(owner)
        try:
            if isinstance(found, Found) and decode_accepted(owner, found.body).digest == digest:
                return not await self._exists(transfer_marker_key(owner))
        except InvalidRecord as error:
            log.warning("spool_blob_unreadable", key=owner, reason=str(error))
            return True
        conflict = quarantine_key(identity, digest)
        if await self._exists(conflict):
            return not await self._exists(transfer_marker_key(conflict))
        return False

    async def _exists(self, key: ObjectKey) -> bool:
        return isinstance(await self._local.head(key), ObjectInfo)


def _older(page: ListPage, started_ns: UnixNs) -> list[ObjectKey]:
    return [item.key for item in page.objects if item.last_modified_ns < started_ns]


def _digest_in(key: ObjectKey) -> Digest | None:
    """Return the digest in the key of a blob, or None for a key that sluice did not write."""
    try:
        digest = parse_digest(key.rpartition("/")[2].partition(".")[0])
    except ValueError:
        return None
    return digest if blob_key(digest) == key else None
