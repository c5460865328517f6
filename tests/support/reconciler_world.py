"""A seeded simulation of two reconcilers that crash anywhere, with lost and late writes.

Also here: a reconciler that reads journals, without a process: its rounds and passes are called.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.gateway_journal import JournalWriter
from support.queue_store import Faults, SimClock, SimIds, SimStore
from support.reconciler_seed import accept, index_entries, index_keys

from sluice_protocol.authority import Authority
from sluice_protocol.errors import Fenced, OutcomeUnknown, StoreError
from sluice_protocol.identity import Identity
from sluice_protocol.journals import DISCOVERY, DiscoveryRecord
from sluice_protocol.keys import accepted_key, blob_key
from sluice_protocol.manifests import AcceptedManifest, decode_record
from sluice_protocol.outcomes import CreateOutcome
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.consumer import Consumer
from sluice_queue.lane import list_lanes
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes import owner as lane_owner
from sluice_reconciler.lanes import part_log
from sluice_reconciler.lanes.worker import Takeover
from sluice_reconciler.passes.progress import NextPass
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.port import NewObject

DAY_NS = 86_400 * NS_PER_S
ONE_LANE = Authority(authority_id="A", lanes=1)
TWO_LANES = Authority(authority_id="A", lanes=2)
SHORT_HORIZON = Authority(authority_id="A", lanes=2, retry_horizon_s=600, margin_s=120)
UNKNOWN_SHARE = 0.1
"""The share of writes whose outcome the caller does not learn."""


def make_parts_small(monkeypatch: pytest.MonkeyPatch, *, fan_in: int = 2) -> None:
    """Let parts of lane states have few boots, so that they are written and merged often."""
    monkeypatch.setattr(lane_owner, "RECENT_MAX", 2)
    monkeypatch.setattr(part_log, "RECENT_MAX", 2)
    monkeypatch.setattr(part_log, "FAN_IN", fan_in)
    monkeypatch.setattr(part_log, "PART_BOOTS_MAX", 2)


class Crash(BaseException):
    """The crash of a simulated process."""


@dataclass
class Mortal:
    """One process's connection to the store; the process crashes before or after its n-th write."""

    store: SimStore
    rng: random.Random
    left: int

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)
        if name not in ("create", "replace", "overwrite", "delete"):
            return verb

        async def mortal(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Crash
            if self.left == 0 and self.rng.random() < 0.5:
                raise Crash
            outcome = await verb(*args, **kwargs)
            if self.left <= 0:
                raise Crash
            return outcome

        return mortal

    async def create_many(self, objects: Sequence[NewObject]) -> list[CreateOutcome]:
        """The process may crash between any two of them."""
        return [await self.create(one.key, one.body) for one in objects]


def reconciler(store: Any, clock: SimClock, seed: int) -> Reconciler:
    return make(store, seed, authority=TWO_LANES, concurrency=4, list_batches_max=5)


async def run_slot(
    store: SimStore,
    clock: SimClock,
    seed: int,
    who: int,
    stop: asyncio.Event,
    *,
    announced: Sequence[AcceptedManifest],
) -> int:
    """Run one reconciler after the other until stopped; return how many ran.

    Each also processes old batches again, as it does when a gateway names a duplicate.
    """
    rng = random.Random(seed * 10 + who)
    count = 0
    while not stop.is_set():
        count += 1
        mortal = Mortal(store=store, rng=rng, left=rng.randrange(1, 60))
        one = reconciler(mortal, clock, seed * 1000 + who * 100 + count)
        takeover = Takeover.ALWAYS if rng.random() < 0.7 else None
        try:
            while not stop.is_set():
                await one.once(takeover=takeover)
                if announced:
                    known = rng.sample(announced, min(3, len(announced)))
                    keys = [accepted_key(batch.identity) for batch in known]
                    await one.pipeline.process_new_in_steps(keys)
        except (Crash, OutcomeUnknown, StoreError, BaseExceptionGroup):
            await asyncio.sleep(0)
    return count


async def consume(
    store: SimStore, clock: SimClock, table: list[Identity], stop: asyncio.Event
) -> None:
    """Read pending entries, persist them with their sequence, and acknowledge them.

    After `stop` is set, everything is read one more time.
    """
    runtime = Runtime(clock=clock, ids=SimIds(99), rng=random.Random(99))
    through: Counter[int] = Counter()
    last = False
    while not last:
        last = stop.is_set()
        await asyncio.sleep(0)
        for lane in await list_lanes(store, "spark"):
            try:
                consumer = await Consumer.open(
                    store, queue="spark", lane=lane.lane, runtime=runtime
                )
                for one in await consumer.next_descriptors(100):
                    batches = (await consumer.fetch_handle().fetch(one)).batches
                    if one.sequence > through[lane.lane]:
                        assert one.sequence == through[lane.lane] + 1
                        through[lane.lane] = one.sequence
                        table += [batch.identity for batch in batches]
                if through[lane.lane] > consumer.acked_through:
                    await consumer.ack_through(through[lane.lane])
            except (Fenced, OutcomeUnknown):
                continue


@dataclass
class SimSender:
    """Accepts batches of three agents next to the reconcilers, with late blobs in `years`."""

    store: SimStore
    faults: Faults
    rng: random.Random
    boots: int
    years: bool
    accepted: list[AcceptedManifest] = field(default_factory=list)
    late: list[tuple[ObjectKey, bytes]] = field(default_factory=list)

    async def run(self, clock: SimClock) -> None:
        """Accept eight batches of each agent, then every late blob appears."""
        for number in range(8):
            for agent in ("a", "b", "c"):
                await self._accept_one(agent, f"b{number % self.boots}")
            if self.years and self.rng.random() < 0.5:
                clock.at_ns += 9 * DAY_NS
            if self.late and self.rng.random() < 0.3:
                self.store._put(*self.late.pop(0))
            for _ in range(self.rng.randrange(300)):
                await asyncio.sleep(0)
        for blob in self.late:
            self.store._put(*blob)

    async def _accept_one(self, agent: str, boot: str) -> None:
        before = sum((one.agent_id, one.boot_id) == (agent, boot) for one in self.accepted)
        self.faults.unknown = 0.0
        one = await accept(self.store, 10 * before, agent=agent, boot=boot)
        self.accepted.append(one)
        if self.years and self.rng.random() < 0.2:
            blob = blob_key(one.digest)
            self.late.append((blob, self.store.held.pop(blob).body))
        self.faults.unknown = UNKNOWN_SHARE


def simulate(
    seed: int, *, boots: int = 1, years: bool = False
) -> tuple[list[Identity], list[Identity], list[ObjectKey], int]:
    """Return accepted batches, the consumer's table, missing index keys, and how many processes
    ran.

    Args:
        seed: Replays one run.
        boots: Lives per agent.
        years: Whether the clock jumps beyond the retry horizon now and then, old batches are
            announced again, and blobs appear late.
    """
    clock = SimClock()
    faults = Faults(rng=random.Random(seed + 1), unknown=UNKNOWN_SHARE)
    store = SimStore(clock=clock, faults=faults)
    sender = SimSender(store, faults, random.Random(seed), boots, years)
    table: list[Identity] = []

    async def run() -> tuple[list[ObjectKey], int]:
        quiet, stop = asyncio.Event(), asyncio.Event()
        announced = sender.accepted if years else ()
        async with asyncio.TaskGroup() as tasks:
            slots = [
                tasks.create_task(run_slot(store, clock, seed, who, quiet, announced=announced))
                for who in range(2)
            ]
            tasks.create_task(consume(store, clock, table, stop))
            await sender.run(clock)
            quiet.set()
            lived = sum([await slot for slot in slots])
            faults.unknown = 0.0
            await reconciler(store, clock, seed * 7 + 5).once()
            stop.set()
        entries = await index_entries(store)
        keys = [key for one in sender.accepted for key in index_keys(one)]
        return [key for key in keys if key not in entries], lived

    missing, lived = asyncio.run(run())
    return [one.identity for one in sender.accepted], table, missing, lived


def runtime_of(store: Any, seed: int = 1) -> Runtime:
    """Return the clock of a store, with ids and random numbers of a seed."""
    return Runtime(clock=store.clock, ids=SimIds(seed), rng=random.Random(seed))


def make(
    store: Any, seed: int = 1, *, authority: Authority = SHORT_HORIZON, **settings: Any
) -> Reconciler:
    return Reconciler(
        store,
        authority,
        settings=ReconcilerSettings(**settings),
        runtime=runtime_of(store, seed),
    )


def pass_time(store: SimStore, seconds: float) -> None:
    store.clock.at_ns += int(seconds * NS_PER_S)


def now(store: SimStore) -> int:
    return store.clock.at_ns


def record(store: SimStore) -> DiscoveryRecord:
    return decode_record(DISCOVERY, store.held[DISCOVERY].body, DiscoveryRecord)


async def make_pass(subject: Reconciler, *, resume: bool = False) -> None:
    """Make a pass as the service does."""
    await subject.progress.read()
    await subject._pass_loop.run_once(None, NextPass(start=True, resume=resume, urgent=True))


async def journaled(store: SimStore, **settings: Any) -> tuple[Reconciler, JournalWriter]:
    """Return a reconciler for which journals decide, and one registered gateway."""
    writer = JournalWriter(store, now(store))
    await writer.register()
    subject = make(store, **settings)
    await subject.journals.run_pass()
    await make_pass(subject)
    await writer.append([], through_ns=now(store))
    await rounds(store, subject)
    assert record(store).journaled_since_unix_ns is not None
    return subject, writer


async def rounds(store: SimStore, subject: Reconciler, count: int = 2) -> None:
    """Make rounds, each after the interval of listings."""
    for _ in range(count):
        pass_time(store, 1.1)
        await subject.journals.run_pass()
