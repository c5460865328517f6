"""Work lists: the objects that queue entries point at."""

from collections.abc import Sequence
from typing import Final

from sluice_protocol.errors import InvalidRecord, InvariantViolated, StoreUnavailable
from sluice_protocol.keys import lane_of, work_list_key
from sluice_protocol.manifests import AcceptedManifest, WorkList, decode_record, encode_record
from sluice_protocol.outcomes import Applied, Exists, Found, NotFound, Unknown
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_queue.entries import Descriptor, Draft
from sluice_queue.errors import WorkListMissing
from sluice_queue.lane import Lane, RegisterClient, RetryBudget
from sluice_queue.settings import RetrySettings
from sluice_store.port import ObjectStore

LIST_AGE_S_MAX: Final = 3600
"""A list older than this, by the store's clock, is never appended: the collector may take it."""


def too_old(written_at_ns: UnixNs, now_ns: UnixNs) -> bool:
    """Return True if a list may no longer be appended and must be written anew."""
    return now_ns - written_at_ns >= LIST_AGE_S_MAX * NS_PER_S


async def write_work_list(
    client: RegisterClient,
    batches: Sequence[AcceptedManifest],
    *,
    retry: RetrySettings,
    metadata: bytes = b"",
) -> Draft:
    """Write one work list under a fresh name and gives the entry that points at it.

    An unknown outcome is settled by writing the same bytes under the same name again; the name is
    never used for anything else.

    Raises:
        OutcomeUnknown: The bounds are spent; the list is garbage at worst.
        InvariantViolated: There are no batches.
        StoreError: The store refused.
    """
    lane = client.lane
    if not batches:
        raise InvariantViolated("a work list holds at least one batch")
    body = encode_record(WorkList(queue=lane.queue, lane=lane.lane, batches=tuple(batches)))
    if client.date_ns == 0:
        await client.read()  # the name needs the store's clock
    at_ns = client.store_now_ns
    key = work_list_key(lane.queue, lane.lane, client.runtime.ids.ulid(), at_ns)
    budget = RetryBudget("create", key, retry, client.runtime)
    while True:
        try:
            outcome = await client.store.create(key, body)
        except StoreUnavailable as error:
            await budget.wait_or_raise(error)
            continue
        match outcome:
            case Applied(date_ns=date_ns) | Exists(date_ns=date_ns):
                client.observe_date(date_ns)
                break
            case Unknown():
                await budget.wait_or_raise(None)
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
    """Read the list that an entry points at and checks that it is that list.

    Raises:
        WorkListMissing: It is not there.
        InvalidRecord: It has another schema, queue or lane than the entry says, or fewer batches.
        StoreError: The store did not answer.
    """
    match await store.get(entry.location):
        case NotFound():
            raise WorkListMissing(lane.key, entry.sequence, entry.location)
        case Found(body=body):
            return _checked(lane, entry, body)


def _checked(lane: Lane, entry: Descriptor, body: bytes) -> WorkList:
    found = decode_record(entry.location, body, WorkList)
    if (found.queue, found.lane) != (lane.queue, lane.lane):
        raise InvalidRecord(entry.location, f"work list belongs to {found.queue}.{found.lane}")
    # A list that was rebuilt from `accepted/` may hold more than the entry counted, never less.
    if len(found.batches) < entry.batches:
        raise InvalidRecord(entry.location, f"work list does not hold {entry.batches} batches")
    return found


def by_lane(
    batches: Sequence[AcceptedManifest], lanes: int
) -> dict[int, tuple[AcceptedManifest, ...]]:
    """Split batches by the lane of their agent, each lane's in the order given."""
    split: dict[int, list[AcceptedManifest]] = {}
    for batch in batches:
        split.setdefault(lane_of(batch.agent_id, lanes), []).append(batch)
    return {lane: tuple(found) for lane, found in split.items()}
