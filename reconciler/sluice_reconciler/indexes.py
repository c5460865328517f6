"""The derived indexes of accepted and quarantined batches, and their comparison with the sources.

Every writer creates the same objects.

The by-time entries of batches that are processed together may be packed into one object per hour
(ADR 27). A packed index object contains lines of JSON, one per entry, in key order:
`{"entry":<the exact bytes of the entry>,"key":"<the key that it would have alone>"}`. Its name
contains the first and the last instant of its entries and ends in the hash of its bytes. An entry
may be in several packed objects and exist alone too; readers accept both forms.
"""

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

import msgspec

from sluice_protocol.errors import UNREADABLE_JSON, InvalidFrame, InvalidRecord, StoreError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED_BY_TIME,
    QUARANTINE,
    RAW_BLOBS_BY_TIME,
    PackSpan,
    accepted_by_blob_key,
    accepted_by_time_key,
    accepted_key,
    accepted_reference_key,
    digest_of,
    pack_key,
    parse_accepted_key,
    parse_digest,
    parse_pack_key,
    parse_quarantine_key,
    quarantine_by_blob_key,
    raw_blob_by_time_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    BlobReference,
    decode_accepted,
    decode_record,
    encode_reference,
)
from sluice_protocol.outcomes import Applied, Found, NotFound, ObjectInfo, Unknown
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_reconciler.verify import SourceManifest
from sluice_store.port import NewObject, ObjectStore
from sluice_store.retry import Backoff, create_known
from sluice_store.stored_expiry import TombstoneReader

PACK_ENTRIES_MAX: Final = 4096
_REFERENCE_HEAD, _REFERENCE_TAIL = encode_reference(ObjectKey("|")).split(b"|")
REMEMBERED_MAX: Final = 500_000
"""Entries that `PackIndex` remembers, about 200 bytes each, and names of packed objects."""
_READ_TOGETHER: Final = 64
"""Packed objects that `PackIndex` reads concurrently, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEntry:
    """One by-time entry.

    `at_ns` is the instant that it is sorted by; the key is that of the entry alone.
    """

    at_ns: UnixNs
    key: ObjectKey
    body: bytes


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    entry: msgspec.Raw
    key: str


_LINES: Final = msgspec.json.Decoder(_Line)


def pack(entries: Iterable[TimeEntry]) -> list[tuple[ObjectKey, bytes, int]]:
    """Return the objects that contain the entries: key, bytes, and number of entries of each.

    An entry that is the only one in its hour, or whose bytes do not fit a line, is not packed.
    """
    folders: dict[str, list[TimeEntry]] = {}
    made: list[tuple[ObjectKey, bytes, int]] = []
    for one in {entry.key: entry for entry in entries}.values():
        if _fits(one.body):
            folders.setdefault(one.key.rpartition("/")[0], []).append(one)
        else:
            made.append((one.key, one.body, 1))
    for folder, found in folders.items():
        steps = range(0, len(found), PACK_ENTRIES_MAX)
        made += [_packed(folder, found[at : at + PACK_ENTRIES_MAX]) for at in steps]
    return made


def _fits(body: bytes) -> bool:
    return body[:1] == b"{" and body[-1:] == b"}" and b"\n" not in body


def _packed(folder: str, entries: Sequence[TimeEntry]) -> tuple[ObjectKey, bytes, int]:
    if len(entries) == 1:
        return entries[0].key, entries[0].body, 1
    ordered = sorted(entries, key=lambda one: one.key)
    body = b"".join(
        b'{"entry":%b,"key":%b}\n' % (one.body, msgspec.json.encode(one.key)) for one in ordered
    )
    times = [one.at_ns for one in ordered]
    span = PackSpan(first_ns=min(times), last_ns=max(times))
    return pack_key(folder, span, digest_of(body)), body, len(ordered)


def unpack(key: ObjectKey, body: bytes) -> list[tuple[ObjectKey, bytes]]:
    """Return key and bytes of each entry of a packed object, or the one entry that is not packed.

    The bytes must match the name of the packed object, and its entries be of one folder.
    """
    if parse_pack_key(key) is None:
        return [(key, body)]
    if f"-{digest_of(body)[:32]}." not in key:
        raise InvalidRecord(key, "the bytes of the packed object do not match the hash in its name")
    try:
        lines = _LINES.decode_lines(body)
    except UNREADABLE_JSON as error:
        raise InvalidRecord(key, f"the packed object is not lines of entries: {error}") from error
    folder = key.rpartition("/")[0]
    if any(one.key.rpartition("/")[0] != folder for one in lines):
        raise InvalidRecord(key, "the packed object contains an entry of another folder")
    return [(ObjectKey(one.key), bytes(one.entry)) for one in lines]


def decode_by_time(key: ObjectKey, body: bytes) -> dict[ObjectKey, AcceptedManifest]:
    """Return the manifests in an object of the index by time, by their accepted keys."""
    manifests = [decode_record(entry, raw, AcceptedManifest) for entry, raw in unpack(key, body)]
    try:
        return {accepted_key(one.identity): one for one in manifests}
    except InvalidFrame as error:
        raise InvalidRecord(key, error.reason) from error


def first_instant(key: ObjectKey) -> int | None:
    """Return the first instant in an object of the index by time; None for another form of key."""
    span = parse_pack_key(key)
    if span is not None:
        return span.first_ns
    name = key.rpartition("/")[2][:20]
    return int(name) if name.isascii() and name.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEntry:
    """The object that contains an entry.

    It is `right` if the entry has exactly the bytes that it should have.
    """

    info: ObjectInfo
    sha256: Digest
    right: bool


async def find_entry(store: ObjectStore, entry: TimeEntry) -> FoundEntry | None:
    """Return the object that contains an entry, alone or packed; None if there is none."""
    read = await store.get(entry.key)
    if isinstance(read, Found):
        right = read.body == entry.body
        return FoundEntry(info=read.info, sha256=digest_of(read.body), right=right)
    return await find_packed(store, entry)


async def find_packed(store: ObjectStore, entry: TimeEntry) -> FoundEntry | None:
    """Return the packed object of its hour that contains an entry; None if there is none."""
    folder = entry.key.rpartition("/")[0] + "/"
    # A packed object with this entry ends at its instant or later; its name begins with a digit.
    after, end_at = f"{folder}{entry.at_ns:020d}", f"{folder}:"
    async for page in store.list(folder, start_after=after, end_at=end_at):
        for one in page.objects:
            span = parse_pack_key(one.key)
            if span is not None and span.contains(entry.at_ns):
                found = await _find_in_pack(store, one.key, entry)
                if found is not None:
                    return found
    return None


async def _find_in_pack(store: ObjectStore, key: ObjectKey, entry: TimeEntry) -> FoundEntry | None:
    read = await store.get(key)
    if not isinstance(read, Found):
        return None
    try:
        body = dict(unpack(key, read.body)).get(entry.key)
    except InvalidRecord:
        return None
    if body is None:
        return None
    return FoundEntry(info=read.info, sha256=digest_of(read.body), right=body == entry.body)


_T = TypeVar("_T")


class _Recent(Generic[_T]):
    """Mappings that are read once; those used longest ago are dropped."""

    def __init__(self, read: Callable[[str], Awaitable[dict[ObjectKey, _T]]]) -> None:
        self._read = read
        self._known: OrderedDict[str, dict[ObjectKey, _T]] = OrderedDict()
        self._size = 0
        self._locks = [asyncio.Lock() for _ in range(_READ_TOGETHER)]

    async def get(self, name: str) -> dict[ObjectKey, _T]:
        async with self._locks[zlib.crc32(name.encode()) % _READ_TOGETHER]:
            if name not in self._known:
                found = self._known[name] = await self._read(name)
                self._size += 1 + len(found)
            self._known.move_to_end(name)
            found = self._known[name]
            while self._size > REMEMBERED_MAX and len(self._known) > 1:
                self._size -= 1 + len(self._known.popitem(last=False)[1])
            return found


class PackIndex:
    """The hashes of packed entries; only objects whose span contains an entry are read."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._spans = _Recent(self._list)
        self._hashes = _Recent(self._read)

    async def sha256(self, entry: TimeEntry) -> Digest | None:
        """Return the hash of an entry of a readable packed object, else None."""
        found = None
        spans = await self._spans.get(entry.key.rpartition("/")[0] + "/")
        for key, span in spans.items():
            if span.contains(entry.at_ns):
                found = (await self._hashes.get(key)).get(entry.key, found)
        return found

    async def _list(self, folder: str) -> dict[ObjectKey, PackSpan]:
        """Return the packed objects of an hour."""
        found: dict[ObjectKey, PackSpan] = {}
        async for page in self._store.list(folder, end_at=f"{folder}:"):
            for one in page.objects:
                span = parse_pack_key(one.key)
                if span is not None:
                    found[one.key] = span
        return found

    async def _read(self, key: str) -> dict[ObjectKey, Digest]:
        """Return the hashes of a packed object; none if it is missing or unreadable."""
        read = await self._store.get(ObjectKey(key))
        if not isinstance(read, Found):
            return {}
        try:
            return {entry: digest_of(body) for entry, body in unpack(ObjectKey(key), read.body)}
        except InvalidRecord:
            return {}


async def put_all_derived(store: ObjectStore, objects: Sequence[NewObject]) -> list[bool | None]:
    """Create derived objects by one call; return which did not exist, None for unknown."""
    created: list[bool | None] = []
    for one in await store.create_many(objects):
        if isinstance(one, StoreError):
            raise one
        created.append(None if isinstance(one, Unknown) else isinstance(one, Applied))
    return created


async def put_derived(store: ObjectStore, key: ObjectKey, body: bytes, backoff: Backoff) -> bool:
    """Create a derived object; return True if it did not exist."""
    return isinstance(await create_known(store, key, body, backoff), Applied)


def by_time_of(batch: SourceManifest) -> tuple[TimeEntry, TimeEntry]:
    """Return the two by-time entries of an accepted batch."""
    manifest = batch.manifest
    at_ns, reference = manifest.accepted_at_ns, encode_reference(batch.key)
    by_time = accepted_by_time_key(batch.key, at_ns)
    raw = raw_blob_by_time_key(manifest.digest, at_ns)
    return (
        TimeEntry(at_ns=at_ns, key=by_time, body=batch.body),
        TimeEntry(at_ns=at_ns, key=raw, body=reference),
    )


def by_blob_of(batch: SourceManifest) -> tuple[ObjectKey, bytes]:
    """Return the reverse reference of an accepted batch, key and bytes."""
    manifest = batch.manifest
    return accepted_reference_key(manifest.digest, batch.key), encode_reference(batch.key)


def references_of(
    batches: Iterable[SourceManifest], packs: Iterable[tuple[ObjectKey, bytes, int]]
) -> list[tuple[ObjectKey, bytes, int]]:
    """Return the reverse references to write alone: of batches whose raw-blob entry is not packed.

    A packed raw-blob entry names the manifest of a sha256, as a reverse reference does. `packs` are
    the by-time objects of the flush whose packed entries count as references.
    """
    packed = {
        entry
        for key, body, _ in packs
        if parse_pack_key(key) is not None and key.startswith(RAW_BLOBS_BY_TIME)
        for entry, _ in unpack(key, body)
    }
    if not packed:
        return [(*by_blob_of(one), 1) for one in batches]
    return [(*by_blob_of(one), 1) for one in batches if by_time_of(one)[1].key not in packed]


def reference_in(key: ObjectKey, body: bytes) -> list[tuple[ObjectKey, bytes]]:
    """Return the reverse reference that a raw-blob entry stands for; none for another entry."""
    sha256 = key.rpartition("/sha256=")[2].removesuffix(".json")
    if not key.startswith(RAW_BLOBS_BY_TIME):
        return []
    try:
        manifest = msgspec.json.decode(body, type=BlobReference).manifest_key
        who = parse_accepted_key(ObjectKey(manifest))
        return [(accepted_by_blob_key(parse_digest(sha256), who), body)]
    except (*UNREADABLE_JSON, InvalidRecord, ValueError):
        return []


def implied_reference(key: ObjectKey, body: bytes) -> ObjectKey | None:
    """Return the key that `reference_in` returns for a right raw-blob entry; validate nothing.

    For any other entry the result is None, or the key of no reference.
    """
    if not (body.startswith(_REFERENCE_HEAD) and body.endswith(_REFERENCE_TAIL)):
        return None
    sha256 = Digest(key.rpartition("=")[2].removesuffix(".json"))
    manifest = body[len(_REFERENCE_HEAD) : -len(_REFERENCE_TAIL)].decode(errors="replace")
    return accepted_reference_key(sha256, ObjectKey(manifest))


def quarantine_entry(
    key: ObjectKey, identity: Identity, submitted: Digest
) -> tuple[ObjectKey, bytes]:
    """Return the reverse reference of a quarantine manifest, key and bytes."""
    return quarantine_by_blob_key(submitted, identity), encode_reference(key)


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
        self._tombstones = TombstoneReader(store)

    async def compare_accepted(self, batch: SourceManifest) -> Sequence[DerivedDifference]:
        """Compare the three index entries of one accepted manifest with what exists.

        Those of a batch that has expired may be missing.
        """
        by_time, raw = by_time_of(batch)
        found = [
            await self.compare_entry(batch, by_time),
            await self.compare_reference(batch),
            await self.compare_entry(batch, raw, any_body=True),
        ]
        different = [one for one in found if one is not None]
        present = [one for one in different if one.wrong is not DifferenceKind.MISSING]
        if len(present) < len(different) and await self._tombstones.find(batch.manifest):
            return present
        return different

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
        return None if await self._packed.sha256(by_time_of(batch)[1]) is not None else found

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
        sha256 = await self._packed.sha256(entry)
        packed = sha256 is not None and (body is None or sha256 == digest_of(body))
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
            return (unreadable_difference(key, error),)
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
            return unreadable_difference(key, error, pack)
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


def unreadable_difference(
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
