"""A small deployment for audit and deletion: a local store and a clock that the test moves.

Also here: stories over a deployment with an orphan past its retry horizon, and refusals in them; a
correctly signed plan that lists every blob, which only the clauses of the run protect; complete,
signed certificates.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from support.builders import (
    accepted_manifest,
    conflict_manifest,
    make_identity,
    salted_frame,
    tombstone_of,
)
from support.frames import logs
from support.gc_store import VersionedStore
from support.store_versitygw import CREDENTIALS, make_bucket, versitygw

from sluice_gc.auditor import Auditor
from sluice_gc.certificate import AUDITED_PREFIXES, merkle_root_of, read_newest
from sluice_gc.deletion_proof import ALL_CLAUSES, ClauseSets
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.evidence_files import BLOBS, CANDIDATES, put_table, read_tables
from sluice_gc.key_ranges import cover_prefix
from sluice_gc.plan import plan_key, sign_plan
from sluice_gc.plan_runner import PlanRunner, RunReport
from sluice_gc.planner import Planner
from sluice_gc.settings import AuditSettings, ExpireSettings, PlanSettings, RunSettings
from sluice_gc.signing_keys import AuditorKeys, key_id_of
from sluice_gc.task_engine import LocalTaskEngine
from sluice_gc.tombstones import sign_tombstone
from sluice_protocol.authority import Authority
from sluice_protocol.collection_records import (
    AuditCounts,
    Certificate,
    EvidenceFile,
    KeyRange,
    Plan,
    PlanSummary,
    VersionTally,
)
from sluice_protocol.expiry import LegalHold, TableVersion, Tombstone, encode_tombstone
from sluice_protocol.identity import Identity
from sluice_protocol.journals import DISCOVERY, DiscoveryRecord
from sluice_protocol.keys import (
    GC_PLANS,
    LAKE,
    accepted_by_blob_key,
    accepted_key,
    blob_key,
    digest_of,
    quarantine_by_blob_key,
    quarantine_key,
)
from sluice_protocol.manifests import (
    decode_accepted,
    encode_record,
    encode_reference,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_store import StoreMode, open_store
from sluice_store.authority import create_authority
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, OtherBytes, create_once, overwrite_known
from sluice_store.stored_expiry import add_hold, set_retention

START_NS = 1_790_000_000 * NS_PER_S
HORIZON_S, MARGIN_S = 300, 80
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEYS = AuditorKeys(private=KEY, trusted={key_id_of(KEY.public_key()): KEY.public_key()})
AUDIT = AuditSettings(shards=4)
PLAN = PlanSettings(max_delete_ratio=0.9)
RUN = RunSettings(grace_s=0.0)


class MovedClock:
    """A clock that changes only when the test moves it."""

    def __init__(self, at_ns: int = START_NS) -> None:
        self.at_ns = at_ns

    def now_ns(self) -> UnixNs:
        return UnixNs(self.at_ns)

    def monotonic_ns(self) -> int:
        return self.at_ns

    async def sleep(self, seconds: float) -> None:
        self.at_ns += int(seconds * NS_PER_S)
        await asyncio.sleep(0)

    def pass_s(self, seconds: float) -> None:
        self.at_ns += int(seconds * NS_PER_S)


@dataclass
class GcWorld:
    """A store, its clock, and the objects that a gateway would write."""

    store: ObjectStore
    clock: MovedClock
    authority: Authority
    ids: SystemIds = field(default_factory=SystemIds)

    def frame(self, start: int, *, agent: str = "host-1", salt: str = "") -> bytes:
        """Return a frame; orphans and refused bytes have a salt."""
        return salted_frame(self.identity(start, agent), logs(), salt)

    def identity(self, start: int, agent: str = "host-1") -> Identity:
        return make_identity(start, count=3, agent=agent)

    async def put_blob(self, frame: bytes) -> Digest:
        digest = digest_of(frame)
        await self.store.create(blob_key(digest), frame)
        return digest

    async def accept(
        self, start: int, *, agent: str = "host-1", indexed: bool = True, salt: str = ""
    ) -> Digest:
        """Accept a batch as a gateway does, and index it as the reconciler does."""
        digest = await self.put_blob(self.frame(start, agent=agent, salt=salt))
        await self.put_manifest(self.identity(start, agent), digest, indexed=indexed)
        return digest

    async def put_manifest(
        self, who: Identity, digest: Digest, *, indexed: bool = True, key: ObjectKey | None = None
    ) -> None:
        manifest = accepted_manifest(
            who,
            digest,
            at_ns=self.clock.now_ns(),
            span=(0, 1),
            collector_id="gw",
            attempt_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
            principal="host-1",
        )
        await self.store.create(key or accepted_key(who), encode_record(manifest))
        if indexed:
            body = encode_reference(accepted_key(who))
            await self.store.create(accepted_by_blob_key(digest, who), body)

    async def quarantine(self, start: int, *, salt: str, indexed: bool = True) -> Digest:
        """Quarantine other bytes under an accepted identity, as a gateway does."""
        who, digest = self.identity(start), await self.put_blob(self.frame(start, salt=salt))
        conflict = conflict_manifest(
            who,
            accepted=digest,
            submitted=digest,
            at_ns=self.clock.now_ns(),
            collector_id="gw",
        )
        await self.store.create(quarantine_key(who, digest), encode_record(conflict))
        if indexed:
            body = encode_reference(quarantine_key(who, digest))
            await self.store.create(quarantine_by_blob_key(digest, who), body)
        return digest

    async def orphan(self, start: int, *, salt: str = "orphan") -> Digest:
        """Write a blob whose gateway crashed before the manifest."""
        return await self.put_blob(self.frame(start, salt=salt))

    async def commit(self, version: int, content: str = "") -> Digest:
        """Write the log entry of a version of `logs` and of the ledger, in place of another."""
        body = f"{version} {content}".encode()
        for table in ("logs", "batches"):
            key = ObjectKey(f"{LAKE}{table}/_delta_log/{version:020d}.json")
            await overwrite_known(self.store, key, body, Backoff.seeded_by(self.clock))
        return digest_of(body)

    async def expire(
        self, start: int, *, key: Ed25519PrivateKey = KEY, authority_id: str = "A1"
    ) -> Tombstone:
        """Create the tombstone of an accepted batch whose tables are at version 4."""
        place = accepted_key(self.identity(start))
        read = await self.store.get(place)
        assert isinstance(read, Found)
        manifest = decode_accepted(place, read.body)
        tombstone = tombstone_of(
            manifest,
            TableVersion(version=4, commit_sha256=await self.commit(4)),
            run_id=self.ids.ulid(),
            authority_id=authority_id,
            at_ns=self.clock.now_ns(),
        )
        await self.store.create(tombstone.key, encode_tombstone(sign_tombstone(tombstone, key)))
        return tombstone

    async def decide(self, keep_s: int | None) -> None:
        """Decide how long raw batches are kept."""
        backoff = Backoff.seeded_by(self.clock)
        await set_retention(self.store, keep_s, by="ann", note="", backoff=backoff)

    async def discover(self) -> None:
        """Record that every batch so far is in every queue."""
        now_ns = self.clock.now_ns()
        record = DiscoveryRecord(complete_through_unix_ns=now_ns, listed=0, writer=self.ids.ulid())
        body = encode_record(record)
        await overwrite_known(self.store, DISCOVERY, body, Backoff.seeded_by(self.clock))

    async def hold(self, agent: str = "host-1") -> LegalHold:
        now_ns = self.clock.now_ns()
        hold = LegalHold(
            hold_id=self.ids.ulid(),
            case="C-1",
            reason="litigation",
            held_by="ann",
            review_at_unix_ns=UnixNs(now_ns + 1),
            held_at_unix_ns=now_ns,
            agent_id=agent,
        )
        return await add_hold(self.store, hold, Backoff.seeded_by(self.clock))

    async def has(self, digest: Digest) -> bool:
        return isinstance(await self.store.get(blob_key(digest)), Found)

    async def audit(self, settings: AuditSettings = AUDIT, keys: AuditorKeys = KEYS) -> Certificate:
        engine = LocalTaskEngine(self.store)
        return await Auditor(self.store, engine, keys, self.clock, self.ids).audit(settings)

    async def plan(self, settings: PlanSettings = PLAN, audit_id: str | None = None) -> Plan:
        engine = LocalTaskEngine(self.store)
        planner = Planner(self.store, engine, KEYS, self.clock, self.ids)
        return await planner.plan(settings, audit_id)

    async def run(
        self, plan: Plan, settings: RunSettings = RUN, clauses: ClauseSets = ALL_CLAUSES
    ) -> RunReport:
        engine = LocalTaskEngine(self.store)
        return await PlanRunner(self.store, engine, KEYS.trusted, self.clock, clauses).run(
            plan.plan_id, settings
        )

    async def cycle(self, clauses: ClauseSets = ALL_CLAUSES) -> RunReport:
        """Audit, plan and run."""
        await self.audit()
        return await self.run(await self.plan(), clauses=clauses)


@asynccontextmanager
async def open_world(root: Path) -> AsyncIterator[GcWorld]:
    """Open a deployment with a short retry horizon in an empty directory."""
    clock = MovedClock()
    async with open_local_store(root, clock=clock) as store:
        wanted = Authority(authority_id="A1", retry_horizon_s=HORIZON_S, margin_s=MARGIN_S)
        yield GcWorld(store=store, clock=clock, authority=await create_authority(store, wanted))


@asynccontextmanager
async def memory_world() -> AsyncIterator[tuple[GcWorld, VersionedStore]]:
    """Open a deployment on the versioned store in memory."""
    clock = MovedClock()
    store = VersionedStore(clock=clock)
    wanted = Authority(authority_id="A1", retry_horizon_s=HORIZON_S, margin_s=MARGIN_S)
    authority = await create_authority(store, wanted)
    yield GcWorld(store=store, clock=clock, authority=authority), store


class HurriedClock(MovedClock):
    """The system's clock, for a real server: when a test lets time pass, it waits for 5 s."""

    def now_ns(self) -> UnixNs:
        return SystemClock().now_ns()

    def monotonic_ns(self) -> int:
        return SystemClock().monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        await SystemClock().sleep(seconds)

    def pass_s(self, seconds: float) -> None:
        time.sleep(min(seconds, BRIEF_S + 2))


BRIEF_S = 3
"""The retry horizon of a deployment on a real server."""


@asynccontextmanager
async def open_brief_world(url: str) -> AsyncIterator[GcWorld]:
    """Open a deployment with a retry horizon of 3 s in an existing bucket, where batches may expire
    as soon as it is over.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in ("sluice_protocol.authority", "sluice_store.authority"):
            patch.setattr(f"{module}.check_authority", lambda _: None)
        patch.setattr("sluice_protocol.expiry.WAIT_AFTER_HORIZON_S", 0)
        patch.setattr(ExpireSettings, "vacuum_hours", 0)
        async with open_store(url, StoreMode.CREATE) as store:
            wanted = Authority(authority_id="A1", retry_horizon_s=BRIEF_S, margin_s=1)
            authority = await create_authority(store, wanted)
            yield GcWorld(store=store, clock=HurriedClock(), authority=authority)


Place = Callable[[str], AbstractAsyncContextManager[GcWorld]]
"""Opens a new deployment with a name."""


@contextmanager
def open_place(kind: str, root: Path) -> Iterator[Place]:
    """Open a place for deployments: memory, a directory, or a real server with versioning."""

    @asynccontextmanager
    async def in_memory(name: str) -> AsyncIterator[GcWorld]:
        async with memory_world() as (world, _):
            yield world

    if kind == "memory":
        yield in_memory
    elif kind == "directory":
        yield lambda name: open_world(root / name)
    else:
        with pytest.MonkeyPatch.context() as patch, versitygw(root) as server:
            for name, value in CREDENTIALS.items():
                patch.setenv(name, value)
            asyncio.run(make_bucket(server.url("kills")))
            yield lambda name: open_brief_world(server.url("kills", name))


Story = Callable[[GcWorld, VersionedStore], Awaitable[None]]


def run_story(story: Story) -> VersionedStore:
    async def run() -> VersionedStore:
        async with memory_world() as (world, store):
            await story(world, store)
            return store

    return asyncio.run(run())


async def aged(world: GcWorld) -> Digest:
    """Create an accepted batch and an orphan past its retry horizon."""
    await world.accept(0)
    orphan = await world.orphan(10)
    world.clock.pass_s(HORIZON_S + 2)
    return orphan


async def refused(world: GcWorld, work: Awaitable[object], rule: RefusalRule) -> None:
    with pytest.raises(GcRefused) as error:
        await work
    assert error.value.rule is rule
    assert not world.store.deleted  # type: ignore[attr-defined]


async def hostile_plan(store: ObjectStore, plan_id: str, *, noncurrent: bool = False) -> Plan:
    """Return a plan that lists everything in the newest audit, signed with the correct key."""
    link = await read_newest(store, KEYS.trusted)
    assert link is not None
    certificate = link.certificate
    files: list[EvidenceFile] = []
    backoff = Backoff.seeded_by(SystemClock())
    for file in certificate.files("blobs"):
        blobs = await read_tables(store, [file], BLOBS)
        rows = [row for row in blobs.to_pylist() if row["current"] is not noncurrent]
        table = pa.Table.from_pylist(
            [_candidate(row, certificate, noncurrent=noncurrent) for row in rows], CANDIDATES
        )
        if rows:
            folder = f"{GC_PLANS}{plan_id}/"
            files.append(
                await put_table(store, folder, "candidates", file.place, table, backoff=backoff)
            )
    nothing = VersionTally()
    summary = PlanSummary(
        blobs=nothing, orphans=nothing, superseded=nothing, kept={}, by_size=(), by_age=()
    )
    plan = Plan(
        plan_id=plan_id,
        authority_id=certificate.authority_id,
        retry_horizon_s=certificate.retry_horizon_s,
        audit_id=certificate.audit_id,
        certificate_sha256=link.sha256,
        made_at_unix_ns=certificate.finished_at_unix_ns,
        summary=summary,
        candidates=tuple(files),
    )
    written = await create_once(store, plan_key(plan_id), sign_plan(plan, KEY), backoff)
    assert not isinstance(written, OtherBytes)
    return plan


def _candidate(
    row: dict[str, object], certificate: Certificate, *, noncurrent: bool
) -> dict[str, object]:
    return {
        **{name: row[name] for name in ("sha256", "incarnation", "last_modified_ns", "size_bytes")},
        "superseded": noncurrent,
        "versioning_enabled": True,
        "now_ns": 0,
        "retry_horizon_ns": 0,
        "audit_id": certificate.audit_id,
        "audit_started_at_ns": 0,
        "named_in_audit": False,
    }


AUDITOR_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
RIVAL = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))
TRUSTED = {key_id_of(AUDITOR_KEY.public_key()): AUDITOR_KEY.public_key()}


def key_range(start: str = "", end: str | None = None, pages: int = 1) -> KeyRange:
    return KeyRange(
        start_after=start,
        end_at=end,
        pages=pages,
        objects=3,
        root=digest_of(b"range"),
        first_date_unix_ns=1,
        last_date_unix_ns=2,
    )


def many_ranges(count: int) -> list[KeyRange]:
    """Return contiguous ranges, each with another root."""
    bounds = ["", *(f"k{number:05d}" for number in range(1, count)), None]
    return [
        replace(
            key_range(start or "", end), root=digest_of(b"%d" % number), last_date_unix_ns=number
        )
        for number, (start, end) in enumerate(pairwise(bounds))
    ]


def certificate(index: int = 0, before: bytes | None = None, audit_id: str = "A0") -> Certificate:
    coverage = tuple(cover_prefix(prefix, [key_range()]) for prefix in AUDITED_PREFIXES)
    return Certificate(
        authority_id="authority",
        retry_horizon_s=300,
        audit_id=audit_id,
        chain_index=index,
        previous_audit_id=f"A{index - 1}" if index else "",
        previous_sha256=digest_of(before) if before else "",
        started_at_unix_ns=1,
        finished_at_unix_ns=2,
        clock_skew_ns=0,
        deep=0.0,
        shards=1,
        coverage=coverage,
        merkle_root=merkle_root_of(coverage),
        counts=AuditCounts(accepted=1),
        evidence=(),
    )
