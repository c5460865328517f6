"""Comparing single sources and index entries with each other; nothing is written here."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluice_protocol.errors import InvalidFrame, InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED_BY_TIME,
    QUARANTINE,
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
from sluice_reconciler.indexes import (
    PackIndex,
    TimeEntry,
    by_blob_of,
    by_time_of,
    quarantine_entry,
    unpack,
)
from sluice_store.port import ObjectStore


class DifferenceKind(StrEnum):
    """How a derived object differs from what its sources define."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedDifference:
    """One derived object that differs from what its sources define.

    Attributes:
        key: The object, or the key that a packed entry would have alone.
        pack: The packed object that contains the entry, if it is packed.
        source: The manifest that defines the object, if it was compared with its manifest.
    """

    key: ObjectKey
    wrong: DifferenceKind
    detail: str = ""
    pack: ObjectKey | None = None
    source: ObjectKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceManifest:
    """An accepted manifest that agrees with its key; its blob was not read."""

    key: ObjectKey
    manifest: AcceptedManifest
    body: bytes


def parse_source(key: ObjectKey, body: bytes) -> SourceManifest | None:
    """Decode an accepted manifest; return None if it is malformed.

    Nothing can be derived from a malformed manifest; the full pass writes a hold record for it.
    """
    try:
        return SourceManifest(key=key, manifest=decode_accepted(key, body), body=body)
    except InvalidRecord:
        return None


async def read_source(store: ObjectStore, key: ObjectKey) -> SourceManifest | None:
    """Read an accepted manifest; return None if it is missing or malformed."""
    match await store.get(key):
        case NotFound():
            return None
        case Found(body=body):
            return parse_source(key, body)


async def compare_object(
    store: ObjectStore, key: ObjectKey, body: bytes | None, source: ObjectKey | None = None
) -> DerivedDifference | None:
    """Compare an object with the body it should have, None for any; return None if equal."""
    match await store.get(key):
        case NotFound():
            return DerivedDifference(key=key, wrong=DifferenceKind.MISSING, source=source)
        case Found(body=found) if body is not None and found != body:
            return DerivedDifference(key=key, wrong=DifferenceKind.DIFFERENT, source=source)
        case Found():
            return None


class EntryComparison:
    """The comparison of single sources and entries, each with a few requests.

    Create a new one for each run: it remembers the packed entries that it read.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._packed = PackIndex(store)

    async def compare_accepted(self, batch: SourceManifest) -> Sequence[DerivedDifference]:
        """Compare the three index entries of one accepted manifest with what exists."""
        by_time, raw = by_time_of(batch)
        found = [
            await self.compare_entry(batch, by_time),
            await self.compare_reference(batch),
            await self.compare_entry(batch, raw, any_body=True),
        ]
        return [one for one in found if one is not None]

    async def compare_quarantine(self, key: ObjectKey) -> Sequence[DerivedDifference]:
        """Compare the reverse reference of one quarantine manifest with what exists."""
        try:
            who, submitted = parse_quarantine_key(key)
        except InvalidRecord:
            return ()
        entry = quarantine_entry(key, who, submitted)
        found = await compare_object(self._store, *entry, source=key)
        return (found,) if found is not None else ()

    async def compare_reference(self, batch: SourceManifest) -> DerivedDifference | None:
        """Compare a reverse reference with what exists; None if equal or if it is packed.

        The packed entry of the raw blob is a reverse reference too (ADR 27).
        """
        found = await compare_object(self._store, *by_blob_of(batch), source=batch.key)
        if found is None or found.wrong is not DifferenceKind.MISSING:
            return found
        return None if await self._packed.digest(by_time_of(batch)[1].key) is not None else found

    async def compare_entry(
        self, batch: SourceManifest, entry: TimeEntry, *, any_body: bool = False
    ) -> DerivedDifference | None:
        """Compare a by-time entry, alone or packed, with what exists; return None if equal.

        With `any_body`, accept any bytes: two batches with the same blob share one raw-blob entry,
        so its body may name either of them.
        """
        body = None if any_body else entry.body
        found = await compare_object(self._store, entry.key, body, batch.key)
        if found is None or found.wrong is not DifferenceKind.MISSING:
            return found
        digest = await self._packed.digest(entry.key)
        packed = digest is not None and (body is None or digest == digest_of(body))
        return None if packed else found

    async def compare_derived(self, key: ObjectKey) -> Sequence[DerivedDifference]:
        """Check that a derived object, or each entry of a packed object, has a source."""
        match await self._store.get(key):
            case NotFound():
                return ()
            case Found(body=body):
                pass
        try:
            entries = unpack(key, body)
        except InvalidRecord as error:
            return (unreadable(key, error),)
        pack = key if parse_pack_key(key) is not None else None
        found = [await self.compare_source(*entry, pack) for entry in entries]
        return [one for one in found if one is not None]

    async def compare_source(
        self, key: ObjectKey, body: bytes, pack: ObjectKey | None
    ) -> DerivedDifference | None:
        """Check that an entry that was read has a source; return None if it has.

        `key` is that of the entry alone, and `pack` the object that contains it.
        """
        try:
            source = _source_of(key, body)
            expected = await self._expected_body(key, source)
        except InvalidRecord as error:
            return unreadable(key, error, pack)
        if expected is None:
            return DerivedDifference(key=key, wrong=DifferenceKind.EXTRA, detail=source, pack=pack)
        # The body of an entry that is not packed is compared when its source is checked.
        if pack is not None and expected != body:
            wrong = DifferenceKind.DIFFERENT
            return DerivedDifference(key=key, wrong=wrong, detail=source, pack=pack)
        return None

    async def _expected_body(self, key: ObjectKey, source: ObjectKey) -> bytes | None:
        """Return the body that a source defines for this key; None without such a source."""
        if not _is_manifest_key(source):  # a store may refuse to read it, for example `../x`
            return None
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


def unreadable(
    key: ObjectKey, error: InvalidRecord, pack: ObjectKey | None = None
) -> DerivedDifference:
    """Return the difference for a derived object whose bytes cannot be decoded."""
    wrong = DifferenceKind.UNREADABLE
    return DerivedDifference(key=key, wrong=wrong, detail=error.reason, pack=pack)


def _source_of(key: ObjectKey, body: bytes) -> ObjectKey:
    """Return the manifest that a derived object names."""
    if key.startswith(ACCEPTED_BY_TIME):
        try:
            return accepted_key(decode_record(key, body, AcceptedManifest).identity)
        except InvalidFrame as error:
            raise InvalidRecord(key, error.reason) from error
    return ObjectKey(decode_record(key, body, BlobReference).manifest_key)


def _is_manifest_key(key: str) -> bool:
    try:
        if key.startswith(QUARANTINE):
            parse_quarantine_key(key)
        else:
            parse_accepted_key(key)
    except InvalidRecord:
        return False
    return True
