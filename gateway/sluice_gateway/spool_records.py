"""The stores of a spool, and its records and blobs: listed without markers, read with checks.

A record without the marker `landed/v1/<key>` is not transferred, or its transfer is not in the
acceptance journal yet.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from sluice_gateway.acceptor import Acceptor
from sluice_gateway.spool_capacity import SpoolCapacity
from sluice_gateway.spool_journal import SpoolJournal
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import InvalidRecord, StoreError
from sluice_protocol.keys import ACCEPTED, DECISIONS, QUARANTINE_CONFLICTS, blob_key, digest_of
from sluice_protocol.manifests import (
    TRANSFER_MARKERS,
    TransferMarker,
    TransferResult,
    encode_record,
    transfer_marker_key,
)
from sluice_protocol.outcomes import Applied, Exists, Found, ObjectInfo
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.port import ObjectStore

RECORDS: Final = (ACCEPTED, QUARANTINE_CONFLICTS, DECISIONS)
"""The prefixes of the records that are transferred, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStores:
    """The two stores of a spooling gateway, and what a transfer between them needs.

    Attributes:
        local: The store that accepts.
        remote: The authority.
        acceptor: Accepts into the authority.
        clock: The clocks of this machine.
        ids: The source of attempt ids.
        journal: Names the batches that the authority has; it registers before the first transfer.
        capacity: The room for blobs.
        authority: The settings of the authority.
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
    """Return a record of the spool.

    Raises:
        InvalidRecord: The spool does not have it any more.
    """
    found = await local.get(key)
    if isinstance(found, Found):
        return found
    raise InvalidRecord(key, "the spool lost this record: restore it; it is not transferred")


async def read_spooled_blob(local: ObjectStore, digest: Digest) -> bytes | None:
    """Return the bytes of a blob, or None if the spool does not have it.

    Raises:
        InvalidRecord: It has other bytes than its name.
    """
    found = await local.get(blob_key(digest))
    if not isinstance(found, Found):
        return None
    if await asyncio.to_thread(digest_of, found.body) != digest:
        raise InvalidRecord(found.info.key, "the spool damaged this blob: it is not transferred")
    return found.body


async def mark_transferred(
    local: ObjectStore, clock: Clock, key: ObjectKey, result: TransferResult
) -> None:
    """Write the marker of a record that the authority has.

    Raises:
        StoreError: The outcome is unknown, or the spool refused; the call may be repeated.
    """
    marker = TransferMarker(result=result, landed_at_unix_ns=clock.now_ns())
    outcome = await local.create(transfer_marker_key(key), encode_record(marker))
    if not isinstance(outcome, Applied | Exists):
        reason = "the outcome of the marker is unknown: it is tried again"
        raise StoreError("create", transfer_marker_key(key), reason)


async def is_transferred(local: ObjectStore, key: ObjectKey) -> bool:
    """Return True if a record has its marker."""
    return isinstance(await local.head(transfer_marker_key(key)), ObjectInfo)


async def has_landed(local: ObjectStore, owner: ObjectKey) -> bool:
    """Return True if the authority has the owner of a conflict; its manifest may have expired."""
    if await is_transferred(local, owner):
        return True
    return not isinstance(await local.head(owner), ObjectInfo)
