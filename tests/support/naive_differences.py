"""The reference comparison of the derived indexes: two requests or more for every fact.

It looks up each entry of each source, and the source of each entry. The product reads everything
once instead; tests compare both.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from sluice_protocol.errors import InvalidFrame, InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED,
    ACCEPTED_BY_BLOB,
    ACCEPTED_BY_TIME,
    QUARANTINE,
    QUARANTINE_BY_BLOB,
    RAW_BLOBS_BY_TIME,
    accepted_key,
    digest_of,
    parse_accepted_key,
    parse_pack_key,
    parse_quarantine_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    BlobReference,
    decode_accepted,
    decode_record,
)
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import ObjectKey
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.differences import DerivedDifference, DifferenceKind, SourceManifest
from sluice_reconciler.indexes import (
    PackIndex,
    TimeEntry,
    by_blob_of,
    by_time_of,
    quarantine_entry,
    unpack,
)
from sluice_store.port import ListedObject, ObjectStore

INDEX_ROOTS: Final = (ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB, RAW_BLOBS_BY_TIME, QUARANTINE_BY_BLOB)


class NaiveComparison:
    """The comparison of the derived indexes of one store with their sources, in both directions."""

    def __init__(self, store: ObjectStore, requests: RequestLimit) -> None:
        self._store = store
        self._requests = requests
        self._packed = PackIndex(store)

    async def run(self) -> AsyncIterator[DerivedDifference]:
        """Return every index entry that is missing, extra, different or unreadable.

        Raises:
            StoreError: The store is unreachable or refused a request; the differences returned so
                far are correct.
        """
        for prefix, check in (
            (ACCEPTED, self._check_accepted),
            (QUARANTINE, self._check_quarantine),
            *((root, self._check_derived) for root in INDEX_ROOTS),
        ):
            async for difference in self._each(prefix, check):
                yield difference

    async def _each(
        self, prefix: str, check: Callable[[ListedObject], Awaitable[Sequence[DerivedDifference]]]
    ) -> AsyncIterator[DerivedDifference]:
        async for page in self._store.list(prefix):
            for found in await self._requests.each(page.objects, check):
                for difference in found:
                    yield difference

    async def _check_accepted(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        """Compare the three index entries of one accepted manifest."""
        batch = await _read_source(self._store, listed.key)
        if batch is None:
            return ()
        by_time, raw = by_time_of(batch)
        found = [
            await self._compare_entry(by_time),
            await self._compare_reference(batch),
            await self._compare_entry(raw, any_body=True),
        ]
        return [one for one in found if one is not None]

    async def _check_quarantine(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        try:
            who, submitted = parse_quarantine_key(listed.key)
        except InvalidRecord:
            return ()
        entry = quarantine_entry(listed.key, who, submitted)
        found = await _compare_object(self._store, *entry)
        return (found,) if found is not None else ()

    async def _compare_reference(self, batch: SourceManifest) -> DerivedDifference | None:
        """Compare a reverse reference with what exists; None if equal or if it is packed.

        The packed entry of the raw blob is a reverse reference too (ADR 27).

        Raises:
            StoreError: The store is unreachable or refused a request.
        """
        found = await _compare_object(self._store, *by_blob_of(batch))
        if found is None or found.wrong is not DifferenceKind.MISSING:
            return found
        return None if await self._packed.digest(by_time_of(batch)[1].key) is not None else found

    async def _compare_entry(
        self, entry: TimeEntry, *, any_body: bool = False
    ) -> DerivedDifference | None:
        """Compare a by-time entry, alone or packed, with what exists; return None if equal.

        Args:
            entry: The entry as its source defines it.
            any_body: Accept any bytes. Two batches with the same blob share one raw-blob entry, so
                its body may name either of them.

        Raises:
            StoreError: The store is unreachable or refused a request.
        """
        body = None if any_body else entry.body
        found = await _compare_object(self._store, entry.key, body)
        if found is None or found.wrong is not DifferenceKind.MISSING:
            return found
        digest = await self._packed.digest(entry.key)
        packed = digest is not None and (body is None or digest == digest_of(body))
        return None if packed else found

    async def _check_derived(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        """Check that a derived object, or each entry of a packed object, has a source."""
        match await self._store.get(listed.key):
            case NotFound():
                return ()
            case Found(body=body):
                pass
        try:
            entries = unpack(listed.key, body)
        except InvalidRecord as error:
            unreadable = DifferenceKind.UNREADABLE
            return (DerivedDifference(key=listed.key, wrong=unreadable, detail=error.reason),)
        pack = listed.key if parse_pack_key(listed.key) is not None else None
        found = [await self._check_source(*entry, pack) for entry in entries]
        return [one for one in found if one is not None]

    async def _check_source(
        self, key: ObjectKey, body: bytes, pack: ObjectKey | None
    ) -> DerivedDifference | None:
        try:
            source = _source_of(key, body)
            expected = await self._expected_body(key, source)
        except (InvalidRecord, InvalidFrame) as error:
            wrong, detail = DifferenceKind.UNREADABLE, error.reason
            return DerivedDifference(key=key, wrong=wrong, detail=detail, pack=pack)
        if expected is None:
            return DerivedDifference(key=key, wrong=DifferenceKind.EXTRA, detail=source, pack=pack)
        # The body of an entry that is not packed is compared when its source is checked.
        if pack is not None and expected != body:
            wrong = DifferenceKind.DIFFERENT
            return DerivedDifference(key=key, wrong=wrong, detail=source, pack=pack)
        return None

    async def _expected_body(self, key: ObjectKey, source: ObjectKey) -> bytes | None:
        """Return the body that a source defines for this key; None without such a source."""
        try:
            (parse_quarantine_key if source.startswith(QUARANTINE) else parse_accepted_key)(source)
        except InvalidRecord:
            return None  # no manifest has such a key
        match await self._store.get(source):
            case NotFound():
                return None
            case Found(body=body):
                pass
        if source.startswith(QUARANTINE):
            who, submitted = parse_quarantine_key(source)
            place, reference = quarantine_entry(source, who, submitted)
            return reference if place == key else None
        manifest = decode_accepted(source, body)
        batch = SourceManifest(key=source, manifest=manifest, body=body)
        entries = {one.key: one.body for one in by_time_of(batch)}
        return dict([*entries.items(), by_blob_of(batch)]).get(key)


async def _read_source(store: ObjectStore, key: ObjectKey) -> SourceManifest | None:
    """Read an accepted manifest without its blob; return None if it is missing or malformed.

    Nothing can be derived from a malformed manifest; the full pass writes a hold record for it.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    match await store.get(key):
        case NotFound():
            return None
        case Found(body=body):
            pass
    try:
        manifest = decode_accepted(key, body)
    except InvalidRecord:
        return None
    return SourceManifest(key=key, manifest=manifest, body=body)


async def _compare_object(
    store: ObjectStore, key: ObjectKey, body: bytes | None
) -> DerivedDifference | None:
    """Compare an object with the body it should have, None for any; return None if equal.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    match await store.get(key):
        case NotFound():
            return DerivedDifference(key=key, wrong=DifferenceKind.MISSING)
        case Found(body=found) if body is not None and found != body:
            return DerivedDifference(key=key, wrong=DifferenceKind.DIFFERENT)
        case Found():
            return None


def _source_of(key: ObjectKey, body: bytes) -> ObjectKey:
    """Return the manifest that a derived object names."""
    if key.startswith(ACCEPTED_BY_TIME):
        return accepted_key(decode_record(key, body, AcceptedManifest).identity)
    return ObjectKey(decode_record(key, body, BlobReference).manifest_key)
