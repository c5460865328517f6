"""The stored objects of one batch: key, size, hash, clock, and what each of them proves."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import AcceptedManifest, encode_reference
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_reconciler.indexes import (
    FoundEntry,
    TimeEntry,
    by_blob_of,
    by_time_of,
    find_entry,
    find_packed,
)
from sluice_reconciler.verify import VerifiedBatch
from sluice_store.port import ObjectStore


class ObjectRole(StrEnum):
    """What an object of a batch is."""

    MANIFEST = "manifest"
    BLOB = "blob"
    BY_TIME = "by_time"
    BY_BLOB = "by_blob"
    RAW_BY_TIME = "raw_by_time"
    WORK_LIST = "work_list"
    HOLD_RECORD = "hold_record"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object of a batch, as it is stored now.

    Attributes:
        role: What it is.
        key: Its key; for an index entry the key that it has alone.
        present: Whether it exists.
        proof: What it proves, or what is wrong with it.
        right: Whether its bytes are those that it should have; None if that was not compared.
        packed_in: The key of the packed object that contains the entry; None if it is alone.
        size_bytes: The size of the object, or of the packed object; None if it is missing.
        sha256: The digest of these bytes; None if they were not read and the store has none.
        last_modified_unix_ns: When it was written, by the store's clock; None if it is missing.
    """

    role: ObjectRole
    key: str
    present: bool
    proof: str
    right: bool | None = None
    packed_in: str | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    last_modified_unix_ns: int | None = None


def manifest_object(read: Found) -> StoredObject:
    """Return the manifest of a batch, which was read."""
    return _stored(
        ObjectRole.MANIFEST,
        read.info.key,
        read.info,
        sha256=digest_of(read.body),
        right=True,
    )


async def blob_object(store: ObjectStore, manifest: AcceptedManifest, problem: str) -> StoredObject:
    """Return the blob of a batch.

    Args:
        store: The store.
        manifest: The manifest that names it.
        problem: What a verification found; empty if it is right.
    """
    info = await store.head(ObjectKey(manifest.raw_blob_key))
    if not isinstance(info, ObjectInfo):
        return _missing(ObjectRole.BLOB, manifest.raw_blob_key)
    # A verification compares the bytes, or the checksum that the store verified at the upload.
    sha256 = info.sha256 or (None if problem else manifest.frame_sha256)
    return _stored(ObjectRole.BLOB, info.key, info, sha256=sha256, right=not problem)


async def index_objects(store: ObjectStore, sound: VerifiedBatch) -> list[StoredObject]:
    """Return the three index entries of a batch, alone or packed."""
    by_time, raw = by_time_of(sound)
    key, body = by_blob_of(sound)
    by_blob = TimeEntry(at_ns=by_time.at_ns, key=key, body=body)
    read = await store.get(key)
    alone = None
    if isinstance(read, Found):
        alone = FoundEntry(
            info=read.info,
            sha256=digest_of(read.body),
            right=read.body == encode_reference(sound.key),
        )
    return [
        _entry(ObjectRole.BY_TIME, by_time, await find_entry(store, by_time)),
        _entry(ObjectRole.BY_BLOB, by_blob, alone or await find_packed(store, raw)),
        _entry(ObjectRole.RAW_BY_TIME, raw, await find_entry(store, raw)),
    ]


async def other_object(store: ObjectStore, role: ObjectRole, key: str) -> StoredObject:
    """Return a work list, a hold record or a quarantine manifest; its bytes are not compared."""
    read = await store.get(ObjectKey(key))
    if not isinstance(read, Found):
        return _missing(role, key)
    return _stored(role, key, read.info, sha256=digest_of(read.body), right=None)


def _entry(role: ObjectRole, entry: TimeEntry, found: FoundEntry | None) -> StoredObject:
    if found is None:
        return _missing(role, entry.key)
    packed = found.info.key if found.info.key != entry.key else None
    return _stored(
        role,
        entry.key,
        found.info,
        sha256=found.sha256,
        right=found.right,
        packed_in=packed,
    )


def _stored(
    role: ObjectRole,
    key: str,
    info: ObjectInfo,
    *,
    sha256: str | None,
    right: bool | None,
    packed_in: str | None = None,
) -> StoredObject:
    return StoredObject(
        role=role,
        key=key,
        present=True,
        proof=_WRONG if right is False else _PROOFS[role],
        right=right,
        packed_in=packed_in,
        size_bytes=info.size_bytes,
        sha256=sha256,
        last_modified_unix_ns=info.last_modified_ns,
    )


def _missing(role: ObjectRole, key: str) -> StoredObject:
    return StoredObject(role=role, key=key, present=False, proof="It does not exist.")


_WRONG: Final = "Its bytes are not those that it should have."
_PROOFS: Final = {
    ObjectRole.MANIFEST: (
        "The store allows one create of this key, so these bytes decide the identity permanently."
    ),
    ObjectRole.BLOB: "Its sha256 is the one that the manifest names.",
    ObjectRole.BY_TIME: "The entry has exactly the bytes of the manifest.",
    ObjectRole.BY_BLOB: "It names the manifest, so garbage collection keeps the blob.",
    ObjectRole.RAW_BY_TIME: "It names the manifest for the blob of this hour.",
    ObjectRole.WORK_LIST: "It contains the manifest for the consumer of the queue.",
    ObjectRole.HOLD_RECORD: "It states why the batch is not enqueued.",
    ObjectRole.QUARANTINE: "It names the bytes that were refused; the accepted ones are unchanged.",
}
