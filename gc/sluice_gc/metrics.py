"""Metrics of audit and garbage collection. All labels have a fixed set of values.

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

from prometheus_client import CollectorRegistry, Counter, Gauge, write_to_textfile

from sluice_gc.audit.certificate import AuditCounts
from sluice_gc.run.plan_runner import SweepFacts

CYCLES: Final = "sluice_gc_cycles"


REFUSALS: Final = "sluice_gc_refusals"


LAST_SUCCESS: Final = "sluice_gc_last_success_unixtime_seconds"


DELETED_BLOBS: Final = "sluice_gc_deleted_blobs"


DELETED_BYTES: Final = "sluice_gc_deleted_bytes"


PROOFS: Final = "sluice_gc_proofs"


FINDINGS: Final = "sluice_audit_findings"


ORPHANS: Final = "sluice_audit_orphan_blobs"


_KINDS: Final = (
    *("missing_blobs", "unreadable_manifests", "corrupt_blobs", "misnamed", "foreign"),
    *("dangling_references", "references_repaired", "gaps", "overlaps"),
)


class GcMetrics:
    """The metrics of one process, in a separate registry."""

    def __init__(self) -> None:
        made = self.registry = CollectorRegistry()
        self.cycles = Counter(CYCLES, "Cycles by result.", ["result"], registry=made)
        self.refusals = Counter(REFUSALS, "Refusals by safety rule.", ["rule"], registry=made)
        self.last_success = Gauge(LAST_SUCCESS, "Time of the last successful cycle.", registry=made)
        self.deleted_blobs = Counter(DELETED_BLOBS, "Deleted object versions.", registry=made)
        self.deleted_bytes = Counter(
            DELETED_BYTES, "Bytes of deleted object versions.", registry=made
        )
        self.proofs = Counter(PROOFS, "Proofs by verdict.", ["verdict"], registry=made)
        self.findings = Gauge(FINDINGS, "Findings of the newest audit.", ["kind"], registry=made)
        self.orphans = Gauge(ORPHANS, "Orphans in the newest audit.", registry=made)

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
