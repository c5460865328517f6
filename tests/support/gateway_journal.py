"""An acceptance journal over a store in memory, and what a reader finds in it.

Also here: a gateway process that journals what it accepted, without a gateway.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from support.builders import manifest
from support.gc_world import MovedClock
from support.memory_bucket import Fault, MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call

from sluice_gateway.journal import AcceptanceJournal, JournalOwner, StoreRules
from sluice_gateway.metrics import GatewayMetrics, ObservedStore
from sluice_protocol.authority import AcceptanceMode
from sluice_protocol.journals import (
    Frontier,
    GatewayProcess,
    Journal,
    JournalHeader,
    ProcessProgress,
    decide_frontier,
    decode_journal,
    encode_journal,
    journal_key,
    parse_journal_key,
    parse_registration_key,
    process_name,
    registration_key,
)
from sluice_protocol.keys import (
    GATEWAY_JOURNALS,
    GATEWAY_PROCESSES,
    accepted_key,
    blob_key,
    digest_of,
)
from sluice_protocol.manifests import AcceptedManifest, decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import UnixNs
from sluice_store import create_authority
from sluice_store.port import ObjectStore


class JournalWriter:
    """One process: it registers, accepts batches and appends journal objects."""

    def __init__(
        self,
        store: ObjectStore,
        started_ns: int,
        *,
        collector_id: str = "gw-1",
        ulid: str = "01J00000000000000000000000",
        acceptance: AcceptanceMode = "s3_manifest",
    ) -> None:
        self.store = store
        self.collector_id = collector_id
        self.started_ns = started_ns
        self.process = process_name(UnixNs(started_ns), ulid)
        self.acceptance = acceptance
        self.number = 0

    async def register(self) -> None:
        """Create the registration."""
        record = GatewayProcess(
            collector_id=self.collector_id,
            process=self.process,
            acceptance=self.acceptance,
            started_at_unix_ns=self.started_ns,
        )
        await self.store.create(registration_key(self.process), encode_record(record))

    async def accept(self, seq: int, *, at_ns: int, agent: str = "host-1") -> AcceptedManifest:
        """Write the blob and the manifest of one batch, as this gateway."""
        frame = f"{self.collector_id}/{agent}/{seq}".encode()
        made = replace(
            manifest(seq, agent=agent, frame=frame),
            collector_id=self.collector_id,
            accepted_at_unix_ns=at_ns,
        )
        await self.store.create(blob_key(digest_of(frame)), frame)
        await self.store.create(accepted_key(made.identity), encode_record(made))
        return made

    async def append(
        self,
        batches: Sequence[AcceptedManifest],
        *,
        through_ns: int,
        closed: bool = False,
        number: int | None = None,
    ) -> int:
        """Create the next journal object, or the one with this number; return its number."""
        self.number = self.number + 1 if number is None else number
        header = JournalHeader(
            process=self.process,
            number=self.number,
            complete_through_unix_ns=through_ns,
            closed=closed,
            batches=len(batches),
        )
        body = encode_journal(header, [encode_record(one) for one in batches])
        await self.store.create(journal_key(self.process, self.number), body)
        return self.number


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
