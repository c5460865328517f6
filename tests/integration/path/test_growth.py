"""What a store contains after many batches is what `docs/operations.md` lists, and stays so."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.builders import make_identity, manifest_of, salted_frame
from support.constants import changed
from support.frames import logs
from support.gc_store import VersionedStore
from support.gc_world import AUDIT, KEYS, MovedClock
from support.spark_local import ingest_locally
from support.store_versitygw import CREDENTIALS, make_bucket, versitygw

from sluice_gc.auditor import Auditor
from sluice_gc.evidence_retention import prune_evidence
from sluice_gc.settings import ExpirySettings
from sluice_gc.task_engine import LocalTaskEngine
from sluice_gc.version_expiry import expire_versions
from sluice_lake.data_files import list_files
from sluice_lake.delta import find_table
from sluice_lake.tables import BATCHES, RECORD_TABLES
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock
from sluice_protocol.keys import ALL_PREFIXES, accepted_key, blob_key, digest_of
from sluice_protocol.manifests import encode_record
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_queue.collector import Collector
from sluice_queue.consumer import Consumer
from sluice_queue.lane import list_lanes
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.part_log import FAN_IN, tier_of
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_spark.compaction.file_merges import merge_hours
from sluice_spark.errors import never_stop
from sluice_spark.failpoints import read_failpoint
from sluice_spark.settings import CompactSettings
from sluice_store import StoreMode, create_authority, open_store
from sluice_store.port import ObjectStore

PERMANENT = ("accepted/v1/", "raw-blobs/v1/")
INDEXES = ("accepted-by-time/v1/", "raw-blobs-by-time/v1/", "accepted-by-blob/v1/")
PASSES = 20
"""Passes of the reconciler in one round, each of which swaps every register."""
PER_PASS_MIN = 50
"""Batches between two passes, at least."""
CLIENTS = 24
"""Uploads in flight."""
EVIDENCE_BYTES = 400
"""Most bytes of evidence for a batch and kept audit; small files have a larger share of headers."""


SETTINGS = ReconcilerSettings(pack_references=True)
NEXT_SECOND_S = 1.1
"""A server's clock is in whole seconds: only after this time a version counts as superseded."""


def per_pass(batches: int) -> int:
    """Return the number of batches between two passes."""
    return max(PER_PASS_MIN, -(-batches // PASSES))


@dataclass
class Deployment:
    """One store with its maintenance."""

    store: ObjectStore
    clock: Clock
    lives: int
    batches: int = 0
    ids: SystemIds = field(default_factory=SystemIds)
    took_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runtime = Runtime(clock=self.clock, ids=self.ids, rng=random.Random(1))
        self.authority = Authority(authority_id="A1", lanes=2)

    async def accept(self) -> None:
        number = self.batches
        self.batches += 1
        agent, seq = f"agent-{number % self.lives}", 3 * (number // self.lives)
        frame = salted_frame(make_identity(seq, count=3, agent=agent), logs())
        one = manifest_of(frame, at_ns=self.clock.now_ns())
        await self.store.create(blob_key(digest_of(frame)), frame)
        await self.store.create(accepted_key(one.identity), encode_record(one))

    async def accept_many(self, batches: int) -> None:
        """Accept batches by several clients."""
        left = iter(range(batches))

        async def client() -> None:
            for _ in left:
                await self.accept()

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(client())

    async def run_pass(self, batches: int) -> None:
        with self.timed("total"):
            await self._round(batches)
        print({what: round(seconds, 1) for what, seconds in self.took_s.items()})

    async def _round(self, batches: int) -> None:
        reconciler = Reconciler(self.store, self.authority, settings=SETTINGS, runtime=self.runtime)
        horizon_ns = self.authority.retry_horizon_ns
        collector = Collector(
            self.store, retry_horizon_ns=horizon_ns, grace_s=0, runtime=self.runtime
        )
        for begin in range(0, batches, per_pass(batches)):
            with self.timed("accept"):
                await self.accept_many(min(per_pass(batches), batches - begin))
            with self.timed("reconcile"):
                await reconciler.once()
            with self.timed("consume"):
                await collector.run()
                await self.consume()
        await collector.run()
        with self.timed("audit"):
            for _ in range(3):
                engine = LocalTaskEngine(self.store)
                auditor = Auditor(self.store, engine, KEYS, self.clock, self.ids)
                await auditor.audit(AUDIT_ALONE)
            await prune_evidence(self.store, KEYS.trusted)
        with self.timed("lake"):
            await self.maintain_lake()
        if isinstance(self.clock, MovedClock):
            self.clock.pass_s(2)
        else:
            await asyncio.sleep(NEXT_SECOND_S)
        with self.timed("expire"):
            await expire_versions(self.store, ExpirySettings(retention_s=0))

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the duration of a block to what one part of the round took."""
        began = time.monotonic()
        yield
        self.took_s[what] = self.took_s.get(what, 0.0) + time.monotonic() - began

    async def consume(self) -> None:
        for lane in await list_lanes(self.store, "spark"):
            consumer = await Consumer.open(self.store, queue="spark", lane=lane.lane)
            while found := await consumer.next_descriptors(1000):
                await consumer.ack_through(found[-1].sequence)

    async def maintain_lake(self) -> None:
        """Do what keeps the tables small; without tables there is nothing to do."""

    async def measure(self) -> tuple[Counter[str], Counter[str]]:
        objects: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for prefix in ALL_PREFIXES:
            async for page in self.store.list_incarnations(prefix):
                objects[prefix] += len(page.incarnations)
                sizes[prefix] += sum(one.size_bytes for one in page.incarnations)
        return objects, sizes


@dataclass
class ServedDeployment(Deployment):
    """A deployment that a server stores: the consumer of its queue is the ingestion of the lake."""

    url: str = ""

    async def consume(self) -> None:
        await asyncio.to_thread(ingest_locally, self.url)

    async def maintain_lake(self) -> None:
        """Merge the ledger, and remove every file that no table names.

        The files of records are merged by Spark, which is not part of this test.
        """
        await asyncio.to_thread(self._maintain_lake)

    def _maintain_lake(self) -> None:
        settings = CompactSettings(open_partitions=True)
        point = read_failpoint()
        merge_hours(self.url, BATCHES, settings, 0, failpoint=point, stop=never_stop)
        for table in (*RECORD_TABLES.values(), BATCHES):
            opened = find_table(self.url, table, for_writing=True)
            if opened is not None:
                opened.vacuum(
                    retention_hours=0, dry_run=False, full=True, enforce_retention_duration=False
                )

    def ledger_files(self) -> int:
        """Return the number of data files of the ledger."""
        opened = find_table(self.url, BATCHES)
        return len(list_files(opened, BATCHES)) if opened is not None else 0


LIFE_BYTES = 60
"""Most bytes of a life in one part of a lane's state."""
RECORD_BYTES = 64 * 1024
"""Most bytes of the reconciler's records other than parts."""


def lane_objects_max(place: Deployment) -> int:
    """Return the most objects of the reconciler: its records, and the parts of each lane.

    A lane has fewer than `FAN_IN` runs of each tier. One more of each is for those just merged.
    """
    tiers = 1 + tier_of(place.lives)
    return RECONCILER_RECORDS + place.authority.lanes * (1 + FAN_IN * tiers)


RECONCILER_RECORDS = 4
"""The frontier, the progress of the full pass, and what it left over."""
AUDIT_ALONE = changed(AUDIT, repair_references=False)


PER_COMMIT = 12
"""Objects of a pass in the lake: files of records, and a log entry and checkpoint of each table."""


async def check_growth(place: Deployment, batches: int) -> None:
    """Run two rounds and compare what each prefix contains with the page."""
    await create_authority(place.store, place.authority)
    await place.run_pass(batches)
    first, first_bytes = await place.measure()
    await place.run_pass(batches)
    second, second_bytes = await place.measure()
    for prefix in ALL_PREFIXES:
        print(f"{prefix:24} {first[prefix]:>8} {first_bytes[prefix]:>12}", end="")
        print(f" {second[prefix]:>8} {second_bytes[prefix]:>12}")
    for prefix in PERMANENT:
        assert (first[prefix], second[prefix]) == (batches, 2 * batches)
    passes, rest = divmod(batches, per_pass(batches))
    flushes = passes * -(-per_pass(batches) // SETTINGS.list_batches_max)
    flushes += -(-rest // SETTINGS.list_batches_max)
    for prefix in INDEXES:
        assert second[prefix] - first[prefix] <= 2 * flushes
    assert second["manifests/v1/"] == first["manifests/v1/"] == 0
    assert second["queue/v1/"] == first["queue/v1/"]
    assert max(first["reconciler/v1/"], second["reconciler/v1/"]) <= lane_objects_max(place)
    assert second_bytes["reconciler/v1/"] <= RECORD_BYTES + LIFE_BYTES * FAN_IN * place.lives
    assert second["audit/v1/"] - first["audit/v1/"] == 2 * 3, "two copies of each certificate"
    assert second["gc/v1/"] == first["gc/v1/"]
    assert second_bytes["gc/v1/"] <= 2 * EVIDENCE_BYTES * place.batches + 64 * 1024
    assert second["lake/v1/"] - first["lake/v1/"] <= PER_COMMIT * (passes + 1 + bool(rest))
    listed = {*PERMANENT, *INDEXES, "audit/v1/", "gc/v1/", "reconciler/v1/", "lake/v1/"}
    for prefix in ALL_PREFIXES:
        if prefix not in listed:
            assert second[prefix] == first[prefix], prefix


async def test_a_second_round_adds_only_what_is_permanent() -> None:
    clock = MovedClock()
    await check_growth(Deployment(VersionedStore(clock=clock), clock, lives=40), 200)


@pytest.mark.long
@pytest.mark.s3
@pytest.mark.timeout(6 * 3600)
def test_a_versioned_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The full size is 100 000 batches of 20 000 lives; the default is smaller."""
    for name, value in {**CREDENTIALS, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    batches = int(os.environ.get("SLUICE_GROWTH_BATCHES", "200"))
    lives = int(os.environ.get("SLUICE_GROWTH_LIVES", "40"))

    async def story(url: str) -> None:
        await make_bucket(url)
        async with open_store(url, StoreMode.CREATE) as store:
            place = ServedDeployment(store, SystemClock(), lives=lives, url=url)
            await check_growth(place, batches)
            hours = 1 + int(place.took_s["total"] // 3600)
            assert await asyncio.to_thread(place.ledger_files) <= 1 + hours

    with versitygw(tmp_path) as server:
        asyncio.run(story(server.url("growth")))
