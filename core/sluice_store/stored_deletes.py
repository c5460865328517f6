"""Stored deletes: write one, read those that apply, and compact the register of them.

A delete is durable when its record exists. The register at `ACTIVE_DELETES` makes reads cheap: one
object, and a listing of what came after it. A writer that stops between the two leaves a record
that the listing finds, or that the next compaction adds.

Maintenance applies every delete, also to batches that arrive years later, so it needs all of them
in each run. Those that were read before are packed in one object. Delete records never change. A
run therefore reads the pack, lists the records, and reads only those that the pack does not contain
with the same ETag. The listing decides what exists, so a missing, old or damaged pack costs reads
and changes nothing.

The pack grows with the delete records, which are permanent, by about 0.1 KB each. It is replaced in
place.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import structlog

from sluice_protocol.clock import IdSource
from sluice_protocol.errors import BadUsage, ErrorCode, ExitCode, InvalidRecord, SluiceError
from sluice_protocol.keys import ACTIVE_DELETES, DELETES, PACKED_DELETES
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Applied, Found, ObjectInfo
from sluice_protocol.record_deletes import (
    ActiveDeletes,
    DeleteRecord,
    DeleteRequest,
    check_delete_id,
    check_new_id,
    decide_delete,
    decode_active_deletes,
    decode_delete,
    delete_key,
    is_same_request,
    needed_deletes,
    through_id,
    with_delete,
)
from sluice_protocol.units import ETag, ObjectKey
from sluice_store.port import ListedObject, ObjectStore, read_bodies
from sluice_store.retry import Backoff, OtherBytes, RetryBudget, create_known, create_once

_log = structlog.get_logger("sluice.deletes")

PACK_MIN: Final = 64
"""Records that a run has to read one by one before it writes the pack again."""
READ_TOGETHER: Final = 1000


class PackedDelete(msgspec.Struct, frozen=True, kw_only=True):
    """One delete record: its key, its ETag when it was read, and its JSON."""

    key: str
    etag: str
    body: str


class DeletesPack(msgspec.Struct, frozen=True, kw_only=True):
    """Delete records, at `lake/v1/deletes.json.z`: JSON that is compressed by zlib."""

    schema: Literal["sluice.packed_deletes.v1"] = "sluice.packed_deletes.v1"
    records: tuple[PackedDelete, ...] = ()


def encode_pack(pack: DeletesPack) -> bytes:
    """Return the bytes of a pack."""
    return zlib.compress(msgspec.json.encode(pack, order="sorted"))


def decode_pack(body: bytes) -> DeletesPack:
    """Decode a pack."""
    try:
        raw = zlib.decompress(body)
    except zlib.error as error:
        raise InvalidRecord(PACKED_DELETES, f"pack of deletes is not valid: {error}") from error
    return decode_record(PACKED_DELETES, raw, DeletesPack)


async def read_known_deletes(store: ObjectStore) -> list[DeleteRecord]:
    """Return every delete record, by id, and write the pack again if many are new to it."""
    packed = await _read_pack(store)
    listed = [one async for page in store.list(DELETES) for one in page.objects]
    missing = [one for one in listed if _packed(packed, one) is None]
    bodies = await _read_bodies(store, missing)
    found: list[PackedDelete] = []
    for one in listed:
        known = _packed(packed, one) or bodies.get(one.key)
        if known is not None:
            found.append(known)
    records = [decode_delete(ObjectKey(one.key), one.body.encode()) for one in found]
    if len(missing) >= PACK_MIN:
        # A lost or overtaken write costs reads later, so its outcome does not matter.
        await store.overwrite(PACKED_DELETES, encode_pack(DeletesPack(records=tuple(found))))
        _log.info("deletes_packed", records=len(found), read=len(missing))
    return records


def _packed(packed: Mapping[str, PackedDelete], listed: ListedObject) -> PackedDelete | None:
    known = packed.get(listed.key)
    return known if known is not None and known.etag == listed.etag else None


async def _read_pack(store: ObjectStore) -> dict[str, PackedDelete]:
    read = await store.get(PACKED_DELETES)
    if not isinstance(read, Found):
        return {}
    try:
        return {one.key: one for one in decode_pack(read.body).records}
    except InvalidRecord as error:
        _log.info("deletes_pack_ignored", reason=error.reason)
        return {}


async def _read_bodies(
    store: ObjectStore, listed: Sequence[ListedObject]
) -> dict[ObjectKey, PackedDelete]:
    """Read records; one that was removed since the listing is left out."""
    found: dict[ObjectKey, PackedDelete] = {}
    for first in range(0, len(listed), READ_TOGETHER):
        some = listed[first : first + READ_TOGETHER]
        bodies = await read_bodies(store, [one.key for one in some])
        for one, body in zip(some, bodies, strict=True):
            if body is not None:
                found[one.key] = _pack_one(one, body)
    return found


def _pack_one(listed: ListedObject, body: bytes) -> PackedDelete:
    try:
        return PackedDelete(key=listed.key, etag=listed.etag, body=body.decode())
    except UnicodeDecodeError as error:
        raise InvalidRecord(listed.key, f"delete is not UTF-8: {error}") from error


@dataclass(slots=True)
class DeletesCache:
    """The register as last read, by its ETag; a long-running reader keeps it between queries."""

    etag: ETag | None = None
    register: ActiveDeletes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedDeletes:
    """The result of a compaction: the delete records in the store, and those that readers apply."""

    known: int
    active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenDelete:
    """A stored delete, and whether this call created it, not an earlier attempt."""

    record: DeleteRecord
    created: bool


class DeleteIdTaken(SluiceError):
    """The id of a delete belongs to another delete; nothing was changed."""

    code = ErrorCode.DELETE_ID_TAKEN
    exit_code = ExitCode.BAD_USAGE

    def __init__(self, delete_id: str) -> None:
        super().__init__(delete_id)
        self.delete_id = delete_id

    def __str__(self) -> str:
        return f"another delete has this id: use a new ULID, delete_id=`{self.delete_id}`"


async def read_active_deletes(
    store: ObjectStore, cache: DeletesCache | None = None
) -> tuple[DeleteRecord, ...]:
    """Return the deletes that a reader applies; without a register all of history is read."""
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

    A damaged record is an error: skipping it would keep deleted rows.
    """
    found: list[DeleteRecord] = []
    start_after = delete_key(after) if after else ""
    async for page in store.list(DELETES, start_after=start_after):
        if page.objects:
            keys = [listed.key for listed in page.objects]
            for key, body in zip(keys, await read_bodies(store, keys), strict=True):
                if body is not None:
                    found.append(decode_delete(key, body))
    return found


async def write_delete(
    store: ObjectStore, record: DeleteRecord, backoff: Backoff, ids: IdSource
) -> WrittenDelete:
    """Write a delete, then add it to the register; the record that exists first decides.

    The stored delete is another one than `record` if its id already has other bytes.
    """
    key = delete_key(record.delete_id)
    outcome = await create_once(store, key, encode_record(record), backoff)
    if isinstance(outcome, OtherBytes):
        record = decode_delete(key, outcome.body)
    await _publish(store, record, backoff, ids)
    return WrittenDelete(record=record, created=isinstance(outcome, Applied))


async def submit_delete(
    store: ObjectStore, request: DeleteRequest, principal: str, backoff: Backoff, ids: IdSource
) -> WrittenDelete:
    """Write the delete that a request leads to; the same request again has no further effect.

    The cut-off is the store's clock at the first attempt.

    Raises:
        BadUsage: A hold covers batches that may contain such records; nothing was written.
        OutcomeUnknown: It is unknown whether the record exists; send the same id again.
    """
    from sluice_store.stored_expiry import read_holds  # noqa: PLC0415 - a reader of deletes needs none of it

    record = await plan_delete(store, request, principal, ids)
    case = (await read_holds(store)).touching(record)
    if case is not None:
        raise BadUsage(
            "a hold covers batches that may contain these records: see `sluice hold list`,"
            f" case=`{case}`"
        )
    written = await write_delete(store, record, backoff, ids)
    if not is_same_request(request, written.record, principal):
        raise DeleteIdTaken(record.delete_id)
    return written


async def plan_delete(
    store: ObjectStore, request: DeleteRequest, principal: str, ids: IdSource
) -> DeleteRecord:
    """Return the record that a request leads to, the stored one if its id exists; write nothing."""
    delete_id = ids.ulid() if request.delete_id is None else check_delete_id(request.delete_id)
    key = delete_key(delete_id)
    read = await store.get(key)
    if isinstance(read, Found):
        stored = decode_delete(key, read.body)
        if not is_same_request(request, stored, principal):
            raise DeleteIdTaken(delete_id)
        return stored
    if request.delete_id is not None:
        check_new_id(delete_id, read.date_ns)
    return decide_delete(request, delete_id=delete_id, now_ns=read.date_ns, principal=principal)


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
    store: ObjectStore,
    known: Sequence[DeleteRecord],
    backoff: Backoff,
    ids: IdSource,
    *,
    honoured: Collection[str] = (),
) -> CompactedDeletes:
    """Write the register again from the delete records; concurrent writers lose nothing.

    A delete that was created after `known` was read is in the register, unless its writer has not
    added it yet. Then the writer changes the register later, which contains the others. Before the
    register exists, writers add nothing to it, so that the records are read again here.

    `known` is every delete record, as a run read them before. `honoured` has the ids of the deletes
    that every rollup honours. `OutcomeUnknown` means that other writers kept changing the register.
    """
    budget = RetryBudget("compact deletes", ACTIVE_DELETES, backoff)
    while True:
        read = await store.get(ACTIVE_DELETES)
        if not isinstance(read, Found):
            await create_known(store, ACTIVE_DELETES, encode_record(_empty(ids)), backoff)
            continue
        before = decode_active_deletes(read.body)
        if before.revision == 0:
            known = await read_known_deletes(store)
        records = [*known, *await _created_since(store, known, before)]
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


async def _created_since(
    store: ObjectStore, known: Sequence[DeleteRecord], register: ActiveDeletes
) -> list[DeleteRecord]:
    """Return the deletes of the register that exist and are not known."""
    ids = {one.delete_id for one in known}
    others = [one for one in register.records if one.delete_id not in ids]
    return [
        one for one in others if isinstance(await store.head(delete_key(one.delete_id)), ObjectInfo)
    ]


def _same(one: ActiveDeletes, other: ActiveDeletes) -> bool:
    return (one.records, one.through_id) == (other.records, other.through_id)
