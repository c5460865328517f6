"""Comparing the derived indexes of a whole store with their sources; nothing is written here.

Every source and every derived object is read once, and the entries of both are matched by
`entry_join`. Only what has no counterpart is then listed and read again, and compared alone. Each
reported difference is therefore a fact at the moment of that comparison. A batch that is accepted
or indexed while the comparison runs is no difference.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from typing import Final, TypeVar

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED,
    ACCEPTED_BY_BLOB,
    ACCEPTED_BY_TIME,
    QUARANTINE,
    QUARANTINE_BY_BLOB,
    RAW_BLOBS_BY_TIME,
    parse_pack_key,
    parse_quarantine_key,
)
from sluice_protocol.units import ObjectKey
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.differences import (
    DerivedDifference,
    EntryComparison,
    SourceManifest,
    parse_source,
    unreadable,
)
from sluice_reconciler.entry_join import EntryJoin, Suspects
from sluice_reconciler.indexes import (
    by_blob_of,
    by_time_of,
    implied_reference,
    quarantine_entry,
    unpack,
)
from sluice_store.port import ObjectStore

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
        """Create a comparison; nothing is read yet.

        Args:
            store: The acceptance authority.
            requests: The bound on requests in flight.
            new_join: Creates the join, with its bounds.
        """
        self._store = store
        self._requests = requests
        self._new_join = new_join
        self.single = EntryComparison(store)

    async def run(self) -> AsyncIterator[DerivedDifference]:
        """Return every index entry that is missing, extra, different or unreadable.

        Raises:
            StoreError: The store is unreachable or refused a request; the differences returned so
                far are correct.
            BadUsage: The temporary file cannot be used.
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
                    yield unreadable(place, error)
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
        """Compare again the sources of which some entry was not found, or was found different."""
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
