"""Work lists, the objects that queue entries name, and pending batches.

A batch is pending while it is in a queue entry that is not acknowledged yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import InvalidRecord, InvariantViolated
from sluice_protocol.identity import Identity
from sluice_protocol.keys import lane_of, work_list_key
from sluice_protocol.manifests import AcceptedManifest, WorkList, decode_record, encode_record
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_queue.errors import WorkListMissing
from sluice_queue.lane import Lane
from sluice_queue.register import Descriptor, Draft
from sluice_queue.register_client import RegisterClient
from sluice_store.port import ObjectStore
from sluice_store.retry import RetrySettings, create_known

LIST_AGE_S_MAX: Final = 3600
"""Age in seconds by the store's clock after which a list is never appended: it may be collected."""


def too_old(written_at_ns: UnixNs, now_ns: UnixNs) -> bool:
    """Return True if a list may no longer be appended and must be written again."""
    return now_ns - written_at_ns >= LIST_AGE_S_MAX * NS_PER_S


async def write_work_list(
    client: RegisterClient,
    batches: Sequence[AcceptedManifest],
    *,
    retry: RetrySettings,
    metadata: bytes = b"",
) -> Draft:
    """Write one work list under a new name and return the entry that names it.

    An unknown outcome is settled by writing the same bytes under the same name again; the name is
    never used for anything else. If no tries are left, the list is garbage at worst.
    """
    lane = client.lane
    if not batches:
        raise InvariantViolated("a work list needs at least one batch")
    body = encode_record(WorkList(queue=lane.queue, lane=lane.lane, batches=tuple(batches)))
    if client.date_ns == 0:
        await client.read()  # the name needs the store's clock
    at_ns = client.store_now_ns
    key = work_list_key(lane.queue, lane.lane, client.runtime.ids.ulid(), at_ns)
    backoff = client.runtime.backoff(retry)
    outcome = await create_known(client.store, key, body, backoff, retry_unsent=True)
    client.observe_date(outcome.date_ns)
    times = [batch.accepted_at_unix_ns for batch in batches]
    return Draft(
        location=key,
        size_bytes=len(body),
        batches=len(batches),
        frame_bytes=sum(batch.frame_bytes for batch in batches),
        first_accepted_at_ns=UnixNs(min(times)),
        last_accepted_at_ns=UnixNs(max(times)),
        ingested_at_ns=at_ns,
        metadata=metadata,
    )


async def read_work_list(store: ObjectStore, lane: Lane, entry: Descriptor) -> WorkList:
    """Read the list that an entry names and check that it is that list."""
    match await store.get(entry.location):
        case NotFound():
            raise WorkListMissing(lane.key, entry.sequence, entry.location)
        case Found(body=body):
            return _checked(lane, entry, body)


def _checked(lane: Lane, entry: Descriptor, body: bytes) -> WorkList:
    found = decode_record(entry.location, body, WorkList)
    if (found.queue, found.lane) != (lane.queue, lane.lane):
        raise InvalidRecord(entry.location, f"work list belongs to {found.queue}.{found.lane}")
    # A list that was rebuilt from `accepted/` may have more batches than the entry, never fewer.
    if len(found.batches) < entry.batches:
        raise InvalidRecord(entry.location, f"work list does not have {entry.batches} batches")
    return found


def by_lane(
    batches: Sequence[AcceptedManifest], lanes: int
) -> dict[int, tuple[AcceptedManifest, ...]]:
    """Split batches by the lane of their agent, each lane's in the order given."""
    split: dict[int, list[AcceptedManifest]] = {}
    for batch in batches:
        split.setdefault(lane_of(batch.agent_id, lanes), []).append(batch)
    return {lane: tuple(found) for lane, found in split.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatch:
    """One accepted batch as the queue delivers it; `position` in the work list is from 0."""

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
    """Read the work list of one queue entry and return its batches."""
    found = await read_work_list(store, lane, entry)
    return pending_batches(lane.lane, entry.sequence, found.batches)
