"""Carries a plan out: checks the plan and its ground, then sweeps shard by shard."""

from functools import partial

import msgspec

from sluice_gc.chain import read_certificate
from sluice_gc.engine import Engine
from sluice_gc.errors import GcRefused, Refusal
from sluice_gc.objects import Trusted
from sluice_gc.plan import (
    Clocks,
    Plan,
    check_certificate_for,
    check_clock_fall,
    check_clocks,
    check_grace,
    check_plan_for,
)
from sluice_gc.planner import Ground, names_by_shard, read_plan
from sluice_gc.proof import ALL_CLAUSES, Clauses
from sluice_gc.settings import RunSettings
from sluice_gc.sweep import SweepFacts, SweepTask, check_not_stopped, sweep_shard
from sluice_protocol.clock import Clock
from sluice_protocol.keys import AUTHORITY_SETTINGS, GC_PLANS
from sluice_protocol.outcomes import NotFound
from sluice_protocol.units import ObjectKey
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore, Versioning
from sluice_store.retry import Backoff, create_known


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        plan_id: The plan.
        dry_run: Whether it stopped after the proofs.
        facts: What was done, all shards together.
    """

    plan_id: str
    dry_run: bool
    facts: SweepFacts


def finished_key(plan_id: str) -> ObjectKey:
    """Gives where the mark of a plan stands that needs no further run."""
    return ObjectKey(f"{GC_PLANS}{plan_id}/finished.json")


async def is_finished(store: ObjectStore, plan_id: str) -> bool:
    """Tells whether a run carried the whole plan out.

    Raises:
        StoreError: No answer, or a refusal.
    """
    return not isinstance(await store.head(finished_key(plan_id)), NotFound)


class Runner:
    """Carries plans out on one store."""

    def __init__(
        self,
        store: ObjectStore,
        engine: Engine,
        trusted: Trusted,
        clock: Clock,
        clauses: Clauses = ALL_CLAUSES,
    ) -> None:
        """Takes its parts; `clauses` is for tests that show what each clause is for."""
        self._store = store
        self._engine = engine
        self._trusted = trusted
        self._clock = clock
        self._clauses = clauses

    async def run(self, plan_id: str, settings: RunSettings) -> RunReport:
        """Deletes what the plan lists and every clause still lets go; may be called again.

        Raises:
            GcRefused: A rule of safety does not hold; nothing more is deleted.
            CertificateInvalid: The certificate was altered.
            StoreError: No answer, or a refusal; call again.
        """
        plan = await read_plan(self._store, self._trusted, plan_id)
        ground = await self._read_ground(plan, settings)
        work = partial(sweep_shard, clock=self._clock, clauses=self._clauses)
        facts = SweepFacts()
        tasks = sweep_tasks(plan, ground, settings, self._engine.tasks_at_once)
        for one in await self._engine.run(work, tasks):
            facts = facts.plus(one)
        if not settings.dry_run and not facts.unknown and not facts.unread:
            backoff = Backoff.seeded_by(self._clock)
            await create_known(self._store, finished_key(plan_id), b"{}", backoff)
        return RunReport(plan_id=plan_id, dry_run=settings.dry_run, facts=facts)

    async def _read_ground(self, plan: Plan, settings: RunSettings) -> Ground:
        authority = await read_authority(self._store)
        link = await read_certificate(self._store, plan.audit_id, self._trusted)
        check_certificate_for(authority, link.certificate)
        await check_not_stopped(self._store, plan.plan_id)
        check_plan_for(plan, link.certificate, link.sha256)
        now_ns = (await self._store.head(AUTHORITY_SETTINGS)).date_ns
        clocks = Clocks(local_ns=self._clock.now_ns(), store_ns=now_ns)
        check_clocks(clocks, settings.clock_skew_s_max)
        check_clock_fall(plan.made_at_unix_ns, now_ns, authority)
        versioning = await self._store.read_versioning()
        if not settings.dry_run:
            check_grace(plan, now_ns, settings.grace_s)
            if versioning is not Versioning.ENABLED:
                raise GcRefused(
                    Refusal.VERSIONING, f"versioning reads {versioning.value}: there is only a plan"
                )
        return Ground(authority=authority, link=link, now_ns=now_ns, versioning=versioning)


def sweep_tasks(
    plan: Plan, ground: Ground, settings: RunSettings, tasks_at_once: int
) -> list[SweepTask]:
    """Gives one task per shard that has candidates; the rate limit is shared among them.

    Raises:
        GcRefused: The plan has candidates of a shard that its certificate does not know.
    """
    certificate = ground.link.certificate
    names = names_by_shard(certificate)
    if any(file.place not in names for file in plan.candidates):
        raise GcRefused(Refusal.PLAN_INVALID, "the plan has shards that its certificate has not")
    share = min(tasks_at_once, max(len(plan.candidates), 1))
    return [
        SweepTask(
            plan_id=plan.plan_id,
            authority=ground.authority,
            audit_id=certificate.audit_id,
            audit_started_at_ns=certificate.started_at_unix_ns,
            highest_ns=ground.now_ns,
            candidates=file,
            names=names[file.place],
            batch=settings.batch,
            proofs_at_once=settings.proofs_at_once,
            deletes_per_s_max=settings.deletes_per_s_max / share,
            clock_skew_s_max=settings.clock_skew_s_max,
            undo=settings.undo,
            dry_run=settings.dry_run,
        )
        for file in plan.candidates
    ]
