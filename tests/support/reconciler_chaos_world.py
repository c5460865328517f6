"""The state of a simulation of whole reconcilers: its processes, and how they are started."""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from support.queue_store import SimIds
from support.reconciler_chaos_gateways import Gateway, Rules
from support.reconciler_chaos_store import ChaosStore, Connection, LoopClock
from support.simloop import SimLoop

from sluice_protocol.authority import Authority
from sluice_protocol.journals import DISCOVERY, DiscoveryRecord
from sluice_protocol.manifests import decode_record
from sluice_queue.lane import Runtime
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
    pack_by_time=True,
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
