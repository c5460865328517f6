"""Pending batches: accepted batches in queue entries that are not acknowledged yet."""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_queue.entries import Descriptor
from sluice_queue.lane import Lane
from sluice_queue.worklists import read_work_list
from sluice_store.port import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatch:
    """One accepted batch as the queue delivers it.

    Attributes:
        lane: The lane.
        sequence: The sequence of the queue entry.
        position: The position in the entry's work list, from 0.
        manifest: The accepted manifest.
    """

    lane: int
    sequence: int
    position: int
    manifest: AcceptedManifest

    @property
    def identity(self) -> Identity:
        """The identity of the batch."""
        return self.manifest.identity

    @property
    def order(self) -> tuple[int, int, int]:
        """The sort key of batches: lane, sequence, position."""
        return (self.lane, self.sequence, self.position)


def pending_batches(
    lane: int, sequence: int, manifests: Sequence[AcceptedManifest]
) -> list[PendingBatch]:
    """Return the batches of one queue entry, given the manifests of its work list."""
    return [
        PendingBatch(lane=lane, sequence=sequence, position=position, manifest=manifest)
        for position, manifest in enumerate(manifests)
    ]


async def read_pending_batches(
    store: ObjectStore, lane: Lane, entry: Descriptor
) -> list[PendingBatch]:
    """Read the work list of one queue entry and return its batches.

    Raises:
        WorkListMissing: The work list does not exist.
        InvalidRecord: The work list is malformed or is not the one that the entry names.
        StoreError: The store is unreachable.
    """
    found = await read_work_list(store, lane, entry)
    return pending_batches(lane.lane, entry.sequence, found.batches)
