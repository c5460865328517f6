"""A seeded simulation of changes of the number of lanes, next to reconcilers and a consumer.

Every process may crash at each write, and a reconciler or consumer may know an earlier layout.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from support.queue_store import Faults, SimClock, SimIds, SimStore
from support.reconciler_seed import accept
from support.reconciler_world import UNKNOWN_SHARE, Crash, Mortal, make, runtime_of

from sluice_protocol.authority import Authority
from sluice_protocol.errors import Fenced, OutcomeUnknown, SluiceError, StoreError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import AUTHORITY_SETTINGS, lane_of
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_queue.consumer import Consumer
from sluice_queue.errors import LayoutChanged
from sluice_queue.inspection import handed_over, read_lane
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.change import change_lanes
from sluice_reconciler.lanes.worker import Takeover
from sluice_store.authority import read_authority

DAY_NS = 86_400 * 1_000_000_000
FIRST = Authority(authority_id="A", lanes=2, retry_horizon_s=600, margin_s=120)
AGENTS = tuple("abcdef")


@dataclass
class LaneChangeWorld:
    """One run: what was accepted, and the rows that the consumer persisted with their places."""

    seed: int
    boots: int = 1
    years: bool = False
    clock: SimClock = field(default_factory=SimClock)
    accepted: list[AcceptedManifest] = field(default_factory=list)
    rows: list[tuple[Identity, int, int]] = field(default_factory=list)
    through: Counter[int] = field(default_factory=Counter)
    layouts: list[Authority] = field(default_factory=lambda: [FIRST])
    kills: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.faults = Faults(rng=random.Random(self.seed + 1))
        self.store = SimStore(clock=self.clock, faults=self.faults)

    async def reconcile(self, who: int, stop: asyncio.Event) -> None:
        """Run one reconciler after the other; some of them believe in an earlier layout."""
        rng, count = random.Random(self.seed * 10 + who), 0
        while not stop.is_set():
            count += 1
            mortal = Mortal(store=self.store, rng=rng, left=rng.randrange(1, 80))
            known = rng.choice([self.layouts[-1], self.layouts[-1], *self.layouts])
            one = make(
                mortal,
                self.seed * 1000 + who * 100 + count,
                authority=known,
                concurrency=4,
                list_batches_max=5,
            )
            takeover = Takeover.ALWAYS if rng.random() < 0.7 else None
            try:
                for _ in range(rng.randrange(1, 5)):
                    await one.once(takeover=takeover)
            except (Crash, SluiceError, BaseExceptionGroup):
                await asyncio.sleep(0)

    async def consume(self, stop: asyncio.Event) -> None:
        """Persist entries with their sequence, then acknowledge them, as an ingest does."""
        runtime = Runtime(clock=self.clock, ids=SimIds(99), rng=random.Random(99))
        rng, last = random.Random(self.seed + 2), False
        opened: dict[int, Consumer] = {}
        while not last:
            last = stop.is_set()
            await asyncio.sleep(0)
            known = self.layouts[-1] if last else rng.choice(self.layouts[-2:])
            if last or rng.random() < 0.5:
                opened.clear()
            for lane in range(known.lanes):
                try:
                    if lane not in opened:
                        opened[lane] = await self._open(known, lane, runtime)
                    await self._read(opened[lane], lane)
                except (Fenced, OutcomeUnknown, LayoutChanged):
                    opened.pop(lane, None)

    async def _open(self, known: Authority, lane: int, runtime: Runtime) -> Consumer:
        view = await read_lane(self.store, "spark", lane, entries_max=0)
        if self.through[lane] < known.after_sequence == view.state.acked_through:
            assert self.through[lane] >= handed_over(known, lane, view.state)
            self.through[lane] = known.after_sequence
        return await Consumer.open(
            self.store,
            queue="spark",
            lane=lane,
            layout=known.layout,
            after=known.after_sequence,
            runtime=runtime,
        )

    async def _read(self, consumer: Consumer, lane: int) -> None:
        for one in await consumer.next_descriptors(100):
            batches = (await consumer.fetch_handle().fetch(one)).batches
            await consumer.next_descriptors(0)
            if one.sequence > self.through[lane]:
                assert one.sequence == self.through[lane] + 1
                self.through[lane] = one.sequence
                self.rows += [(batch.identity, lane, one.sequence) for batch in batches]
        if self.through[lane] > consumer.acked_through:
            await consumer.ack_through(self.through[lane])

    async def change(self, numbers: Sequence[int]) -> None:
        """Change the number of lanes several times; each command is killed and repeated."""
        rng, count = random.Random(self.seed + 3), 0
        for index, lanes in enumerate(numbers):
            while len(self.accepted) < 12 * index:  # noqa: ASYNC110 - turns of the simulation
                await asyncio.sleep(0)
            for _ in range(rng.randrange(400)):
                await asyncio.sleep(0)
            while self.layouts[-1].lanes != lanes:
                count += 1
                left = rng.randrange(1, 30) if rng.random() < 0.8 else 1_000_000
                mortal: Any = Mortal(store=self.store, rng=rng, left=left)
                runtime = runtime_of(self.store, self._command_seed(count))
                try:
                    await change_lanes(mortal, lanes, runtime, lambda _: None)
                except (Crash, OutcomeUnknown, StoreError, BaseExceptionGroup):
                    self.kills += 1
                await self._learn()
            await self._finish(lanes, count)

    async def _finish(self, lanes: int, count: int) -> None:
        """Repeat the command until nothing is left: a killed one left registers sealed."""
        notes = list[str]()
        while not any(note.startswith("nothing to change") for note in notes):
            count += 1
            runtime = runtime_of(self.store, self._command_seed(count))
            with suppress(OutcomeUnknown, StoreError, BaseExceptionGroup):
                await change_lanes(self.store, lanes, runtime, notes.append)

    def _command_seed(self, count: int) -> int:
        """Return a seed that no reconciler has: equal nonces are taken for one write."""
        return (self.seed + 1) * 1_000_000 + count

    async def _learn(self) -> None:
        now = await read_authority(self.store)
        if now.layout > self.layouts[-1].layout:
            self.layouts.append(now)

    async def send(self) -> None:
        """Accept batches of every agent."""
        rng = random.Random(self.seed + 4)
        for number in range(8):
            for agent in AGENTS:
                boot = f"b{number % self.boots}"
                before = sum((o.agent_id, o.boot_id) == (agent, boot) for o in self.accepted)
                self.faults.unknown = 0.0
                one = await accept(self.store, 10 * before, agent=agent, boot=boot)
                self.accepted.append(one)
                self.faults.unknown = UNKNOWN_SHARE
            if self.years and rng.random() < 0.5:
                self.clock.at_ns += 9 * DAY_NS
            for _ in range(rng.randrange(300)):
                await asyncio.sleep(0)

    async def run(self, numbers: Sequence[int]) -> None:
        """Run everything to its end."""
        await self.store.create(AUTHORITY_SETTINGS, encode_record(FIRST))
        quiet, stop = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            slots = [tasks.create_task(self.reconcile(who, quiet)) for who in range(2)]
            tasks.create_task(self.consume(stop))
            changes = tasks.create_task(self.change(numbers))
            await self.send()
            await changes
            quiet.set()
            for slot in slots:
                await slot
            self.faults.unknown = 0.0
            last = make(self.store, self.seed * 7 + 5, authority=self.layouts[-1], concurrency=4)
            report = await last.once()
            assert not report.outcome.left
            stop.set()

    def wrong(self) -> list[str]:
        """Return every broken promise."""
        table = Counter(who for who, _, _ in self.rows)
        found = [f"doubled {who}" for who, count in table.items() if count > 1]
        found += [f"lost {o.identity}" for o in self.accepted if o.identity not in table]
        counts = self.layouts[-1].lane_counts
        for who, lane, sequence in self.rows:
            if lane_of(who.agent_id, counts.of_sequence(sequence)) != lane:
                found.append(f"{who} has sequence {sequence} of lane {lane}")
        return found


def simulate(seed: int, numbers: Sequence[int], *, boots: int = 1, years: bool = False) -> Any:
    """Return the world after one run."""
    world = LaneChangeWorld(seed=seed, boots=boots, years=years)
    asyncio.run(world.run(numbers))
    return world
