"""Stored deletes: write one, read those that apply, and compact the register of them.

A delete is durable when its record exists. The register at `ACTIVE_DELETES` makes reads cheap: one
object, and a listing of what came after it. A writer that stops between the two leaves a record
that the listing finds, or that the next compaction adds.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sluice_protocol.active_deletes import (
    ActiveDeletes,
    decode_active_deletes,
    needed_deletes,
    through_id,
    with_delete,
)
from sluice_protocol.clock import IdSource
from sluice_protocol.keys import ACTIVE_DELETES, DELETES
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Applied, Found, ObjectInfo
from sluice_protocol.record_deletes import DeleteRecord, decode_delete, delete_key
from sluice_protocol.units import ETag
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, RetryBudget, create_known


@dataclass(slots=True)
class DeletesCache:
    """The register as last read, by its ETag; a long-running reader keeps it between queries."""

    etag: ETag | None = None
    register: ActiveDeletes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedDeletes:
    """The result of a compaction.

    Attributes:
        known: Delete records in the store.
        active: Those that readers apply.
    """

    known: int
    active: int


async def read_active_deletes(
    store: ObjectStore, cache: DeletesCache | None = None
) -> tuple[DeleteRecord, ...]:
    """Return the deletes that a reader applies; without a register all of history is read.

    Raises:
        InvalidRecord: A delete or the register cannot be decoded. Continuing would return deleted
            records.
        StoreError: The store is unreachable.
    """
    register = await _read_register(store, cache or DeletesCache())
    if register is None:
        return tuple(await read_all_deletes(store))
    later = await read_all_deletes(store, after=register.through_id)
    known = {one.delete_id for one in register.records}
    return (*register.records, *(one for one in later if one.delete_id not in known))


async def _read_register(store: ObjectStore, cache: DeletesCache) -> ActiveDeletes | None:
    if cache.etag is not None:
        head = await store.head(ACTIVE_DELETES)
        if isinstance(head, ObjectInfo) and head.etag == cache.etag:
            return cache.register
    read = await store.get(ACTIVE_DELETES)
    if isinstance(read, Found):
        cache.etag, cache.register = read.info.etag, decode_active_deletes(read.body)
    else:
        cache.etag = cache.register = None
    return cache.register


async def read_all_deletes(store: ObjectStore, *, after: str = "") -> list[DeleteRecord]:
    """Read every delete record, or those with a higher id than `after`.

    Raises:
        InvalidRecord: A delete cannot be decoded; skipping it would keep deleted rows.
        StoreError: The store is unreachable.
    """
    found: list[DeleteRecord] = []
    start_after = delete_key(after) if after else ""
    async for page in store.list(DELETES, start_after=start_after):
        for listed in page.objects:
            read = await store.get(listed.key)
            if isinstance(read, Found):
                found.append(decode_delete(listed.key, read.body))
    return found


async def write_delete(
    store: ObjectStore, record: DeleteRecord, backoff: Backoff, ids: IdSource
) -> None:
    """Write a delete with a new id, then add it to the register.

    Raises:
        OutcomeUnknown: It is unknown whether the record exists; a new delete may be written.
        StoreError: The store refused the request, or it was not sent.
    """
    # The id is new: an object under its key can only be this record.
    await create_known(store, delete_key(record.delete_id), encode_record(record), backoff)
    await _publish(store, record, backoff, ids)


async def _publish(
    store: ObjectStore, record: DeleteRecord, backoff: Backoff, ids: IdSource
) -> None:
    budget = RetryBudget("publish delete", ACTIVE_DELETES, backoff)
    while True:
        read = await store.get(ACTIVE_DELETES)
        if not isinstance(read, Found):
            return  # readers read every record until the first compaction creates the register
        wanted = with_delete(decode_active_deletes(read.body), record, nonce=ids.ulid())
        if wanted is None:
            return
        body = encode_record(wanted)
        if isinstance(await store.replace(ACTIVE_DELETES, body, if_match=read.info.etag), Applied):
            return
        await budget.wait_or_raise()


def _empty(ids: IdSource) -> ActiveDeletes:
    """Return a register that considers no delete, so that readers list all of them."""
    return ActiveDeletes(revision=0, nonce=ids.ulid(), through_id="", known=0, records=())


async def compact_deletes(
    store: ObjectStore, backoff: Backoff, ids: IdSource, *, honoured: Collection[str] = ()
) -> CompactedDeletes:
    """Write the register again from every delete record; concurrent writers lose nothing.

    The register exists and is read before the records are listed. A delete that is added in between
    changes it, so that the swap is refused and everything is read again.

    Args:
        store: The deployment.
        backoff: Time, jitter and bounds.
        ids: Source of the nonce.
        honoured: Ids of the deletes that every rollup honours.

    Raises:
        InvalidRecord: A delete or the register cannot be decoded.
        OutcomeUnknown: Other writers kept changing the register; run it again.
        StoreError: The store is unreachable or refused a request.
    """
    budget = RetryBudget("compact deletes", ACTIVE_DELETES, backoff)
    while True:
        read = await store.get(ACTIVE_DELETES)
        if not isinstance(read, Found):
            await create_known(store, ACTIVE_DELETES, encode_record(_empty(ids)), backoff)
            continue
        before = decode_active_deletes(read.body)
        records = await read_all_deletes(store)
        needed = needed_deletes(records, honoured)
        result = CompactedDeletes(known=len(records), active=len(needed))
        wanted = ActiveDeletes(
            revision=before.revision + 1,
            nonce=ids.ulid(),
            through_id=through_id(records),
            known=len(records),
            records=needed,
        )
        if _same(before, wanted):
            return result
        body = encode_record(wanted)
        if isinstance(await store.replace(ACTIVE_DELETES, body, if_match=read.info.etag), Applied):
            return result
        await budget.wait_or_raise()


def _same(one: ActiveDeletes, other: ActiveDeletes) -> bool:
    return (one.records, one.through_id) == (other.records, other.through_id)
