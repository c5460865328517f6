"""Batches that are accepted but not in the lake yet: in the queue, and outside of it.

For a batch in the queue, the order of reading matters: queue, then ledger, then records. A batch
leaves the queue only after it has entered the ledger, and enters the ledger only after its records
are in the lake. With this order, a batch that is missing from an earlier place is found in a later
one. With the opposite order a batch could be missed in every place.

Work lists never change, so a searcher keeps those that it has read: a query reads every list of the
pending entries, and reads the queue a second time if journals name further batches. The exception
is a lost list that `sluice rebuild` wrote again: it has the same batches and perhaps more, which
other entries contain too. A query that remembers the first list may return such a batch twice while
it is in the records and not yet in the ledger.

A batch outside of the queue is held, in a gateway's spool, or named by journals. The order of
reading is then spool and journals, queue, ledger, records, **then queue and ledger a second time**:

- A batch that was in the queue at the first reading is handled as without a spool.
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
ingested later moves to a place that is read later; `choose_unqueued` decides whether the records
contain it.

Blobs are read from the spool first and from the authority second: the spool's copy is deleted only
after the authority's copy exists. With the opposite order both could be missing.

Source: ADR 36.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import DeltaTable
from msgspec.structs import replace as copy_with

from sluice_lake.data_files import list_files
from sluice_lake.locations import lake_location
from sluice_lake.tables import BATCHES, accepted_hour
from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, InvalidRecord, SluiceError, StoreMisconfigured
from sluice_protocol.frame import Frame
from sluice_protocol.identity import Identity
from sluice_protocol.journals import HOLD_RECORDS, HoldRecord
from sluice_protocol.keys import (
    ACCEPTED,
    INGEST_QUEUE,
    accepted_key,
    agent_prefix,
    parse_accepted_key,
)
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
from sluice_query.request import Query
from sluice_query.settings import QuerySettings
from sluice_query.statements import ledger_sql
from sluice_queue.lane import Lane, list_lanes
from sluice_store.authority import read_history
from sluice_store.port import ListedObject, ObjectStore, read_bodies, run_together

if TYPE_CHECKING:
    from sluice_queue.register import Descriptor
    from sluice_queue.worklists import PendingBatch

BATCHES_MAX: Final = 32_768
"""Batches of all remembered lists together, about 1 KiB each."""

_Place = tuple[Lane, int, ObjectKey]


class WorkListCache:
    """The batches of entries read lately, at most `batches_max`; drops the least recently used."""

    def __init__(self, batches_max: int = BATCHES_MAX) -> None:
        self._batches_max = batches_max
        self._known: OrderedDict[_Place, list[PendingBatch]] = OrderedDict()
        self._batches = 0

    def find(self, lane: Lane, entry: "Descriptor") -> "list[PendingBatch] | None":
        """Return the batches of an entry, if they are remembered."""
        place = (lane, entry.sequence, entry.location)
        found = self._known.get(place)
        if found is not None:
            self._known.move_to_end(place)
        return found

    async def read(
        self, store: ObjectStore, lane: Lane, entry: "Descriptor"
    ) -> "list[PendingBatch]":
        """Read the work list of an entry, and remember its batches."""
        from sluice_queue.worklists import read_pending_batches  # noqa: PLC0415 - without lanes

        found = await read_pending_batches(store, lane, entry)
        place = (lane, entry.sequence, entry.location)
        self._batches += len(found) - len(self._known.pop(place, ()))
        self._known[place] = found
        while self._batches > self._batches_max:
            _, dropped = self._known.popitem(last=False)
            self._batches -= len(dropped)
        return found


GROUP_MAX: Final = 256
"""Small batches that are read together."""
GROUP_BYTES_MAX: Final = 1 << 20
"""Size of the blobs that are read together."""
GROUPS_CONCURRENT: Final = 2
"""Groups that are read or decoded concurrently; decoding holds the interpreter's lock."""
_NS_PER_US: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSnapshot:
    """The content of the ingest queue at one moment.

    Attributes:
        batches: Every batch of every entry that is not acknowledged, lane by lane, in order.
        acknowledged: Lane to the last entry that the queue has handed over to the lake.
        rebuilt: Lane to the time at which its register was rebuilt, if it ever was.
    """

    lanes: tuple[int, ...] = ()
    batches: tuple["PendingBatch", ...] = ()
    acknowledged: Mapping[int, int] = field(default_factory=dict)
    rebuilt: Mapping[int, UnixNs] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def manifests(self) -> list[AcceptedManifest]:
        """The manifests of the batches."""
        return [batch.manifest for batch in self.batches]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """Pending batches that were read from their blobs."""

    tables: tuple[pa.Table, ...] = ()
    batches: int = 0
    size_bytes: int = 0
    problems: tuple[str, ...] = ()


async def read_pending(
    store: ObjectStore,
    settings: QuerySettings,
    lists: WorkListCache,
    authority: Authority | None = None,
) -> PendingSnapshot:
    """Read every lane of the ingest queue and the work lists of its entries.

    What cannot be read makes the result partial; it does not stop the query. Of a lane with a long
    backlog only the newest work lists are read. The authority is needed for `acknowledged`.
    """
    lanes = [place.lane for place in await list_lanes(store, INGEST_QUEUE)]
    reader = _ListReader(
        store=store,
        lists=lists,
        limit=asyncio.Semaphore(settings.fetches),
        settings=settings,
        authority=authority,
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reader.read_lane(lane)) for lane in lanes]
    found = [task.result() for task in tasks]
    return PendingSnapshot(
        lanes=tuple(lanes),
        batches=tuple(chain.from_iterable(lane.batches for lane in found)),
        acknowledged={lane: at for one in found for lane, at in one.acknowledged.items()},
        rebuilt={lane: at for one in found for lane, at in one.rebuilt.items()},
        problems=tuple(chain.from_iterable(lane.problems for lane in found)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListReader:
    """Reads the pending entries of lanes within bounds."""

    store: ObjectStore
    lists: WorkListCache
    limit: asyncio.Semaphore
    settings: QuerySettings
    authority: Authority | None

    async def read_lane(self, lane: int) -> PendingSnapshot:
        from sluice_queue.inspection import handed_over, read_lane  # noqa: PLC0415 - without lanes

        try:
            view = await read_lane(self.store, INGEST_QUEUE, lane)
        except SluiceError as error:
            return PendingSnapshot(problems=(str(error),))
        lists_max = self.settings.tail_lists_max
        entries = view.descriptors[max(len(view.descriptors) - lists_max, 0) :]
        known = [self.lists.find(view.lane, one) for one in entries]
        async with asyncio.TaskGroup() as group:
            reads = {
                number: group.create_task(self._read_entry(view.lane, entries[number]))
                for number, batches in enumerate(known)
                if batches is None
            }
        found = [
            batches if batches is not None else reads[number].result()
            for number, batches in enumerate(known)
        ]
        problems = [result for result in found if isinstance(result, str)]
        left_out = len(view.descriptors) - len(entries)
        if left_out:
            problems.append(
                f"{left_out} older work lists of lane {lane} were left out: wait for ingestion, or"
                f" raise tail_bytes_max=`{self.settings.tail_bytes_max}`"
            )
        batches = chain.from_iterable(result for result in found if not isinstance(result, str))
        acknowledged = view.state.acked_through
        if self.authority is not None:
            acknowledged = handed_over(self.authority, lane, view.state)
        return PendingSnapshot(
            batches=tuple(batches),
            acknowledged={lane: acknowledged},
            rebuilt={lane: view.state.rebuilt_ns} if view.state.rebuilt_ns else {},
            problems=tuple(problems),
        )

    async def _read_entry(self, lane: Lane, entry: "Descriptor") -> "list[PendingBatch] | str":
        async with self.limit:
            try:
                return await self.lists.read(self.store, lane, entry)
            except SluiceError as error:
                return str(error)


def choose_pending(
    pending: PendingSnapshot,
    query: Query,
    lane_versions: Mapping[int, int],
    ledger: Iterable[Identity],
) -> list[AcceptedManifest]:
    """Return the pending batches that the query needs and the lake does not contain, each once.

    `pending` was read before the tables. `lane_versions` maps a lane to the last sequence that the
    record table contains; `ledger` has the identities in the ledger.
    """
    ingested = set(ledger)
    chosen: dict[Identity, AcceptedManifest] = {}
    for batch in pending.batches:
        # First, because almost all of a long backlog is of other agents or times.
        if not may_match(batch.manifest, query):
            continue
        who = batch.identity
        if batch.sequence <= lane_versions.get(batch.lane, 0):
            # The records of this entry are in the table, even if the ledger is one commit behind.
            ingested.add(who)
        else:
            chosen.setdefault(who, batch.manifest)
    return [one for who, one in chosen.items() if who not in ingested]


def is_of_agents(manifest: AcceptedManifest, query: Query) -> bool:
    """Return False if kind and agent show that no record of the query is in the batch."""
    if manifest.kind != query.kind and not query.every_kind:
        return False
    return not query.agents or manifest.agent_id in query.agents


def may_match(manifest: AcceptedManifest, query: Query) -> bool:
    """Return False if kind, agent and times show that no record of the query is in the batch."""
    if not is_of_agents(manifest, query):
        return False
    if query.around is not None and manifest.boot_id != query.around.boot_id:
        return False
    if query.accepted_from_ns is not None and (
        manifest.accepted_at_unix_ns + _NS_PER_US <= query.accepted_from_ns
    ):
        return False
    start_ns, end_ns = batch_bounds_ns(manifest)
    return start_ns < query.to_ns and end_ns > query.from_ns


def batch_bounds_ns(manifest: AcceptedManifest) -> tuple[int, int]:
    """Return bounds of the times of a batch's records, Unix ns.

    No record is before the first, all are before the second. Records without a time are placed at
    the acceptance of their batch, in whole microseconds.
    """
    earliest, latest = manifest.min_ts_unix_ns, manifest.max_ts_unix_ns
    accepted_ns = manifest.accepted_at_unix_ns
    return (
        accepted_ns // _NS_PER_US * _NS_PER_US if earliest is None else earliest,
        (accepted_ns if latest is None else latest) + 1,
    )


async def fetch_batches(
    stores: Sequence[ObjectStore], manifests: Sequence[AcceptedManifest], settings: QuerySettings
) -> FetchedBatches:
    """Read and decode the blobs of pending batches, as many concurrently as the settings allow.

    Each blob is read from the first store that contains it, so a spool precedes the store to which
    it transfers. A blob that is missing or damaged is reported in `problems`. When the decoded
    records exceed `memory_bytes_max`, the batches that are left, the last of `manifests`, are not
    read, which is a problem too.
    """
    reader = _GroupReader(
        stores=stores,
        limit=asyncio.Semaphore(settings.fetches),
        together=asyncio.Semaphore(GROUPS_CONCURRENT),
        left_bytes=settings.memory_bytes_max,
    )
    # The groups that are read concurrently are those that may exceed the bound together.
    groups = _group_small(manifests)
    slots = asyncio.Semaphore(settings.fetches)

    async def read(batches: Sequence[AcceptedManifest]) -> FetchedBatches:
        async with slots:
            return await reader.read(batches)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(batches)) for batches in groups]
    found = joined_batches([task.result() for task in tasks])
    if not reader.left_out:
        return found
    why = _left_out(reader.left_out, f"memory_bytes_max=`{settings.memory_bytes_max}`")
    return replace(found, problems=(*found.problems, why))


def _left_out(count: int, bound: str) -> str:
    left = f"{count} older batches that are not in the lake yet were left out"
    return f"{left}: wait for ingestion, or raise {bound}"


def joined_batches(found: Sequence[FetchedBatches]) -> FetchedBatches:
    """Return what was read in several steps as one."""
    return FetchedBatches(
        tables=tuple(table for one in found for table in one.tables),
        batches=sum(one.batches for one in found),
        size_bytes=sum(one.size_bytes for one in found),
        problems=tuple(problem for one in found for problem in one.problems),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenBatches:
    """The newest batches that are within the bounds, and the number of older ones left out.

    `bound` is the setting that excluded them, with its value; empty if nothing was left out.
    """

    manifests: tuple[AcceptedManifest, ...]
    left_out: int = 0
    bound: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence about what was left out, if anything was."""
        if not self.left_out:
            return ()
        return (_left_out(self.left_out, self.bound),)


def choose_newest(manifests: Sequence[AcceptedManifest], settings: QuerySettings) -> ChosenBatches:
    """Choose the batches accepted last, over all lanes, up to the bounds of the settings."""
    # Of batches that were accepted at the same time, the one that was enqueued last.
    order = sorted(
        range(len(manifests)),
        key=lambda place: (manifests[place].accepted_at_unix_ns, place),
        reverse=True,
    )
    newest = [manifests[place] for place in order]
    size_bytes = 0
    for count, manifest in enumerate(newest):
        size_bytes += manifest.frame_bytes
        bound = ""
        if count == settings.tail_frames_max or size_bytes > settings.tail_bytes_max:
            bound = f"tail_bytes_max=`{settings.tail_bytes_max}`"
        if bound:
            left_out = len(newest) - count
            return ChosenBatches(manifests=tuple(newest[:count]), left_out=left_out, bound=bound)
    return ChosenBatches(manifests=tuple(newest))


def _group_small(manifests: Sequence[AcceptedManifest]) -> list[list[AcceptedManifest]]:
    """Divide batches into groups that are read together; a large batch is a group of one."""
    groups: list[list[AcceptedManifest]] = []
    room = 0
    for one in manifests:
        if not groups or one.frame_bytes > room or len(groups[-1]) == GROUP_MAX:
            groups.append([])
            room = GROUP_BYTES_MAX
        groups[-1].append(one)
        room -= one.frame_bytes
    return groups


@dataclass(slots=True, kw_only=True)
class _GroupReader:
    """Reads groups until their records have a size; counts the batches that it leaves out."""

    stores: Sequence[ObjectStore]
    limit: asyncio.Semaphore
    together: asyncio.Semaphore
    left_bytes: int
    left_out: int = 0

    async def read(self, manifests: Sequence[AcceptedManifest]) -> FetchedBatches:
        if self.left_bytes <= 0:
            self.left_out += len(manifests)
            return FetchedBatches()
        found = await self._fetch_group(manifests)
        self.left_bytes -= sum(table.nbytes for table in found.tables)
        return found

    async def _fetch_group(self, manifests: Sequence[AcceptedManifest]) -> FetchedBatches:
        if len(manifests) > 1:
            async with self.together:
                table = await _fetch_together(self.stores[0], manifests, self.limit)
            if table is not None:
                size_bytes = sum(one.frame_bytes for one in manifests)
                return FetchedBatches(
                    tables=(table,), batches=len(manifests), size_bytes=size_bytes
                )
        alone = [_fetch(self.stores, one, self.limit) for one in manifests]
        return _decoded(manifests, await run_together(*alone))


def _decoded(manifests: Sequence[AcceptedManifest], alone: Sequence[Frame | str]) -> FetchedBatches:
    from sluice_lake.blobs import states_times_of  # noqa: PLC0415 - decoders, for pending batches
    from sluice_lake.records import kept_batches, records_table  # noqa: PLC0415 - as above

    read = [
        (one, frame)
        for one, frame in zip(manifests, alone, strict=True)
        if not isinstance(frame, str)
    ]
    decoded = [batch for one, frame in read for batch in kept_batches(frame, one, 0)]
    problems = [one for one in alone if isinstance(one, str)]
    problems += [
        _wrong_times(one) for one, frame in read if not states_times_of(one, frame.envelope)
    ]
    return FetchedBatches(
        tables=(records_table(manifests[0].kind, decoded, plain=True),) if decoded else (),
        batches=len(read),
        size_bytes=sum(one.frame_bytes for one, _ in read),
        problems=tuple(problems),
    )


def _wrong_times(manifest: AcceptedManifest) -> str:
    """Return why an answer may be wrong: batches were chosen and ordered by manifests' times."""
    return (
        "a manifest states other times than its records have, so queries can miss some of them"
        f" until they are ingested, key=`{accepted_key(manifest.identity)}`"
    )


async def _fetch_together(
    store: ObjectStore, manifests: Sequence[AcceptedManifest], limit: asyncio.Semaphore
) -> pa.Table | None:
    """Return the records of small batches; None if each of them has to be read alone."""
    from sluice_lake.records import small_blobs_table  # noqa: PLC0415 - decoders

    try:
        keys = [ObjectKey(one.raw_blob_key) for one in manifests]
        async with limit:
            bodies = await read_bodies(store, keys)
    except SluiceError:
        return None
    return await asyncio.to_thread(small_blobs_table, manifests[0].kind, manifests, bodies)


async def _fetch(
    stores: Sequence[ObjectStore], manifest: AcceptedManifest, limit: asyncio.Semaphore
) -> Frame | str:
    from sluice_lake.blobs import RejectedBlob, fetch_frame  # noqa: PLC0415 - decoders

    async with limit:
        try:
            frame = await fetch_frame(stores, manifest)
        except SluiceError as error:
            return str(error)
    return frame.detail if isinstance(frame, RejectedBlob) else frame


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
    found = await run_together(*(_read_hold(store, place, query, limit) for place in places))
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

    found = await run_together(*map(read, chosen.manifests))
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
