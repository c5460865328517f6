"""The store of a simulation of whole reconcilers: virtual latency, faults, checks of each time.

Each process has its own connection. A process is killed before or after any call of it, suspended,
or cut off from the store with all others.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from support.queue_store import OneByOne, SimStore
from support.simloop import SimLoop

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.identity import Identity
from sluice_protocol.journals import DISCOVERY, DiscoveryRecord, hold_record_key
from sluice_protocol.keys import accepted_key, lane_of
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Applied
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_queue.worklists import read_work_list

START_NS = 1_800_000_000 * NS_PER_S
SEND = frozenset({"create", "replace", "overwrite", "delete", "get", "head", "head_incarnation"})
LATENCIES_S = (0.005, 0.01, 0.02, 0.2)


class Killed(BaseException):
    """The process was killed."""


class Violated(Exception):
    """An invariant does not hold; the simulation ends."""


class LoopClock:
    """A clock over the virtual time of the loop; the wall clock of a process may be wrong."""

    def __init__(self, loop: SimLoop, skew_s: float = 0.0) -> None:
        self._loop = loop
        self._ticks_ns = 0
        self.skew_s = skew_s

    @property
    def at_ns(self) -> int:
        """The time of the store; each response moves it a little."""
        return START_NS + int(self._loop.time() * NS_PER_S) + self._ticks_ns

    @at_ns.setter
    def at_ns(self, at_ns: int) -> None:
        self._ticks_ns = at_ns - START_NS - int(self._loop.time() * NS_PER_S)

    def now_ns(self) -> UnixNs:
        return UnixNs(self.at_ns + int(self.skew_s * NS_PER_S))

    def monotonic_ns(self) -> int:
        return int(self._loop.time() * NS_PER_S)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    def __init__(self, *args: Any, number: int, **named: Any) -> None:
        self._number = number
        super().__init__(*args, **named)

    def __hash__(self) -> int:
        return self._number


class _NumberedFuture(asyncio.Future[Any]):
    """A future whose place in a set does not depend on its address."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


def make_replayable(loop: SimLoop) -> None:
    """Make the order of sets of tasks and futures a function of the seed."""
    numbers = itertools.count(1)

    def task(_: object, work: Any, **named: Any) -> _NumberedTask:
        return _NumberedTask(work, loop=loop, number=next(numbers), **named)

    loop.set_task_factory(task)
    loop.create_future = lambda: _NumberedFuture(next(numbers), loop)  # type: ignore[method-assign]


def finished(work: Any) -> Any:
    """Run a coroutine over a store without latency, without another task in between."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value


@dataclass
class ChaosStore(SimStore):
    """The shared store, and what is true about it.

    Attributes:
        acknowledged: When each batch got its first 200, by the store's clock.
        counts_of: How often each batch is in the queue.
        frontiers: Every published time.
        reachable: Set while the store can be reached.
        lanes: Number of lanes.
    """

    acknowledged: dict[Identity, int] = field(default_factory=dict)
    counts_of: dict[Identity, int] = field(default_factory=dict)
    frontiers: list[int] = field(default_factory=list)
    reachable: bool = True
    lanes: int = 3
    _lists: dict[str, tuple[Identity, ...]] = field(default_factory=dict)
    _revisions: tuple[int, ...] = ()
    _pending: set[Identity] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = self.faults.rng if self.faults else random.Random(0)

    async def _turn(self) -> None:
        await asyncio.sleep(self.rng.choice(LATENCIES_S))
        if self.late and self.rng.random() < 0.3:
            self._apply_late()

    def _apply_late(self) -> None:
        verb, key, body, match = self.late.pop(self.rng.randrange(len(self.late)))
        if verb == "create" and key not in self.held:
            self._put(key, body)
        if verb == "replace" and key in self.held and self.etag(self.held[key].body) == match:
            self._put(key, body)

    def _put(self, key: str, body: bytes) -> Applied:
        applied = super()._put(key, body)
        if key == DISCOVERY:
            self.check(decode_record(key, body, DiscoveryRecord))
        return applied

    def acknowledge(self, who: Identity) -> None:
        """Record a 200.

        Raises:
            Violated: A later time is published already, and the batch is not enqueued.
        """
        if who in self.acknowledged:
            return
        self.acknowledged[who] = self.clock.at_ns
        self._pending.add(who)
        if self.frontiers and self.frontiers[-1] > self.clock.at_ns and who not in self.queued():
            raise Violated(f"{who} is acknowledged before {self.frontiers[-1]}")

    def queued(self) -> dict[Identity, int]:
        """Return how often each batch is in the queue now."""
        registers = [self.held.get(Lane(queue="spark", lane=n).key) for n in range(self.lanes)]
        revisions = tuple(one.generation if one else 0 for one in registers)
        if revisions != self._revisions:
            self._revisions = revisions
            plain = SimStore(clock=_Frozen(), held=self.held)  # type: ignore[arg-type]
            self.counts_of = {}
            for who in finished(self._read_queue(plain)):
                self.counts_of[who] = self.counts_of.get(who, 0) + 1
        return self.counts_of

    async def _read_queue(self, plain: SimStore) -> list[Identity]:
        found: list[Identity] = []
        for number in range(self.lanes):
            lane = Lane(queue="spark", lane=number)
            for entry in (await read_lane(plain, "spark", number)).descriptors:
                key = entry.location
                if key not in self._lists:
                    batches = (await read_work_list(plain, lane, entry)).batches
                    self._lists[key] = tuple(one.identity for one in batches)
                found += self._lists[key]
        return found

    def check(self, record: DiscoveryRecord) -> None:
        """Check a published record.

        Raises:
            Violated: A batch that was acknowledged before its time is neither enqueued nor held, or
                the time decreased.
        """
        through_ns = record.complete_through_unix_ns
        if self.frontiers and through_ns < self.frontiers[-1]:
            raise Violated(f"the time was lowered to {through_ns}")
        self.frontiers.append(through_ns)
        self._pending -= self.queued().keys()
        for who in self._pending:
            lane = f"{lane_of(who.agent_id, self.lanes):03d}"
            is_due = self.acknowledged[who] < record.lanes.get(lane, through_ns)
            if is_due and hold_record_key(accepted_key(who)) not in self.held:
                raise Violated(f"{who} is not enqueued, lane={lane}, record={record}")


class _Frozen:
    at_ns = START_NS


class Connection(OneByOne):
    """One process's connection to the store.

    Attributes:
        left: Calls until the process is killed; None for no planned kill.
        dead: Whether it was killed: no call of it is sent or returns.
        answered_ns: The store's clock in the newest response.
    """

    def __init__(self, store: ChaosStore, left: int | None = None) -> None:
        self._store = store
        self.left = left
        self.dead = False
        self.answered_ns = UnixNs(0)
        self.running = asyncio.Event()
        self.running.set()

    async def gate(self) -> None:
        """Wait while the process is suspended, and end it if it was killed."""
        await self.running.wait()
        if self.dead:
            raise Killed

    async def _before(self, verb: str, key: str) -> bool:
        await self.gate()
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.dead = True
                if self._store.rng.random() < 0.5:
                    raise Killed
        if not self._store.reachable:
            await asyncio.sleep(0.5)
            raise StoreUnavailable(verb, ObjectKey(key), "simulated outage")
        return True

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._store, verb)
        if verb not in SEND:
            return call

        async def sent(key: ObjectKey, *args: Any, **named: Any) -> Any:
            await self._before(verb, key)
            outcome = await call(key, *args, **named)
            await self.gate()
            info = getattr(outcome, "info", outcome)
            self.answered_ns = max(self.answered_ns, getattr(info, "date_ns", UnixNs(0)))
            return outcome

        return sent

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[Any]:
        await self._before("list", prefix)
        async for page in self._store.list(prefix, start_after=start_after, end_at=end_at):
            await self.gate()
            self.answered_ns = max(self.answered_ns, page.date_ns)
            yield page
