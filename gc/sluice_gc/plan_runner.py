"""Execution of a plan: check the plan and its basis, then sweep shard by shard."""

from functools import partial

import msgspec

from sluice_gc.certificate import names_by_shard
from sluice_gc.certificate_chain import read_certificate
from sluice_gc.deletion_proof import ALL_CLAUSES, ClauseSets
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan import (
    ClockReadings,
    Plan,
    check_certificate_for,
    check_clock_fall,
    check_clocks,
    check_grace,
    check_plan_for,
)
from sluice_gc.plan_approval import check_approved
from sluice_gc.plan_inputs import (
    PlanBasis,
    check_not_stopped,
    finished_key,
    newest_plan_id,
    read_store_time,
    read_stored_plan,
)
from sluice_gc.settings import RunSettings
from sluice_gc.signing_keys import TrustedKeys
from sluice_gc.sweep import SweepFacts, SweepTask, sweep_shard
from sluice_gc.task_engine import TaskEngine
from sluice_protocol.clock import Clock
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore, Versioning
from sluice_store.retry import Backoff, create_known


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run.

    Attributes:
        plan_id: The plan.
        dry_run: Whether it stopped after the proofs.
        facts: The sum over all shards.
    """

    plan_id: str
    dry_run: bool
    facts: SweepFacts

    @property
    def found_wrong(self) -> bool:
        """Return True if the plan must be run again."""
        return not self.facts.complete


class PlanRunner:
    """The execution of plans on one store.

    Tests replace `clauses` to show what each clause prevents.
    """

    def __init__(
        self,
        store: ObjectStore,
        engine: TaskEngine,
        trusted: TrustedKeys,
        clock: Clock,
        clauses: ClauseSets = ALL_CLAUSES,
    ) -> None:
        self._store = store
        self._engine = engine
        self._trusted = trusted
        self._clock = clock
        self._clauses = clauses

    async def run(self, plan_id: str | None, settings: RunSettings) -> RunReport:
        """Delete the candidates of a plan that every clause still allows; safe to repeat.

        Args:
            plan_id: The plan; None selects the newest one.
            settings: How the plan is executed.

        Raises:
            GcRefused: A safety rule is violated; nothing more is deleted.
            CertificateInvalid: The certificate was altered.
            StoreError: The store is unreachable or refused a request; call again.
        """
        plan_id = plan_id or await newest_plan_id(self._store)
        stored = await read_stored_plan(self._store, self._trusted, plan_id)
        plan = stored.plan
        if not settings.dry_run:
            required = settings.require_approval
            await check_approved(self._store, plan_id, stored.sha256, required=required)
        basis = await self._read_basis(plan, settings)
        work = partial(sweep_shard, clock=self._clock, clauses=self._clauses)
        facts = SweepFacts()
        tasks = sweep_tasks(plan, basis, settings, self._engine.parallelism)
        for one in await self._engine.run(work, tasks):
            facts = facts.plus(one)
        if not settings.dry_run and facts.complete:
            backoff = Backoff.seeded_by(self._clock)
            await create_known(self._store, finished_key(plan_id), b"{}", backoff)
        return RunReport(plan_id=plan_id, dry_run=settings.dry_run, facts=facts)

    async def _read_basis(self, plan: Plan, settings: RunSettings) -> PlanBasis:
        authority = await read_authority(self._store)
        link = await read_certificate(self._store, plan.audit_id, self._trusted)
        check_certificate_for(authority, link.certificate)
        await check_not_stopped(self._store, plan.plan_id)
        check_plan_for(plan, link.certificate, link.sha256)
        now_ns = await read_store_time(self._store)
        clocks = ClockReadings(local_ns=self._clock.now_ns(), store_ns=now_ns)
        check_clocks(clocks, settings.clock_skew_s_max)
        check_clock_fall(plan.made_at_unix_ns, now_ns, authority)
        versioning = await self._store.read_versioning()
        if not settings.dry_run:
            check_grace(plan, now_ns, settings.grace_s)
            if versioning is not Versioning.ENABLED:
                raise GcRefused(
                    RefusalRule.VERSIONING,
                    f"versioning is {versioning.value}; a run requires versioning Enabled",
                )
        return PlanBasis(authority=authority, link=link, now_ns=now_ns, versioning=versioning)


def sweep_tasks(
    plan: Plan, basis: PlanBasis, settings: RunSettings, parallelism: int
) -> list[SweepTask]:
    """Return one task per shard with candidates; the tasks share the rate limit.

    Raises:
        GcRefused: The plan has candidates of a shard that its certificate does not have.
    """
    certificate = basis.link.certificate
    names = names_by_shard(certificate)
    if any(file.place not in names for file in plan.candidates):
        raise GcRefused(
            RefusalRule.PLAN_INVALID, "the plan has shards that its certificate does not have"
        )
    share = min(parallelism, max(len(plan.candidates), 1))
    return [
        SweepTask(
            plan_id=plan.plan_id,
            authority=basis.authority,
            audit_id=certificate.audit_id,
            audit_started_at_ns=certificate.started_at_unix_ns,
            highest_ns=basis.now_ns,
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
