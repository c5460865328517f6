"""A seeded simulation of whole reconcilers, gateways and clients, with faults of every kind.

Also here: the state of a simulation of whole reconcilers: its processes, and how they are started;
the faults of a simulation of whole reconcilers.

The reconcilers are the product's service with all of its loops: journals, full passes, lanes,
membership, held batches, removal. Phases of one run, in virtual time:

    start     one gateway and one reconciler, until journals decide the time
    faults    gateways and reconcilers are killed and suspended, journal objects disappear, are torn
              or late, responses are lost, the store is unreachable for a while
    recovery  no faults; within a bound, every batch is enqueued and the published time is later
              than every acknowledgement
    removal   the retry horizon passes; journals and registrations of what ended are removed
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from structlog.testing import capture_logs
from support.queue_store import Faults, SimIds
from support.reconciler_chaos_store import (
    ChaosStore,
    Client,
    Connection,
    Gateway,
    LoopClock,
    Rules,
    Violated,
    make_replayable,
)
from support.simloop import SimLoop, simulate

from sluice_protocol.authority import Authority
from sluice_protocol.journals import (
    DISCOVERY,
    HEARTBEAT_S,
    HOLD_RECORDS,
    JOURNAL_REPLACED_AFTER_S,
    DiscoveryRecord,
)
from sluice_protocol.keys import GATEWAY_JOURNALS, GATEWAY_PROCESSES, RAW_BLOBS
from sluice_protocol.manifests import decode_record
from sluice_queue.register_client import Runtime
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings

HORIZON_S = 360
PASS_S = 150.0
LANES = 3
AUTHORITY = Authority(authority_id="A", lanes=LANES, retry_horizon_s=HORIZON_S, margin_s=120)
SETTINGS = ReconcilerSettings(
    concurrency=8,
    list_batches_max=5,
    pass_interval_s=3.0,
    journaled_pass_interval_s=PASS_S,
    journal_interval_s=2.0,
    journal_poll_s=2.0,
    hold_interval_s=20.0,
    scan_interval_s=50.0,
    collect_interval_s=100_000.0,
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What happens in one simulation.

    Attributes:
        rules: What makes the journals of gateways sound.
        gateways: Number of gateway slots.
        reconcilers: Number of reconciler slots.
        faults: The kinds of faults; empty for all.
        share_lanes: As in the settings.
        fault_s: Length of the phase with faults.
        one_collector: Whether all gateways have one collector id.
        removal: Whether the run continues until journals are removed.
        unknown: Share of writes with an unknown outcome.
    """

    rules: Rules = field(default_factory=Rules)
    gateways: int = 2
    reconcilers: int = 2
    faults: tuple[str, ...] = ()
    share_lanes: bool = True
    fault_s: float = 240.0
    one_collector: bool = False
    removal: bool = True
    unknown: float = 0.03


@dataclass
class Slot:
    """One reconciler after the other."""

    connection: Connection
    task: "asyncio.Task[None]"
    subject: Reconciler


@dataclass
class World:
    """The state of one simulation."""

    plan: Plan
    loop: SimLoop
    rng: random.Random
    store: ChaosStore
    clock: LoopClock
    gateways: list[Gateway] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    tasks: list["asyncio.Task[Any]"] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    connections: list[Connection] = field(default_factory=list)
    ulids: int = 0
    lives: int = 0

    def count(self, fault: str) -> None:
        """Count a fault that was made."""
        self.done[fault] = self.done.get(fault, 0) + 1

    def ulid(self) -> str:
        self.ulids += 1
        return f"01J{self.ulids:023d}"

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self.loop.create_task(work)
        self.tasks.append(task)
        return task

    def start_gateway(self, slot: int) -> Gateway:
        name = "gw" if self.plan.one_collector else f"gw-{slot}"
        clock = LoopClock(self.loop, self.rng.choice((0.0, 0.0, 30.0, -30.0)))
        one = Gateway(self.store, clock, self.rng, name, self.ulid, self.plan.rules)
        self.gateways.append(one)
        self.connections.append(one.connection)
        self.spawn(one.run())
        return one

    def start_reconciler(self, left: int | None = None) -> Slot:
        self.lives += 1
        connection = Connection(self.store, left)
        self.connections.append(connection)
        clock = LoopClock(self.loop, self.rng.choice((0.0, 0.0, 5.0, -5.0)))
        seed = self.rng.randrange(1 << 30)
        runtime = Runtime(clock=clock, ids=SimIds(seed), rng=random.Random(seed))
        settings = SETTINGS
        if not self.plan.share_lanes:
            settings = _standby()
        subject = Reconciler(connection, AUTHORITY, settings=settings, runtime=runtime)
        slot = Slot(connection, self.spawn(_service(subject)), subject)
        self.slots.append(slot)
        return slot

    def record(self) -> DiscoveryRecord | None:
        held = self.store.held.get(DISCOVERY)
        return None if held is None else decode_record(DISCOVERY, held.body, DiscoveryRecord)

    def fail_if_ended(self) -> None:
        """Raise what a task raised, if it was not planned."""
        for task in self.tasks:
            if task.done() and not task.cancelled():
                found = _violation(task.exception())
                if found is not None:
                    raise found
        self.tasks = [task for task in self.tasks if not task.done()]


def _standby() -> ReconcilerSettings:
    return replace(SETTINGS, share_lanes=False)


def _violation(error: BaseException | None) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := _violation(one))), None)
    return error if isinstance(error, Exception) else None


async def _service(subject: Reconciler) -> None:
    await subject.run()


Step = Callable[[World], Coroutine[Any, Any, None]]


def _any_gateway(world: World) -> Gateway | None:
    alive = [one for one in world.gateways if one.is_alive and one.connection.running.is_set()]
    return world.rng.choice(alive) if alive else None


async def kill_gateway(world: World) -> None:
    victim = _any_gateway(world)
    if victim is not None:
        victim.kill()
        slot = world.gateways.index(victim)
        world.gateways.remove(victim)
        await asyncio.sleep(world.rng.choice((1.0, 20.0)))
        world.start_gateway(slot)


async def stop_gateway(world: World) -> None:
    victim = _any_gateway(world)
    if victim is not None:
        victim.stopping = True
        slot = world.gateways.index(victim)
        world.gateways.remove(victim)
        await asyncio.sleep(world.rng.choice((0.0, 8.0)))
        world.start_gateway(slot)


async def suspend_gateway(world: World) -> None:
    """Suspend it for less than the fence, for more than it, or until it counts as dead."""
    victim = _any_gateway(world)
    if victim is not None:
        victim.connection.running.clear()
        await asyncio.sleep(world.rng.choice((10.0, 70.0, JOURNAL_REPLACED_AFTER_S + 60.0)))
        victim.connection.running.set()


async def kill_reconciler(world: World) -> None:
    victim = world.rng.choice(world.slots)
    victim.connection.left = world.rng.randrange(1, 60)
    await asyncio.sleep(world.rng.choice((2.0, 15.0)))
    victim.connection.dead = True
    victim.task.cancel()
    if victim in world.slots:
        world.slots.remove(victim)
        world.start_reconciler()


async def suspend_reconciler(world: World) -> None:
    victim = world.rng.choice(world.slots)
    if victim.connection.running.is_set():
        victim.connection.running.clear()
        await asyncio.sleep(world.rng.choice((8.0, 30.0)))
        victim.connection.running.set()


def _journal_with_entries(world: World) -> str | None:
    keys = [
        key
        for key, held in world.store.held.items()
        if key.startswith(GATEWAY_JOURNALS) and held.body.count(b"\n") > 1
    ]
    return world.rng.choice(keys[-6:]) if keys else None


async def drop_journal(world: World) -> None:
    """Remove an object that names batches."""
    key = _journal_with_entries(world)
    if key is not None:
        del world.store.held[key]


async def tear_journal(world: World) -> None:
    """Cut an object, in a line or behind one."""
    key = _journal_with_entries(world)
    if key is not None:
        body = world.store.held[key].body
        cut = world.rng.choice((0, 20, body.index(b"\n") + 1, len(body) - 9))
        world.store.held[key].body = body[:cut]


async def delay_journal(world: World) -> None:
    """Hide an object for a while: later ones appear before it."""
    key = _journal_with_entries(world)
    if key is not None:
        body = world.store.held.pop(key).body
        await asyncio.sleep(world.rng.choice((3.0, 40.0)))
        if key not in world.store.held:
            world.store._put(key, body)


async def jump_clock(world: World) -> None:
    """Move the wall clock of a gateway's machine."""
    victim = _any_gateway(world)
    if victim is not None:
        victim.clock.skew_s = world.rng.choice((3600.0, -3600.0, 61.0))


async def outage(world: World) -> None:
    world.store.reachable = False
    await asyncio.sleep(world.rng.choice((5.0, 70.0, JOURNAL_REPLACED_AFTER_S + 20.0)))
    world.store.reachable = True


async def long_outage(world: World) -> None:
    world.store.reachable = False
    await asyncio.sleep(3600.0)
    world.store.reachable = True


async def lose_blob(world: World) -> None:
    """Remove a blob, and restore it later: its batch is held in between."""
    blobs = [key for key in world.store.held if key.startswith(RAW_BLOBS)]
    if blobs:
        key = blobs[-1]
        body = world.store.held.pop(key).body
        await asyncio.sleep(30.0)
        if key not in world.store.held:
            world.store._put(key, body)


async def garble_registration(world: World) -> None:
    """Write a registration that cannot be read; no gateway belongs to it."""
    ulid = world.ulid()
    world.store._put(f"{GATEWAY_PROCESSES}{world.clock.at_ns:020d}-{ulid}.json", b"{")


async def lose_record(world: World) -> None:
    """Damage the discovery record, or remove the progress of the full pass."""
    world.store.held.pop("reconciler/v1/full-pass.json", None)


FAULTS: dict[str, Step] = {
    "kill gateway": kill_gateway,
    "stop gateway": stop_gateway,
    "suspend gateway": suspend_gateway,
    "kill reconciler": kill_reconciler,
    "suspend reconciler": suspend_reconciler,
    "drop journal": drop_journal,
    "tear journal": tear_journal,
    "delay journal": delay_journal,
    "jump clock": jump_clock,
    "outage": outage,
    "lose blob": lose_blob,
    "garble registration": garble_registration,
    "lose record": lose_record,
}


RECOVERY_S = JOURNAL_REPLACED_AFTER_S + 3 * 60.0 + 60.0
"""Time after the last fault in which the published time passes the last acknowledgement: a process
lapses, a full pass runs, and two more if batches were left."""
REMOVAL_S = HORIZON_S + PASS_S + 60.0


@dataclass(frozen=True)
class Outcome:
    """What one simulation did.

    Attributes:
        violation: What does not hold; empty if everything holds.
        batches: Number of acknowledged batches.
        faults: How often each kind of fault was made.
        published: Number of published times.
        lives: Number of reconciler processes.
        seconds: Virtual time.
    """

    violation: str
    batches: int
    faults: dict[str, int]
    published: int
    lives: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violation


def run_chaos(seed: int, plan: Plan | None = None) -> Outcome:
    """Run one simulation; the same seed and plan give the same run."""
    chosen = plan if plan is not None else plan_of(seed)

    async def main(loop: SimLoop, rng: random.Random) -> Outcome:
        make_replayable(loop)
        clock = LoopClock(loop)
        store = ChaosStore(clock=clock, faults=Faults(rng=rng), lanes=LANES)  # type: ignore[arg-type]
        world = World(chosen, loop, rng, store, clock)
        violation = ""
        try:
            await _phases(world)
        except Violated as error:
            violation = str(error)
        finally:
            await _end(world)
        return Outcome(
            violation=violation,
            batches=len(store.acknowledged),
            faults=world.done,
            published=len(store.frontiers),
            lives=world.lives,
            seconds=loop.time(),
        )

    with capture_logs():
        return simulate(seed, main)


async def _end(world: World) -> None:
    """Kill every process and wait for the ends of their tasks."""
    world.store.reachable = True
    for one in world.connections:
        one.dead = True
        one.running.set()
    for task in world.tasks:
        task.cancel()
    await asyncio.gather(*world.tasks, return_exceptions=True)


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed: each number of processes, and each mode, occurs."""
    return Plan(
        gateways=1 + seed % 3,
        reconcilers=1 + seed % 3,
        share_lanes=seed % 4 != 3,
        one_collector=seed % 2 == 1,
    )


async def _phases(world: World) -> None:
    await _start(world)
    stop = asyncio.Event()
    clients = [Client(world.gateways, world.clock, world.rng, f"a{number}") for number in range(5)]
    sending = [world.spawn(one.run(stop)) for one in clients]
    await _make_faults(world)
    await asyncio.sleep(30.0)
    stop.set()
    await _recover(world, sending)
    if world.plan.removal:
        await _remove(world)


async def _start(world: World) -> None:
    for slot in range(world.plan.gateways):
        world.start_gateway(slot)
    world.start_reconciler()
    await _until(world, 120, "journals never decided the time", _is_journaled)
    for _ in range(world.plan.reconcilers - 1):
        world.start_reconciler()
    assert world.store.faults is not None
    world.store.faults.unknown = world.plan.unknown


def _is_journaled(world: World) -> bool:
    record = world.record()
    return record is not None and record.journaled_since_unix_ns is not None


async def _make_faults(world: World) -> None:
    names = world.plan.faults or tuple(FAULTS)
    steps = {**FAULTS, "long outage": long_outage}
    made: list[asyncio.Task[None]] = []
    end_s = world.loop.time() + world.plan.fault_s
    while world.loop.time() < end_s:
        await asyncio.sleep(world.rng.choice((1.0, 5.0, 15.0)))
        world.fail_if_ended()
        name = world.rng.choice(names)
        world.count(name)
        work = steps[name](world)
        if name in ("outage", "long outage", "kill reconciler"):
            await work
        else:
            made.append(world.spawn(work))
    await asyncio.gather(*made)


async def _recover(world: World, sending: list["asyncio.Task[Any]"]) -> None:
    assert world.store.faults is not None
    world.store.faults.unknown = 0.0
    for gateway in world.gateways:
        gateway.clock.skew_s = 0.0
    # Suspended processes resume, and clients get the responses that they wait for.
    await _until(world, 400, "a client got no 200", lambda _: all(one.done() for one in sending))
    last_ns = max(world.store.acknowledged.values())

    def caught_up(world: World) -> bool:
        record = world.record()
        return (
            record is not None
            and record.complete_through_unix_ns > last_ns
            and world.store.acknowledged.keys() <= world.store.queued().keys()
        )

    await _until(world, RECOVERY_S, "the published time did not catch up", caught_up)
    doubled = {who: count for who, count in world.store.queued().items() if count > 1}
    if doubled:
        raise Violated(f"enqueued more than once: {doubled}")


async def _remove(world: World) -> None:
    """Let the horizon pass with one gateway and one reconciler; check what is left."""
    for gateway in world.gateways[1:]:
        gateway.stopping = True
    for slot in world.slots[1:]:
        slot.task.cancel()
    await asyncio.sleep(REMOVAL_S)
    world.fail_if_ended()
    held = world.store.held
    registered = [key for key in held if key.startswith(GATEWAY_PROCESSES)]
    journals = [key for key in held if key.startswith(GATEWAY_JOURNALS)]
    if len(registered) > 1:
        raise Violated(f"registrations are left: {registered}")
    if len(journals) > REMOVAL_S / HEARTBEAT_S + 3:
        raise Violated(f"journal objects are left: {len(journals)}")
    if [key for key in held if key.startswith(HOLD_RECORDS)]:
        raise Violated("hold records are left")


async def _until(
    world: World, limit_s: float, message: str, check: Callable[[World], bool]
) -> None:
    end_s = world.loop.time() + limit_s
    while not check(world):
        if world.loop.time() > end_s:
            raise Violated(f"{message}, record={world.record()}")
        await asyncio.sleep(1.0)
        world.fail_if_ended()
