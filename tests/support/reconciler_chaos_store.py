"""The store of a simulation of whole reconcilers: virtual latency, faults, checks of each time.

Also here: gateways and clients of a simulation of whole reconcilers.

Each process has its own connection. A process is killed before or after any call of it, suspended,
or cut off from the store with all others.

A gateway writes its journal with the product's `JournalBook` and fences itself with
`must_register_again`. Each rule that makes journals sound can be left out, to show that the
simulation finds it.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from support.builders import manifest
from support.queue_store import OneByOne, SimStore
from support.simloop import SimLoop

from sluice_gateway.journal import JournalBook, must_register_again
from sluice_protocol.clock import MachineInstant
from sluice_protocol.errors import StoreError, StoreUnavailable
from sluice_protocol.identity import Identity
from sluice_protocol.journals import (
    DISCOVERY,
    FENCE_S,
    HEARTBEAT_S,
    DiscoveryRecord,
    GatewayProcess,
    hold_record_key,
    process_name,
    registration_key,
)
from sluice_protocol.keys import accepted_key, blob_key, digest_of, lane_of
from sluice_protocol.manifests import AcceptedManifest, decode_record, encode_record
from sluice_protocol.outcomes import Applied, Exists, Found
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


WRITE_S = 2.0
"""Pause between two journal objects of a gateway with entries."""


class Refused(Exception):
    """A 503, or a connection that was lost: the client sends the batch again."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What makes a journal sound; each rule can be left out.

    Attributes:
        manifest_first: An entry is noted after the manifest exists.
        heartbeat_flushes: An object without a due flush contains the noted entries too.
        store_clock: Times are of the store's clock.
        fenced: A 200 requires a young journal.
        duplicates: A duplicate is noted too.
        time_before_entries: The time is read before the entries are collected.
        registers_first: The registration is written before the first 200.
        closes_last: The closed object is written after the last 200.
        new_name: A lapsed process registers again instead of continuing its journal.
    """

    manifest_first: bool = True
    heartbeat_flushes: bool = True
    store_clock: bool = True
    fenced: bool = True
    duplicates: bool = True
    time_before_entries: bool = True
    registers_first: bool = True
    closes_last: bool = True
    new_name: bool = True


@dataclass
class Gateway:
    """One gateway process."""

    store: ChaosStore
    clock: LoopClock
    rng: random.Random
    collector_id: str
    ulids: Callable[[], str]
    rules: Rules
    book: JournalBook = field(init=False)
    stopping: bool = False
    known: set[str] = field(default_factory=set)
    old: list[JournalBook] = field(default_factory=list)
    uploads: int = 0
    serving: bool = False

    def __post_init__(self) -> None:
        self.connection = Connection(self.store)
        self.book = JournalBook("", None)

    @property
    def instant(self) -> MachineInstant:
        """Now, by the clocks of its machine."""
        return MachineInstant(
            boottime_ns=self.clock.monotonic_ns(), wall_ns=int(self.clock.now_ns())
        )

    @property
    def is_alive(self) -> bool:
        """Whether a client can connect."""
        return self.serving and not self.connection.dead and not self.stopping

    def kill(self) -> None:
        """Kill it: every call of it ends."""
        self.connection.dead = True
        self.connection.running.set()

    async def run(self) -> None:
        """Register, and write the journal until it is closed or the process is killed."""
        try:
            if self.rules.registers_first:
                await self.register()
            self.serving = True
            if not self.rules.registers_first:
                await asyncio.sleep(10.0)
            while not self.book.closed:
                await asyncio.sleep(WRITE_S)
                await self.connection.gate()
                await self._write_due()
            self.serving = False
        except Killed:
            self.serving = False

    async def register(self) -> None:
        """Create a registration; a response that is lost is resolved by repeating the call."""
        began = self.instant
        if self.book.process and not self.rules.new_name:
            self.book.durable_from = began
            return
        while True:
            try:
                await self.connection.head(registration_key(self.book.process or "none"))
                date_ns = self.connection.answered_ns
                process = process_name(date_ns, self.ulids())
                record = GatewayProcess(
                    collector_id=self.collector_id,
                    process=process,
                    acceptance="s3_manifest",
                    started_at_unix_ns=date_ns,
                )
                key, body = registration_key(process), encode_record(record)
                began = self.instant
                while not isinstance(await self.connection.create(key, body), (Applied, Exists)):
                    pass
            except StoreError:
                continue
            break
        if self.book.process:
            self.old.append(self.book)
            self.book = self.book.succeed(process, began, date_ns)
        else:
            after = JournalBook(process, began, date_ns)
            self.book.move_to(after)
            self.book = after

    async def _write_due(self) -> None:
        book = self.book
        try:
            if not book.process or self._is_fenced():
                await self.register()
                return
            for one in list(self.old):
                await self._write(one, closes=True)
                if one.closed:
                    self.old.remove(one)
            closes = self.stopping and (not self.uploads or not self.rules.closes_last)
            idle_s = book.begun.seconds_to(self.instant) if book.begun else HEARTBEAT_S
            if closes or book.has_entries or book.pending or idle_s >= HEARTBEAT_S:
                await self._write(book, closes=closes)
        except StoreError:
            return

    async def _write(self, book: JournalBook, *, closes: bool) -> None:
        at_ns = self.connection.answered_ns
        if not self.rules.store_clock:
            at_ns = UnixNs(int(self.clock.now_ns()))
        hidden: tuple[bytes, ...] = ()
        if not self.rules.time_before_entries and not book.pending:
            collected = len(book._entries)
            await asyncio.sleep(0.5)
            at_ns = self.connection.answered_ns
            hidden = tuple(book._entries)[collected:]
            for _ in hidden:
                book._entries.pop()
        if not self.rules.heartbeat_flushes and not book.pending and self.rng.random() < 0.3:
            hidden = tuple(book._entries)
            book._entries.clear()
        pending = book.next_object(at_ns, self.instant, closes=closes)
        for one in hidden:
            book.note(one)
        if isinstance(await self.connection.create(pending.key, pending.body), (Applied, Exists)):
            book.settle(pending)

    async def upload(self, one: AcceptedManifest, frame: bytes) -> None:
        """Accept a batch.

        Raises:
            Refused: There was no 200.
        """
        if not self.is_alive:
            raise Refused
        self.uploads += 1
        try:
            await self._accept(one, frame)
        except (Killed, StoreError) as error:
            raise Refused from error
        finally:
            self.uploads -= 1

    async def _accept(self, one: AcceptedManifest, frame: bytes) -> None:
        key = accepted_key(one.identity)
        body = encode_record(replace(one, accepted_at_unix_ns=self.clock.at_ns))
        await self._create(blob_key(digest_of(frame)), frame)
        if not self.rules.manifest_first:
            self.book.note(body)
            await asyncio.sleep(self.rng.choice((0.0, 5.0)))
        created = await self._create(key, body)
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.5, 4.0)))  # a slow store
        read = await self.connection.get(key)
        if not isinstance(read, Found):
            raise Refused
        if key not in self.known and (created or self.rules.duplicates):
            if self.rules.manifest_first:
                self.book.note(read.body)
            self.known.add(key)
        if self._is_fenced() or (self.rules.closes_last and self.book.closed):
            raise Refused
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 1.0)))  # the response takes its time
        if not self.connection.running.is_set():
            await self.connection.running.wait()
        if self.connection.dead:
            raise Refused
        self.store.acknowledge(decode_record(key, read.body, AcceptedManifest).identity)

    def _is_fenced(self) -> bool:
        if not self.book.process and not self.rules.registers_first:
            return False
        return self.rules.fenced and must_register_again(
            self.book.durable_from, self.instant, FENCE_S
        )

    async def _create(self, key: Any, body: bytes) -> bool:
        outcome = await self.connection.create(key, body)
        if not isinstance(outcome, (Applied, Exists)):
            raise Refused
        return isinstance(outcome, Applied)


@dataclass
class Client:
    """One agent: it sends its batches in order, each until a 200, over any gateway."""

    gateways: list[Gateway]
    clock: LoopClock
    rng: random.Random
    agent: str
    sent: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Send until stopped."""
        while not stop.is_set():
            await self._send(self.sent * 10)
            self.sent += 1
            await asyncio.sleep(self.rng.choice((0.2, 1.0, 8.0)))

    async def _send(self, seq: int) -> None:
        frame = f"{self.agent}/{seq}".encode()
        one = manifest(seq, agent=self.agent, frame=frame)
        while True:
            alive = [gateway for gateway in self.gateways if gateway.is_alive]
            if alive:
                gateway = self.rng.choice(alive)
                try:
                    mine = replace(one, collector_id=gateway.collector_id)
                    async with asyncio.timeout(15):
                        await gateway.upload(mine, frame)
                except (Refused, TimeoutError):
                    pass
                else:
                    return
            await asyncio.sleep(self.rng.choice((0.2, 2.0)))
