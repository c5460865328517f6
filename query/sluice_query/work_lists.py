"""Work lists that a searcher read before: a list never changes, so one reading is enough.

A query reads every list of the pending entries, and reads the queue a second time if journals name
further batches. Without this cache a service that is queried often decodes each list again and
again until its batches are in the lake.

The exception is a lost list that `sluice rebuild` wrote again: it has the same batches and perhaps
more, which other entries contain too. A query that remembers the first list may return such a batch
twice while it is in the records and not yet in the ledger.
"""

from collections import OrderedDict
from typing import Final

from sluice_protocol.units import ObjectKey
from sluice_queue.entries import Descriptor
from sluice_queue.lane import Lane
from sluice_queue.pending import PendingBatch, read_pending_batches
from sluice_store.port import ObjectStore

BATCHES_MAX: Final = 32_768
"""Batches of all remembered lists together, about 1 KiB each."""

_Place = tuple[Lane, int, ObjectKey]


class WorkListCache:
    """The batches of entries that were read lately; the entry used longest ago is dropped first.

    Args:
        batches_max: Batches that are remembered, at most.
    """

    def __init__(self, batches_max: int = BATCHES_MAX) -> None:
        self._batches_max = batches_max
        self._known: OrderedDict[_Place, list[PendingBatch]] = OrderedDict()
        self._batches = 0

    def find(self, lane: Lane, entry: Descriptor) -> list[PendingBatch] | None:
        """Return the batches of an entry, if they are remembered."""
        place = (lane, entry.sequence, entry.location)
        found = self._known.get(place)
        if found is not None:
            self._known.move_to_end(place)
        return found

    async def read(self, store: ObjectStore, lane: Lane, entry: Descriptor) -> list[PendingBatch]:
        """Read the work list of an entry, and remember its batches.

        Raises:
            WorkListMissing: As `read_pending_batches`.
            InvalidRecord: As `read_pending_batches`.
            StoreError: As `read_pending_batches`.
        """
        found = await read_pending_batches(store, lane, entry)
        place = (lane, entry.sequence, entry.location)
        self._batches += len(found) - len(self._known.pop(place, ()))
        self._known[place] = found
        while self._batches > self._batches_max:
            _, dropped = self._known.popitem(last=False)
            self._batches -= len(dropped)
        return found
