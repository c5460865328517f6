"""A seeded simulation of whole reconcilers, gateways and clients, with faults of every kind.

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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from structlog.testing import capture_logs
from support.queue_store import Faults
from support.reconciler_chaos_faults import FAULTS, long_outage
from support.reconciler_chaos_gateways import Client
from support.reconciler_chaos_store import ChaosStore, LoopClock, Violated, make_replayable
from support.reconciler_chaos_world import HORIZON_S, LANES, PASS_S, Plan, World
from support.simloop import SimLoop, simulate

from sluice_protocol.journals import HEARTBEAT_S, JOURNAL_REPLACED_AFTER_S, UNHEALTHY
from sluice_protocol.keys import GATEWAY_JOURNALS, GATEWAY_PROCESSES

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
    if [key for key in held if key.startswith(UNHEALTHY)]:
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
