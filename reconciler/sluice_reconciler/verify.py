"""Verifying one accepted batch: it can be enqueued, or it is held, with a hold record.

A hold record is `reconciler/v1/unhealthy/<sha256 of the held key, hex>.json`. It never stops a
batch and is never a reason to skip one: every pass verifies a held batch again. Once the batch is
valid, it is enqueued and its hold record is deleted.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_protocol.discovery import UNHEALTHY, HoldReason, HoldRecord, hold_record_key
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import (
    AcceptedManifest,
    check_accepted,
    decode_accepted,
    decode_record,
    encode_record,
)
from sluice_protocol.outcomes import Applied, Exists, Found, NotFound, ObjectInfo
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_reconciler.concurrency import RequestLimit
from sluice_store.bulk import BulkStore
from sluice_store.deletion import delete_current_version
from sluice_store.port import ObjectStore

log = structlog.get_logger()

DETAIL_CHARS_MAX: Final = 500


async def list_hold_records(
    store: ObjectStore, damaged: set[ObjectKey] | None = None
) -> AsyncIterator[HoldRecord]:
    """Read every hold record, except unreadable ones.

    Args:
        store: The store.
        damaged: The keys of unreadable records are added.

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
                        if damaged is not None:
                            damaged.add(listed.key)


class HoldRecords:
    """The hold records of one store, as this process last listed or wrote them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: set[ObjectKey] = set()
        self.unstored = 0
        """Held objects whose record may not exist, since the last refresh."""
        self.damaged: set[ObjectKey] = set()
        """Records that are unreadable; they are written again if their object is still held."""

    def __len__(self) -> int:
        return len(self._known)

    async def refresh(self) -> UnixNs:
        """List the hold records again; return the store's clock in the first response.

        Raises:
            StoreError: The store is unreachable or refused the request.
        """
        date_ns = await self.read()
        self.unstored = 0
        return date_ns

    async def read(self) -> UnixNs:
        """List the hold records again, and keep `unstored`, which belongs to the full pass.

        Raises:
            StoreError: The store is unreachable or refused the request.
        """
        pages = [page async for page in self._store.list(UNHEALTHY)]
        self._known = {listed.key for page in pages for listed in page.objects}
        return pages[0].date_ns

    async def hold(self, record: HoldRecord) -> bool:
        """Write a hold record if none exists; if that fails, the next pass writes it.

        Returns:
            Whether the record exists.

        Raises:
            StoreError: The store is unreachable or refused the request.
        """
        place = hold_record_key(record.key)
        if place not in self._known or place in self.damaged:
            log.error("batch_held", key=record.key, reason=record.reason, detail=record.detail)
            put = self._store.overwrite if place in self.damaged else self._store.create
            match await put(place, encode_record(record)):
                case Applied() | Exists():
                    self._known.add(place)
                    self.damaged.discard(place)
                case _:
                    self.unstored += 1
                    return False
        return True

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
        await delete_current_version(self._store, place)
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


class BulkVerifier:
    """Verifies many batches by a few calls, on a store with calls for many objects.

    It returns only valid batches. All others are left to `verify_batch`, so that one place decides
    which batch is held, and why. As there, the manifest is read before the blob.
    """

    def __init__(self, store: BulkStore, requests: RequestLimit) -> None:
        self._store = store
        self._requests = requests

    async def verify(
        self, keys: Sequence[ObjectKey], named: Mapping[ObjectKey, AcceptedManifest]
    ) -> dict[ObjectKey, VerifiedBatch]:
        """Return the batches whose manifest is valid and whose blob has the right checksum.

        Args:
            keys: Accepted keys.
            named: Manifests that journals name. The store's checksum must show that the stored
                manifest has the same bytes; otherwise the manifest is read.

        Raises:
            StoreError: The store is unreachable or refused a request.
        """
        found = await self._compare([key for key in keys if key in named], named)
        found |= await self._read([key for key in keys if key not in found])
        batches = list(found.values())
        blobs = [ObjectKey(one.manifest.raw_blob_key) for one in batches]
        infos = await self._requests.in_spans(blobs, self._store.head_all)
        return {
            one.key: one
            for one, info in zip(batches, infos, strict=True)
            if isinstance(info, ObjectInfo)
            and info.size_bytes == one.manifest.frame_bytes
            and info.sha256 == one.manifest.frame_sha256
        }

    async def _compare(
        self, keys: Sequence[ObjectKey], named: Mapping[ObjectKey, AcceptedManifest]
    ) -> dict[ObjectKey, VerifiedBatch]:
        """Return the batches whose stored manifest has the bytes that a journal names."""
        infos = await self._requests.in_spans(keys, self._store.head_all)
        found: dict[ObjectKey, VerifiedBatch] = {}
        for key, info in zip(keys, infos, strict=True):
            body = encode_record(named[key])
            if isinstance(info, ObjectInfo) and info.sha256 == digest_of(body):
                one = _valid_batch(key, named[key], body, info.date_ns)
                if one is not None:
                    found[key] = one
        return found

    async def _read(self, keys: Sequence[ObjectKey]) -> dict[ObjectKey, VerifiedBatch]:
        """Return the batches whose stored manifest is valid."""
        reads = await self._requests.in_spans(keys, self._store.get_all)
        found: dict[ObjectKey, VerifiedBatch] = {}
        for key, read in zip(keys, reads, strict=True):
            if isinstance(read, Found):
                with suppress(InvalidRecord):
                    manifest = decode_accepted(key, read.body)
                    found[key] = VerifiedBatch(
                        key=key, manifest=manifest, body=read.body, date_ns=read.info.date_ns
                    )
        return found


def _valid_batch(
    key: ObjectKey, manifest: AcceptedManifest, body: bytes, date_ns: UnixNs
) -> VerifiedBatch | None:
    try:
        check_accepted(key, manifest)
    except InvalidRecord:
        return None
    return VerifiedBatch(key=key, manifest=manifest, body=body, date_ns=date_ns)


async def verify_batch(
    store: ObjectStore,
    key: ObjectKey,
    *,
    full: bool = False,
    named: AcceptedManifest | None = None,
) -> VerifiedBatch | HoldRecord | None:
    """Read a manifest and verify its blob; return None if there is no manifest.

    The store's own checksum proves the blob. If the store has none, or if `full` is set, the blob
    is read and hashed.

    Args:
        store: The store.
        key: The accepted key.
        full: Whether to read and hash the blob.
        named: The manifest as a journal names it. If the store's checksum shows that the stored
            manifest has the same bytes, they are not read again.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    if named is not None:
        copied = await _verify_named(store, key, named, full=full)
        if copied is not None:
            return copied
    match await store.get(key):
        case NotFound(date_ns=date_ns):
            if named is None:
                return None
            detail = "a journal names this batch, so it was acknowledged, and no manifest exists"
            return _hold_record(key, HoldReason.MANIFEST_MISSING, detail, date_ns)
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


async def _verify_named(
    store: ObjectStore, key: ObjectKey, named: AcceptedManifest, *, full: bool
) -> VerifiedBatch | HoldRecord | None:
    """Verify a batch whose manifest is known; return None if its bytes must be read."""
    body = encode_record(named)
    info = await store.head(key)
    if not isinstance(info, ObjectInfo) or info.sha256 != digest_of(body):
        return None
    valid = _valid_batch(key, named, body, info.date_ns)
    if valid is None:
        return None
    defect = await _blob_defect(store, named, full=full)
    return valid if defect is None else _hold_record(key, *defect, info.date_ns)


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
