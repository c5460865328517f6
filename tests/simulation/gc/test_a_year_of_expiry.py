"""A year of a small deployment that keeps raw batches for 30 days, in simulated time.

Gateways, reconciler, audits, expiry and deletion work on one versioned store. Only the comparison
with the tables is replaced: here they contain every batch. What is stored outside the tables stays
within 1.5 times the bytes of 30 days and 0.6 KB a batch, and `docs/operations.md` lists what grows.
Of an expired batch, only its manifest and its part of a tombstone stay.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from support.builders import log_columns, make_identity, manifest_of, salted_frame
from support.gc_store import VersionedStore
from support.gc_world import KEYS, GcWorld, MovedClock
from ulid import ULID

from sluice_gc.cycle import CycleRunner, GcMetrics
from sluice_gc.expiry_run import ExpiryRun
from sluice_gc.settings import CycleSettings, ExpireSettings, ExpirySettings
from sluice_gc.store_verification import verify_store
from sluice_gc.task_engine import LocalTaskEngine
from sluice_gc.version_expiry import expire_versions
from sluice_protocol.authority import Authority
from sluice_protocol.expiry import RowTally
from sluice_protocol.keys import (
    ACCEPTED_BY_BLOB,
    ALL_PREFIXES,
    EXPIRED,
    LAKE,
    RAW_BLOBS,
    accepted_key,
    blob_key,
    digest_of,
)
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.collector import Collector
from sluice_queue.consumer import Consumer
from sluice_queue.lane import list_lanes
from sluice_queue.register_client import Runtime
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_spark.read_back import BatchComparison, ComparedBatch
from sluice_store.authority import create_authority

DAY_S = 86_400
KEEP_DAYS = 30
PERMANENT_BYTES = 600
"""The bytes that a batch may leave permanently: its manifest."""
TOMBSTONE_BYTES, HEAD_BYTES = 40, 480
"""The bytes of a batch in a tombstone, and those that all batches of a tombstone share."""
CYCLE = CycleSettings(shards=4)


class TimedIds:
    """ULIDs that begin with the simulated time, as those of the system do with its clock."""

    def __init__(self, clock: MovedClock) -> None:
        self._clock = clock
        self._rng = random.Random(2)

    def ulid(self) -> str:
        at_ms = self._clock.now_ns() // 1_000_000
        return str(ULID(at_ms.to_bytes(6, "big") + self._rng.randbytes(10)))


@dataclass
class Year:
    """One deployment: `every_days` is the time between two runs of maintenance."""

    batches_a_day: int
    frame_bytes: int
    every_days: int
    clock: MovedClock = field(default_factory=MovedClock)
    accepted: list[AcceptedManifest] = field(default_factory=list)
    version: int = 0

    def __post_init__(self) -> None:
        self.ids = TimedIds(self.clock)
        self.store = VersionedStore(clock=self.clock)
        self.authority = Authority(authority_id="A1", lanes=1)
        self.world = GcWorld(store=self.store, clock=self.clock, authority=self.authority)
        self.rng = random.Random(1)
        runtime = Runtime(clock=self.clock, ids=self.ids, rng=random.Random(1))
        self.runtime = runtime
        # Each batch has separate entries, as where a batch a few minutes is a flush.
        settings = ReconcilerSettings(list_batches_max=1)
        self.reconciler = Reconciler(self.store, self.authority, settings=settings, runtime=runtime)
        self.collector = Collector(
            self.store,
            retry_horizon_ns=self.authority.retry_horizon_ns,
            grace_s=0,
            runtime=runtime,
        )

    async def live(self, days: int) -> None:
        for day in range(1, days + 1):
            for _ in range(self.batches_a_day):
                self.clock.pass_s(DAY_S / self.batches_a_day)
                await self.accept()
            if day % self.every_days == 0:
                await self.ingest()
                await self.maintain()

    async def ingest(self) -> None:
        await self.reconciler.once()
        for lane in await list_lanes(self.store, "spark"):
            consumer = await Consumer.open(self.store, queue="spark", lane=lane.lane)
            while found := await consumer.next_descriptors(1000):
                await consumer.ack_through(found[-1].sequence)
        await self.collector.run()

    async def accept(self) -> None:
        number = len(self.accepted)
        body = self.rng.randbytes(self.frame_bytes).hex()
        who = make_identity(number, count=1)
        frame = salted_frame(who, log_columns([body], from_ns=self.clock.now_ns()))
        one = manifest_of(frame, at_ns=self.clock.now_ns())
        await self.store.create(blob_key(digest_of(frame)), frame)
        await self.store.create(accepted_key(who), encode_record(one))
        self.accepted.append(one)

    async def maintain(self) -> None:
        """Run what `sluice maintain` runs in a day."""
        self.version += 1
        await self.world.commit(self.version)
        engine = LocalTaskEngine(self.store)
        cycles = CycleRunner(self.store, engine, KEYS, self.clock, self.ids, metrics=GcMetrics())
        assert not (await cycles.cycle(CYCLE)).found_wrong
        await ExpiryRun(self.store, self.compare, KEYS, self.clock, self.ids).run(ExpireSettings())
        await self.reconciler.remove_expired_entries()
        await expire_versions(self.store, ExpirySettings())

    def compare(self, manifests: Sequence[AcceptedManifest]) -> BatchComparison:
        rows = RowTally(rows=1, content="1-1")
        found = {
            one.identity: ComparedBatch(
                blob=one.digest,
                ledger=one.digest,
                blob_rows=rows,
                table_rows=rows,
                dead_letter=False,
            )
            for one in manifests
        }
        versions = {"logs": self.version, "batches": self.version}
        return BatchComparison(batches=found, versions=versions, deletes=0)

    def measure(self) -> Counter[str]:
        """Return the bytes of all versions under each prefix outside the tables."""
        sizes: Counter[str] = Counter()
        for key, versions in self.store.versions.items():
            prefix = next(one for one in ALL_PREFIXES if key.startswith(one))
            sizes[prefix] += sum(len(one.body) for one in versions)
        del sizes[LAKE]
        return sizes


async def check(year: Year, days: int) -> None:
    await create_authority(year.store, year.authority)
    await year.world.decide(KEEP_DAYS * DAY_S)
    await year.live(days)
    sizes, batches = year.measure(), len(year.accepted)
    month = KEEP_DAYS * year.batches_a_day * year.accepted[0].frame_bytes
    for prefix, size in sizes.most_common():
        print(f"{prefix:24} {size:>12} {size / batches:>8.0f} a batch")
    print(f"{sum(sizes.values())} bytes, 30 days of blobs are {month}, {batches} batches")
    assert sum(sizes.values()) <= 1.5 * month + PERMANENT_BYTES * batches
    counts = Counter(
        one for key in year.store.versions for one in ALL_PREFIXES if key.startswith(one)
    )
    expired = batches - KEEP_DAYS * year.batches_a_day
    most = TOMBSTONE_BYTES * expired + HEAD_BYTES * counts[EXPIRED]
    print(f"{counts[EXPIRED]} tombstones, {sizes[EXPIRED] / expired:.0f} bytes an expired batch")
    assert sizes[EXPIRED] <= most
    assert counts[EXPIRED] <= days / year.every_days
    assert counts[ACCEPTED_BY_BLOB] <= counts[RAW_BLOBS] + 2 * year.every_days * year.batches_a_day
    young_ns = year.clock.now_ns() - KEEP_DAYS * DAY_S * NS_PER_S
    left = 0
    for one in year.accepted:
        assert isinstance(await year.store.get(accepted_key(one.identity)), Found)
        blob = await year.store.get(ObjectKey(one.raw_blob_key))
        left += isinstance(blob, Found)
        assert isinstance(blob, Found) or one.accepted_at_unix_ns < young_ns
    assert left <= 1.3 * KEEP_DAYS * year.batches_a_day
    assert [one async for one in year.reconciler.rebuild().differences()] == []
    assert (await verify_store(year.store, KEYS.trusted, evidence=True)).certificates


async def test_months_of_few_large_batches() -> None:
    await check(Year(batches_a_day=4, frame_bytes=256 << 10, every_days=2), days=38)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_a_year() -> None:
    await check(Year(batches_a_day=30, frame_bytes=128 << 10, every_days=2), days=366)
