"""Batches that are accepted and enqueued but not in the lake yet.

The order of reading matters: queue, ledger, records. A batch leaves the queue only when it is in
the ledger, and enters the ledger only when it is in the records. Read in this order, whatever has
gone from an earlier place is in a later one; the other way round it could be missed by all.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import InvalidFrame, SluiceError, TooLarge, UnsupportedVersion
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import INGEST_QUEUE, digest_of
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_query.request import Query
from sluice_query.settings import QuerySettings
from sluice_queue.entries import Descriptor
from sluice_queue.inspection import list_lanes, read_lane
from sluice_queue.lane import Lane
from sluice_queue.worklists import read_work_list
from sluice_store.port import ObjectStore

_THREAD_BYTES: Final = 256 << 10
"""Frames larger than this are decoded in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingBatch:
    """One batch as the queue names it."""

    lane: int
    sequence: int
    manifest: AcceptedManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What the queue held at one moment.

    Attributes:
        lanes: The lanes that exist.
        batches: Every batch of every entry that is not acknowledged, lane by lane, in order.
        trouble: What could not be read, for people.
    """

    lanes: tuple[int, ...] = ()
    batches: tuple[WaitingBatch, ...] = ()
    trouble: tuple[str, ...] = ()

    @property
    def manifests(self) -> list[AcceptedManifest]:
        """The manifests of these batches."""
        return [one.manifest for one in self.batches]


@dataclass(frozen=True, slots=True, kw_only=True)
class TailFrame:
    """One frame that is read from its blob, and when it was accepted."""

    frame: Frame
    accepted_at_ns: int
    frame_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The frames of waiting batches, and what is missing of them."""

    frames: tuple[TailFrame, ...] = ()
    trouble: tuple[str, ...] = ()


async def read_waiting(store: ObjectStore, settings: QuerySettings) -> Waiting:
    """Reads every lane of the ingest job's queue, and the work lists that wait there.

    What cannot be read makes the answer partial; it does not stop the query. Of a lane that is far
    behind only the newest lists are read.
    """
    lanes = [place.lane for place in await list_lanes(store, INGEST_QUEUE)]
    gate = asyncio.Semaphore(settings.fetches)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_read_lane(store, lane, settings, gate)) for lane in lanes]
    found = [task.result() for task in tasks]
    return Waiting(
        lanes=tuple(lanes),
        batches=tuple(one for lane in found for one in lane.batches),
        trouble=tuple(one for lane in found for one in lane.trouble),
    )


async def _read_lane(
    store: ObjectStore, lane: int, settings: QuerySettings, gate: asyncio.Semaphore
) -> Waiting:
    try:
        view = await read_lane(store, INGEST_QUEUE, lane)
    except SluiceError as error:
        return Waiting(trouble=(str(error),))
    entries = view.descriptors[-settings.tail_lists_max :]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_read_list(store, view.lane, one, gate)) for one in entries]
    found = [task.result() for task in tasks]
    trouble = [one for one in found if isinstance(one, str)]
    left_out = len(view.descriptors) - len(entries)
    if left_out:
        trouble.append(
            f"{left_out} work lists of lane {lane} were left out: wait for ingestion, or raise"
            " tail_lists_max"
        )
    batches = [one for one in found if not isinstance(one, str)]
    return Waiting(batches=tuple(one for each in batches for one in each), trouble=tuple(trouble))


async def _read_list(
    store: ObjectStore, lane: Lane, entry: Descriptor, gate: asyncio.Semaphore
) -> list[WaitingBatch] | str:
    async with gate:
        try:
            work = await read_work_list(store, lane, entry)
        except SluiceError as error:
            return str(error)
    return [
        WaitingBatch(lane=lane.lane, sequence=entry.sequence, manifest=manifest)
        for manifest in work.batches
    ]


def choose_missing(
    waiting: Waiting,
    query: Query,
    taken: Mapping[int, int],
    ledger: Iterable[Identity],
) -> list[AcceptedManifest]:
    """Gives the waiting batches that the lake does not show yet and the query may want.

    Args:
        waiting: What the queue held, read before the tables.
        query: The question.
        taken: Lane to the last sequence that the record table has taken.
        ledger: Identities in the ledger.

    Returns:
        Each identity once, in the order of the lanes.
    """
    there = set(ledger)
    # An entry that the table has taken is in it, though the ledger may lag behind by a commit.
    there |= {
        one.manifest.identity
        for one in waiting.batches
        if one.manifest.kind == query.kind and one.sequence <= taken.get(one.lane, 0)
    }
    chosen: dict[Identity, AcceptedManifest] = {}
    for one in waiting.batches:
        if one.manifest.identity not in there and may_match(one.manifest, query):
            chosen.setdefault(one.manifest.identity, one.manifest)
    return list(chosen.values())


def may_match(manifest: AcceptedManifest, query: Query) -> bool:
    """Tells whether a batch may hold records of a query, by kind, agent and times."""
    if manifest.kind != query.kind:
        return False
    if query.agents and manifest.agent_id not in query.agents:
        return False
    least, most = manifest.min_ts_unix_ns, manifest.max_ts_unix_ns
    if least is None or most is None:
        least = most = manifest.accepted_at_unix_ns
    return least < query.to_ns and most >= query.from_ns


async def fetch_tail(
    stores: Sequence[ObjectStore], manifests: Sequence[AcceptedManifest], settings: QuerySettings
) -> Tail:
    """Reads and decodes the frames of waiting batches, within bounds.

    A blob is read from the first store that has it: a spool comes before what it lands on. A frame
    that is missing or wrong, or one too many, is named in `trouble`.
    """
    within, left_out = _within(manifests, settings)
    gate = asyncio.Semaphore(settings.fetches)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_fetch(stores, manifest, gate)) for manifest in within]
    found = [task.result() for task in tasks]
    trouble = [one for one in found if isinstance(one, str)]
    if left_out:
        trouble.append(
            f"{left_out} batches that are not in the lake yet were left out: wait for ingestion,"
            " or raise tail_bytes_max"
        )
    frames = tuple(one for one in found if isinstance(one, TailFrame))
    return Tail(frames=frames, trouble=tuple(trouble))


def _within(
    manifests: Sequence[AcceptedManifest], settings: QuerySettings
) -> tuple[list[AcceptedManifest], int]:
    taken: list[AcceptedManifest] = []
    size_bytes = 0
    for manifest in manifests[: settings.tail_frames_max]:
        size_bytes += manifest.frame_bytes
        if size_bytes > settings.tail_bytes_max:
            break
        taken.append(manifest)
    return taken, len(manifests) - len(taken)


async def _fetch(
    stores: Sequence[ObjectStore], manifest: AcceptedManifest, gate: asyncio.Semaphore
) -> TailFrame | str:
    key = ObjectKey(manifest.raw_blob_key)
    async with gate:
        try:
            for store in stores:
                found = await store.get(key)
                if isinstance(found, Found):
                    return await _decode(manifest, found.body)
        except SluiceError as error:
            return str(error)
    return f"blob is missing, key=`{key}`"


async def _decode(manifest: AcceptedManifest, body: bytes) -> TailFrame | str:
    if len(body) > _THREAD_BYTES:
        return await asyncio.to_thread(_decode_now, manifest, body)
    return _decode_now(manifest, body)


def _decode_now(manifest: AcceptedManifest, body: bytes) -> TailFrame | str:
    if digest_of(body) != manifest.frame_sha256:
        return f"blob has other bytes than its manifest says, key=`{manifest.raw_blob_key}`"
    try:
        frame = decode_frame(body)
    except (InvalidFrame, UnsupportedVersion, TooLarge) as error:
        return f"{error}, key=`{manifest.raw_blob_key}`"
    if (frame.identity, frame.envelope.kind) != (manifest.identity, manifest.kind):
        return f"blob and manifest name two batches, key=`{manifest.raw_blob_key}`"
    return TailFrame(
        frame=frame, accepted_at_ns=manifest.accepted_at_unix_ns, frame_bytes=len(body)
    )
