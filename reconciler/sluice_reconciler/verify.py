"""Verifying one accepted batch: it can be enqueued, or it is held, with a hold record.

A hold record is `reconciler/v1/unhealthy/<sha256 of the held key, hex>.json`. It never stops a
batch and is never a reason to skip one: every pass verifies a held batch again. Once the batch is
valid, it is enqueued and its hold record is deleted.
"""

import hashlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import msgspec
import structlog

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

log = structlog.get_logger()

UNHEALTHY: Final = f"{RECONCILER}unhealthy/"
DETAIL_CHARS_MAX: Final = 500


class HoldReason(StrEnum):
    """Why a batch is held."""

    BLOB_MISSING = "blob_missing"
    BLOB_CORRUPT = "blob_corrupt"
    INVALID_MANIFEST = "invalid_manifest"
    FOREIGN_KEY = "foreign_key"


class HoldRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One object that could not be enqueued.

    Attributes:
        key: The accepted or quarantine key.
        reason: Why it is held.
        detail: What was found.
        seen_at_unix_ns: When it was first found so, by the store's clock.
    """

    schema: Literal["sluice.reconciler_mark.v1"] = "sluice.reconciler_mark.v1"
    key: str
    reason: HoldReason
    detail: str
    seen_at_unix_ns: int


def hold_record_key(key: str) -> ObjectKey:
    """Return the key of the hold record of an object."""
    return ObjectKey(f"{UNHEALTHY}{hashlib.sha256(key.encode()).hexdigest()}.json")


async def list_hold_records(store: ObjectStore) -> AsyncIterator[HoldRecord]:
    """Read every hold record, except unreadable ones.

    Raises:
        StoreError: The store is unreachable or refused the request.
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


class HoldRecords:
    """The hold records of one store, as this process last listed or wrote them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: set[ObjectKey] = set()

    def __len__(self) -> int:
        return len(self._known)

    async def refresh(self) -> None:
        """List the hold records again.

        Raises:
            StoreError: The store is unreachable or refused the request.
        """
        self._known = {
            listed.key async for page in self._store.list(UNHEALTHY) for listed in page.objects
        }

    async def hold(self, record: HoldRecord) -> None:
        """Write a hold record if none exists; if that fails, the next pass writes it.

        Raises:
            StoreError: The store is unreachable or refused the request.
        """
        place = hold_record_key(record.key)
        if place not in self._known:
            log.error("batch_held", key=record.key, reason=record.reason, detail=record.detail)
            await self._store.create(place, encode_record(record))
            self._known.add(place)

    def held(self, keys: Iterable[ObjectKey]) -> list[ObjectKey]:
        """Return the keys that have a hold record."""
        # Almost always nothing is held: then no key is hashed.
        return [key for key in keys if hold_record_key(key) in self._known] if self._known else []

    async def release(self, key: ObjectKey) -> None:
        """Delete the hold record of a batch that is valid now.

        Raises:
            StoreError: The store is unreachable or refused the request.
        """
        place = hold_record_key(key)
        log.warning("batch_released", key=key)
        match await self._store.head(place):
            case ObjectInfo(incarnation=incarnation) if incarnation is not None:
                await self._store.delete(place, incarnation)
            case ObjectInfo() | NotFound():
                pass
        self._known.discard(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBatch:
    """A batch whose manifest is valid and whose blob exists with the right bytes.

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
    """Read a manifest and verify its blob; return None if there is no manifest.

    The store's own checksum proves the blob. If the store has none, or if `full` is set, the blob
    is read and hashed.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    match await store.get(key):
        case NotFound():
            return None
        case Found(info=info, body=body):
            pass
    try:
        manifest = decode_accepted(key, body)
    except InvalidRecord as error:
        return _hold_record(key, HoldReason.INVALID_MANIFEST, error.reason, info.date_ns)
    defect = await _blob_defect(store, manifest, full=full)
    if defect is not None:
        return _hold_record(key, *defect, info.date_ns)
    return VerifiedBatch(key=key, manifest=manifest, body=body, date_ns=info.date_ns)


def _hold_record(key: str, reason: HoldReason, detail: str, at_ns: UnixNs) -> HoldRecord:
    return HoldRecord(
        key=key, reason=reason, detail=detail[:DETAIL_CHARS_MAX], seen_at_unix_ns=at_ns
    )


async def _blob_defect(
    store: ObjectStore, manifest: AcceptedManifest, *, full: bool
) -> tuple[HoldReason, str] | None:
    """Return what is wrong with the blob, or None."""
    blob = ObjectKey(manifest.raw_blob_key)
    match await store.head(blob):
        case NotFound():
            return HoldReason.BLOB_MISSING, f"no blob at {blob}"
        case ObjectInfo(size_bytes=size) if size != manifest.frame_bytes:
            return HoldReason.BLOB_CORRUPT, f"blob is {size} bytes, not {manifest.frame_bytes}"
        case ObjectInfo(sha256=sha256) if sha256 is not None and not full:
            if sha256 == manifest.frame_sha256:
                return None
            return HoldReason.BLOB_CORRUPT, f"checksum of the store is {sha256}"
        case ObjectInfo():
            return await _blob_bytes_defect(store, blob, manifest)


async def _blob_bytes_defect(
    store: ObjectStore, blob: ObjectKey, manifest: AcceptedManifest
) -> tuple[HoldReason, str] | None:
    match await store.get(blob):
        case NotFound():
            return HoldReason.BLOB_MISSING, f"no blob at {blob}"
        case Found(body=body):
            found = digest_of(body)
            if found == manifest.frame_sha256:
                return None
            return HoldReason.BLOB_CORRUPT, f"bytes hash to {found}"
