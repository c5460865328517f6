"""A queue for HTTP consumers; this process is its one fenced consumer.

HTTP consumers, which do not know each other, share the leases over a lane. If another reconciler
opened a lane, everything known of it is dropped, and the next request opens it again: entries that
are leased are delivered twice, and none is lost.

States of an entry, and its transitions:

    pending    `claim`                                              → leased
    leased     `commit` by its lease                                → committed
               `fail` by its lease, or the lease expired            → pending, attempts + 1
               `extend` by its lease                                → leased, with a later end
    committed  every entry below it is committed too                → acknowledged, by `HttpQueue`

Each claim has a separate lease id. A commit under an older id is refused after the entry was
claimed again, so two consumers never both believe that they committed it. Delivery is at least
once: the work of a consumer that finished after its lease expired is repeated. Leases exist in
memory only; after a restart every entry behind `acked_through` is pending again.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import structlog

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, ErrorCode, Fenced, SluiceError
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S
from sluice_queue.consumer import Consumer
from sluice_queue.errors import LayoutChanged
from sluice_queue.lane import list_lanes
from sluice_queue.register import Descriptor
from sluice_queue.register_client import Runtime
from sluice_store.port import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One claimed entry.

    Attributes:
        since_ns: By the monotonic clock.
        ends_ns: When the entry may be claimed again, by the monotonic clock.
    """

    lease_id: str
    entry: Descriptor
    consumer: str
    since_ns: int
    ends_ns: int
    attempts: int


@dataclass(slots=True, kw_only=True)
class LaneLeases:
    """The states of the entries of one lane behind `acked_through`."""

    acked_through: int
    _pending: list[tuple[int, Descriptor]] = field(default_factory=list)
    _leased: dict[int, Lease] = field(default_factory=dict)
    _committed: dict[int, str] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        """Number of entries that are not claimed."""
        return len(self._pending)

    @property
    def claimed(self) -> tuple[str, ...]:
        """The ids of all leases, and of those committed and not acknowledged."""
        return (*(one.lease_id for one in self._leased.values()), *self._committed.values())

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Every lease, oldest entry first."""
        return tuple(self._leased[sequence] for sequence in sorted(self._leased))

    def offer(self, entries: tuple[Descriptor, ...]) -> None:
        """Add entries that were read from the lane."""
        self._pending += [(0, entry) for entry in entries]

    def expire(self, now_ns: int) -> int:
        """Return entries whose lease expired to the pending ones; return their number."""
        ended = [lease for lease in self._leased.values() if lease.ends_ns <= now_ns]
        for lease in ended:
            self._put_back(lease)
        return len(ended)

    def _put_back(self, lease: Lease) -> None:
        del self._leased[lease.entry.sequence]
        self._pending.append((lease.attempts + 1, lease.entry))
        self._pending.sort(key=lambda one: one[1].sequence)

    def claim(self, lease_id: str, consumer: str, now_ns: int, ends_ns: int) -> Lease | None:
        """Lease the oldest pending entry; return None if there is none."""
        if not self._pending:
            return None
        attempts, entry = self._pending.pop(0)
        lease = Lease(
            lease_id=lease_id,
            entry=entry,
            consumer=consumer,
            since_ns=now_ns,
            ends_ns=ends_ns,
            attempts=attempts,
        )
        self._leased[entry.sequence] = lease
        return lease

    def commit(self, lease_id: str) -> bool:
        """Commit the leased entry; return False if the lease has ended.

        A commit that is repeated because its acknowledgement failed is the same commit.
        """
        lease = self._find(lease_id)
        if lease is None:
            return lease_id in self._committed.values()
        del self._leased[lease.entry.sequence]
        self._committed[lease.entry.sequence] = lease_id
        return True

    def fail(self, lease_id: str) -> bool:
        """Return the leased entry to the pending ones; return False if the lease has ended."""
        lease = self._find(lease_id)
        if lease is not None:
            self._put_back(lease)
        return lease is not None

    def extend(self, lease_id: str, ends_ns: int) -> bool:
        """Set a later end of a lease; return False if the lease has ended."""
        lease = self._find(lease_id)
        if lease is not None:
            self._leased[lease.entry.sequence] = replace(lease, ends_ns=ends_ns)
        return lease is not None

    def _find(self, lease_id: str) -> Lease | None:
        return next((one for one in self._leased.values() if one.lease_id == lease_id), None)

    def acknowledgeable(self) -> int:
        """Return the highest sequence through which every entry is committed."""
        at = self.acked_through
        while at + 1 in self._committed:
            at += 1
        return at

    def acknowledged(self, through: int) -> None:
        """Record that the lane was acknowledged through a sequence."""
        self.acked_through = max(self.acked_through, through)
        self._committed = {
            one: lease_id for one, lease_id in self._committed.items() if one > self.acked_through
        }


HOLDERS_MAX: Final = 100
"""Consumers of one lane that are listed, those with the oldest claims."""


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer that holds leases of a lane.

    Attributes:
        consumer: The name that it gave; empty if it gave none.
        entries: Number of entries that it claimed and has not committed.
        oldest_s: Time since the oldest of these claims, seconds.
        ends_s: Time until the first of these leases ends, seconds.
        attempts: How often one of these entries was claimed before, at most.
    """

    consumer: str
    entries: int
    oldest_s: float
    ends_s: float
    attempts: int


class ServedLane(msgspec.Struct, frozen=True, kw_only=True):
    """One lane that a process serves over HTTP.

    Attributes:
        epoch: The epoch that the process opened.
        consumer_id: The id under which it did, 32 hex digits. If the register of the lane contains
            another id, another process opened the lane since.
        opened_s: Time since then, seconds.
        holders: The consumers that hold leases, the oldest claim first; at most 100.
    """

    queue: str
    lane: int
    epoch: int
    consumer_id: str
    opened_s: float
    holders: tuple[LeaseHolder, ...]


def holders_of(leases: Iterable[Lease], now_ns: int) -> tuple[LeaseHolder, ...]:
    """Return the consumers of leases that have not ended, the oldest claim first."""
    by_consumer: dict[str, list[Lease]] = {}
    for lease in leases:
        if lease.ends_ns > now_ns:
            by_consumer.setdefault(lease.consumer, []).append(lease)
    holders = [
        LeaseHolder(
            consumer=consumer,
            entries=len(some),
            oldest_s=(now_ns - min(one.since_ns for one in some)) / NS_PER_S,
            ends_s=(min(one.ends_ns for one in some) - now_ns) / NS_PER_S,
            attempts=max(one.attempts for one in some),
        )
        for consumer, some in by_consumer.items()
    ]
    return tuple(sorted(holders, key=lambda one: -one.oldest_s)[:HOLDERS_MAX])


log = structlog.get_logger()

READ_AHEAD: Final = 100
CLAIMS_MAX: Final = 100
_LANE_NUMBER: Final = re.compile("[0-9]{1,4}", re.ASCII)
LEASES_MAX: Final = 10_000
"""Claimed entries of one lane; beyond it no further entries are read from the lane."""


class LeaseLost(SluiceError):
    """The lease has ended, and its entry was or will be claimed again."""

    code = ErrorCode.NOT_FOUND

    def __init__(self, lease_ids: tuple[str, ...]) -> None:
        super().__init__(lease_ids)
        self.lease_ids = lease_ids

    def __str__(self) -> str:
        return f"lease has ended: claim the entry again, lease_ids=`{', '.join(self.lease_ids)}`"


class LeaseFenced(SluiceError):
    """Another process opened the lane of a lease: nothing was acknowledged."""

    code = ErrorCode.FENCED

    def __init__(self, lease_ids: tuple[str, ...]) -> None:
        super().__init__(lease_ids)
        self.lease_ids = lease_ids

    def __str__(self) -> str:
        return (
            "another reconciler opened the lane, and the entry will be delivered again: drop its"
            f" result or make it idempotent, lease_ids=`{', '.join(self.lease_ids)}`"
        )


OwnerUrl = Callable[[int], str]
"""Returns the base URL of another owner of a lane; empty if it is this process, or is unknown."""


def _no_other_owner(lane: int) -> str:
    del lane
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedEntry:
    """One entry claimed over HTTP.

    Attributes:
        lease_id: Identifies the claim in commit, failed and heartbeat.
        attempts: How often it was claimed before.
        lease_s: Duration of the lease, seconds.
    """

    lease_id: str
    lane: int
    sequence: int
    attempts: int
    lease_s: float
    batches: tuple[AcceptedManifest, ...]


@dataclass(slots=True, kw_only=True)
class _Lane:
    consumer: Consumer
    leases: LaneLeases
    opened_ns: int


class HttpQueue:
    """The entries of one queue, claimed under leases; only own lanes are opened."""

    def __init__(
        self,
        store: ObjectStore,
        queue: str,
        authority: Authority,
        runtime: Runtime,
        *,
        lease_s: float,
        owner_url: OwnerUrl = _no_other_owner,
    ) -> None:
        self.queue = queue
        self._store = store
        self._authority = authority
        self._runtime = runtime
        self._lease_s = lease_s
        self._lanes: dict[int, _Lane] = {}
        self._fenced: dict[int, frozenset[str]] = {}
        self.owner_url = owner_url
        self._lock = asyncio.Lock()

    async def claim(self, count: int, consumer: str, lane: int | None = None) -> list[ClaimedEntry]:
        """Claim up to `count` entries of one lane or of all, oldest first within a lane.

        A lane that cannot be read, for example because it is halted, stops no other lane. At most
        100 entries are claimed.

        Raises:
            WorkListMissing: Nothing was claimed, and the work list of an entry is lost; its lane is
                halted until a rebuild.
        """
        if not 1 <= count <= CLAIMS_MAX:
            raise BadUsage(f"max must be 1 to {CLAIMS_MAX}, max=`{count}`")
        async with self._lock:
            found: list[ClaimedEntry] = []
            failed: SluiceError | None = None
            for number in await self._known_lanes():
                if lane not in (None, number) or self.owner_url(number):
                    continue
                try:
                    found += await self._claim_lane(number, count - len(found), consumer)
                except SluiceError as error:
                    failed = failed or error
                if len(found) == count:
                    break
            if failed is not None and not found:
                raise failed
            return found

    async def _known_lanes(self) -> list[int]:
        known = [lane.lane for lane in await list_lanes(self._store, self.queue)]
        return [lane for lane in known if lane < self._authority.lanes]

    async def _claim_lane(self, number: int, count: int, consumer: str) -> list[ClaimedEntry]:
        try:
            lane = await self._open(number)
            lane.leases.expire(self._now_ns)
            if lane.leases.pending < count and len(lane.leases.leases) < LEASES_MAX:
                lane.leases.offer(await lane.consumer.next_descriptors(READ_AHEAD))
        except Fenced:
            self._drop_fenced(number)
            return []
        except LayoutChanged:
            return []  # nothing is pending while the number of lanes is being changed
        found: list[ClaimedEntry] = []
        for _ in range(count):
            lease = lane.leases.claim(
                self._runtime.ids.ulid(), consumer, self._now_ns, self._ends_ns()
            )
            if lease is None:
                break
            try:
                found.append(await self._render(number, lane, lease))
            except SluiceError:
                if not found:
                    raise
                break  # the caller gets what is leased to it; the entry is pending again
        return found

    async def _open(self, number: int) -> _Lane:
        if number not in self._lanes:
            consumer = await Consumer.open(
                self._store,
                queue=self.queue,
                lane=number,
                layout=self._authority.layout,
                after=self._authority.after_sequence,
                runtime=self._runtime,
            )
            leases = LaneLeases(acked_through=consumer.acked_through)
            self._lanes[number] = _Lane(consumer=consumer, leases=leases, opened_ns=self._now_ns)
        return self._lanes[number]

    @property
    def _now_ns(self) -> int:
        return self._runtime.clock.monotonic_ns()

    def _ends_ns(self) -> int:
        return self._now_ns + int(self._lease_s * NS_PER_S)

    def served_lanes(self) -> list[ServedLane]:
        """Return the lanes that this process opened, with the consumers that hold leases."""
        return [
            ServedLane(
                queue=self.queue,
                lane=number,
                epoch=lane.consumer.epoch,
                consumer_id=lane.consumer.owner_id.hex(),
                opened_s=(self._now_ns - lane.opened_ns) / NS_PER_S,
                holders=holders_of(lane.leases.leases, self._now_ns),
            )
            for number, lane in sorted(self._lanes.items())
        ]

    async def _render(self, number: int, lane: _Lane, lease: Lease) -> ClaimedEntry:
        try:
            work_list = await lane.consumer.fetch_handle().fetch(lease.entry)
        except SluiceError:
            lane.leases.fail(lease.lease_id)
            raise
        return ClaimedEntry(
            lease_id=f"{number}.{lease.lease_id}",
            lane=number,
            sequence=lease.entry.sequence,
            attempts=lease.attempts,
            lease_s=self._lease_s,
            batches=work_list.batches,
        )

    async def commit(self, lease_ids: list[str]) -> int:
        """Commit entries and acknowledge the contiguous ones; return how many were committed.

        If the store fails, the commits are kept in memory.

        Raises:
            LeaseFenced: Another process opened the lane of some of the leases; those are not
                committed, the entries of the others are.
            LeaseLost: Some of the leases have ended; the entries of the others are committed.
        """
        async with self._lock:
            lost = [one for one in lease_ids if not self._with(one, LaneLeases.commit)]
            for number in {self._number(one) for one in lease_ids} & set(self._lanes):
                await self._acknowledge(number)
            fenced = [one for one in lease_ids if self._is_fenced(one)]
        if fenced:
            raise LeaseFenced(tuple(fenced))
        if lost:
            raise LeaseLost(tuple(lost))
        return len(lease_ids)

    async def _acknowledge(self, number: int) -> None:
        """Acknowledge what is committed; also if that is nothing, detect another consumer."""
        lane = self._lanes[number]
        through = lane.leases.acknowledgeable()
        try:
            if through <= lane.leases.acked_through:
                await lane.consumer.next_descriptors(0)  # reads the register
                return
            await lane.consumer.ack_through(through)
        except Fenced:
            self._drop_fenced(number)
            return
        lane.leases.acknowledged(through)

    def _drop_fenced(self, number: int) -> None:
        """Forget a lane that another process opened, except which leases it had."""
        log.warning("http_queue_fenced", queue=self.queue, lane=number)
        lane = self._lanes.pop(number, None)
        if lane is not None:
            self._fenced[number] = frozenset(lane.leases.claimed)

    def _is_fenced(self, lease_id: str) -> bool:
        ids = self._fenced.get(self._number(lease_id), frozenset())
        return lease_id.partition(".")[2] in ids

    def redirect_url(self, lanes: Iterable[int]) -> str:
        """Return the base URL of the other process that owns lanes; empty if this one does.

        Refuse lanes that have different owners.
        """
        urls = {self.owner_url(lane) for lane in lanes}
        if len(urls) > 1:
            raise BadUsage("the leases are of lanes with different owners: send them separately")
        return urls.pop() if urls else ""

    def lanes_of(self, lease_ids: Iterable[str]) -> set[int]:
        """Return the lanes of leases."""
        return {self._number(one) for one in lease_ids}

    async def fail(self, lease_ids: list[str]) -> None:
        """Return claimed entries to the queue; raise `LeaseLost` if some leases have ended."""
        async with self._lock:
            self._refuse([one for one in lease_ids if not self._with(one, LaneLeases.fail)])

    async def extend(self, lease_ids: list[str]) -> None:
        """Extend leases by the lease duration from now, or raise `LeaseLost` as `fail` does."""
        ends_ns = self._ends_ns()
        async with self._lock:
            lost = []
            for one in lease_ids:
                lane = self._lanes.get(self._number(one))
                if lane is None or not lane.leases.extend(one.partition(".")[2], ends_ns):
                    lost.append(one)
            self._refuse(lost)

    def _refuse(self, lost: list[str]) -> None:
        if lost:
            raise LeaseLost(tuple(lost))

    def _with(self, lease_id: str, do: Callable[[LaneLeases, str], bool]) -> bool:
        lane = self._lanes.get(self._number(lease_id))
        return lane is not None and do(lane.leases, lease_id.partition(".")[2])

    @staticmethod
    def _number(lease_id: str) -> int:
        number = lease_id.partition(".")[0]
        if not _LANE_NUMBER.fullmatch(number):
            raise BadUsage(f"not a lease id, lease_id=`{lease_id[:80]}`")
        return int(number)
