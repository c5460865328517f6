"""Batches that a gateway accepted into its spool and that are not in the lake yet.

The order of reading is spool, queue, ledger, records, **then queue and ledger once more**:

- The spool's listing comes first. A batch that is accepted before it is in it, and the manifest
  never leaves the spool. What lands, is enqueued or ingested after it moves towards what is read
  later, so nothing can pass by unseen.
- A batch that stood in the queue at the first reading is the queue's matter, as without a spool.
- Of the others the first queue and ledger say nothing that lasts: one may be enqueued and
  ingested right after they were read, stand in the records, and would be shown twice. The second
  reading, after the state of the records is fixed, tells. What those records hold had been in the
  queue before; it is there still, or the ledger has it, as entries are acknowledged only
  after the ledger's commit (queue before ledger here too). Both name the queue sequence, and the
  records are in that state exactly when it has taken that sequence. What has no sequence, or a
  later one, is not in it and is read from its blob.
- Blobs are read in the spool first and in the authority after it: the lander deletes the local one
  only when the other stands. The other way round both could be found missing.

Source: ADR 0081.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, SluiceError, StoreMisconfigured
from sluice_protocol.identity import Identity
from sluice_protocol.keys import ACCEPTED, agent_prefix, parse_accepted_key
from sluice_protocol.manifests import (
    TRANSFER_MARKERS,
    AcceptedManifest,
    TransferMarker,
    decode_accepted,
    decode_record,
    transfer_marker_key,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_query.ledger import LedgerRow
from sluice_query.request import Query
from sluice_query.settings import QuerySettings
from sluice_query.waiting import Waiting, may_match
from sluice_store import read_authority
from sluice_store.port import ListedObject, ObjectStore

_LEFT_OUT: Final = "spooled batches were left out, the queue could not be read whole: ask again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """The local store of a spooling gateway, open.

    Attributes:
        store: The store.
        lanes: Lanes of the authority that it lands on.
    """

    store: ObjectStore
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """What a spool held at one moment that a query may want and the lake may lack.

    Attributes:
        batches: Manifests of batches that have not landed, or landed a short while ago.
        trouble: What could not be read, for people.
    """

    batches: tuple[AcceptedManifest, ...] = ()
    trouble: tuple[str, ...] = ()


@dataclass(slots=True)
class _Listed:
    keys: list[ListedObject] = field(default_factory=list)
    landed: set[ObjectKey] = field(default_factory=set)


async def attach_spool(store: ObjectStore, authority: Authority) -> Spool:
    """Takes an open store as the spool that lands on an authority.

    Raises:
        BadUsage: No gateway has spooled there, or it lands on another authority.
        StoreError: The spool cannot be read.
    """
    try:
        agreed = await read_authority(store)
    except StoreMisconfigured as error:
        raise BadUsage("no gateway has spooled there: give the gateway's --spool") from error
    if agreed.authority_id != authority.authority_id:
        raise BadUsage("this spool lands on another authority: give the one of this store")
    return Spool(store=store, lanes=agreed.lanes)


async def read_spooled(spool: Spool, query: Query, settings: QuerySettings) -> Spooled:
    """Lists a spool and reads the manifests that a query may want, within bounds.

    What cannot be read makes the answer partial; it does not stop the query.
    """
    try:
        listed = await _list(spool.store, query, settings)
    except SluiceError as error:
        return Spooled(trouble=(str(error),))
    newest = sorted(listed.keys, key=lambda one: one.last_modified_ns, reverse=True)
    within = newest[: settings.tail_frames_max]
    gate = asyncio.Semaphore(settings.fetches)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_read(spool.store, one.key, listed, gate)) for one in within]
    found = [task.result() for task in tasks]
    trouble = [one for one in found if isinstance(one, str)]
    if len(newest) > len(within):
        trouble.append(
            f"{len(newest) - len(within)} spooled batches were left out: wait for landing, name"
            " agents, or raise tail_frames_max"
        )
    batches = [one for one in found if isinstance(one, AcceptedManifest) and may_match(one, query)]
    return Spooled(batches=tuple(batches), trouble=tuple(trouble))


async def _list(store: ObjectStore, query: Query, settings: QuerySettings) -> _Listed:
    listed = _Listed()
    for prefix in [agent_prefix(one) for one in query.agents] or [ACCEPTED]:
        settled = await _list_landed(store, prefix, settings, listed)
        async for page in store.list(prefix):
            listed.keys += [one for one in page.objects if one.key not in settled]
    return listed


async def _list_landed(
    store: ObjectStore, prefix: str, settings: QuerySettings, listed: _Listed
) -> set[ObjectKey]:
    """Gives what landed so long ago that it needs no look; notes what landed after that."""
    settled: set[ObjectKey] = set()
    async for page in store.list(f"{TRANSFER_MARKERS}{prefix}"):
        # Both times are of the spool's own clock.
        until_ns = UnixNs(page.date_ns - int(settings.landed_s * NS_PER_S))
        for one in page.objects:
            key = ObjectKey(one.key.removeprefix(TRANSFER_MARKERS))
            (settled if one.last_modified_ns < until_ns else listed.landed).add(key)
    return settled


async def _read(
    store: ObjectStore, key: ObjectKey, listed: _Listed, gate: asyncio.Semaphore
) -> AcceptedManifest | str | None:
    async with gate:
        try:
            if key in listed.landed and await _is_refused(store, key):
                return None
            parse_accepted_key(key)
            found = await store.get(key)
            if isinstance(found, Found):
                return decode_accepted(key, found.body)
        except SluiceError as error:
            return str(error)
    return f"the spool lost this manifest: restore it, key=`{key}`"


async def _is_refused(store: ObjectStore, key: ObjectKey) -> bool:
    """Tells whether the authority keeps another batch under this identity, which it shows."""
    marker = transfer_marker_key(key)
    found = await store.get(marker)
    if not isinstance(found, Found):
        return False
    return decode_record(marker, found.body, TransferMarker).result == "conflict"


def choose_spooled(
    spooled: Spooled,
    queues: tuple[Waiting, Waiting],
    ledger: Iterable[LedgerRow],
    taken: Mapping[int, int],
) -> Spooled:
    """Gives the spooled batches that neither the queue's tail nor the records show.

    Args:
        spooled: What the spool held, read before all else.
        queues: The queue before the records were opened, and after it.
        ledger: The ledger, read after the second queue.
        taken: Lane to the last sequence that the records have taken, for every lane.
    """
    first, second = queues
    # Without the whole second queue a batch may be in the records and nobody can tell.
    if spooled.batches and second.trouble:
        return Spooled(trouble=(*spooled.trouble, _LEFT_OUT))
    shown: set[Identity] = {one.manifest.identity for one in first.batches}
    placed = [(one.manifest.identity, one.lane, one.sequence) for one in second.batches]
    placed += [(one.identity, one.lane, one.sequence) for one in ledger]
    shown |= {identity for identity, lane, sequence in placed if sequence <= taken.get(lane, 0)}
    left = [one for one in spooled.batches if one.identity not in shown]
    return Spooled(batches=tuple(left), trouble=spooled.trouble)
