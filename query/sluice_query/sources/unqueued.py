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
shown. Source: ADR 36.
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
from sluice_protocol.errors import InvalidRecord, SluiceError
from sluice_protocol.identity import Identity
from sluice_protocol.journals import UNHEALTHY, HoldRecord
from sluice_protocol.keys import ACCEPTED, accepted_key, parse_accepted_key
from sluice_protocol.manifests import (
    AcceptedManifest,
    RecordRange,
    decode_accepted,
    decode_record,
    joined_ranges,
    readable_parts,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_query.compute.engine import QueryEngine
from sluice_query.compute.sql import ledger_sql
from sluice_query.question.request import Query
from sluice_query.settings import QuerySettings
from sluice_query.sources.pending import PendingSnapshot, choose_newest, may_match
from sluice_store.port import ObjectStore

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
    async for page in store.list(UNHEALTHY):
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
        manifest = await read_manifest(store, ObjectKey(record.key))
    return held if manifest is None or may_match(manifest, query) else None


async def read_manifest(store: ObjectStore, key: ObjectKey) -> AcceptedManifest | None:
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
                return await read_manifest(store, accepted_key(copy.identity))
            except SluiceError as error:
                return str(error)

    found = await asyncio.gather(*map(read, chosen.manifests))
    confirmed = [one for one in found if isinstance(one, AcceptedManifest)]
    problems += [one for one in found if isinstance(one, str)]
    kept = [one for one in unqueued.batches if one.identity not in unqueued.named]
    kept += [one for one in confirmed if may_match(one, query)]
    return UnqueuedBatches(batches=tuple(kept), problems=tuple(problems))
