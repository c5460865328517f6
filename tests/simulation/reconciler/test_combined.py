"""Repetitions of small requests are left out once and only once, whatever crashes.

Two gateways combine requests. Clients repeat them after lost answers, through either gateway. Two
reconcilers crash before and after each write, batches are found late, and the clocks of the
gateways differ by 20 s. After a rebuild records may be doubled, but none is lost.

`SLUICE_SIM_SEEDS=7,8` replays seeds 7 and 8.

Clients send a request through one gateway. Without an answer they send it again through the other
one. A consumer ingests the work lists as Spark does: it drops a batch that it has, and reads only
the records that are not repeated.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import manifest
from support.queue_store import Faults, SimClock, SimIds, SimStore
from support.reconciler_world import Crash, make_parts_small, reconciler, run_slot
from support.simloop import daily_seeds

from sluice_protocol.errors import Fenced, OutcomeUnknown
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, blob_key
from sluice_protocol.manifests import (
    AcceptedManifest,
    RequestPart,
    decode_parts,
    encode_parts,
    encode_record,
)
from sluice_protocol.units import NS_PER_S
from sluice_queue.consumer import Consumer
from sluice_queue.lane import Lane, list_lanes
from sluice_queue.register import Register, encode_register
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes import request_log
from sluice_reconciler.lanes.enqueued import IntendedBatch
from sluice_reconciler.lanes.request_log import (
    JudgedBatches,
    RequestLog,
    RequestWindow,
    SpilledRequests,
)
from sluice_reconciler.lanes.state import LaneRecord, encode_lane, lane_key, read_lane_state
from sluice_reconciler.settings import ReconcilerSettings

AGENT = "door:shop:c0"
WINDOW_S = int(ReconcilerSettings().door_window_s)
RECORDS = 3
"""Records of each request."""


@dataclass(kw_only=True)
class CombinedWorld:
    """What clients sent, what gateways accepted, and what the consumer has.

    Attributes:
        seed: Replays one run.
        store: The store.
        clock: The store's clock.
        rng: Every choice.
        accepted: Every batch.
        requests: Requests of which a batch is accepted.
        rows: How often each record of each request was ingested.
        ledger: Batches that were ingested.
        late: Batches that appear later than younger ones.
        sent: When clients sent each request last.
        through: The last sequence of each lane that the consumer has.
        consumers: How many consumers were started.
    """

    seed: int
    store: SimStore
    clock: SimClock
    rng: random.Random
    accepted: list[AcceptedManifest] = field(default_factory=list)
    requests: set[bytes] = field(default_factory=set)
    rows: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    ledger: set[Identity] = field(default_factory=set)
    late: list[AcceptedManifest] = field(default_factory=list)
    sent: dict[bytes, int] = field(default_factory=dict)
    through: Counter[int] = field(default_factory=Counter)
    consumers: int = 0

    @property
    def doubled(self) -> list[bytes]:
        """Requests of which a record was ingested twice."""
        return sorted({request for (request, _), count in self.rows.items() if count > 1})

    @property
    def lost(self) -> list[bytes]:
        """Accepted requests of which a record was not ingested."""
        wanted = {(request, n) for request in self.requests for n in range(RECORDS)}
        return sorted({request for request, _ in wanted - self.rows.keys()})

    def combine(self, gateway: int) -> AcceptedManifest:
        """Return the next batch of a gateway: new requests, and repetitions of earlier ones."""
        chosen = [self.rng.randbytes(16) for _ in range(self.rng.randrange(1, 3))]
        edge_ns = self.clock.now_ns() - WINDOW_S * NS_PER_S
        recent = [one for one, at_ns in self.sent.items() if at_ns >= edge_ns]
        chosen += self.rng.sample(recent, min(len(recent), self.rng.randrange(3)))
        self.rng.shuffle(chosen)
        boot = f"gateway-{gateway}"
        seq = sum(one.record_count for one in self.accepted if one.boot_id == boot)
        parts = [
            RequestPart(request=request, start=RECORDS * at, count=RECORDS)
            for at, request in enumerate(chosen)
        ]
        skew_ns = (gateway - 1) * 20 * NS_PER_S
        one = manifest(
            seq,
            count=RECORDS * len(parts),
            agent=AGENT,
            boot=boot,
            at_ns=self.clock.now_ns() + skew_ns,
        )
        self.sent.update(dict.fromkeys(chosen, self.clock.now_ns()))
        self.requests.update(chosen)
        one = replace(one, parts=encode_parts(parts))
        self.accepted.append(one)
        return one

    def put(self, one: AcceptedManifest) -> None:
        """Write a batch as a gateway does."""
        frame = f"{one.agent_id}/{one.boot_id}/{one.seq_start}/{one.record_count}".encode()
        self.store._put(blob_key(one.digest), frame)
        self.store._put(accepted_key(one.identity), encode_record(one))

    def ingest(self, batch: AcceptedManifest) -> None:
        """Ingest one batch of a work list."""
        if batch.identity in self.ledger:
            return
        self.ledger.add(batch.identity)
        source = next(one for one in self.accepted if one.identity == batch.identity)
        for start, end in batch.kept:
            for record in range(start, end):
                at, number = divmod(record, RECORDS)
                self.rows[_request(source, at), number] += 1


def _request(one: AcceptedManifest, at: int) -> bytes:
    assert isinstance(one.parts, str)
    return decode_parts("k", one.parts, one.record_count)[at].request


async def _consume(world: CombinedWorld, stop: asyncio.Event) -> None:
    runtime = _next_consumer(world)
    while not stop.is_set():
        await asyncio.sleep(0)
        await _ingest_pending(world, runtime)


def _next_consumer(world: CombinedWorld) -> Runtime:
    world.consumers += 1
    return Runtime(clock=world.clock, ids=SimIds(99 + world.consumers), rng=random.Random(99))


async def _ingest_pending(world: CombinedWorld, runtime: Runtime) -> None:
    """Ingest the pending entries of every lane, and acknowledge them."""
    through = world.through
    for lane in await list_lanes(world.store, "spark"):
        try:
            consumer = await Consumer.open(
                world.store, queue="spark", lane=lane.lane, runtime=runtime
            )
            for one in await consumer.next_descriptors(100):
                batches = (await consumer.fetch_handle().fetch(one)).batches
                if one.sequence > through[lane.lane]:
                    through[lane.lane] = one.sequence
                    for batch in batches:
                        world.ingest(batch)
            if through[lane.lane] > consumer.acked_through:
                await consumer.ack_through(through[lane.lane])
        except (Fenced, OutcomeUnknown):
            continue


async def _empty_states(world: CombinedWorld) -> None:
    """Replace the register and the ledger of each lane, as a rebuild does of a lost register."""
    for number in range(2):
        lane = Lane(queue="spark", lane=number)
        stored = await read_lane_state(world.store, lane)
        if stored is None:
            continue
        old = stored.record
        record = LaneRecord(
            queue=old.queue,
            lane=old.lane,
            nonce=f"{number:032x}",
            producer_id=f"{number + 7:032x}",
            owner_term=old.owner_term + 1,
        )
        world.store._put(lane_key(lane), encode_lane(record))
        through = world.through[number]
        register = Register(
            revision=1,
            nonce=bytes([number]) * 16,
            next_sequence=through + 1,
            acked_through=through,
        )
        world.store._put(lane.key, encode_register(register))


class _Slots:
    """The two reconcilers and the consumer."""

    def __init__(self, world: CombinedWorld, tasks: asyncio.TaskGroup) -> None:
        self._stop_reading = asyncio.Event()
        self._world = world
        self._tasks = tasks
        self._quiet = asyncio.Event()
        self._running: list[asyncio.Task[int]] = []
        self._starts = 0

    def start(self) -> None:
        world, self._quiet = self._world, asyncio.Event()
        self._starts += 1
        seed = world.seed * 50 + self._starts
        self._running = [
            self._tasks.create_task(
                run_slot(world.store, world.clock, seed, who, self._quiet, announced=())
            )
            for who in range(2)
        ]

    async def stop(self) -> None:
        self._quiet.set()
        for task in self._running:
            await task

    def read(self) -> None:
        self._stop_reading = asyncio.Event()
        self._reading = self._tasks.create_task(_consume(self._world, self._stop_reading))

    async def stop_reading(self) -> None:
        self._stop_reading.set()
        await self._reading


def simulate_combined(seed: int, *, rebuild: bool = False) -> CombinedWorld:
    """Return the world after a run in which everything came to rest.

    Args:
        seed: Replays one run.
        rebuild: Whether the ledgers are emptied in the middle.
    """
    clock = SimClock()
    faults = Faults(rng=random.Random(seed + 1), unknown=0.1)
    store = SimStore(clock=clock, faults=faults)
    world = CombinedWorld(seed=seed, store=store, clock=clock, rng=random.Random(seed))

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            slots = _Slots(world, tasks)
            slots.start()
            slots.read()
            for number in range(14):
                await _step(world, slots, rebuild=rebuild and number == 7)
            _put_late(world)
            await slots.stop()
            faults.unknown = 0.0
            await reconciler(store, clock, seed * 7 + 5).once()
            await slots.stop_reading()
            await _ingest_pending(world, _next_consumer(world))

    asyncio.run(run())
    return world


def _put_late(world: CombinedWorld) -> None:
    while world.late:
        world.put(world.late.pop(world.rng.randrange(len(world.late))))


async def _step(world: CombinedWorld, slots: _Slots, *, rebuild: bool) -> None:
    rng, clock = world.rng, world.clock
    one = world.combine(1 + rng.randrange(2))
    if rng.random() < 0.3:
        world.late.append(one)  # accepted later, and found after batches that are younger
    else:
        world.put(one)
    clock.at_ns += rng.randrange(1, 300) * NS_PER_S
    if rebuild:
        await slots.stop()
        await slots.stop_reading()
        world.store.late.clear()
        await _empty_states(world)
        slots.read()
        slots.start()
    elif rng.random() < 0.2:
        # No reconciler runs for longer than the window.
        _put_late(world)
        await slots.stop()
        for gateway in (1, 2, 1):
            world.put(world.combine(gateway))
        clock.at_ns += 2 * WINDOW_S * NS_PER_S
        slots.start()
    if rng.random() < 0.5:
        _put_late(world)
    for _ in range(rng.randrange(300)):
        await asyncio.sleep(0)


DAILY = (0, 7)
"""Each planted bug is found by one of these seeds."""


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts and runs small, so that they are written and merged often."""
    make_parts_small(monkeypatch, fan_in=3)
    monkeypatch.setattr(request_log, "RUN_REQUESTS_MAX", 12)


@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", daily_seeds(46, DAILY))
def test_each_request_is_ingested_once(seed: int) -> None:
    world = simulate_combined(seed)
    assert world.lost == [], seed
    assert world.doubled == [], seed


@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", daily_seeds(46, DAILY))
def test_no_request_is_lost_by_a_rebuild(seed: int) -> None:
    assert simulate_combined(seed, rebuild=True).lost == [], seed


def _finds() -> bool:
    """Return True if a seed finds the bug; the daily seeds run first."""
    for seed in dict.fromkeys((*DAILY, *range(20))):
        try:
            world = simulate_combined(seed)
        except (Exception, Crash):
            return True
        if world.lost or world.doubled:
            return True
    return False


def _judges_nothing(self: RequestWindow, batches: Iterable[AcceptedManifest]) -> JudgedBatches:
    """Repetitions are not left out."""
    return JudgedBatches(batches=tuple(batches), found={}, repeated=0)


async def _loads_nothing(
    self: RequestLog, record: LaneRecord, enqueued: Sequence[IntendedBatch]
) -> None:
    """A new owner knows no request."""
    self.window = RequestWindow()


_load = RequestLog.load


async def _loads_runs_only(
    self: RequestLog, record: LaneRecord, enqueued: Sequence[IntendedBatch]
) -> None:
    """A new owner forgets the recent batches."""
    await _load(self, record, ())


async def _spills_nothing(self: RequestLog) -> SpilledRequests:
    """Recent batches leave the lane state before their requests are stored."""
    return self.unchanged()


_judge = RequestWindow.judge


def _by_acceptance(self: RequestWindow, batches: Iterable[AcceptedManifest]) -> JudgedBatches:
    """The batch that was accepted first keeps a request, even if another is enqueued already."""
    judged = _judge(self, batches)
    kept = []
    for one in judged.batches:
        known = self.find(judged.found)
        later = [k for k in known.values() if k.accepted_s > one.accepted_at_unix_ns // NS_PER_S]
        kept.append(replace(one, repeated=()) if later else one)
    return JudgedBatches(batches=tuple(kept), found=judged.found, repeated=judged.repeated)


async def _forgets_by_clock(
    self: RequestLog, record: LaneRecord, enqueued: Sequence[IntendedBatch]
) -> None:
    """The window ends by the clock, not by what is found."""
    await _load(self, record, enqueued)
    cutoff_s = self._runtime.clock.now_ns() // NS_PER_S - WINDOW_S
    known, window = self.window.unstored, self.window
    self.window = RequestWindow([run.since(cutoff_s) for run in window.runs])
    self.window._unstored = {k: v for k, v in known.items() if v.accepted_s >= cutoff_s}


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("target", "name", "bug"),
    [
        (RequestWindow, "judge", _judges_nothing),
        (RequestWindow, "judge", _by_acceptance),
        (RequestLog, "load", _loads_nothing),
        (RequestLog, "load", _loads_runs_only),
        (RequestLog, "spill", _spills_nothing),
        (RequestLog, "load", _forgets_by_clock),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_planted_bugs_are_found(
    target: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, name, bug)
    assert _finds()
