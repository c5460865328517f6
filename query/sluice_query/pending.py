"""Pending batches: accepted and enqueued, but not in the lake yet.

The order of reading matters: queue, then ledger, then records. A batch leaves the queue only after
it has entered the ledger, and enters the ledger only after its records are in the lake. With this
order, a batch that is missing from an earlier place is found in a later one. With the opposite
order a batch could be missed in every place.

Work lists never change, so a searcher keeps those that it has read: a query reads every list of the
pending entries, and reads the queue a second time if journals name further batches. The exception
is a lost list that `sluice rebuild` wrote again: it has the same batches and perhaps more, which
other entries contain too. A query that remembers the first list may return such a batch twice while
it is in the records and not yet in the ledger.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import pyarrow as pa

from sluice_lake.blobs import RejectedBlob, fetch_frame, states_times_of
from sluice_lake.records import kept_batches, records_table, small_blobs_table
from sluice_protocol.errors import SluiceError
from sluice_protocol.frame import Frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import INGEST_QUEUE, accepted_key
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import ObjectKey
from sluice_query.request import Query
from sluice_query.settings import QuerySettings
from sluice_queue.inspection import list_lanes, read_lane
from sluice_queue.lane import Lane
from sluice_queue.register import Descriptor
from sluice_queue.worklists import PendingBatch, read_pending_batches
from sluice_store.port import ObjectStore, read_bodies

BATCHES_MAX: Final = 32_768
"""Batches of all remembered lists together, about 1 KiB each."""

_Place = tuple[Lane, int, ObjectKey]


class WorkListCache:
    """The batches of entries read lately, at most `batches_max`; drops the least recently used."""

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
        """Read the work list of an entry, and remember its batches."""
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
    """

    lanes: tuple[int, ...] = ()
    batches: tuple[PendingBatch, ...] = ()
    acknowledged: Mapping[int, int] = field(default_factory=dict)
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
    store: ObjectStore, settings: QuerySettings, lists: WorkListCache
) -> PendingSnapshot:
    """Read every lane of the ingest queue and the work lists of its entries.

    What cannot be read makes the result partial; it does not stop the query. Of a lane with a long
    backlog only the newest work lists are read.
    """
    lanes = [place.lane for place in await list_lanes(store, INGEST_QUEUE)]
    reader = _ListReader(
        store=store, lists=lists, limit=asyncio.Semaphore(settings.fetches), settings=settings
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reader.read_lane(lane)) for lane in lanes]
    found = [task.result() for task in tasks]
    return PendingSnapshot(
        lanes=tuple(lanes),
        batches=tuple(chain.from_iterable(lane.batches for lane in found)),
        acknowledged={lane: at for one in found for lane, at in one.acknowledged.items()},
        problems=tuple(chain.from_iterable(lane.problems for lane in found)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListReader:
    """Reads the pending entries of lanes within bounds."""

    store: ObjectStore
    lists: WorkListCache
    limit: asyncio.Semaphore
    settings: QuerySettings

    async def read_lane(self, lane: int) -> PendingSnapshot:
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
        return PendingSnapshot(
            batches=tuple(batches),
            acknowledged={lane: view.state.acked_through},
            problems=tuple(problems),
        )

    async def _read_entry(self, lane: Lane, entry: Descriptor) -> list[PendingBatch] | str:
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
    earliest = manifest.min_ts_unix_ns
    if earliest is None:
        earliest = manifest.accepted_at_unix_ns
    return earliest < query.to_ns and end_ns(manifest) > query.from_ns


def end_ns(manifest: AcceptedManifest) -> int:
    """Return a time that all records of a batch are before, Unix ns.

    Records without a time are placed at the acceptance of their batch.
    """
    latest = manifest.max_ts_unix_ns
    return (manifest.accepted_at_unix_ns if latest is None else latest) + 1


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
        return _decoded(manifests, await asyncio.gather(*alone))


def _decoded(manifests: Sequence[AcceptedManifest], alone: Sequence[Frame | str]) -> FetchedBatches:
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
    async with limit:
        try:
            frame = await fetch_frame(stores, manifest)
        except SluiceError as error:
            return str(error)
    return frame.detail if isinstance(frame, RejectedBlob) else frame
