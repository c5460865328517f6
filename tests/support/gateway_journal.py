"""An acceptance journal over a store in memory, and what a reader finds in it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from support.builders import manifest
from support.gc_world import MovedClock
from support.memory_bucket import Fault, MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call

from sluice_gateway.journal import AcceptanceJournal, JournalOwner, StoreRules
from sluice_gateway.metrics import GatewayMetrics, ObservedStore
from sluice_protocol.journals import (
    Frontier,
    GatewayProcess,
    Journal,
    ProcessProgress,
    decide_frontier,
    decode_journal,
    parse_journal_key,
    parse_registration_key,
)
from sluice_protocol.keys import GATEWAY_JOURNALS, GATEWAY_PROCESSES
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import UnixNs
from sluice_store import create_authority
from sluice_store.port import ObjectStore


class MachineClock(MovedClock):
    """A machine with three clocks; a suspension moves one of them."""

    suspended_ns = 0

    def boottime_ns(self) -> int:
        return self.at_ns + self.suspended_ns


@dataclass
class Failing:
    """Calls of one method under a prefix fail, at most `times`; `seen` is called first."""

    prefix: str = "never"
    times: float = math.inf
    fault: Fault = Fault.DENIED
    method: str = "PUT"
    seen: Callable[[Call], None] = field(default=lambda _: None)

    def fault_of(self, call: Call) -> Fault | None:
        self.seen(call)
        if call.method != self.method or not call.key.startswith(self.prefix) or self.times <= 0:
            return None
        self.times -= 1
        return self.fault


@dataclass
class JournalWorld:
    """One worker's journal; the clock of the machine differs from that of the store."""

    journal: AcceptanceJournal
    store: ObservedStore
    inner: ObjectStore
    bucket: MemoryBucket
    machine: MachineClock
    authority: MovedClock
    plan: Failing
    metrics: GatewayMetrics

    def pass_s(self, seconds: float) -> None:
        self.machine.pass_s(seconds)
        self.authority.pass_s(seconds)


SKEW_S = 3600


async def open_world(*, registered: bool = True) -> JournalWorld:
    authority = MovedClock()
    machine = MachineClock(authority.at_ns + SKEW_S * 10**9)
    plan, metrics = Failing(), GatewayMetrics()
    inner, transport = open_memory_store(plan=plan, clock=authority)
    await create_authority(inner, clock=authority)
    store = ObservedStore(inner, metrics, machine)
    owner = JournalOwner(collector_id="gw", acceptance="s3_manifest")
    journal = AcceptanceJournal(
        store, owner, rules=StoreRules(SystemIds()), clock=machine, metrics=metrics
    )
    if registered:
        await journal.open()
    return JournalWorld(journal, store, inner, transport.bucket, machine, authority, plan, metrics)


def entry(seq: int) -> bytes:
    return encode_record(manifest(seq))


async def registrations(store: ObjectStore) -> dict[str, GatewayProcess]:
    """Return every registration, by process."""
    found: dict[str, GatewayProcess] = {}
    async for page in store.list(GATEWAY_PROCESSES):
        for item in page.objects:
            read = await store.get(item.key)
            if isinstance(read, Found):
                record = decode_record(item.key, read.body, GatewayProcess)
                found[parse_registration_key(item.key)] = record
    return found


async def journals(store: ObjectStore) -> dict[str, list[Journal]]:
    """Return the objects of every journal in order, by process."""
    found: dict[str, list[Journal]] = {}
    async for page in store.list(GATEWAY_JOURNALS):
        for item in page.objects:
            read = await store.get(item.key)
            if isinstance(read, Found):
                place = parse_journal_key(item.key)
                objects = found.setdefault(place.process, [])
                objects.append(decode_journal(item.key, read.body))
                assert place.number == len(objects), "a journal has no gaps"
    return found


def named(objects: list[Journal]) -> list[int]:
    """Return the first sequence numbers of the batches that a journal names."""
    return [one.seq_start for journal in objects for one in journal.manifests]


async def frontier(store: ObjectStore, listed_ns: UnixNs) -> Frontier:
    """Return what a reader without full passes decides from the journals of a store."""
    found = await journals(store)
    processes = []
    for process, record in (await registrations(store)).items():
        objects = found.get(process, [])
        through = record.started_at_unix_ns
        if objects:
            through = objects[-1].header.complete_through_unix_ns
        processes.append(
            ProcessProgress(
                collector_id=record.collector_id,
                process=process,
                acceptance=record.acceptance,
                complete_through_ns=UnixNs(through),
                newest_ns=listed_ns,
                closed=bool(objects) and objects[-1].header.closed,
            )
        )
    return decide_frontier(listed_ns, processes, None)


async def all_named(store: ObjectStore) -> set[int]:
    """Return the first sequence numbers of the batches that any journal names."""
    return {seq for objects in (await journals(store)).values() for seq in named(objects)}
