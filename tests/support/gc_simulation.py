"""Hours of a deployment in virtual time, with all components running concurrently.

There are agents, crashing gateways, an operator, a lagging reconciler that loses events, and
concurrent collectors. Gateways, decisions, audit, plan and run are those of the product. The store
loses responses and applies deletes late. The simulation records every deletion and every response.
"""

import asyncio
from dataclasses import dataclass, field, replace
from random import Random

from support.builders import make_identity, salted_frame
from support.frames import logs
from support.gc_hostile import hostile_plan
from support.gc_operator import GatewayDecisions, Operator, Tidy, keep
from support.gc_reconciler import LaggingReconciler
from support.gc_store import SimulatedVersion, VersionedStore
from support.gc_world import KEYS, PLAN, RUN
from support.simloop import SimClock, SimIds, SimLoop

from sluice_gateway.uploads.acceptor import AcceptanceRun, Acceptor
from sluice_gateway.uploads.upload import Upload
from sluice_gc.audit.auditor import Auditor
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan.plan import Plan
from sluice_gc.plan.planner import Planner
from sluice_gc.run.deletion_proof import ALL_CLAUSES, ClauseSets
from sluice_gc.run.plan_runner import PlanRunner
from sluice_gc.settings import AuditSettings
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.authority import Authority
from sluice_protocol.columns import LogColumns
from sluice_protocol.errors import OutcomeUnknown
from sluice_protocol.frame import decode_head
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
    QUARANTINE,
    RAW_BLOBS,
    digest_of,
    parse_blob_key,
)
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey
from sluice_store.authority import create_authority

HORIZON_S, MARGIN_S = 300, 80
AGENTS, GATEWAYS = 3, 2
COLUMNS: LogColumns = logs()
MAY_REFUSE = {
    RefusalRule.EVERY_BLOB,
    RefusalRule.HORIZON_NOT_COVERED,
    RefusalRule.NO_CERTIFICATE,
}
"""Refusals that are correct in a small or young store."""


@dataclass
class DeploymentSimulation:
    """One simulated deployment.

    Attributes:
        hostile: Whether plans list everything that the audit saw.
        tidy: What a mutant of the operator does after a decision.
        answered: Digests with a response of 200 or 409, which must exist permanently.
        lost: Digests among them whose last correct version was deleted.
        refusals: Refusals of garbage collection.
        deleted: Number of deleted blob versions.
        strays: Deleted keys that are not blobs: manifests, references, decisions.
        accepted: Responses with 200.
        conflicts: Responses with 409.
        refused: Refused uploads of a quarantined agent and boot.
        late: Digests accepted although every gateway had to refuse them by then.
        unanswered: Uploads that ended without a response.
        boots: Number of the current boot of each agent.
    """

    loop: SimLoop
    rng: Random
    hours: float
    clauses: ClauseSets = ALL_CLAUSES
    hostile: bool = False
    tidy: Tidy = keep
    answered: set[Digest] = field(default_factory=set)
    lost: list[Digest] = field(default_factory=list)
    refusals: list[RefusalRule] = field(default_factory=list)
    deleted: int = 0
    strays: list[ObjectKey] = field(default_factory=list)
    accepted: int = 0
    conflicts: int = 0
    refused: int = 0
    late: list[Digest] = field(default_factory=list)
    unanswered: int = 0
    boots: list[int] = field(default_factory=lambda: [0] * AGENTS)

    def __post_init__(self) -> None:
        self.clock = SimClock(self.loop)
        self.ids = SimIds(self.rng)
        self.store = VersionedStore(clock=self.clock, rng=self.rng, unknown=0.05, latency_s=0.05)
        self.store.on_delete = self._judge
        self.reconciler = LaggingReconciler(loop=self.loop, rng=self.rng, store=self.store)
        self.store.on_put = self.reconciler.created
        self.operator = Operator(loop=self.loop, rng=self.rng, store=self.store, tidy=self.tidy)
        self.doors = [GatewayDecisions(self.store) for _ in range(GATEWAYS)]
        self.authority = Authority(authority_id="A1", retry_horizon_s=HORIZON_S, margin_s=MARGIN_S)
        self.ends_s = self.hours * 3600

    def _judge(self, key: ObjectKey, gone: SimulatedVersion) -> None:
        if not key.startswith(RAW_BLOBS):
            self.strays.append(key)
            return
        self.deleted += 1
        digest = parse_blob_key(key)
        left = [one for one in self.store.versions[key] if one is not gone]
        if digest in self.answered and not (left and digest_of(left[0].body) == digest):
            self.lost.append(digest)

    async def play(self) -> None:
        """Run all components for the configured hours, then only garbage collection."""
        self.store.rng = None
        await create_authority(self.store, self.authority)
        self.store.rng = self.rng
        agents = [asyncio.ensure_future(self._agent(number)) for number in range(AGENTS)]
        others = [
            asyncio.ensure_future(self.reconciler.make_passes()),
            asyncio.ensure_future(self.reconciler.take_events()),
            asyncio.ensure_future(self.operator.work()),
            *(asyncio.ensure_future(door.follow()) for door in self.doors),
            *(asyncio.ensure_future(self._collector()) for _ in range(2)),
        ]
        await asyncio.gather(*agents)
        await asyncio.sleep(2 * HORIZON_S + 4 * 200)
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for one in others:
            if not one.cancelled() and one.exception() is not None:
                raise one.exception() or AssertionError

    async def _agent(self, number: int) -> None:
        """Send batches; some have a conflicting identity, and some are sent much later."""
        pending: set[asyncio.Task[None]] = set()
        start = 0
        while self.loop.time() < self.ends_s:
            salts = ["a", "b"] if self.rng.random() < 0.1 else ["a"]
            for salt in salts:
                frame = self._frame(number, start, salt)
                pending.add(asyncio.ensure_future(self._send(number, frame)))
            start += 3
            await asyncio.sleep(self.rng.expovariate(1 / 30))
        await asyncio.gather(*pending)

    def _frame(self, number: int, start: int, salt: str) -> bytes:
        agent, boot = f"agent-{number}", f"b{self.boots[number]}"
        return salted_frame(make_identity(start, count=3, agent=agent, boot=boot), COLUMNS, salt)

    async def _send(self, number: int, frame: bytes) -> None:
        """Send until a response arrives or give up; pauses may exceed the retry horizon."""
        who = decode_head(frame).envelope.identity
        for sends in range(self.rng.choice([1, 1, 2, 4, 8])):
            if self.rng.choice(self.doors).refuses(who):
                self._come_back(number, who)
                break
            began_s = self.loop.time()
            run = await self._upload(frame, sent_before=sends > 0 and self.rng.random() < 0.7)
            if isinstance(run.verdict, Accepted | Conflict):
                self._answer(digest_of(frame), run.verdict)
                if self.operator.must_refuse(who, began_s):
                    self.late.append(digest_of(frame))
                if self.rng.random() < 0.8:
                    return
            pause_s = self.rng.choice([1, 10, 100, HORIZON_S - 5, HORIZON_S + 50, 3 * HORIZON_S])
            await asyncio.sleep(pause_s * self.rng.random() * 1.2)
        self.unanswered += digest_of(frame) not in self.answered

    def _answer(self, digest: Digest, verdict: Accepted | Conflict) -> None:
        self.answered.add(digest)
        self.accepted += isinstance(verdict, Accepted)
        self.conflicts += isinstance(verdict, Conflict)

    def _come_back(self, number: int, who: Identity) -> None:
        """Park the batch and continue under a new boot."""
        self.refused += 1
        if who.boot_id == f"b{self.boots[number]}":
            self.boots[number] += 1

    async def _upload(self, frame: bytes, *, sent_before: bool) -> AcceptanceRun:
        envelope = decode_head(frame).envelope
        upload = Upload(
            frame=frame,
            digest=digest_of(frame),
            identity=envelope.identity,
            envelope=envelope,
            principal="p",
            attempt_id=self.ids.ulid(),
            sent_before=sent_before,
        )
        gateway = Acceptor(
            store=self.store,
            authority=self.authority,
            collector_id="g",
            clock=SimClock(self.loop, skew_ns=self.rng.randrange(-60, 60) * NS_PER_S),
            rng=self.rng,
            time_s_max=30,
        )
        handling = asyncio.ensure_future(gateway.accept(upload))
        if self.rng.random() < 0.3:
            self.loop.call_later(self.rng.random() * 0.15, handling.cancel)
        try:
            return await handling
        except asyncio.CancelledError:
            return AcceptanceRun()

    async def _collector(self) -> None:
        """Audit, plan and run repeatedly; a failed step is repeated later."""
        engine, clock = LocalTaskEngine(self.store), self.clock
        while True:
            await asyncio.sleep(self.rng.uniform(60, 200))
            try:
                auditor = Auditor(self.store, engine, KEYS, clock, self.ids)
                await auditor.audit(AuditSettings(shards=1))
                plan = await self._plan(engine)
                await asyncio.sleep(self.rng.uniform(0, 100))
                runner = PlanRunner(self.store, engine, KEYS.trusted, clock, self.clauses)
                await runner.run(plan.plan_id, RUN)
            except GcRefused as refused:
                self.refusals.append(refused.rule)
                if refused.rule not in MAY_REFUSE:
                    raise
            except OutcomeUnknown:
                continue

    async def _plan(self, engine: LocalTaskEngine) -> Plan:
        if self.hostile:
            return await hostile_plan(self.store, self.ids.ulid())
        planner = Planner(self.store, engine, KEYS, self.clock, self.ids)
        return await planner.plan(replace(PLAN, max_delete_ratio=1.0))

    def standing_orphans(self) -> list[Digest]:
        """Return the existing blobs that no manifest names."""
        named = b"".join(
            held[0].body
            for key, held in self.store.versions.items()
            if key.startswith((ACCEPTED, QUARANTINE))
        ).decode()
        return [
            parse_blob_key(key)
            for key in self.store.versions
            if key.startswith(RAW_BLOBS) and parse_blob_key(key) not in named
        ]

    def unreadable(self) -> list[Digest]:
        """Return the accepted digests whose blob is missing or has wrong bytes."""
        good = {
            parse_blob_key(key)
            for key, held in self.store.versions.items()
            if key.startswith(RAW_BLOBS) and digest_of(held[0].body) == parse_blob_key(key)
        }
        return sorted(self.answered - good)
