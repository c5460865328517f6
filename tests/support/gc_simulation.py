"""Hours of a deployment in virtual time, with all components running concurrently.

There are agents, crashing gateways, an operator, a lagging reconciler that loses events, and
concurrent collectors. Gateways, decisions, audit, plan and run are those of the product. The store
loses responses and applies deletes late. The simulation records every deletion and every response.

Events of the reconciler arrive late, twice, in any order or never. The functions of the product
parse them and write the references. Its passes are slow and omit some keys permanently, so that
only audit and deletion protect the blobs of these keys.

The operator resolves conflicts at random times, and gateways follow the decisions. The list, the
resolver and the reader are those of the product. Ids of decisions are random, so that a new one may
sort before one that a gateway has read.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from urllib.parse import quote_plus

from support.builders import make_identity, salted_frame
from support.frames import logs
from support.gc_store import SimulatedVersion, VersionedStore
from support.gc_world import KEYS, PLAN, RUN, hostile_plan
from support.simloop import SimClock, SimIds, SimLoop

from sluice_gateway.process.worker import DECISIONS_INTERVAL_S
from sluice_gateway.uploads.acceptor import AcceptanceRun, Acceptor, Upload
from sluice_gc.auditor import Auditor
from sluice_gc.deletion_proof import ALL_CLAUSES, ClauseSets
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan_runner import PlanRunner
from sluice_gc.planner import Planner
from sluice_gc.settings import AuditSettings
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.authority import Authority
from sluice_protocol.collection_records import Plan
from sluice_protocol.columns import LogColumns
from sluice_protocol.conflicts import AgentBoot, ConflictName
from sluice_protocol.errors import OutcomeUnknown
from sluice_protocol.frame import decode_head
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
    QUARANTINE,
    QUARANTINE_CONFLICTS,
    RAW_BLOBS,
    accepted_by_blob_key,
    digest_of,
    parse_accepted_key,
    parse_blob_key,
    parse_quarantine_key,
    quarantine_by_blob_key,
)
from sluice_protocol.manifests import decode_accepted, encode_reference
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey
from sluice_reconciler.events import parse_events
from sluice_reconciler.indexes import put_derived, quarantine_entry
from sluice_store.authority import create_authority
from sluice_store.conflicts import CONFLICTS_PAGE_MAX, DecisionsReader, Resolver, list_conflicts
from sluice_store.retry import Backoff


@dataclass
class LaggingReconciler:
    """A reconciler that indexes the keys of which it learns.

    Attributes:
        events: Events that arrived.
        lost: Events that never arrived.
        ignored: Keys that no later pass reads, indexed or not.
    """

    loop: SimLoop
    rng: Random
    store: VersionedStore
    events: int = 0
    lost: int = 0
    ignored: set[ObjectKey] = field(default_factory=set)
    _waiting: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    def created(self, key: ObjectKey) -> None:
        """Send the event of a created object: immediately, later, twice or never."""
        if not key.startswith((ACCEPTED, QUARANTINE_CONFLICTS)):
            return
        times = self.rng.choice([0, 1, 1, 2])
        self.events += times
        self.lost += times == 0
        record = {
            "eventName": "ObjectCreated:Put",
            "s3": {"object": {"key": quote_plus(f"prefix/{key}")}},
        }
        body = json.dumps({"Records": [record]}).encode()
        for _ in range(times):
            late_s = self.rng.expovariate(1 / 60)
            self.loop.call_later(late_s, self._waiting.put_nowait, body)

    async def take_events(self) -> None:
        while True:
            for key in parse_events(await self._waiting.get()).keys:
                await self._index(key)

    async def make_passes(self) -> None:
        while True:
            await asyncio.sleep(self.rng.choice([20, 60, 400]))
            for prefix in (ACCEPTED, QUARANTINE_CONFLICTS):
                async for page in self.store.list(prefix):
                    for one in page.objects:
                        await self._look(one.key)

    async def _look(self, key: ObjectKey) -> None:
        if key in self.ignored:
            return
        self.ignored.add(key)
        if self.rng.random() >= 0.2:
            await self._index(key)

    def _backoff(self) -> Backoff:
        return Backoff(clock=SimClock(self.loop), rng=self.rng)

    async def _index(self, key: ObjectKey) -> None:
        if key.startswith(QUARANTINE_CONFLICTS):
            identity, submitted = parse_quarantine_key(key)
            await put_derived(
                self.store, *quarantine_entry(key, identity, submitted), self._backoff()
            )
            return
        found = await self.store.get(key)
        assert isinstance(found, Found), "an accepted manifest is never deleted"
        reference = accepted_by_blob_key(
            decode_accepted(key, found.body).digest, parse_accepted_key(key)
        )
        await put_derived(self.store, reference, encode_reference(key), self._backoff())


IN_FORCE_S = DECISIONS_INTERVAL_S + 2
"""Longest time until every gateway follows a decision: its interval and a few slow requests."""

DECISION_EVERY_S = 120

Tidy = Callable[[VersionedStore, ConflictName], None]
"""The action of a mutant after it wrote a decision."""


def keep(_store: VersionedStore, _name: ConflictName) -> None:
    """Remove nothing, as the product does."""


def agent_of(who: Identity) -> AgentBoot:
    return who.agent_id, who.boot_id


class GatewayDecisions:
    """The decisions that one gateway knows, as of its last reading."""

    def __init__(self, store: VersionedStore) -> None:
        self._reader = DecisionsReader(store)

    def refuses(self, who: Identity) -> bool:
        """Return True if a gateway refuses uploads of this agent and boot."""
        return agent_of(who) in self._reader.current.quarantined

    async def follow(self) -> None:
        """Read the decisions as often as a gateway does."""
        while True:
            await asyncio.sleep(DECISIONS_INTERVAL_S)
            await self._reader.refresh()


@dataclass
class Operator:
    """An operator who decides about any listed conflict, open or already decided.

    Attributes:
        tidy: Does nothing except in a mutant.
        decided: Number of decisions per action.
        names: Every decided conflict.
        shut_s: Time by which the quarantine of an agent and boot was durable.
    """

    loop: SimLoop
    rng: Random
    store: VersionedStore
    tidy: Tidy = keep
    decided: dict[str, int] = field(default_factory=dict)
    names: set[ConflictName] = field(default_factory=set)
    shut_s: dict[AgentBoot, float] = field(default_factory=dict)

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / DECISION_EVERY_S))
            listed = await list_conflicts(
                self.store, agents=None, after=None, limit=CONFLICTS_PAGE_MAX
            )
            if listed:
                await self._decide(self.rng.choice(listed).name)

    async def _decide(self, name: ConflictName) -> None:
        assert isinstance(await self.store.head(name.key), ObjectInfo), "a conflict was lost"
        quarantine = self.rng.random() < 0.3
        clock = SimClock(self.loop, skew_ns=self.rng.randrange(-60, 60) * NS_PER_S)
        resolver = Resolver(
            store=self.store, clock=clock, ids=SimIds(self.rng), decided_by="operator"
        )
        try:
            decision = await resolver.resolve(
                name, "quarantine_identity" if quarantine else "accept_existing", "inspected"
            )
        except OutcomeUnknown:
            return  # the decision may or may not be in force, so that nothing is expected of it
        self.decided[decision.action] = self.decided.get(decision.action, 0) + 1
        self.names.add(name)
        if quarantine:
            self.shut_s.setdefault(agent_of(name.identity), self.loop.time())
        self.tidy(self.store, name)

    def must_refuse(self, who: Identity, began_s: float) -> bool:
        """Return True if the upload began after every gateway had to know the decision."""
        shut_s = self.shut_s.get(agent_of(who))
        return shut_s is not None and began_s > shut_s + IN_FORCE_S

    def vanished(self) -> list[ConflictName]:
        """Return the decided conflicts whose quarantine manifest no longer exists."""
        return [name for name in self.names if name.key not in self.store.versions]


def drop_one(store: VersionedStore, name: ConflictName) -> None:
    """A mutant that removes one of manifest and reverse reference of a decided conflict."""
    evidence = quarantine_by_blob_key(name.submitted, name.identity), name.key
    store.remove_key(evidence[name.submitted < "8"])


def drop_both(store: VersionedStore, name: ConflictName) -> None:
    """A mutant that removes both for a decided conflict."""
    store.remove_key(quarantine_by_blob_key(name.submitted, name.identity))
    store.remove_key(name.key)


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
