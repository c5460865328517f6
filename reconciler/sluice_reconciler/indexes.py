"""The derived indexes of accepted and quarantined batches; every writer creates the same objects.

The by-time entries of batches that are processed together may be packed into one object per hour
(ADR 27). A packed index object contains lines of JSON, one per entry, in key order:
`{"entry":<the exact bytes of the entry>,"key":"<the key that it would have alone>"}`. Its name
contains the first and the last instant of its entries and ends in the hash of its bytes. An entry
may be in several packed objects and exist alone too; readers accept both forms.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from sluice_protocol.errors import UNREADABLE_JSON, InvalidFrame, InvalidRecord, StoreError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
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
    quarantine_by_blob_key,
    raw_blob_by_time_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    BlobReference,
    decode_record,
    encode_reference,
)
from sluice_protocol.outcomes import Applied, Found, ObjectInfo, Unknown
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_reconciler.verify import VerifiedBatch
from sluice_store.port import NewObject, ObjectStore
from sluice_store.retry import Backoff, create_known

PACK_ENTRIES_MAX: Final = 4096
_REFERENCE_HEAD, _REFERENCE_TAIL = encode_reference(ObjectKey("|")).split(b"|")
REMEMBERED_MAX: Final = 500_000
"""Entries that `PackIndex` remembers, about 200 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEntry:
    """One by-time entry.

    `at_ns` is the instant that it is sorted by; the key is that of the entry alone.
    """

    at_ns: UnixNs
    key: ObjectKey
    body: bytes


class LoadedManifest(Protocol):
    """An accepted manifest as it was read: its key, its record, and its exact bytes."""

    @property
    def key(self) -> ObjectKey:
        """The key under `accepted/`."""
        ...

    @property
    def manifest(self) -> AcceptedManifest:
        """The decoded manifest."""
        ...

    @property
    def body(self) -> bytes:
        """The manifest's exact bytes."""
        ...


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
            if span is not None and span.first_ns <= entry.at_ns <= span.last_ns:
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


async def _entries(store: ObjectStore, key: ObjectKey) -> dict[ObjectKey, Digest]:
    """Return the hash of each entry of a packed object; none if it is missing or unreadable."""
    read = await store.get(key)
    if not isinstance(read, Found):
        return {}
    try:
        return {entry: digest_of(body) for entry, body in unpack(key, read.body)}
    except InvalidRecord:
        return {}


class PackIndex:
    """The hashes of packed entries, read and dropped one hour at a time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._folders: OrderedDict[str, dict[ObjectKey, Digest]] = OrderedDict()
        self._lock = asyncio.Lock()

    async def digest(self, key: ObjectKey) -> Digest | None:
        """Return the hash of an entry of a readable packed object, else None."""
        folder = key.rpartition("/")[0] + "/"
        async with self._lock:
            if folder not in self._folders:
                self._folders[folder] = await self._read(folder)
                self._drop_oldest()
            self._folders.move_to_end(folder)
            return self._folders[folder].get(key)

    async def _read(self, folder: str) -> dict[ObjectKey, Digest]:
        found: dict[ObjectKey, Digest] = {}
        async for page in self._store.list(folder, end_at=f"{folder}:"):
            for one in page.objects:
                if parse_pack_key(one.key) is not None:
                    found |= await _entries(self._store, one.key)
        return found

    def _drop_oldest(self) -> None:
        while len(self._folders) > 1 and self._count() > REMEMBERED_MAX:
            self._folders.popitem(last=False)

    def _count(self) -> int:
        return sum(map(len, self._folders.values()))


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


def by_time_of(batch: LoadedManifest) -> tuple[TimeEntry, TimeEntry]:
    """Return the two by-time entries of an accepted batch."""
    manifest = batch.manifest
    at_ns, reference = manifest.accepted_at_ns, encode_reference(batch.key)
    by_time = accepted_by_time_key(batch.key, at_ns)
    raw = raw_blob_by_time_key(manifest.digest, at_ns)
    return (
        TimeEntry(at_ns=at_ns, key=by_time, body=batch.body),
        TimeEntry(at_ns=at_ns, key=raw, body=reference),
    )


def by_blob_of(batch: LoadedManifest) -> tuple[ObjectKey, bytes]:
    """Return the reverse reference of an accepted batch, key and bytes."""
    manifest = batch.manifest
    return accepted_reference_key(manifest.digest, batch.key), encode_reference(batch.key)


def references_of(
    batches: Iterable[VerifiedBatch], packs: Iterable[tuple[ObjectKey, bytes, int]]
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
    digest = key.rpartition("/sha256=")[2].removesuffix(".json")
    if not key.startswith(RAW_BLOBS_BY_TIME):
        return []
    try:
        manifest = msgspec.json.decode(body, type=BlobReference).manifest_key
        who = parse_accepted_key(ObjectKey(manifest))
        return [(accepted_by_blob_key(parse_digest(digest), who), body)]
    except (*UNREADABLE_JSON, InvalidRecord, ValueError):
        return []


def implied_reference(key: ObjectKey, body: bytes) -> ObjectKey | None:
    """Return the key that `reference_in` returns for a right raw-blob entry; validate nothing.

    For any other entry the result is None, or the key of no reference.
    """
    if not (body.startswith(_REFERENCE_HEAD) and body.endswith(_REFERENCE_TAIL)):
        return None
    digest = Digest(key.rpartition("=")[2].removesuffix(".json"))
    manifest = body[len(_REFERENCE_HEAD) : -len(_REFERENCE_TAIL)].decode(errors="replace")
    return accepted_reference_key(digest, ObjectKey(manifest))


def quarantine_entry(
    key: ObjectKey, identity: Identity, submitted: Digest
) -> tuple[ObjectKey, bytes]:
    """Return the reverse reference of a quarantine manifest, key and bytes."""
    return quarantine_by_blob_key(submitted, identity), encode_reference(key)
