"""By-time entries of one flush, packed into one object per hour. Source: ADR 0047.

A pack is lines of JSON, one per entry, in the order of their keys:
`{"entry":<the exact bytes of the entry>,"key":"<the key that it would have alone>"}`. Its name says
between which instants they lie and ends in the hash of its bytes. An entry may stand in several
packs, and alone beside them; readers take both shapes. Pure, but for `Packed` and `is_indexed`.

The derived indexes of one accepted or quarantined batch; every writer makes the same objects.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from sluice_protocol.errors import InvalidRecord, UnsupportedVersion
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    PackSpan,
    accepted_by_blob_key,
    accepted_by_time_key,
    digest_of,
    key_version,
    pack_key,
    parse_pack_key,
    quarantine_by_blob_key,
    raw_blob_by_time_key,
)
from sluice_protocol.manifests import encode_reference
from sluice_protocol.outcomes import Applied, Found, ObjectInfo
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_protocol.versions import decoder_for
from sluice_reconciler.verify import VerifiedBatch
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, create_known

PACK_ENTRIES_MAX: Final = 4096
REMEMBERED_MAX: Final = 500_000
"""Entries of packs that `Packed` remembers, about 200 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEntry:
    """One by-time entry.

    Attributes:
        at_ns: The instant that it is sorted by.
        key: Where it stands when it stands alone.
        body: Its exact bytes.
    """

    at_ns: UnixNs
    key: ObjectKey
    body: bytes


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    entry: msgspec.Raw
    key: str


PackDecoder = Callable[[ObjectKey, bytes], list[tuple[ObjectKey, bytes]]]
_LINES: Final = msgspec.json.Decoder(_Line)


def pack(entries: Iterable[TimeEntry]) -> list[tuple[ObjectKey, bytes, int]]:
    """Gives the objects that hold the entries: key, bytes, and how many entries each holds.

    An entry that is alone in its hour, or whose bytes a line could not keep, stands by itself.
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


def _unpack_v1(key: ObjectKey, body: bytes) -> list[tuple[ObjectKey, bytes]]:
    try:
        lines = _LINES.decode_lines(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRecord(key, f"the pack is no lines of entries: {error}") from error
    folder = key.rpartition("/")[0]
    if any(one.key.rpartition("/")[0] != folder for one in lines):
        raise InvalidRecord(key, "the pack holds an entry of another folder")
    return [(ObjectKey(one.key), bytes(one.entry)) for one in lines]


PACK_DECODERS: Final[Mapping[str, PackDecoder]] = MappingProxyType({"v1": _unpack_v1})
"""The decoder of each version of packed index objects that this build reads."""


def unpack(
    key: ObjectKey, body: bytes, *, decoders: Mapping[str, PackDecoder] = PACK_DECODERS
) -> list[tuple[ObjectKey, bytes]]:
    """Gives key and bytes of each entry of a pack, or the one entry that stands alone.

    Raises:
        InvalidRecord: The pack has other bytes than its name says, or holds what does not belong
            into its folder.
    """
    if parse_pack_key(key) is None:
        return [(key, body)]
    if f"-{digest_of(body)[:32]}." not in key:
        raise InvalidRecord(key, "the pack has other bytes than its name says")
    try:
        decode = decoder_for(decoders, key_version(key), field="key version", key=key)
    except UnsupportedVersion as error:
        raise InvalidRecord(key, f"packed index object: {error}") from error
    return decode(key, body)


async def is_indexed(store: ObjectStore, entry: TimeEntry) -> bool:
    """Tells whether an entry stands, alone or in a pack of its hour.

    Raises:
        StoreError: The store did not answer.
    """
    if isinstance(await store.head(entry.key), ObjectInfo):
        return True
    folder = entry.key.rpartition("/")[0] + "/"
    # A pack that holds it ends at its instant or later; names of packs begin with a digit.
    after, end_at = f"{folder}{entry.at_ns:020d}", f"{folder}:"
    async for page in store.list(folder, start_after=after, end_at=end_at):
        for one in page.objects:
            span = parse_pack_key(one.key)
            if span is not None and span.first_ns <= entry.at_ns <= span.last_ns:
                held = await _entries(store, one.key)
                if entry.key in held:
                    return True
    return False


async def _entries(store: ObjectStore, key: ObjectKey) -> dict[ObjectKey, Digest]:
    """Gives the entries of a pack by their hash; none when it is gone or cannot be read."""
    read = await store.get(key)
    if not isinstance(read, Found):
        return {}
    try:
        return {entry: digest_of(body) for entry, body in unpack(key, read.body)}
    except InvalidRecord:
        return {}


class PackIndex:
    """What stands in packs, an hour's folder at a time; the one asked longest ago is forgotten."""

    def __init__(self, store: ObjectStore) -> None:
        """Starts with nothing read."""
        self._store = store
        self._folders: OrderedDict[str, dict[ObjectKey, Digest]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def digest(self, key: ObjectKey) -> Digest | None:
        """Gives the hash of an entry that stands in a pack that can be read, else None.

        Raises:
            StoreError: The store did not answer.
        """
        folder = key.rpartition("/")[0] + "/"
        async with self._turn:
            if folder not in self._folders:
                self._folders[folder] = await self._read(folder)
                self._forget()
            self._folders.move_to_end(folder)
            return self._folders[folder].get(key)

    async def _read(self, folder: str) -> dict[ObjectKey, Digest]:
        found: dict[ObjectKey, Digest] = {}
        async for page in self._store.list(folder, end_at=f"{folder}:"):
            for one in page.objects:
                if parse_pack_key(one.key) is not None:
                    found |= await _entries(self._store, one.key)
        return found

    def _forget(self) -> None:
        while len(self._folders) > 1 and self._count() > REMEMBERED_MAX:
            self._folders.popitem(last=False)

    def _count(self) -> int:
        return sum(map(len, self._folders.values()))


async def put_derived(store: ObjectStore, key: ObjectKey, body: bytes, backoff: Backoff) -> bool:
    """Create a derived object and return True when it did not exist.

    Raises:
        OutcomeUnknown: No try had a known outcome; the next pass tries again.
        StoreError: The store refused the request, or it was not sent.
    """
    return isinstance(await create_known(store, key, body, backoff), Applied)


def by_time_of(sound: VerifiedBatch) -> tuple[TimeEntry, TimeEntry]:
    """Gives the two by-time entries of an accepted batch."""
    manifest = sound.manifest
    at_ns, reference = manifest.accepted_at_ns, encode_reference(sound.key)
    by_time = accepted_by_time_key(sound.key, at_ns)
    raw = raw_blob_by_time_key(manifest.digest, at_ns)
    return (
        TimeEntry(at_ns=at_ns, key=by_time, body=sound.body),
        TimeEntry(at_ns=at_ns, key=raw, body=reference),
    )


def by_blob_of(sound: VerifiedBatch) -> tuple[ObjectKey, bytes]:
    """Gives the reverse reference of an accepted batch, key and bytes."""
    manifest = sound.manifest
    return accepted_by_blob_key(manifest.digest, manifest.identity), encode_reference(sound.key)


def quarantine_entry(
    key: ObjectKey, identity: Identity, submitted: Digest
) -> tuple[ObjectKey, bytes]:
    """Gives the reverse reference of a quarantine manifest, key and bytes."""
    return quarantine_by_blob_key(submitted, identity), encode_reference(key)
