"""Gateways, reconcilers and a consumer over one bucket in virtual time, with counted requests."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import pytest
from support.builders import log_columns, make_identity, salted_frame
from support.constants import settings_with
from support.gateway import TestKey, write_principals
from support.gc_world import KEYS, MovedClock
from support.memory_bucket import MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call, Fault
from support.simloop import START_NS, SimClock, SimIds, SimLoop, simulate

from pyspark_sluice.source import read_lanes, read_latest
from sluice_cli.cost import Load
from sluice_gateway.metrics import UploadPhases
from sluice_gateway.process import app as gateway_app
from sluice_gateway.process import worker as gateway_worker
from sluice_gateway.process.app import Gateway, build_gateway
from sluice_gateway.process.worker import start_background_tasks
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.uploads.acceptor import AcceptedResponse, Upload
from sluice_gc.auditor import Auditor
from sluice_gc.settings import AuditSettings
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol.authority import Authority
from sluice_protocol.clock import machine_now
from sluice_protocol.frame import decode_head
from sluice_protocol.keys import digest_of
from sluice_protocol.prices import DAY_S
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import ObjectKey
from sluice_queue.consumer import Consumer
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_queue.worklists import read_pending_batches
from sluice_reconciler.passes import progress as pass_progress
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import create_authority, read_authority
from sluice_store.port import ObjectStore

WARM_UP_S = 130.0

Counted = Counter[tuple[str, str]]
"""Requests by method and key."""


@dataclass
class CountingPlan:
    """Counts every request of one component; it causes no fault."""

    seen: Counted = field(default_factory=Counter)

    def fault_of(self, call: Call) -> Fault | None:
        self.seen[call.method, call.key] += 1
        return None


class SimMachine(SimClock):
    """A machine that is never suspended."""

    def boottime_ns(self) -> int:
        return self.monotonic_ns()


@dataclass
class CostWorld:
    """One deployment that runs by a plan."""

    load: Load
    bucket: MemoryBucket
    clock: SimMachine
    rng: Random
    folder: Path
    counted: dict[str, CountingPlan] = field(default_factory=dict)

    def store(self, component: str) -> ObjectStore:
        plan = self.counted.setdefault(component, CountingPlan())
        return open_memory_store(self.bucket, plan=plan, clock=self.clock)[0]

    async def run(self, seconds: float) -> None:
        """Run everything; count what happens after the start."""
        authority = await create_authority(
            self.store("init"),
            Authority(authority_id="A", lanes=self.load.plan.lanes),
            clock=self.clock,
        )
        async with asyncio.TaskGroup() as group:
            gateways = [await self._gateway(group, authority, n) for n in self._workers()]
            running = [
                group.create_task(self._reconciler(authority).run()),
                *(group.create_task(self._send(gateways, n)) for n in range(self.load.plan.agents)),
                group.create_task(self._consume()),
            ]
            await self.clock.sleep(WARM_UP_S)
            for one in self.counted.values():
                one.seen.clear()
            await self.clock.sleep(seconds)
            self.counted = {name: CountingPlan(Counter(c.seen)) for name, c in self.counted.items()}
            for task in running:
                task.cancel()
            raise Stopped

    def _workers(self) -> range:
        return range(self.load.plan.gateway_workers)

    async def _gateway(
        self, group: asyncio.TaskGroup, authority: Authority, number: int
    ) -> Gateway:
        principals = write_principals(self.folder / "p.toml", TestKey("p", ("host-1",)))
        settings = GatewaySettings(principals=principals, journal_interval_s=self.load.journal_s)
        gateway = build_gateway(
            self.store("gateways"),
            authority,
            settings,
            f"gw-{number}",
            mode_checked_at=machine_now(self.clock),
        )
        await gateway.uploads.journal.open()
        start_background_tasks(group, gateway, 1, asyncio.Event())
        return gateway

    async def _send(self, gateways: list[Gateway], number: int) -> None:
        """Upload one batch in each interval, from a moment that the number of the sender selects.

        It decides how many batches share a work list, so it must not depend on the order of tasks.
        """
        gateway, agent = gateways[number % len(gateways)], f"host-{number}"
        interval_s = self.load.plan.agents / self.load.batches
        await self.clock.sleep(Random(number).random() * interval_s)
        sent = 0
        while True:
            await self.upload(gateway, agent, sent)
            sent += 1
            await self.clock.sleep(interval_s)

    async def upload(self, gateway: Gateway, agent: str, number: int) -> None:
        who = make_identity(10 * number, agent=agent)
        frame = salted_frame(who, log_columns([f"{agent} {number} {n}" for n in range(10)]))
        upload = Upload(
            frame=frame,
            digest=digest_of(frame),
            identity=who,
            envelope=decode_head(frame).envelope,
            principal="p",
            attempt_id=gateway.uploads.ids.ulid(),
        )
        answer = await gateway.uploads.accept_made(upload, UploadPhases(self.clock))
        assert isinstance(answer, AcceptedResponse)

    def _reconciler(self, authority: Authority) -> Reconciler:
        plan = self.load.plan
        settings = ReconcilerSettings(
            freshness_s=self.load.flush_s,
            pack_references=plan.pack_references,
            pass_pages_per_s=0.0,
            collect_grace_s=0.0,
        ).on("s3:")
        runtime = Runtime(clock=self.clock, ids=SimIds(self.rng), rng=self.rng)
        store = self.store("reconcilers")
        return Reconciler(store, authority, settings=settings, runtime=runtime)

    async def _consume(self) -> None:
        """Make the requests of the ingestion to queues and blobs, once in each trigger."""
        store = self.store("ingest")
        lanes = range(self.load.plan.lanes)
        consumers = {n: await Consumer.open(store, queue="spark", lane=n) for n in lanes}
        while True:
            await self.clock.sleep(self.load.trigger_s)
            await self._micro_batch(store, consumers)

    async def _micro_batch(self, store: ObjectStore, consumers: dict[int, Consumer]) -> None:
        after = {lane: one.acked_through for lane, one in consumers.items()}
        for _ in ("latestOffset", "partitions"):
            await read_authority(store)
            views = await read_lanes(store, "spark", after)
        await read_latest(store, "spark")
        await self._check_fences(consumers)
        for view in views:
            lane = Lane(queue="spark", lane=view.lane.lane)
            for entry in view.descriptors:
                for one in await read_pending_batches(store, lane, entry):
                    await store.get(ObjectKey(one.manifest.raw_blob_key))
        await self._check_fences(consumers)
        for view in views:
            if view.latest > consumers[view.lane.lane].acked_through:
                await consumers[view.lane.lane].ack_through(view.latest)

    @staticmethod
    async def _check_fences(consumers: dict[int, Consumer]) -> None:
        for consumer in consumers.values():
            await consumer.next_descriptors(0)


class Stopped(Exception):
    """The end of the measured time."""


def run_plan(
    load: Load, seconds: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> CostWorld:
    """Run a deployment in virtual time and return it with its counts."""
    found: list[CostWorld] = []

    async def main(loop: SimLoop, rng: Random) -> None:
        clock = SimMachine(loop)
        ids = SimIds(rng)
        worker = partial(gateway_app._Worker, clock=clock, ids=ids, rng=rng)
        monkeypatch.setattr(gateway_app, "_Worker", worker)
        # The deployment has no result of a doctor; a gateway that waits for one looks more often.
        monkeypatch.setattr(gateway_worker, "DOCTOR_AGAIN_S", gateway_worker.DOCTOR_INTERVAL_S)
        # The cost of passes is an estimate; here their requests would be counted with others.
        monkeypatch.setattr(pass_progress, "PASS_INTERVAL_S_MIN", float(DAY_S))
        bucket = MemoryBucket(clock=clock, rng=rng)
        world = CostWorld(load=load, bucket=bucket, clock=clock, rng=rng, folder=folder)
        found.append(world)
        try:
            await world.run(seconds)
        except* Stopped:
            pass

    simulate(1, main)
    return found[0]


def audit(world: CostWorld, page_keys: int, *, repair: bool) -> Counted:
    """Audit what a world has accepted, and return the requests."""
    world.bucket.page_keys = page_keys
    clock = MovedClock(START_NS + world.clock.monotonic_ns())
    plan = CountingPlan()
    store, _ = open_memory_store(world.bucket, plan=plan, clock=clock)
    settings = settings_with(AuditSettings, shards=4, repair_references=repair)

    async def run() -> None:
        engine = LocalTaskEngine(store)
        await Auditor(store, engine, KEYS, clock, SystemIds()).audit(settings)

    asyncio.run(run())
    return plan.seen


def count(seen: Counted, methods: Iterable[str], *prefixes: str) -> int:
    """Return how many requests of some methods were made under prefixes."""
    wanted = set(methods)
    return sum(
        n for (method, key), n in seen.items() if method in wanted and key.startswith(prefixes)
    )
