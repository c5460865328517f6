"""Verifying accepted batches: each can be enqueued, or it is held, with a hold record.

A hold record is `reconciler/v1/held/<sha256 of the held key, hex>.json`. It never stops a
batch and is never a reason to skip one: every pass verifies a held batch again. Once the batch is
valid, it is enqueued and its hold record is deleted.
"""

import dataclasses
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import structlog

from sluice_protocol.errors import InvalidRecord, StoreError
from sluice_protocol.journals import HOLD_RECORDS, HoldReason, HoldRecord, hold_record_key
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import (
    AcceptedManifest,
    check_accepted,
    decode_accepted,
    decode_record,
    encode_record,
)
from sluice_protocol.outcomes import (
    Applied,
    Exists,
    Found,
    GetOutcome,
    HeadOutcome,
    NotFound,
    ObjectInfo,
)
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_reconciler.concurrency import RequestLimit
from sluice_store.port import ObjectStore
from sluice_store.retry import delete_current_version
from sluice_store.stored_expiry import TombstoneReader

log = structlog.get_logger()

DETAIL_CHARS_MAX: Final = 500


async def list_hold_records(
    store: ObjectStore, damaged: set[ObjectKey] | None = None
) -> AsyncIterator[HoldRecord]:
    """Read every hold record; the keys of unreadable ones are added to `damaged`."""
    async for page in store.list(HOLD_RECORDS):
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
        """List the hold records again; return the store's clock in the first response."""
        date_ns = await self.read()
        self.unstored = 0
        return date_ns

    async def read(self) -> UnixNs:
        """List the hold records again, and keep `unstored`, which belongs to the full pass."""
        pages = [page async for page in self._store.list(HOLD_RECORDS)]
        self._known = {listed.key for page in pages for listed in page.objects}
        return pages[0].date_ns

    async def hold(self, record: HoldRecord) -> bool:
        """Write a hold record if none exists.

        Return False if that is unconfirmed; the next pass writes it then.
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
        """Delete the hold record of a batch that is valid now."""
        place = hold_record_key(key)
        log.warning("batch_released", key=key)
        await delete_current_version(self._store, place)
        self._known.discard(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceManifest:
    """An accepted manifest that agrees with its key, and its exact bytes; no blob was read."""

    key: ObjectKey
    manifest: AcceptedManifest
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBatch(SourceManifest):
    """A batch whose manifest is valid and whose blob exists with the right bytes.

    If it has `expired`, a tombstone names it and the blob does not exist.
    """

    date_ns: UnixNs
    expired: bool = False


CheckedBatch = VerifiedBatch | HoldRecord | StoreError | None
"""A batch that was verified: valid, held, unreadable now, or without a manifest."""


async def verify_batches(
    store: ObjectStore,
    keys: Sequence[ObjectKey],
    requests: RequestLimit,
    *,
    named: Mapping[ObjectKey, AcceptedManifest] = MappingProxyType({}),
) -> list[CheckedBatch]:
    """Read manifests, and verify that their blobs exist with the right bytes.

    Every manifest is read before its blob. The store's own checksum proves a blob. If the store has
    none, the blob is read and hashed. `requests` bounds the blobs that are read concurrently.
    Manifests in `named` are hints from journals: if the store's checksum shows that the stored
    manifest has the same bytes, they are not read again. Return the result for each key, in order;
    None if there is no manifest and none is named.
    """
    checked = await _compare_named(store, [key for key in keys if key in named], named)
    checked |= await _read_manifests(store, [key for key in keys if key not in checked], named)
    await _check_blobs(store, checked, requests)
    return [checked[key] for key in keys]


async def _compare_named(
    store: ObjectStore, keys: Sequence[ObjectKey], named: Mapping[ObjectKey, AcceptedManifest]
) -> dict[ObjectKey, CheckedBatch]:
    """Return the batches whose stored manifest has the bytes that a journal names, and errors."""
    infos = await store.head_many(keys)
    checked: dict[ObjectKey, CheckedBatch] = {}
    for key, info in zip(keys, infos, strict=True):
        if isinstance(info, StoreError):
            checked[key] = info
            continue
        body = encode_record(named[key])
        if isinstance(info, ObjectInfo) and info.sha256 == digest_of(body):
            one = _valid_batch(key, named[key], body, info.date_ns)
            if one is not None:
                checked[key] = one
    return checked


async def _read_manifests(
    store: ObjectStore, keys: Sequence[ObjectKey], named: Mapping[ObjectKey, AcceptedManifest]
) -> dict[ObjectKey, CheckedBatch]:
    reads = await store.get_many(keys)
    return {
        key: read
        if isinstance(read, StoreError)
        else _read_manifest(key, read, is_named=key in named)
        for key, read in zip(keys, reads, strict=True)
    }


def _read_manifest(
    key: ObjectKey, read: GetOutcome, *, is_named: bool
) -> VerifiedBatch | HoldRecord | None:
    match read:
        case NotFound(date_ns=date_ns):
            if not is_named:
                return None
            detail = "a journal names this batch, so it was acknowledged, and no manifest exists"
            return _hold_record(key, HoldReason.MANIFEST_MISSING, detail, date_ns)
        case Found(info=info, body=body):
            try:
                manifest = decode_accepted(key, body)
            except InvalidRecord as error:
                return _hold_record(key, HoldReason.INVALID_MANIFEST, error.reason, info.date_ns)
            return VerifiedBatch(key=key, manifest=manifest, body=body, date_ns=info.date_ns)


async def _check_blobs(
    store: ObjectStore, checked: dict[ObjectKey, CheckedBatch], requests: RequestLimit
) -> None:
    """Replace each batch whose blob is missing, wrong or unreadable by a hold record or error.

    A missing blob of a batch that has expired is no defect.
    """
    batches = [one for one in checked.values() if isinstance(one, VerifiedBatch)]
    infos = await store.head_many([ObjectKey(one.manifest.raw_blob_key) for one in batches])
    tombstones = TombstoneReader(store)
    unproved: list[VerifiedBatch] = []
    for one, info in zip(batches, infos, strict=True):
        found = await _judge_blob(tombstones, one, info)
        if found is None:
            unproved.append(one)
        else:
            checked[one.key] = found

    async def read(one: VerifiedBatch) -> None:
        try:
            defect = await _blob_bytes_defect(store, one.manifest)
        except StoreError as error:
            checked[one.key] = error
            return
        if defect is not None:
            checked[one.key] = _hold_record(one.key, *defect, one.date_ns)

    await requests.each(unproved, read)


async def _judge_blob(
    tombstones: TombstoneReader, one: VerifiedBatch, info: HeadOutcome | StoreError
) -> CheckedBatch:
    """Return the result for a batch by the metadata of its blob; None if its bytes must be read."""
    if isinstance(info, StoreError):
        return info
    if isinstance(info, NotFound) and await tombstones.find(one.manifest) is not None:
        return dataclasses.replace(one, expired=True)
    defect = _blob_defect(info, one.manifest)
    if defect is not None:
        return _hold_record(one.key, *defect, one.date_ns)
    return None if isinstance(info, ObjectInfo) and info.sha256 is None else one


def _valid_batch(
    key: ObjectKey, manifest: AcceptedManifest, body: bytes, date_ns: UnixNs
) -> VerifiedBatch | None:
    try:
        check_accepted(key, manifest)
    except InvalidRecord:
        return None
    return VerifiedBatch(key=key, manifest=manifest, body=body, date_ns=date_ns)


def _hold_record(key: str, reason: HoldReason, detail: str, at_ns: UnixNs) -> HoldRecord:
    return HoldRecord(
        key=key, reason=reason, detail=detail[:DETAIL_CHARS_MAX], seen_at_unix_ns=at_ns
    )


def _blob_defect(info: HeadOutcome, manifest: AcceptedManifest) -> tuple[HoldReason, str] | None:
    """Return what the metadata of a blob show to be wrong with it, or None."""
    match info:
        case NotFound():
            return HoldReason.BLOB_MISSING, f"no blob at {manifest.raw_blob_key}"
        case ObjectInfo(size_bytes=size) if size != manifest.frame_bytes:
            return HoldReason.BLOB_CORRUPT, f"blob is {size} bytes, not {manifest.frame_bytes}"
        case ObjectInfo(sha256=sha256) if sha256 not in {None, manifest.frame_sha256}:
            return HoldReason.BLOB_CORRUPT, f"checksum of the store is {sha256}"
        case ObjectInfo():
            return None


async def _blob_bytes_defect(
    store: ObjectStore, manifest: AcceptedManifest
) -> tuple[HoldReason, str] | None:
    blob = ObjectKey(manifest.raw_blob_key)
    match await store.get(blob):
        case NotFound():
            return HoldReason.BLOB_MISSING, f"no blob at {blob}"
        case Found(body=body):
            found = digest_of(body)
            if found == manifest.frame_sha256:
                return None
            return HoldReason.BLOB_CORRUPT, f"bytes hash to {found}"
