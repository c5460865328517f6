"""What an audit finds wrong, and holes in the sequence numbers of agents."""

from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from sluice_gc.evidence import FINDINGS
from sluice_protocol.identity import Identity


class Finding(StrEnum):
    """Kinds of findings."""

    MISSING_BLOB = "missing_blob"
    """A manifest names a blob that is not there: lost, or `unproved` and in no 200."""
    UNREADABLE_MANIFEST = "unreadable_manifest"
    MISNAMED = "misnamed"
    """A manifest that belongs under another key; the blob that it names is kept."""
    CORRUPT_BLOB = "corrupt_blob"
    FOREIGN = "foreign"
    DANGLING_REFERENCE = "dangling_reference"
    REFERENCE_REPAIRED = "reference_repaired"
    GAP = "gap"
    OVERLAP = "overlap"


@dataclass(slots=True)
class Findings:
    """Collects findings of one task."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, kind: Finding, key: str, detail: str = "") -> None:
        """Notes one finding."""
        self.rows.append((kind.value, key, detail))

    def count(self, kind: Finding) -> int:
        """Counts findings of a kind."""
        return sum(1 for row in self.rows if row[0] == kind.value)

    def table(self) -> pa.Table:
        """Gives rows of `FINDINGS`."""
        columns = list(zip(*self.rows, strict=True)) or [(), (), ()]
        return pa.table([pa.array(one, pa.string()) for one in columns], schema=FINDINGS)


class SequenceWatch:
    """Sees accepted identities in key order and names gaps and overlaps of each (agent, boot)."""

    def __init__(self, findings: Findings) -> None:
        """Takes where to note them."""
        self._findings = findings
        self._who: tuple[str, str] | None = None
        self._next = 0

    def see(self, key: str, identity: Identity) -> None:
        """Takes the next identity; a first batch of a boot may start anywhere."""
        who = (identity.agent_id, identity.boot_id)
        if who == self._who and identity.seq_start > self._next:
            self._findings.add(Finding.GAP, key, f"{self._next}-{identity.seq_start - 1}")
        if who == self._who and identity.seq_start < self._next:
            last = min(self._next - 1, identity.seq_end)
            self._findings.add(Finding.OVERLAP, key, f"{identity.seq_start}-{last}")
        after = identity.seq_end + 1
        self._next = max(self._next, after) if who == self._who else after
        self._who = who
