"""The blobs of a spool: which are needed, and the deletion of the others.

A blob is needed while a record names it that is not transferred. A killed gateway may leave others:
the transfer ended between two steps, an upload ended before its record, or a duplicate of a
transferred batch stored its bytes again. The sweep after a start finds them. It checks one page of
blobs per pass with a few local reads per blob, keeps no list, and starts again after a crash.

The bytes of a blob contain its identity, so one read of its head names every record that can need
it. The sweep skips blobs that are younger than this process and blobs of running uploads.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from sluice_gateway.spool_capacity import SpoolCapacity
from sluice_protocol.errors import InvalidRecord, SluiceError
from sluice_protocol.frame import HEAD_BYTES_MAX, decode_head
from sluice_protocol.keys import (
    RAW_BLOBS,
    accepted_key,
    blob_key,
    parse_digest,
    quarantine_key,
)
from sluice_protocol.manifests import decode_accepted, transfer_marker_key
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_store.deletion import delete_versions
from sluice_store.port import ListPage, ObjectStore

log = structlog.get_logger()


class SpoolBlobs:
    """Deletes blobs that no record of the spool needs.

    Attributes:
        swept: Whether every blob that is older than this process was checked.
    """

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
        """Delete every version of a blob.

        Raises:
            StoreError: The spool is unreachable or refused the call.
        """
        await delete_versions(self._local, blob_key(digest))
        self._capacity.dropped(blob_key(digest))

    async def count(self) -> None:
        """Count the bytes of all blobs again.

        Raises:
            StoreError: The spool cannot be read.
        """
        self._capacity.begin_count()
        listed: Counter[ObjectKey] = Counter()
        async for page in self._local.list(RAW_BLOBS):
            for item in page.objects:
                listed[item.key] += item.size_bytes
        self._capacity.end_count(listed)

    async def sweep_page(self) -> int:
        """Check the next page of blobs; return the number of deleted ones.

        Raises:
            SluiceError: The spool cannot be read; the same page is checked again.
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
