"""Accepted batches outside of the queue: held, in a spool, or named by journals.

The order of reading is spool and journals, queue, ledger, records, **then queue and ledger a second
time**:

- A batch that was in the queue at the first reading is handled as a pending batch, as without a
  spool.
- For the other batches the first reading of queue and ledger proves nothing. Such a batch may be
  enqueued and ingested immediately after it, be in the records, and would be returned twice. The
  second reading, after the state of the records is fixed, decides. A batch in those records was in
  the queue before. It is still there, or it is in the ledger, because an entry is acknowledged only
  after the commit of the ledger (queue before ledger here too). Both contain the queue sequence,
  and the records contain the batch exactly if their lane version has reached that sequence. A batch
  without a sequence, or with a later one, is not in the records and is read from its blob.

A journal entry is a copy that proves nothing, so the manifest itself is read before its batch is
shown.

A spool is listed before the queue: the listing contains every batch that was accepted before,
because a manifest is never deleted from the spool. A batch that is transferred, enqueued or
ingested later moves to a place that is read later; `choose_unqueued` decides whether the
records contain it.

Blobs are read from the spool first and from the authority second: the spool's copy is deleted only
after the authority's copy exists. With the opposite order both could be missing.

Source: ADR 36.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from deltalake import DeltaTable
from msgspec.structs import replace as copy_with

from sluice_lake.data_files import list_files
from sluice_lake.locations import lake_location
from sluice_lake.tables import BATCHES, accepted_hour
from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, InvalidRecord, SluiceError, StoreMisconfigured
from sluice_protocol.identity import Identity
from sluice_protocol.journals import HOLD_RECORDS, HoldRecord
from sluice_protocol.keys import ACCEPTED, accepted_key, agent_prefix, parse_accepted_key
from sluice_protocol.manifests import (
    TRANSFER_MARKERS,
    AcceptedManifest,
    RecordRange,
    TransferMarker,
    decode_accepted,
    decode_record,
    joined_ranges,
    readable_parts,
    transfer_marker_key,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_query.engine import QueryEngine
from sluice_query.pending import PendingSnapshot, choose_newest, may_match
from sluice_query.request import Query
from sluice_query.settings import QuerySettings
from sluice_query.statements import ledger_sql
from sluice_store.authority import read_history
from sluice_store.port import ListedObject, ObjectStore

HELD_MAX: Final = 1_000
"""Hold records that a query reads; further ones make every answer partial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBatch:
    """An accepted batch that the reconciler does not enqueue, and why."""

    key: str
    reason: str


async def read_held(
    store: ObjectStore, query: Query, settings: QuerySettings
) -> tuple[tuple[HeldBatch, ...], tuple[str, ...]]:
    """Return the held batches that may match, and what could not be read."""
    places: list[ObjectKey] = []
    async for page in store.list(HOLD_RECORDS):
        places += [one.key for one in page.objects]
        if len(places) > HELD_MAX:
            return (), (
                f"more than {HELD_MAX} batches are held back: see `sluice reconciler status`",
            )
    limit = asyncio.Semaphore(settings.fetches)
    found = await asyncio.gather(*(_read_hold(store, place, query, limit) for place in places))
    return tuple(one for one in found if one is not None), ()


async def _read_hold(
    store: ObjectStore, place: ObjectKey, query: Query, limit: asyncio.Semaphore
) -> HeldBatch | None:
    """Return a held batch, or None if no record of the query is in it."""
    async with limit:
        read = await store.get(place)
        if not isinstance(read, Found):
            return None  # released: it was enqueued before
        try:
            record = decode_record(place, read.body, HoldRecord)
        except InvalidRecord as error:
            return HeldBatch(key=place, reason=error.reason)
        if not record.key.startswith(ACCEPTED):
            return None  # a conflict, which was never accepted
        held = HeldBatch(key=record.key, reason=record.reason)
        try:
            who = parse_accepted_key(record.key)
        except InvalidRecord:
            return held
        if query.agents and who.agent_id not in query.agents:
            return None
        manifest = await find_manifest(store, ObjectKey(record.key))
    return held if manifest is None or may_match(manifest, query) else None


async def find_manifest(store: ObjectStore, key: ObjectKey) -> AcceptedManifest | None:
    """Read an accepted manifest; None if it does not exist or is not a manifest."""
    read = await store.get(key)
    try:
        return decode_accepted(key, read.body) if isinstance(read, Found) else None
    except InvalidRecord:
        return None


_LEDGER: Final = "ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedBatch:
    """One batch that is in the lake, and the queue entry that delivered it."""

    identity: Identity
    lane: int
    sequence: int


def read_ingested(
    engine: QueryEngine,
    store_url: str,
    manifests: Sequence[AcceptedManifest],
    opened: DeltaTable | None,
) -> list[IngestedBatch]:
    """Return the ledger's rows for the batches' agents and hours, other batches included."""
    hours = {accepted_hour(manifest.accepted_at_unix_ns) for manifest in manifests}
    files = list_files(opened, BATCHES, lambda hour: hour in hours) if hours and opened else []
    if not files:
        return []
    engine.register_files(_LEDGER, files, lake_location(store_url, BATCHES.name))
    agents = sorted({manifest.agent_id for manifest in manifests})
    return [
        IngestedBatch(
            identity=Identity(agent_id=agent, boot_id=boot, seq_start=start, seq_end=end),
            lane=lane,
            sequence=sequence,
        )
        for agent, boot, start, end, lane, sequence in engine.rows(ledger_sql(_LEDGER, agents))
    ]


_LEFT_OUT: Final = (
    "batches that are not enqueued yet were left out, the queue could not be read completely: retry"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnqueuedBatches:
    """Accepted batches that a query may need and that queue and lake may not contain.

    Of those in `named`, only a copy in a journal is known so far.
    """

    batches: tuple[AcceptedManifest, ...] = ()
    named: frozenset[Identity] = field(default_factory=frozenset)
    problems: tuple[str, ...] = ()

    def with_named(self, manifests: Iterable[AcceptedManifest]) -> "UnqueuedBatches":
        """Return these batches and those that journals name."""
        known = {one.identity for one in self.batches}
        added = {one.identity: one for one in manifests if one.identity not in known}
        return replace(
            self, batches=(*self.batches, *added.values()), named=self.named.union(added)
        )


def choose_unqueued(
    unqueued: UnqueuedBatches,
    queues: tuple[PendingSnapshot, PendingSnapshot],
    ledger: Iterable[IngestedBatch],
    lane_versions: Mapping[int, int],
) -> UnqueuedBatches:
    """Return the batches that neither the pending batches nor the records contain.

    All arguments are read in this order: accepted batches, queue, records, queue again, ledger.
    `lane_versions` maps every lane to the last sequence that the records contain.
    """
    first, second = queues
    # Without the complete second reading a batch may be in the records without being noticed.
    if unqueued.batches and second.problems:
        return UnqueuedBatches(problems=(*unqueued.problems, _LEFT_OUT))
    agents = {one.agent_id for one in unqueued.batches}
    returned: set[Identity] = {one.identity for one in first.manifests if one.agent_id in agents}
    placed = [
        (batch.identity, batch.lane, batch.sequence)
        for batch in second.batches
        if batch.manifest.agent_id in agents
    ]
    placed += [(row.identity, row.lane, row.sequence) for row in ledger]
    returned |= {
        identity for identity, lane, sequence in placed if sequence <= lane_versions.get(lane, 0)
    }
    left = [manifest for manifest in unqueued.batches if manifest.identity not in returned]
    return replace(unqueued, batches=tuple(left))


def leave_out_repeated(
    unqueued: UnqueuedBatches,
    queues: tuple[PendingSnapshot, PendingSnapshot],
    lane_versions: Mapping[int, int],
) -> UnqueuedBatches:
    """Leave out requests of combined batches that are in another batch of the answer.

    The owner of their lane decides when it enqueues them. Until then a repetition of a request that
    is in the records already may be returned twice.

    Batches that only the second reading of the queue found are in the answer if the records contain
    them. The others may be the given batches themselves, and nothing may be left out for them.
    `queues` are the queue before the records were opened and after it. `lane_versions` maps every
    lane to the last sequence that the records contain.
    """
    if not any(one.parts for one in unqueued.batches):
        return unqueued
    first, second = queues
    answered = first.manifests
    answered += [
        one.manifest for one in second.batches if one.sequence <= lane_versions.get(one.lane, 0)
    ]
    known = {part.request for one in answered for part in readable_parts(one)}
    batches: list[AcceptedManifest] = []
    for one in unqueued.batches:
        repeated: list[RecordRange] = []
        for part in readable_parts(one):
            if part.request in known:
                repeated.append(part.records)
            known.add(part.request)
        batches.append(copy_with(one, repeated=joined_ranges(repeated)) if repeated else one)
    return replace(unqueued, batches=tuple(batches))


async def confirm_named(
    store: ObjectStore, unqueued: UnqueuedBatches, query: Query, settings: QuerySettings
) -> UnqueuedBatches:
    """Replace the copies of journals by the accepted manifests; drop those that do not exist.

    The newest batches are preferred, within the bounds of the settings.
    """
    copies = [one for one in unqueued.batches if one.identity in unqueued.named]
    if not copies:
        return unqueued
    chosen = choose_newest(copies, settings)
    problems = list(unqueued.problems)
    if chosen.left_out:
        problems.append(
            f"{chosen.left_out} older batches that are not enqueued yet were left out: wait for the"
            f" reconciler, or raise {chosen.bound}"
        )
    limit = asyncio.Semaphore(settings.fetches)

    async def read(copy: AcceptedManifest) -> AcceptedManifest | str | None:
        async with limit:
            try:
                return await find_manifest(store, accepted_key(copy.identity))
            except SluiceError as error:
                return str(error)

    found = await asyncio.gather(*map(read, chosen.manifests))
    confirmed = [one for one in found if isinstance(one, AcceptedManifest)]
    problems += [one for one in found if isinstance(one, str)]
    kept = [one for one in unqueued.batches if one.identity not in unqueued.named]
    kept += [one for one in confirmed if may_match(one, query)]
    return UnqueuedBatches(batches=tuple(kept), problems=tuple(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedSpool:
    """The local store of a spooling gateway, open, and the number of lanes of its authority."""

    store: ObjectStore
    lanes: int


@dataclass(slots=True)
class _SpoolListing:
    manifests: list[ListedObject] = field(default_factory=list)
    transferred: set[ObjectKey] = field(default_factory=set)


async def attach_spool(store: ObjectStore, authority: Authority) -> SearchedSpool:
    """Check that an open store is the spool of an authority's gateway.

    Raises:
        BadUsage: No gateway has used the store as a spool, or it belongs to another authority.
    """
    try:
        agreed = (await read_history(store, is_spool=True)).current
    except StoreMisconfigured as error:
        raise BadUsage("no gateway has spooled there: give the gateway's --spool") from error
    if agreed.authority_id != authority.authority_id:
        raise BadUsage(
            "this spool belongs to another authority: give the spool of the store's gateway"
        )
    return SearchedSpool(store=store, lanes=agreed.lanes)


async def read_spooled(
    spool: SearchedSpool, query: Query, settings: QuerySettings
) -> UnqueuedBatches:
    """List a spool and read the manifests that a query may need, within the settings' bounds.

    What cannot be read makes the result partial; it does not stop the query.
    """
    try:
        listing = await _list_spool(spool.store, query, settings)
    except SluiceError as error:
        return UnqueuedBatches(problems=(str(error),))
    newest = sorted(listing.manifests, key=lambda one: one.last_modified_ns, reverse=True)
    within = newest[: settings.tail_frames_max]
    limit = asyncio.Semaphore(settings.fetches)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_read_manifest(spool.store, one.key, listing, limit))
            for one in within
        ]
    found = [task.result() for task in tasks]
    problems = [result for result in found if isinstance(result, str)]
    if len(newest) > len(within):
        problems.append(
            f"{len(newest) - len(within)} older spooled batches were left out: wait for their"
            f" transfer, name agents, or raise tail_bytes_max=`{settings.tail_bytes_max}`"
        )
    manifests = [result for result in found if isinstance(result, AcceptedManifest)]
    return UnqueuedBatches(
        batches=tuple(manifest for manifest in manifests if may_match(manifest, query)),
        problems=tuple(problems),
    )


async def _list_spool(store: ObjectStore, query: Query, settings: QuerySettings) -> _SpoolListing:
    listing = _SpoolListing()
    for prefix in [agent_prefix(agent) for agent in query.agents] or [ACCEPTED]:
        settled = await _list_transferred(store, prefix, settings, listing)
        async for page in store.list(prefix):
            listing.manifests += [one for one in page.objects if one.key not in settled]
    return listing


async def _list_transferred(
    store: ObjectStore, prefix: str, settings: QuerySettings, listing: _SpoolListing
) -> set[ObjectKey]:
    """Return the batches transferred so long ago that they need no check; record the later ones."""
    settled: set[ObjectKey] = set()
    async for page in store.list(f"{TRANSFER_MARKERS}{prefix}"):
        # Both times are of the spool's clock.
        until_ns = UnixNs(page.date_ns - int(settings.transferred_s * NS_PER_S))
        for one in page.objects:
            key = ObjectKey(one.key.removeprefix(TRANSFER_MARKERS))
            (settled if one.last_modified_ns < until_ns else listing.transferred).add(key)
    return settled


async def _read_manifest(
    store: ObjectStore, key: ObjectKey, listing: _SpoolListing, limit: asyncio.Semaphore
) -> AcceptedManifest | str | None:
    async with limit:
        try:
            if key in listing.transferred and await _is_conflict(store, key):
                return None
            parse_accepted_key(key)
            found = await store.get(key)
            if isinstance(found, Found):
                return decode_accepted(key, found.body)
        except SluiceError as error:
            return str(error)
    return f"manifest is missing from the spool: restore it, key=`{key}`"


async def _is_conflict(store: ObjectStore, key: ObjectKey) -> bool:
    """Return True if the authority has another batch of this identity, which the query returns."""
    marker = transfer_marker_key(key)
    found = await store.get(marker)
    if not isinstance(found, Found):
        return False
    return decode_record(marker, found.body, TransferMarker).result == "conflict"
