"""Rebuilding everything derived: indexes, registers, lane states and work lists.

`differences` writes nothing: it compares sources and derived objects in both directions. `repair`
creates a new register where one is lost or damaged, writes missing objects and replaces wrong ones.
It deletes by-time entries without a source, and writes lost work lists of pending entries. The
caller then makes a full pass.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from sluice_protocol.keys import (
    ACCEPTED_BY_TIME,
    QUARANTINE,
    RAW_BLOBS_BY_TIME,
    parse_quarantine_key,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Lane, Runtime
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.differences import DerivedDifference, compare_object, read_source
from sluice_reconciler.index_comparison import IndexComparison
from sluice_reconciler.indexes import (
    by_blob_of,
    by_time_of,
    put_derived,
    quarantine_entry,
    reference_in,
    unpack,
)
from sluice_reconciler.lanes.rebuild import Fence, LaneRebuild
from sluice_store.port import ObjectStore
from sluice_store.retry import WRITE_RETRY, delete_versions

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

        Args:
            store: The acceptance authority.
            requests: The bound on requests in flight.
            lanes: Every lane of every queue that batches are appended to.
            runtime: Source of ids.
            persisted: The last sequence that each lane's consumer persisted, where it is known.
            fence: Called before the register of such a lane is replaced.
        """
        self._store = store
        self._requests = requests
        self._backoff = runtime.backoff(WRITE_RETRY)
        known = persisted if persisted is not None else {}
        self._lanes = LaneRebuild(store, requests, lanes, runtime, known, fence)

    async def differences(self) -> AsyncIterator[DerivedDifference]:
        """Return every derived object that is missing, extra, different or unreadable.

        Raises:
            StoreError: The store is unreachable or refused a request; the differences returned so
                far are correct.
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

        Args:
            first_sequence: Where the sequences of a lost register continue if it is not known what
                its consumer persisted.

        Raises:
            BadUsage: A register is lost, and the sequence where it continues is not known.
            StoreError: The store is unreachable or refused a request; what was repaired so far is
                correct.
        """
        async for lost in self._lanes.repair_lanes(first_sequence):
            yield lost
        # All differences are found before any is repaired: a repair would hide its cause.
        comparison = IndexComparison(self._store, self._requests)
        found = [one async for one in self._differences(comparison)]
        for difference in found:
            yield difference
        await self._repair_indexes(comparison, found)
        await self._lanes.repair_lists()

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
