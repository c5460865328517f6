"""A seeded simulation of gateways that journal and die, and of reconcilers that crash anywhere.

Every write of the discovery record is checked the moment it takes effect: each batch that a gateway
acknowledged before its time is enqueued. The store loses and delays responses, and journal objects
disappear.
"""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from support.journal_writer import JournalWriter
from support.queue_store import Faults, SimClock, SimIds, SimStore
from support.reconciler_seed import enqueued
from support.reconciler_world import Crash, Mortal

from sluice_protocol.authority import Authority
from sluice_protocol.discovery import DISCOVERY, DiscoveryRecord
from sluice_protocol.errors import OutcomeUnknown, StoreError
from sluice_protocol.identity import Identity
from sluice_protocol.journals import FENCE_S, journal_key
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import AcceptedManifest, decode_record
from sluice_protocol.outcomes import Applied
from sluice_protocol.units import NS_PER_S
from sluice_queue.lane import Runtime
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings

DEATHS_MAX = 3
"""Killed gateways in one simulation; each holds the time back until a full pass."""
AUTHORITY = Authority(authority_id="A", lanes=2, retry_horizon_s=600, margin_s=120)


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing, without another task in between."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value


@dataclass
class CheckedStore(SimStore):
    """A store that checks each discovery record when it is written."""

    acknowledged: dict[Identity, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    frontiers: list[int] = field(default_factory=list)

    def _put(self, key: str, body: bytes) -> Applied:
        applied = super()._put(key, body)
        if key == DISCOVERY:
            self.check(decode_record(key, body, DiscoveryRecord).complete_through_unix_ns)
        return applied

    def queue(self) -> list[Identity]:
        """Return what is enqueued now."""
        copy = SimStore(clock=SimClock(), held=dict(self.held))
        return [one.identity for one in finished(enqueued(copy))]

    def check(self, through_ns: int) -> None:
        """Check a published time."""
        done = set(self.queue())
        for who, at_ns in self.acknowledged.items():
            if at_ns < through_ns and who not in done:
                self.violations.append(f"{who} is not enqueued at {through_ns}")
        if self.frontiers and through_ns < self.frontiers[-1]:
            self.violations.append(f"the time was lowered to {through_ns}")
        self.frontiers.append(through_ns)


@dataclass
class World:
    """What the tasks of one simulation share."""

    store: CheckedStore
    clock: SimClock
    rng: random.Random
    unanswered: list[int] = field(default_factory=list)
    numbers: int = 0
    lives: int = 0
    deaths: int = 0
    lost: int = 0

    def next_seq(self) -> int:
        """Return the batch that a client sends next: one without a response, or a new one."""
        if self.unanswered and self.rng.random() < 0.5:
            return self.unanswered.pop()
        self.numbers += 10
        return self.numbers


async def live(world: World, name: int, stop: asyncio.Event) -> None:
    """Run one gateway: a process after the other, each until it is killed."""
    while not stop.is_set():
        world.lives += 1
        dies = world.deaths < min(DEATHS_MAX, world.lives // 10) and world.rng.random() < 0.5
        world.deaths += dies
        ulid = f"01J0000000000000000000{world.lives:04d}"
        process = JournalWriter(
            world.store, world.clock.at_ns, collector_id=f"gw-{name}", ulid=ulid
        )
        await create(world, process)
        await serve(world, process, stop, ticks=world.rng.randrange(5, 40), dies=dies)
        await asyncio.sleep(0)


async def create(world: World, process: JournalWriter) -> None:
    """Register; the loss of a response is no fault of this simulation."""
    with_faults, world.store.faults = world.store.faults, None
    await process.register()
    world.store.faults = with_faults


async def serve(
    world: World, process: JournalWriter, stop: asyncio.Event, *, ticks: int, dies: bool
) -> None:
    """Accept, journal and acknowledge until killed, or until a clean stop."""
    noted: list[AcceptedManifest] = []
    began_ns = process.started_ns
    for tick in range(ticks):
        for _ in range(world.rng.randrange(3)):
            seq = world.next_seq()
            one = await accept(world, process, seq)
            if dies and tick == ticks - 1 and world.rng.random() < 0.7:
                world.unanswered.append(seq)
                return  # killed after the manifest, before the journal
            if world.clock.at_ns - began_ns > FENCE_S * NS_PER_S:
                world.unanswered.append(seq)
                return  # fenced: it would register again
            noted.append(one)
            world.store.acknowledged.setdefault(one.identity, world.clock.at_ns)
            await asyncio.sleep(0)
        answered_ns, begins_ns = world.clock.at_ns, world.clock.at_ns
        entries, noted = noted, []
        if dies and tick == ticks - 1:
            return
        await append(world, process, entries, answered_ns, closed=False)
        began_ns = begins_ns
        await world.clock.sleep(world.rng.choice((0.05, 0.3)))
        if stop.is_set():
            break
    await append(world, process, noted, world.clock.at_ns, closed=True)


async def accept(world: World, process: JournalWriter, seq: int) -> AcceptedManifest:
    """Write a batch, or find the one that exists."""
    with_faults, world.store.faults = world.store.faults, None
    one = await process.accept(seq, at_ns=world.clock.at_ns, agent=f"a{seq % 3}")
    stored = world.store.held[accepted_key(one.identity)].body
    world.store.faults = with_faults
    return decode_record("k", stored, AcceptedManifest)


async def append(
    world: World,
    process: JournalWriter,
    entries: list[AcceptedManifest],
    through_ns: int,
    *,
    closed: bool,
) -> None:
    with_faults, world.store.faults = world.store.faults, None
    number = await process.append(entries, through_ns=through_ns, closed=closed)
    world.store.faults = with_faults
    if entries and not closed and world.rng.random() < 0.03:
        world.lost += 1
        world.store.held.pop(journal_key(process.process, number), None)


def reconciler(store: Any, clock: SimClock, seed: int) -> Reconciler:
    runtime = Runtime(clock=clock, ids=SimIds(seed), rng=random.Random(seed))
    settings = ReconcilerSettings(concurrency=4, list_batches_max=5, takeover_after_s=3)
    return Reconciler(store, AUTHORITY, settings=settings, runtime=runtime)


async def reconcile(world: World, seed: int, who: int, stop: asyncio.Event) -> int:
    """Run one reconciler after the other until stopped; return how many ran."""
    rng, count = random.Random(seed * 10 + who), 0
    while not stop.is_set():
        count += 1
        mortal = Mortal(store=world.store, rng=rng, left=rng.randrange(20, 600))
        one = reconciler(mortal, world.clock, seed * 1000 + who * 100 + count)
        try:
            while not stop.is_set():
                await one.journals.round()
                await one._pass_loop._run_if_due()
                await world.clock.sleep(rng.choice((0.2, 0.5)))
        except (Crash, OutcomeUnknown, StoreError, BaseExceptionGroup):
            await asyncio.sleep(0)
    return count


async def let_journals_decide(world: World, seed: int) -> None:
    """Bring the store into the state in which journals decide the time."""
    first = JournalWriter(world.store, world.clock.at_ns, collector_id="gw-0")
    await create(world, first)
    await append(world, first, [], world.clock.at_ns, closed=True)
    with_faults, world.store.faults = world.store.faults, None
    one = reconciler(world.store, world.clock, seed * 3 + 1)
    for _ in range(3):
        await one.journals.round()
        await one._pass_loop._run_if_due()
        await world.clock.sleep(2.0)
    world.store.faults = with_faults


@dataclass(frozen=True)
class Outcome:
    """What one simulation did.

    Attributes:
        violations: Times that were published too early.
        lost: Acknowledged batches that were never enqueued.
        doubled: Batches that were enqueued twice.
        advanced: Whether the last published time is later than every acknowledgement.
        journaled: Whether journals decided the time at the end.
        lives: Number of gateway processes and of reconciler processes.
        frontiers: Every published time.
    """

    violations: tuple[str, ...]
    lost: tuple[Identity, ...]
    doubled: int
    advanced: bool
    journaled: bool
    lives: tuple[int, int]
    frontiers: tuple[int, ...]

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations and not self.lost and not self.doubled and self.advanced


def simulate(seed: int, *, rounds: int = 60) -> Outcome:
    """Run gateways and reconcilers, then let one reconciler finish."""
    clock = SimClock()
    store = CheckedStore(clock=clock, faults=Faults(rng=random.Random(seed + 1), unknown=0.05))
    world = World(store=store, clock=clock, rng=random.Random(seed))

    async def run() -> Outcome:
        await let_journals_decide(world, seed)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            gateways = [tasks.create_task(live(world, name, stop)) for name in range(2)]
            slots = [
                tasks.create_task(reconcile(world, seed, who, stop)) for who in range(1 + seed % 2)
            ]
            for _ in range(rounds):
                await clock.sleep(70.0 if world.rng.random() < 0.03 else 0.1)
                for _ in range(world.rng.randrange(120)):
                    await asyncio.sleep(0)
            stop.set()
            for gateway in gateways:
                await gateway
            lived = sum([await slot for slot in slots])
        store.faults = None
        last = reconciler(store, clock, seed * 7 + 5)
        for _ in range(200):
            await last.journals.round()
            await last._pass_loop._run_if_due()
            await clock.sleep(2.0)
            if outcome(lived).advanced:
                break
        return outcome(lived)

    def outcome(lived: int) -> Outcome:
        queue = store.queue()
        record = decode_record(DISCOVERY, store.held[DISCOVERY].body, DiscoveryRecord)
        return Outcome(
            violations=tuple(store.violations),
            lost=tuple(set(store.acknowledged) - set(queue)),
            doubled=len(queue) - len(set(queue)),
            advanced=record.complete_through_unix_ns > max(store.acknowledged.values()),
            journaled=record.journaled_since_unix_ns is not None,
            lives=(world.lives, lived),
            frontiers=tuple(store.frontiers),
        )

    return asyncio.run(run())
