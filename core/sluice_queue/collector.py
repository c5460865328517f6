"""Deletion of work lists and segments that no reader can need any more.

A work list is deleted when one of two proofs exists:

- this collector read a register that named it, and its sequence has been at or below
  `acked_through` for at least the grace period;
- no register names it, and it is older than the retry horizon by the store's clock. A producer
  never appends a list older than an hour, so no register can name it later.

A segment is deleted when its last sequence is acknowledged: a producer spills only entries that are
not, so no later header can name it. Missing or unreadable evidence means keep. Deletes name an
object version and can be repeated. In a store without versioning nothing is deleted, and no request
is sent for each object.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import QUEUE, WORK_LISTS, hour_path
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_queue.inspection import LaneSnapshot, read_lane
from sluice_queue.lane import Lane, list_lanes
from sluice_queue.register_client import Runtime
from sluice_store.port import ObjectStore, run_concurrently
from sluice_store.retry import CurrentDeletion, delete_current_version

GRACE_S_DEFAULT: Final = 3600.0
"""Grace period, seconds: a reader may still read the list of a descriptor it fetched before the
acknowledgement.
"""

CONCURRENT_DELETES: Final = 32
"""Objects that are deleted concurrently: one at a time would be slower than many producers write.
"""

_WORK_LIST: Final = re.compile(
    re.escape(WORK_LISTS) + r"date=[0-9-]{10}/hour=\d\d/(?P<at>\d{20})-"
    r"(?P<queue>[a-z0-9_-]+)\.(?P<lane>\d{3})-[0-9A-Z]{26}\.json"
)
_SEGMENT: Final = re.compile(r".*/segments/(?P<first>\d{20})-(?P<last>\d{20})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The objects that one run deleted."""

    acked_lists: int
    unnamed_lists: int
    segments: int


class Collector:
    """A collector that remembers which lists the registers named; run it periodically."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        retry_horizon_ns: int,
        grace_s: float = GRACE_S_DEFAULT,
        runtime: Runtime | None = None,
    ) -> None:
        """Bind the collector to a store; `grace_s` is between an acknowledgement and the delete."""
        self._store = store
        self._horizon_ns = retry_horizon_ns
        self._grace_ns = int(grace_s * NS_PER_S)
        self._runtime = runtime if runtime is not None else Runtime()
        self._named: dict[Lane, dict[int, ObjectKey]] = {}
        self._acked: dict[ObjectKey, tuple[str, UnixNs]] = {}

    async def run(self) -> Collected:
        """Read every lane, then delete what is proved.

        Raises:
            StoreError: The store is unreachable; earlier deletes remain.
            InvalidRecord: A register cannot be read; no unnamed list is deleted then.
        """
        views = [await self._observe(lane) for lane in await list_lanes(self._store)]
        now_ns = max((view.date_ns for view in views), default=UnixNs(0))
        acked = await self._delete_acked(now_ns)
        segments = sum([await self._delete_segments(view) for view in views])
        unnamed = await self._delete_unnamed()
        return Collected(acked_lists=acked, unnamed_lists=unnamed, segments=segments)

    async def _observe(self, lane: Lane) -> LaneSnapshot:
        """Record which lists the register names, and which are acknowledged now."""
        view = await read_lane(self._store, lane.queue, lane.lane)
        named = self._named.setdefault(lane, {})
        for sequence in [one for one in named if one <= view.state.acked_through]:
            self._acked[named.pop(sequence)] = (lane.queue, view.date_ns)
        named.update({one.sequence: one.location for one in view.descriptors})
        return view

    async def _delete_acked(self, now_ns: UnixNs) -> int:
        ripe = [
            (key, queue)
            for key, (queue, acked_ns) in self._acked.items()
            if now_ns - acked_ns >= self._grace_ns
        ]
        outcomes = await self._delete_all(ripe, "work_list")
        for key, outcome in outcomes.items():
            if outcome is not CurrentDeletion.UNKNOWN:
                del self._acked[key]
        return _count_gone(outcomes)

    async def _delete_segments(self, view: LaneSnapshot) -> int:
        lane = view.lane
        gone: list[tuple[ObjectKey, str]] = []
        async for page in self._store.list(f"{QUEUE}{lane.queue}.{lane.lane:03d}/segments/"):
            for one in page.objects:
                found = _SEGMENT.fullmatch(one.key)
                acked = found is not None and int(found["last"]) <= view.state.acked_through
                aged = page.date_ns - one.last_modified_ns >= self._grace_ns
                if acked and aged:
                    gone.append((one.key, lane.queue))
        return _count_gone(await self._delete_all(gone, "segment"))

    async def _delete_unnamed(self) -> int:
        """Delete lists older than the horizon that no register names, read after the listing."""
        old: list[tuple[ObjectKey, str]] = []
        async for page in self._store.list(WORK_LISTS):
            edge_ns = page.date_ns - self._horizon_ns
            for one in page.objects:
                found = _WORK_LIST.fullmatch(one.key)
                if found is not None and max(int(found["at"]), one.last_modified_ns) < edge_ns:
                    if not old and await self._is_unversioned(one.key):
                        return 0  # else every run would list all that was ever written
                    old.append((one.key, found["queue"]))
            if page.objects and page.objects[-1].key > f"{WORK_LISTS}{hour_path(edge_ns)}/~":
                break
        if not old:
            return 0
        named = await self._all_named()
        unnamed = [(key, queue) for key, queue in old if key not in named]
        return _count_gone(await self._delete_all(unnamed, "work_list"))

    async def _is_unversioned(self, key: ObjectKey) -> bool:
        found = await self._store.head(key)
        return isinstance(found, ObjectInfo) and found.incarnation is None

    async def _all_named(self) -> set[ObjectKey]:
        named: set[ObjectKey] = set()
        for lane in await list_lanes(self._store):
            view = await read_lane(self._store, lane.queue, lane.lane)
            if len(view.descriptors) != view.state.waiting:
                raise InvalidRecord(lane.key, "not every pending entry could be read")
            named.update(one.location for one in view.descriptors)
        return named

    async def _delete_all(
        self, objects: Sequence[tuple[ObjectKey, str]], kind: str
    ) -> dict[ObjectKey, CurrentDeletion]:
        """Delete objects; the first alone, because it shows whether the store has versions."""
        outcomes: dict[ObjectKey, CurrentDeletion] = {}

        async def delete(one: tuple[ObjectKey, str]) -> None:
            key, queue = one
            outcomes[key] = await delete_current_version(self._store, key)
            if outcomes[key] is CurrentDeletion.DELETED:
                self._runtime.metrics.collected.labels(queue, kind).inc()

        if objects:
            await delete(objects[0])
            if outcomes[objects[0][0]] is CurrentDeletion.UNVERSIONED:
                return {key: CurrentDeletion.UNVERSIONED for key, _ in objects}
        await run_concurrently(objects[1:], delete, concurrency=CONCURRENT_DELETES)
        return outcomes


def _count_gone(outcomes: Mapping[ObjectKey, CurrentDeletion]) -> int:
    return sum(one.is_gone for one in outcomes.values())
