"""Every delete record in one read: those that were read before are packed in one object.

Maintenance applies every delete, also to batches that arrive years later, so it needs all of them
in each run. Delete records never change. A run therefore reads the pack, lists the records, and
reads only those that the pack does not contain with the same ETag. The listing decides what exists,
so a missing, old or damaged pack costs reads and changes nothing.

The pack grows with the delete records, which are permanent, by about 0.1 KB each. It is replaced in
place.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
import structlog

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import DELETES, PACKED_DELETES
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.record_deletes import DeleteRecord, decode_delete
from sluice_protocol.units import ObjectKey
from sluice_store.port import ListedObject, ObjectStore, read_bodies

_log = structlog.get_logger("sluice.deletes")

PACK_MIN: Final = 64
"""Records that a run has to read one by one before it writes the pack again."""
READ_TOGETHER: Final = 1000


class PackedDelete(msgspec.Struct, frozen=True, kw_only=True):
    """One delete record.

    Attributes:
        key: Its key.
        etag: Its ETag when it was read.
        body: Its bytes, which are JSON.
    """

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
    """Decode a pack.

    Raises:
        InvalidRecord: It is not of this schema.
    """
    try:
        raw = zlib.decompress(body)
    except zlib.error as error:
        raise InvalidRecord(PACKED_DELETES, f"pack of deletes is not valid: {error}") from error
    return decode_record(PACKED_DELETES, raw, DeletesPack)


async def read_known_deletes(store: ObjectStore) -> list[DeleteRecord]:
    """Return every delete record, by id, and write the pack again if many are new to it.

    Raises:
        InvalidRecord: A delete cannot be decoded; skipping it would keep deleted rows.
        StoreError: The store is unreachable or refused a request.
    """
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
