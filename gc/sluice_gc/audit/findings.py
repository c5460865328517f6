"""What an audit found: findings, counts of one task, and the report of a whole audit."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec
import pyarrow as pa

from sluice_gc.audit.certificate import AuditCounts, Certificate, read_files
from sluice_gc.evidence_files import (
    FINDINGS,
    EvidenceFile,
    read_table_if_kept,
)
from sluice_gc.key_ranges import KeyRange
from sluice_protocol.identity import Identity
from sluice_store.port import ObjectStore


class FindingKind(StrEnum):
    """The kind of a finding."""

    MISSING_BLOB = "missing_blob"
    """A manifest names a blob that does not exist: it is lost, or the manifest is `unproved` and
    caused no 200.
    """
    UNREADABLE_MANIFEST = "unreadable_manifest"
    MISNAMED = "misnamed"
    """A manifest under a wrong key; the blob that it names is kept."""
    CORRUPT_BLOB = "corrupt_blob"
    FOREIGN = "foreign"
    DANGLING_REFERENCE = "dangling_reference"
    REFERENCE_REPAIRED = "reference_repaired"
    GAP = "gap"
    OVERLAP = "overlap"


@dataclass(slots=True)
class FindingLog:
    """The findings of one task."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, kind: FindingKind, key: str, detail: str = "") -> None:
        """Add one finding."""
        self.rows.append((kind.value, key, detail))

    def count(self, kind: FindingKind) -> int:
        """Return the number of findings of a kind."""
        return sum(1 for row in self.rows if row[0] == kind.value)

    def table(self) -> pa.Table:
        """Return the findings as rows of `FINDINGS`."""
        columns = list(zip(*self.rows, strict=True)) or [(), (), ()]
        return pa.table([pa.array(one, pa.string()) for one in columns], schema=FINDINGS)


class SequenceChecker:
    """Detection of gaps and overlaps in the sequence numbers of each (agent, boot)."""

    def __init__(self, findings: FindingLog) -> None:
        self._findings = findings
        self._who: tuple[str, str] | None = None
        self._next = 0

    def see(self, key: str, identity: Identity) -> None:
        """Check the next identity in key order; a boot may start at any number."""
        who = (identity.agent_id, identity.boot_id)
        if who == self._who and identity.seq_start > self._next:
            self._findings.add(FindingKind.GAP, key, f"{self._next}-{identity.seq_start - 1}")
        if who == self._who and identity.seq_start < self._next:
            last = min(self._next - 1, identity.seq_end)
            self._findings.add(FindingKind.OVERLAP, key, f"{identity.seq_start}-{last}")
        after = identity.seq_end + 1
        self._next = max(self._next, after) if who == self._who else after
        self._who = who


class AuditTaskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one audit task. The listed rows are in the evidence files.

    The ranges have their prefixes.
    """

    ranges: tuple[tuple[str, KeyRange], ...]
    files: tuple[EvidenceFile, ...]
    counts: AuditCounts


FINDINGS_SHOWN: Final = 1000


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate with the findings of its audit.

    Attributes:
        findings: Kind, key and detail, at most `FINDINGS_SHOWN`.
        removed: The findings were removed by rule; the counts in the certificate remain.
    """

    certificate: Certificate
    findings: tuple[tuple[str, str, str], ...]
    removed: bool = False

    @property
    def found_wrong(self) -> bool:
        """Return True if an operator must act on a finding."""
        return self.certificate.counts.found_wrong


async def read_audit_report(store: ObjectStore, certificate: Certificate) -> AuditReport:
    """Read the findings of an audit."""
    files = await read_files(store, certificate, "findings")
    if files is None:
        return AuditReport(certificate=certificate, findings=(), removed=True)
    tables = [await read_table_if_kept(store, one, FINDINGS) for one in files]
    kept = [one for one in tables if one is not None]
    rows = pa.concat_tables([FINDINGS.empty_table(), *kept]).slice(0, FINDINGS_SHOWN).to_pylist()
    return AuditReport(
        certificate=certificate,
        findings=tuple((row["kind"], row["key"], row["detail"]) for row in rows),
        removed=len(kept) < len(tables),
    )
