"""Unattended garbage collection: audit, execute the plan whose grace period is over, plan again.

A cycle fails closed. A refusal or an unreachable store ends it: nothing more is deleted, and the
metric, the log and the exit code report it. The audit comes first, so that a plan is executed only
in a store that was just read completely.

All labels of the metrics have a fixed set of values.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_gc_cycles_total | counter | result | cycles: done, refused, failed |
| sluice_gc_refusals_total | counter | rule | refusals; an operator must act |
| sluice_gc_last_success_unixtime_seconds | gauge | | last successful cycle; alert on its age |
| sluice_gc_deleted_blobs_total | counter | | deleted object versions |
| sluice_gc_deleted_bytes_total | counter | | bytes of deleted object versions |
| sluice_gc_proofs_total | counter | verdict | proofs: may_go, or the clause that kept the blob |
| sluice_audit_findings | gauge | kind | findings of the newest audit |
| sluice_audit_orphan_blobs | gauge | | orphans in the newest audit |
"""

from pathlib import Path
from typing import Final

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, write_to_textfile

from sluice_gc.auditor import Auditor
from sluice_gc.certificate import read_newest
from sluice_gc.errors import AuditTooOld, GcRefused, RefusalRule
from sluice_gc.evidence_retention import OPEN_PLAN_NS, prune_evidence
from sluice_gc.plan import (
    check_certificate_for,
    plan_ids_newest_first,
    read_state,
    read_stored_plan,
    rule_execution,
)
from sluice_gc.plan_runner import PlanRunner
from sluice_gc.planner import Planner
from sluice_gc.settings import CycleSettings, PlanSettings, RunSettings
from sluice_gc.signing_keys import AuditorKeys, TrustedKeys
from sluice_gc.task_engine import TaskEngine
from sluice_protocol.blob_deletion import ExecutionRuling, PlanState
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.collection_records import AuditCounts, Plan, SweepFacts
from sluice_protocol.errors import SluiceError
from sluice_protocol.units import NS_PER_S
from sluice_store.authority import read_authority, read_store_time
from sluice_store.port import ObjectStore

log = structlog.get_logger()


_KINDS: Final = (
    *("missing_blobs", "unreadable_manifests", "corrupt_blobs", "misnamed", "foreign"),
    *("dangling_references", "references_repaired", "gaps", "overlaps"),
)


class GcMetrics:
    """The metrics of one process, in a separate registry."""

    def __init__(self) -> None:
        made = self.registry = CollectorRegistry()
        self.cycles = Counter("sluice_gc_cycles", "Cycles by result.", ["result"], registry=made)
        self.refusals = Counter(
            "sluice_gc_refusals", "Refusals by safety rule.", ["rule"], registry=made
        )
        self.last_success = Gauge(
            "sluice_gc_last_success_unixtime_seconds",
            "Time of the last successful cycle.",
            registry=made,
        )
        self.deleted_blobs = Counter(
            "sluice_gc_deleted_blobs", "Deleted object versions.", registry=made
        )
        self.deleted_bytes = Counter(
            "sluice_gc_deleted_bytes", "Bytes of deleted object versions.", registry=made
        )
        self.proofs = Counter("sluice_gc_proofs", "Proofs by verdict.", ["verdict"], registry=made)
        self.findings = Gauge(
            "sluice_audit_findings", "Findings of the newest audit.", ["kind"], registry=made
        )
        self.orphans = Gauge(
            "sluice_audit_orphan_blobs", "Orphans in the newest audit.", registry=made
        )

    def count_audit(self, counts: AuditCounts) -> None:
        """Record the counts of a new certificate."""
        for kind in _KINDS:
            self.findings.labels(kind).set(getattr(counts, kind))
        self.orphans.set(counts.orphans)

    def count_run(self, facts: SweepFacts) -> None:
        """Record the result of a run."""
        self.deleted_blobs.inc(facts.deleted)
        self.deleted_bytes.inc(facts.deleted_bytes)
        self.proofs.labels("may_go").inc(facts.deleted + facts.unknown)
        for clause, count in facts.kept.items():
            self.proofs.labels(clause).inc(count)

    def write(self, path: Path) -> None:
        """Write a Prometheus text file atomically."""
        write_to_textfile(str(path), self.registry)


class DueReport(msgspec.Struct, frozen=True, kw_only=True):
    """The executed plan, or None if none was due, and the result of its run."""

    plan_id: str | None
    facts: SweepFacts

    @property
    def found_wrong(self) -> bool:
        """Return True if the plan must be executed again."""
        return not self.facts.complete


class CycleReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one cycle.

    `ran_plan_id` is None if no plan was due, and `made_plan_id` if nothing can be deleted yet.
    """

    audit_id: str
    counts: AuditCounts
    ran_plan_id: str | None
    facts: SweepFacts
    made_plan_id: str | None

    @property
    def found_wrong(self) -> bool:
        """Return True if an operator must act although the cycle succeeded."""
        return self.counts.found_wrong or not self.facts.complete


class CycleRunner:
    """The cycles of one store."""

    def __init__(
        self,
        store: ObjectStore,
        engine: TaskEngine,
        keys: AuditorKeys,
        clock: Clock,
        ids: IdSource,
        *,
        metrics: GcMetrics,
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._metrics = metrics
        self._auditor = Auditor(store, engine, keys, clock, ids)
        self._planner = Planner(store, engine, keys, clock, ids)
        self._runner = PlanRunner(store, engine, keys.trusted, clock)

    async def cycle(self, settings: CycleSettings) -> CycleReport:
        """Run one cycle. The metrics file is written after it, also if it failed."""
        try:
            report = await self._cycle(settings)
        except GcRefused as refused:
            self._metrics.refusals.labels(refused.rule.value).inc()
            self._metrics.cycles.labels("refused").inc()
            log.error("gc_refused", rule=refused.rule.value, reason=refused.reason)  # noqa: TRY400 - a refusal needs no stack trace
            raise
        except SluiceError as error:
            self._metrics.cycles.labels("failed").inc()
            log.error("gc_failed", error=str(error))  # noqa: TRY400 - a failure of the store needs no stack trace
            raise
        else:
            self._metrics.cycles.labels("done").inc()
            self._metrics.last_success.set(self._clock.now_ns() / NS_PER_S)
            log.info("gc_cycle_finished", audit_id=report.audit_id, deleted=report.facts.deleted)
            return report
        finally:
            if settings.metrics_file is not None:
                self._metrics.write(settings.metrics_file)

    async def _cycle(self, settings: CycleSettings) -> CycleReport:
        certificate = await self._auditor.audit(settings.for_audit())
        self._metrics.count_audit(certificate.counts)
        check_certificate_for(await read_authority(self._store), certificate)
        due = await read_due_plan(self._store, self._keys.trusted, settings.for_run())
        facts = SweepFacts()
        if due is not None:
            facts = (await self._runner.run(due.plan_id, settings.for_run())).facts
            self._metrics.count_run(facts)
        made = await plan_if_covered(self._planner, settings.for_plan())
        pruned = await prune_evidence(self._store, self._keys.trusted)
        log.info("audit_evidence_removed", files=pruned.files, kept_from=pruned.kept_from)
        return CycleReport(
            audit_id=certificate.audit_id,
            counts=certificate.counts,
            ran_plan_id=due.plan_id if due else None,
            facts=facts,
            made_plan_id=made.plan_id if made else None,
        )


async def plan_if_covered(planner: Planner, settings: PlanSettings) -> Plan | None:
    """Make a plan; return None if no certificate covers the horizon of any orphan yet."""
    try:
        return await planner.plan(settings)
    except GcRefused as refused:
        if refused.rule is RefusalRule.HORIZON_NOT_COVERED:
            return None  # the next audit covers newer orphans
        raise


async def read_due_plan(
    store: ObjectStore, trusted: TrustedKeys, settings: RunSettings
) -> Plan | None:
    """Return the newest plan whose grace period is over, unless it is finished or stopped.

    An older plan is not executed then: a cycle plans again.

    If the settings require an approval, plans without one are passed over, up to the age from which
    a plan keeps no evidence.
    """
    now_ns = await read_store_time(store)
    async for plan_id in plan_ids_newest_first(store):
        stored = await read_stored_plan(store, trusted, plan_id)
        age_ns = now_ns - stored.plan.made_at_unix_ns
        if settings.require_approval and age_ns > OPEN_PLAN_NS:
            return None
        if age_ns / NS_PER_S < settings.grace_s:
            continue
        required = settings.require_approval
        ruling = await rule_execution(store, plan_id, stored.sha256, required=required)
        if ruling is ExecutionRuling.ALLOWED:
            state = await read_state(store, plan_id)
            return stored.plan if state is PlanState.PLANNED else None
    return None


async def execute_due_plan(
    store: ObjectStore,
    engine: TaskEngine,
    trusted: TrustedKeys,
    clock: Clock,
    settings: RunSettings,
    *,
    audit_age_s_max: float,
) -> DueReport:
    """Execute the due plan of another process, which audits; no private key is needed.

    As in a cycle, the store must have been read completely not long before.

    Raises:
        AuditTooOld: The same call succeeds after the next audit.
    """
    plan = await read_due_plan(store, trusted, settings)
    if plan is None:
        return DueReport(plan_id=None, facts=SweepFacts())
    newest = await read_newest(store, trusted)
    if newest is None:
        raise GcRefused(RefusalRule.NO_CERTIFICATE, "there is no audit; run an audit")
    check_certificate_for(await read_authority(store), newest.certificate)
    age_s = (await read_store_time(store) - newest.certificate.started_at_unix_ns) / NS_PER_S
    if age_s > audit_age_s_max:
        raise AuditTooOld(age_s, audit_age_s_max)
    report = await PlanRunner(store, engine, trusted, clock).run(plan.plan_id, settings)
    return DueReport(plan_id=plan.plan_id, facts=report.facts)
