"""What could not be enqueued, and why: one record per accepted or quarantine key.

`reconciler/v1/unhealthy/<sha256 of the key, hex>.json`. A mark never stops anything and is never
the reason to skip: every pass looks again, and a batch that has healed is enqueued and its mark
removed.

Looks at one accepted manifest and its blob: enqueueable, or held back and why.
"""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import RECONCILER, digest_of
from sluice_protocol.manifests import (
    AcceptedManifest,
    decode_accepted,
    decode_record,
    encode_record,
)
from sluice_protocol.outcomes import Found, NotFound, ObjectInfo
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_store.port import ObjectStore

UNHEALTHY: Final = f"{RECONCILER}unhealthy/"


class HoldReason(StrEnum):
    """Why a batch is held back."""

    BLOB_MISSING = "blob_missing"
    BLOB_CORRUPT = "blob_corrupt"
    INVALID_MANIFEST = "invalid_manifest"
    FOREIGN_KEY = "foreign_key"
    INVALID_BLOB_KEY = "invalid_blob_key"


class HoldRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One object that could not be enqueued.

    Attributes:
        key: The accepted or quarantine key.
        reason: Why.
        detail: What was found.
        seen_at_unix_ns: The store's clock when it was first seen so.
    """

    schema: Literal["sluice.reconciler_mark.v1"] = "sluice.reconciler_mark.v1"
    key: str
    reason: HoldReason
    detail: str
    seen_at_unix_ns: int


def hold_record_key(key: str) -> ObjectKey:
    """Gives where the mark of an object stands."""
    return ObjectKey(f"{UNHEALTHY}{hashlib.sha256(key.encode()).hexdigest()}.json")


async def put_hold_record(store: ObjectStore, mark: HoldRecord) -> None:
    """Writes a mark where none stands; best effort, the next pass writes it again.

    Raises:
        StoreError: The store refused.
    """
    await store.create(hold_record_key(mark.key), encode_record(mark))


async def delete_hold_record(store: ObjectStore, key: str) -> None:
    """Removes the mark of an object that has healed.

    Raises:
        StoreError: The store refused.
    """
    place = hold_record_key(key)
    match await store.head(place):
        case ObjectInfo(incarnation=incarnation) if incarnation is not None:
            await store.delete(place, incarnation)
        case ObjectInfo() | NotFound():
            return


async def list_hold_records(store: ObjectStore) -> AsyncIterator[HoldRecord]:
    """Reads every mark; one that cannot be read is left out.

    Raises:
        StoreError: The store did not answer.
    """
    async for page in store.list(UNHEALTHY):
        for listed in page.objects:
            match await store.get(listed.key):
                case NotFound():
                    continue
                case Found(body=body):
                    try:
                        yield decode_record(listed.key, body, HoldRecord)
                    except InvalidRecord:
                        continue


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBatch:
    """A manifest whose blob is there with the right bytes.

    Attributes:
        key: The accepted key.
        manifest: The manifest.
        body: Its exact bytes.
        date_ns: The store's clock.
    """

    key: ObjectKey
    manifest: AcceptedManifest
    body: bytes
    date_ns: UnixNs


async def verify_batch(
    store: ObjectStore, key: ObjectKey, *, full: bool = False
) -> VerifiedBatch | HoldRecord | None:
    """Reads a manifest and proves its blob; None when the manifest itself is not there.

    The store's own checksum is proof; where it holds none, or `full` asks for it, the blob is read
    and hashed.

    Raises:
        StoreError: The store did not answer.
    """
    match await store.get(key):
        case NotFound():
            return None
        case Found(info=info, body=body):
            pass
    try:
        manifest = decode_accepted(key, body)
    except InvalidRecord as error:
        return _mark(key, HoldReason.INVALID_MANIFEST, error.reason, info.date_ns)
    wrong = await _blob_wrong(store, manifest, full=full)
    if wrong is not None:
        return _mark(key, *wrong, info.date_ns)
    return VerifiedBatch(key=key, manifest=manifest, body=body, date_ns=info.date_ns)


def _mark(key: str, reason: HoldReason, detail: str, at_ns: UnixNs) -> HoldRecord:
    return HoldRecord(key=key, reason=reason, detail=detail[:500], seen_at_unix_ns=at_ns)


async def _blob_wrong(
    store: ObjectStore, manifest: AcceptedManifest, *, full: bool
) -> tuple[HoldReason, str] | None:
    """Tells what is wrong with the blob, or None."""
    blob = ObjectKey(manifest.raw_blob_key)
    match await store.head(blob):
        case NotFound():
            return HoldReason.BLOB_MISSING, f"no blob at {blob}"
        case ObjectInfo(size_bytes=size) if size != manifest.frame_bytes:
            return HoldReason.BLOB_CORRUPT, f"blob is {size} bytes, not {manifest.frame_bytes}"
        case ObjectInfo(sha256=sha256) if sha256 is not None and not full:
            right = sha256 == manifest.frame_sha256
            return (
                None if right else (HoldReason.BLOB_CORRUPT, f"checksum of the store is {sha256}")
            )
        case ObjectInfo():
            return await _read_wrong(store, blob, manifest)


async def _read_wrong(
    store: ObjectStore, blob: ObjectKey, manifest: AcceptedManifest
) -> tuple[HoldReason, str] | None:
    match await store.get(blob):
        case NotFound():
            return HoldReason.BLOB_MISSING, f"no blob at {blob}"
        case Found(body=body):
            found = digest_of(body)
            right = found == manifest.frame_sha256
            return None if right else (HoldReason.BLOB_CORRUPT, f"bytes hash to {found}")
