"""Removal of the index entries of batches that have expired, so that they follow the retention.

An object of the two indexes by time is removed when tombstones of its hour name every batch in it,
and none of their blobs exists. So an entry stays while a hold or a failed proof keeps its blob.
The reverse references of its batches are removed with it: they keep a blob that no longer exists.
Readers of the indexes find the tombstone of a batch without entries, so that is no damage. A run
reads only what is left of the hours that have tombstones, oldest first, and may be killed at any
request. In a store without versioning nothing is removed.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog

from sluice_protocol.errors import InvalidRecord, StoreError
from sluice_protocol.expiry import NamedBatch
from sluice_protocol.keys import (
    ACCEPTED_BY_TIME,
    EXPIRED,
    RAW_BLOBS_BY_TIME,
    accepted_key,
    accepted_reference_key,
    blob_key,
    parse_accepted_key,
    parse_by_blob_key,
    path_of_hour,
    tombstone_hours,
)
from sluice_protocol.outcomes import NotFound
from sluice_protocol.units import ObjectKey
from sluice_reconciler.context import ReconcilerContext
from sluice_reconciler.indexes import decode_by_time, reference_in, unpack
from sluice_store.retry import CurrentDeletion, delete_current_version
from sluice_store.stored_expiry import TombstoneReader

log = structlog.get_logger()

REMOVAL_S: Final = 86_400.0
"""Pause between two runs: batches expire once a day, and their blobs are deleted days later."""
_DELETED_TOGETHER: Final = 100


class ExpiredEntries:
    """Removes the index entries of batches that have expired and whose blobs are deleted."""

    def __init__(self, context: ReconcilerContext) -> None:
        self._context = context
        self._store = context.store

    async def run(self) -> int:
        """Remove what may be removed; return the number of deleted objects."""
        expired: set[int] = set()
        async for page in self._store.list(EXPIRED):
            expired.update(hour for one in page.objects for hour in tombstone_hours(one.key))
        if not expired:
            return 0
        hours = {path_of_hour(hour): hour for hour in sorted(expired)}
        tombstones, removed = TombstoneReader(self._store), 0
        indexed: dict[str, None] = {}
        async for page in self._store.list(
            ACCEPTED_BY_TIME, end_at=f"{ACCEPTED_BY_TIME}{max(hours)}/~"
        ):
            indexed |= dict.fromkeys("/".join(one.key.split("/")[2:4]) for one in page.objects)
        for path in indexed:
            if path in hours:
                # A run finds an hour by its entries of manifests, so these are deleted last.
                for root in (RAW_BLOBS_BY_TIME, ACCEPTED_BY_TIME):
                    removed += await self._remove(f"{root}{path}/", hours[path], tombstones)
        if removed:
            log.info("expired_entries_removed", objects=removed)
        return removed

    async def _remove(self, folder: str, hour: int, tombstones: TombstoneReader) -> int:
        """Remove objects of the folder of one hour."""

        async def has_expired(batch: NamedBatch) -> bool:
            who = parse_accepted_key(batch[0])
            return await tombstones.look_up(hour, who, batch[1]) is not None

        removed = 0
        async for found in self._context.requests.read(self._store, folder):
            objects = [(key, _batches_in(key, body)) for key, body in found]
            named = {one for _, batches in objects for one in batches}
            expired = {one for one in named if await has_expired(one)}
            wanted = {one for _, batches in objects if batches <= expired for one in batches}
            gone = await self._without_blob(sorted(wanted))
            ending = {key: batches for key, batches in objects if batches and batches <= gone}
            if folder.startswith(ACCEPTED_BY_TIME):
                ended = dict.fromkeys(one for batches in ending.values() for one in batches)
                removed += await self._delete(
                    [accepted_reference_key(digest, manifest) for manifest, digest in ended]
                )
            removed += await self._delete(list(ending))
        return removed

    async def _without_blob(self, batches: Sequence[NamedBatch]) -> set[NamedBatch]:
        """Return the batches whose blob does not exist; an error of the store is raised."""
        found = await self._store.head_many([blob_key(digest) for _, digest in batches])
        for one in found:
            if isinstance(one, StoreError):
                raise one
        pairs = zip(batches, found, strict=True)
        return {batch for batch, blob in pairs if isinstance(blob, NotFound)}

    async def _delete(self, keys: Sequence[ObjectKey]) -> int:
        delete = partial(delete_current_version, self._store)
        deleted = 0
        for at in range(0, len(keys), _DELETED_TOGETHER):
            part = keys[at : at + _DELETED_TOGETHER]
            outcomes = await self._context.requests.each(part, delete)
            deleted += outcomes.count(CurrentDeletion.DELETED)
            if CurrentDeletion.UNVERSIONED in outcomes:
                break
        return deleted


def _batches_in(key: ObjectKey, body: bytes) -> frozenset[NamedBatch]:
    """Return every batch that an object of an index names; none if one cannot be decoded."""
    try:
        if key.startswith(ACCEPTED_BY_TIME):
            manifests = decode_by_time(key, body).items()
            return frozenset((place, manifest.digest) for place, manifest in manifests)
        references = [reference_in(*entry) for entry in unpack(key, body)]
        if not all(references):
            return frozenset()
        named = [parse_by_blob_key(reference) for one in references for reference, _ in one]
        return frozenset((accepted_key(one.identity), one.digest) for one in named)
    except InvalidRecord:
        return frozenset()
