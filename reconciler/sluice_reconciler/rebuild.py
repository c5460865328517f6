"""Rebuilding everything derived: indexes, registers, lane states and work lists.

`differences` writes nothing: it compares sources and derived objects in both directions. `repair`
creates a new register where one is lost or damaged, writes missing objects and replaces wrong ones.
It deletes by-time entries without a source, and writes lost work lists of pending entries. The
caller then makes a full pass.

The comparison reads every source and every derived object once, and matches the entries of both in
bounded memory. An entry is right if its key and its bytes are exactly what its source defines. It
is therefore reduced to a fact: a hash of its key and a hash of its bytes. Sources and entries are
read in any order. Their facts are divided by their first bits and matched part by part. Beyond
`memory_bytes_max` they are moved to a temporary file without a name, which grows by 23 bytes per
fact and ends with the process.

What has no counterpart is only suspected: the caller reads it again before it reports anything. It
is found again by its place: a few bits of a hash of the key under which it was read.

Only what has no counterpart is then listed and read again, and compared alone. Each reported
difference is therefore a fact at the moment of that comparison. A batch that is accepted or indexed
while the comparison runs is no difference.
"""

import asyncio
import hashlib
import struct
import tempfile
import zlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing
from enum import IntEnum
from typing import IO, Final, TypeVar

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED,
    ACCEPTED_BY_BLOB,
    ACCEPTED_BY_TIME,
    EXPIRED,
    QUARANTINE,
    QUARANTINE_BY_BLOB,
    RAW_BLOBS_BY_TIME,
    parse_pack_key,
    parse_quarantine_key,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.indexes import (
    DerivedDifference,
    EntryComparison,
    by_blob_of,
    by_time_of,
    compare_object,
    implied_reference,
    parse_source,
    put_derived,
    quarantine_entry,
    read_source,
    reference_in,
    unpack,
    unreadable_difference,
)
from sluice_reconciler.lanes.defects import has_ledger
from sluice_reconciler.lanes.rebuild import Fence, LaneRebuild
from sluice_reconciler.verify import SourceManifest
from sluice_store.port import ObjectStore
from sluice_store.retry import WRITE_RETRY, delete_versions

MEMORY_BYTES_MAX: Final = 64 << 20
PARTS: Final = 4096
PLACES: Final = 1 << 16
SUSPECTS_MAX: Final = 500_000
"""Suspected facts that are remembered; beyond this limit, everything at their places is suspected.
"""

_KEY_BYTES: Final = 12
_BODY_BYTES: Final = 8
"""Two different bodies of one key have equal hashes with a probability of 2**-64."""

_RECORD: Final = struct.Struct(f"<BH{_KEY_BYTES + _BODY_BYTES}s")


class _Side(IntEnum):
    """Where a fact was read."""

    DEFINED = 0
    """A source defines the entry."""
    FOUND = 1
    """The entry exists."""
    SUBSTITUTE_DEFINED = 2
    """If this other entry exists, the entry may be missing."""
    SUBSTITUTE_FOUND = 3


class Suspects:
    """The facts without a counterpart, and the places where they were read."""

    def __init__(self, suspects_max: int) -> None:
        self._max = suspects_max
        self._places: set[int] = set()
        self._facts: set[bytes] | None = set()

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, place: int, fact: bytes) -> None:
        """Add one fact that was read at a place."""
        self._places.add(place)
        if self._facts is not None:
            self._facts.add(fact)
            if len(self._facts) > self._max:
                self._facts = None

    def may_be_at(self, key: ObjectKey) -> bool:
        """Return True if a suspected fact may have been read under this key."""
        return _place_of(key) in self._places

    def may_contain(self, key: ObjectKey, body: bytes) -> bool:
        """Return True if this entry may be suspected; an entry that is suspected always is."""
        return self._facts is None or fact_of(key, body) in self._facts


class Unmatched:
    """What was defined and not found, and what was found and not defined, by index."""

    def __init__(self, suspects_max: int) -> None:
        self._max = suspects_max
        self.defined: dict[int, Suspects] = {}
        self.found: dict[int, Suspects] = {}

    def add(self, side: _Side, index: int, place: int, fact: bytes) -> None:
        """Add one fact of one side."""
        suspects = self.defined if side is _Side.DEFINED else self.found
        suspects.setdefault(index, Suspects(self._max)).add(place, fact)


class EntryJoin:
    """The facts of both sides; close it to remove the temporary file."""

    def __init__(
        self,
        *,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        parts: int = PARTS,
        suspects_max: int = SUSPECTS_MAX,
    ) -> None:
        """Create an empty join.

        Facts in memory beyond `memory_bytes_max` are to be moved. At most 65 536 `parts` are
        matched one after the other. `suspects_max` is per index and side.
        """
        self._memory_bytes_max = memory_bytes_max
        self._suspects_max = suspects_max
        self._parts = [bytearray() for _ in range(parts)]
        self._moved: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
        self._in_memory = 0
        self._file: IO[bytes] | None = None

    def define(self, index: int, source: ObjectKey, key: ObjectKey, body: bytes) -> None:
        """Add an entry that a source defines."""
        self._add(_Side.DEFINED, index, source, fact_of(key, body))

    def find(self, index: int, key: ObjectKey, body: bytes) -> None:
        """Add an entry that exists."""
        self._add(_Side.FOUND, index, key, fact_of(key, body))

    def define_substitute(self, key: ObjectKey, substitute: ObjectKey) -> None:
        """Add a defined entry that may be missing if a substitute of it exists."""
        self._add(_Side.SUBSTITUTE_DEFINED, 0, key, fact_of(key, substitute.encode()))

    def find_substitute(self, key: ObjectKey, substitute: ObjectKey) -> None:
        """Add a substitute that exists, for the entry with this key."""
        self._add(_Side.SUBSTITUTE_FOUND, 0, key, fact_of(key, substitute.encode()))

    def _add(self, side: _Side, index: int, at: ObjectKey, fact: bytes) -> None:
        part = self._parts[(fact[0] | fact[1] << 8) % len(self._parts)]
        part += _RECORD.pack(side << 4 | index, _place_of(at), fact)
        self._in_memory += _RECORD.size

    @property
    def is_full(self) -> bool:
        """Whether `move` is due."""
        return self._in_memory >= self._memory_bytes_max

    def move(self) -> None:
        """Move the facts in memory to the temporary file. This blocks."""
        try:
            if self._file is None:
                # `close` closes it: it is open as long as the join.
                self._file = tempfile.TemporaryFile(prefix="sluice-rebuild-")  # noqa: SIM115
            at = self._file.seek(0, 2)
            for part, moved in zip(self._parts, self._moved, strict=True):
                if part:
                    self._file.write(part)
                    moved.append((at, len(part)))
                    at += len(part)
                    part.clear()
            self._file.flush()
        except OSError as error:
            raise BadUsage(
                f"cannot write temporary file: {error.strerror}; set TMPDIR to a folder with 200"
                f" bytes of space per batch, folder=`{tempfile.gettempdir()}`"
            ) from error
        self._in_memory = 0

    def match(self) -> Unmatched:
        """Return every fact of one side without a counterpart. This blocks.

        A defined entry is suspected too if an entry with its key and other bytes exists, even if
        the right one exists as well.
        """
        unmatched = Unmatched(self._suspects_max)
        for number in range(len(self._parts)):
            sides: tuple[dict[bytes, int], ...] = ({}, {}, {}, {})
            for tag, place, fact in _RECORD.iter_unpack(self._records_of(number)):
                sides[tag >> 4][fact] = (tag & 15) * PLACES + place
            defined, found, substitutes_defined, substitutes_found = sides
            extra = found.keys() - defined.keys()
            missing = defined.keys() - found.keys()
            if missing:
                replaced = substitutes_defined.keys() & substitutes_found.keys()
                keys = {fact[:_KEY_BYTES] for fact in replaced}
                missing = {fact for fact in missing if fact[:_KEY_BYTES] not in keys}
            if extra:
                keys = {fact[:_KEY_BYTES] for fact in extra}
                missing |= {fact for fact in defined if fact[:_KEY_BYTES] in keys}
            for fact in missing:
                unmatched.add(_Side.DEFINED, *divmod(defined[fact], PLACES), fact)
            for fact in extra:
                unmatched.add(_Side.FOUND, *divmod(found[fact], PLACES), fact)
        return unmatched

    def _records_of(self, number: int) -> bytes:
        return b"".join([*self._read_moved(self._moved[number]), self._parts[number]])

    def _read_moved(self, moved: list[tuple[int, int]]) -> Iterator[bytes]:
        if self._file is None:
            return
        for at, size_bytes in moved:
            try:
                self._file.seek(at)
                body = self._file.read(size_bytes)
            except OSError as error:
                raise BadUsage(f"cannot read temporary file: {error.strerror}") from error
            if len(body) != size_bytes:
                raise BadUsage("cannot read temporary file: it was cut short; repeat the command")
            yield body

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()


def fact_of(key: ObjectKey, body: bytes) -> bytes:
    """Return 20 bytes that identify an entry with exactly these bytes, those of its key first."""
    of_key = hashlib.blake2b(key.encode(), digest_size=_KEY_BYTES).digest()
    return of_key + hashlib.blake2b(body, digest_size=_BODY_BYTES).digest()


def _place_of(key: ObjectKey) -> int:
    return zlib.crc32(key.encode()) % PLACES


_BY_TIME, _BY_BLOB, _RAW, _REFUSED = range(4)
INDEX_ROOTS: Final = (ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB, RAW_BLOBS_BY_TIME, QUARANTINE_BY_BLOB)

_In = TypeVar("_In")
_Result = Sequence[DerivedDifference]
_Entry = tuple[int, ObjectKey, bytes]
"""An index entry: the number of its index, its key, and its bytes."""


class IndexComparison:
    """The comparison of the derived indexes of one store with their sources, in both directions.

    Create a new one for each comparison.
    """

    def __init__(
        self,
        store: ObjectStore,
        requests: RequestLimit,
        new_join: Callable[[], EntryJoin] = EntryJoin,
    ) -> None:
        """Create a comparison; nothing is read yet."""
        self._store = store
        self._requests = requests
        self._new_join = new_join
        self.single = EntryComparison(store)

    async def run(self) -> AsyncIterator[DerivedDifference]:
        """Return every index entry that is missing, extra, different or unreadable.

        If the store fails, the differences returned so far are correct.
        """
        with closing(self._new_join()) as join:
            await self._read_sources(join)
            for index in range(len(INDEX_ROOTS)):
                async for difference in self._read_entries(index, join):
                    yield difference
            unmatched = await asyncio.to_thread(join.match)
        async for difference in self._compare_sources(unmatched.defined):
            yield difference
        for index, suspects in sorted(unmatched.found.items()):
            async for difference in self._compare_entries(index, suspects):
                yield difference

    async def _read_sources(self, join: EntryJoin) -> None:
        """Add the entries that the sources define."""
        async for found in self._requests.read(self._store, ACCEPTED):
            for source in _sources(found):
                entries = _, by_blob, raw = _entries_of(source)
                for index, key, body in entries:
                    join.define(index, source.key, key, body)
                join.define_substitute(by_blob[1], raw[1])
            await _make_room(join)
        # The key of a quarantine manifest defines its reference, so its body is not read.
        async for page in self._store.list(QUARANTINE):
            for one in page.objects:
                for index, key, body in _entries_of_refused(one.key):
                    join.define(index, one.key, key, body)
            await _make_room(join)

    async def _read_entries(self, index: int, join: EntryJoin) -> AsyncIterator[DerivedDifference]:
        """Add the entries of one index; return the packed objects that cannot be decoded."""
        async for found in self._requests.read(self._store, INDEX_ROOTS[index]):
            for place, stored in found:
                try:
                    entries = unpack(place, stored)
                except InvalidRecord as error:
                    yield unreadable_difference(place, error)
                    continue
                for key, body in entries:
                    join.find(index, key, body)
                if index == _RAW and parse_pack_key(place) is not None:
                    for key, body in entries:
                        # A packed raw-blob entry is a reverse reference too (ADR 27).
                        reference = implied_reference(key, body)
                        if reference is not None:
                            join.find_substitute(reference, key)
            await _make_room(join)

    async def _compare_sources(
        self, defined: dict[int, Suspects]
    ) -> AsyncIterator[DerivedDifference]:
        """Compare again the sources with an entry that is missing or different."""
        refused = defined.get(_REFUSED)
        accepted = [one for index, one in defined.items() if index != _REFUSED]
        if accepted:

            def may_be_suspected(key: ObjectKey) -> bool:
                return any(one.may_be_at(key) for one in accepted)

            async for found in self._requests.read(self._store, ACCEPTED, may_be_suspected):
                sources = [source for source in _sources(found) if _is_suspected(source, defined)]
                async for difference in self._each(sources, self.single.compare_accepted):
                    yield difference
        if refused is not None:
            async for page in self._store.list(QUARANTINE):
                keys = [one.key for one in page.objects if refused.may_be_at(one.key)]
                async for difference in self._each(keys, self.single.compare_quarantine):
                    yield difference

    async def _compare_entries(
        self, index: int, suspects: Suspects
    ) -> AsyncIterator[DerivedDifference]:
        """Compare again the entries of one index that no source was found to define."""

        def may_contain_suspects(key: ObjectKey) -> bool:
            return parse_pack_key(key) is not None or suspects.may_be_at(key)

        async def compare(entry: tuple[ObjectKey, bytes, ObjectKey | None]) -> _Result:
            found = await self.single.compare_source(*entry)
            return () if found is None else (found,)

        async for found in self._requests.read(
            self._store, INDEX_ROOTS[index], may_contain_suspects
        ):
            for place, stored in found:
                pack = place if parse_pack_key(place) is not None else None
                try:
                    entries = unpack(place, stored)
                except InvalidRecord:
                    continue  # it was reported when it was first read
                again = [
                    (key, body, pack)
                    for key, body in entries
                    if pack is None or suspects.may_contain(key, body)
                ]
                async for difference in self._each(again, compare):
                    yield difference

    async def _each(
        self, items: Iterable[_In], do: Callable[[_In], Awaitable[_Result]]
    ) -> AsyncIterator[DerivedDifference]:
        for found in await self._requests.each(items, do):
            for difference in found:
                yield difference


async def _make_room(join: EntryJoin) -> None:
    if join.is_full:
        await asyncio.to_thread(join.move)


def _sources(found: Iterable[tuple[ObjectKey, bytes]]) -> Iterable[SourceManifest]:
    for key, body in found:
        source = parse_source(key, body)
        if source is not None:
            yield source


def _is_suspected(source: SourceManifest, defined: dict[int, Suspects]) -> bool:
    return any(
        index in defined and defined[index].may_contain(key, body)
        for index, key, body in _entries_of(source)
    )


def _entries_of(source: SourceManifest) -> tuple[_Entry, _Entry, _Entry]:
    """Return the entries that an accepted manifest defines: by time, by blob, raw blob by time."""
    by_time, raw = by_time_of(source)
    return (
        (_BY_TIME, by_time.key, by_time.body),
        (_BY_BLOB, *by_blob_of(source)),
        (_RAW, raw.key, raw.body),
    )


def _entries_of_refused(key: ObjectKey) -> tuple[_Entry, ...]:
    """Return the entry that a quarantine manifest defines; none for a key of another form."""
    try:
        return ((_REFUSED, *quarantine_entry(key, *parse_quarantine_key(key))),)
    except InvalidRecord:
        return ()


_DELETED_WITHOUT_SOURCE: Final = (ACCEPTED_BY_TIME, RAW_BLOBS_BY_TIME)
"""Index roots where a repair deletes entries without a source. A reverse reference is kept: it can
only keep a blob alive, and evidence must not be deleted."""


class Rebuild:
    """The comparison and the repair of everything derived in one store."""

    def __init__(
        self,
        store: ObjectStore,
        requests: RequestLimit,
        lanes: Sequence[Lane],
        runtime: Runtime,
        persisted: Mapping[Lane, int] | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Create a rebuild; nothing is read yet.

        `persisted` has the sequences that the lanes' consumers persisted, where they are known;
        `fence` is called before the register of such a lane is replaced.
        """
        self._store = store
        self._requests = requests
        self._backoff = runtime.backoff(WRITE_RETRY)
        known = persisted if persisted is not None else {}
        self._lanes = LaneRebuild(store, requests, lanes, runtime, known, fence)

    async def differences(self) -> AsyncIterator[DerivedDifference]:
        """Return every derived object that is missing, extra, different or unreadable.

        If the store fails, the differences returned so far are correct.
        """
        comparison = IndexComparison(self._store, self._requests)
        async for difference in self._differences(comparison):
            yield difference

    async def _differences(self, comparison: IndexComparison) -> AsyncIterator[DerivedDifference]:
        async for difference in comparison.run():
            yield difference
        for difference in await self._lanes.differences():
            yield difference

    async def repair(
        self, *, first_sequence: int | None = None
    ) -> AsyncIterator[DerivedDifference]:
        """Repair every difference and return them; make a full pass afterwards.

        `first_sequence` is where the sequences of a lost register continue if it is not known what
        its consumer persisted. If both are unknown, raise `BadUsage`, and also if batches have
        expired and the tables with their records are missing.
        """
        await self._check_expired_records()
        async for lost in self._lanes.repair_lanes(first_sequence):
            yield lost
        # All differences are found before any is repaired: a repair would hide its cause.
        comparison = IndexComparison(self._store, self._requests)
        found = [one async for one in self._differences(comparison)]
        for difference in found:
            yield difference
        await self._repair_indexes(comparison, found)
        await self._lanes.repair_lists()

    async def _check_expired_records(self) -> None:
        """Refuse to enqueue everything again where only lost tables had the records of batches."""
        if await has_ledger(self._store):
            return
        async for page in self._store.list(EXPIRED):
            if page.objects:
                raise BadUsage(
                    "batches have expired, and the tables that contain their records are missing:"
                    " restore `lake/v1/` from a backup, and run the command again"
                )

    async def _repair_indexes(
        self, comparison: IndexComparison, found: Sequence[DerivedDifference]
    ) -> None:
        async def write_entries(source: ObjectKey) -> None:
            if source.startswith(QUARANTINE):
                who, submitted = parse_quarantine_key(source)
                await self._put_or_replace(*quarantine_entry(source, who, submitted))
            else:
                await self._index(source, comparison)

        sources = dict.fromkeys(one.source for one in found if one.source is not None)
        await self._requests.each(sources, write_entries)
        # Writing the missing entries may have replaced what was found wrong.
        places = {one.pack or one.key: None for one in found if one.source is None}
        for place in places:
            if not place.startswith(_DELETED_WITHOUT_SOURCE):
                continue
            leftover = await comparison.single.compare_derived(place)
            if any(one.pack is not None for one in leftover):
                await self._unpack(place, {one.key for one in leftover})
            elif leftover:
                await delete_versions(self._store, place)

    async def _unpack(self, key: ObjectKey, wrong: set[ObjectKey]) -> None:
        """Write the correct entries of a packed object separately, then delete it."""
        read = await self._store.get(key)
        if isinstance(read, Found):
            for entry, body in unpack(key, read.body):
                if entry not in wrong:
                    await put_derived(self._store, entry, body, self._backoff)
                    for alone in reference_in(entry, body):
                        await put_derived(self._store, *alone, self._backoff)
            await delete_versions(self._store, key)

    async def _index(self, source: ObjectKey, comparison: IndexComparison) -> None:
        batch = await read_source(self._store, source)
        if batch is None:
            return
        compare, (by_time, raw) = comparison.single, by_time_of(batch)
        if await compare.compare_entry(batch, by_time) is not None:
            await self._put_or_replace(by_time.key, by_time.body)
        if await compare.compare_reference(batch) is not None:
            await self._put_or_replace(*by_blob_of(batch))
        if await compare.compare_entry(batch, raw, any_body=True) is not None:
            await put_derived(self._store, raw.key, raw.body, self._backoff)

    async def _put_or_replace(self, key: ObjectKey, body: bytes) -> None:
        """Write a derived object if it is missing or has other bytes."""
        created = await put_derived(self._store, key, body, self._backoff)
        if not created and await compare_object(self._store, key, body) is not None:
            await self._store.overwrite(key, body)
