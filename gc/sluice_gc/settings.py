"""Settings of audit and garbage collection."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal


def default_key_file() -> Path:
    """Return the default path of the auditor's key, `$XDG_STATE_HOME/sluice/auditor.pem`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "sluice" / "auditor.pem"


EngineName = Literal["local", "spark"]
"""Where the tasks of an audit, plan or run are executed."""
CLOCK_SKEW_S_MAX: Final = 300.0
"""Highest difference between the clocks of this machine and the store: NTP keeps it far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Settings of an audit.

    Attributes:
        key_file: The auditor's Ed25519 private key, PEM, PKCS 8. `sluice audit key` creates it, or
            the first audit of a store without certificates.
        shards: Number of parts of the sha256 space; a divisor of 256. More shards need less
            memory each: with 16 shards, 10^7 blobs need less than 1 GiB.
        deep: Share of blobs that are read and hashed, 0.0 to 1.0; every audit selects others. If
            above 0.0, every manifest is read again too.
        list_blobs: Whether `raw-blobs/` is listed. If not, the audit finds no missing blobs, and a
            plan reads its candidates from an inventory.
    """

    key_file: Path = field(default_factory=default_key_file)
    shards: int = 16
    deep: float = 0.0
    list_blobs: bool = True
    reads_max: ClassVar[int] = 32
    """Manifest bodies that one task reads concurrently: fewer than the store's connections."""
    concurrent_tasks: ClassVar[int] = 4
    """Ranges and shards that one process audits concurrently: each needs memory for its rows. Spark
    runs one on each core."""
    ranges: ClassVar[int] = 0
    """Key ranges of manifests; 0 derives them from the cores and the counts of the previous audit,
    about 200,000 manifests each."""
    repair_references: ClassVar[bool] = True
    """Missing reverse references of accepted manifests are written: a proof needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Settings of a plan.

    Attributes:
        key_file: The auditor's key. A command that signs nothing also accepts a file of public keys
            to trust, base64, one a line.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        max_delete_ratio: Highest share of all current blobs and of their bytes that a plan may
            delete, 0.0 to 1.0. A plan above it is refused; inspect it before you raise the limit.
    """

    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    max_delete_ratio: float = 0.5
    clock_skew_s_max: ClassVar[float] = CLOCK_SKEW_S_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run.

    Attributes:
        key_file: The auditor's key. A command that signs nothing also accepts a file of public keys
            to trust, base64, one a line.
        grace_s: Minimum age of a plan before its execution, seconds: time for an operator to
            inspect it.
        deletes_per_s_max: Highest number of deletions per second; 0 means no limit.
        undo: Copy each blob to `gc/v1/trash/` before it is deleted.
        require_approval: Execute only plans that an operator approved.
        dry_run: Stop after the proofs. Nothing is deleted or written.
    """

    key_file: Path = field(default_factory=default_key_file)
    grace_s: float = 86_400.0
    deletes_per_s_max: float = 0.0
    undo: bool = False
    require_approval: bool = False
    dry_run: bool = False
    clock_skew_s_max: ClassVar[float] = CLOCK_SKEW_S_MAX
    batch: ClassVar[int] = 200
    """Candidates proved and deleted together. Versioning, and whether the plan was stopped, are
    read before each batch."""
    proofs_at_once: ClassVar[int] = 16
    """Candidates of a batch whose evidence is read concurrently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSettings:
    """Settings of a run of expiry.

    Attributes:
        key_file: The auditor's key. A command that signs nothing also accepts a file of public keys
            to trust, base64, one a line.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        max_expire_ratio: Highest share of the batches that have not expired that a run may let
            expire, 0.0 to 1.0. The first run of an old deployment needs more than the default.
        dry_run: Prove, and create no tombstone.
    """

    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    max_expire_ratio: float = 0.5
    dry_run: bool = False
    vacuum_hours: ClassVar[int] = 24
    """The default of `sluice spark compact`: nothing expires that is younger than the files that it
    keeps. The retention is a week longer than the retry horizon, so only a much larger value
    matters."""
    clock_skew_s_max: ClassVar[float] = CLOCK_SKEW_S_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseSettings:
    """Settings of a run of an erasure.

    Attributes:
        key_file: The auditor's key. A command that signs nothing also accepts a file of public keys
            to trust, base64, one a line.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        max_delete_ratio: Highest share of all current blobs and of their bytes that a plan may
            delete, 0.0 to 1.0. A plan above it is refused; inspect it before you raise the limit.
            Blobs of batches with erased records do not count.
        grace_s: Minimum age of a plan before its execution, seconds: time for an operator to
            inspect it.
        require_approval: Execute only plans that an operator approved.
        readers_hours: Hours for which replaced files and log entries are kept for queries and jobs
            that began before. 0 deletes them in this run: such a query or job fails.
    """

    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    max_delete_ratio: float = 0.5
    grace_s: float = 86_400.0
    require_approval: bool = False
    readers_hours: int = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSettings:
    """Settings of one unattended cycle.

    Attributes:
        key_file: The auditor's key. A command that signs nothing also accepts a file of public keys
            to trust, base64, one a line.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        shards: Number of parts of the sha256 space; a divisor of 256. More shards need less
            memory each: with 16 shards, 10^7 blobs need less than 1 GiB.
        deep: Share of blobs that are read and hashed, 0.0 to 1.0; every audit selects others. If
            above 0.0, every manifest is read again too.
        max_delete_ratio: Highest share of all current blobs and of their bytes that a plan may
            delete, 0.0 to 1.0. A plan above it is refused; inspect it before you raise the limit.
        grace_s: Minimum age of a plan before its execution, seconds: time for an operator to
            inspect it.
        deletes_per_s_max: Highest number of deletions per second; 0 means no limit.
        undo: Copy each blob to `gc/v1/trash/` before it is deleted.
        require_approval: Execute only plans that an operator approved.
        metrics_file: A Prometheus text file for the textfile collector of the node exporter,
            written after the cycle, also after a failed one; none if empty.
    """

    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    shards: int = 16
    deep: float = 0.0
    max_delete_ratio: float = 0.1
    grace_s: float = 86_400.0
    deletes_per_s_max: float = 0.0
    undo: bool = False
    require_approval: bool = False
    metrics_file: Path | None = None

    def for_audit(self) -> AuditSettings:
        """Return the settings of one audit."""
        return AuditSettings(key_file=self.key_file, shards=self.shards, deep=self.deep)

    def for_plan(self) -> PlanSettings:
        """Return the settings of one plan."""
        return PlanSettings(
            key_file=self.key_file,
            trusted_keys=self.trusted_keys,
            max_delete_ratio=self.max_delete_ratio,
        )

    def for_run(self) -> RunSettings:
        """Return the settings of one run."""
        return RunSettings(
            key_file=self.key_file,
            grace_s=self.grace_s,
            deletes_per_s_max=self.deletes_per_s_max,
            undo=self.undo,
            require_approval=self.require_approval,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirySettings:
    """Settings of one run.

    Attributes:
        retention_s: How long a superseded version is kept.
        dry_run: Whether nothing is deleted.
    """

    retention_s: int = 3 * 86_400
    dry_run: bool = False
    deletes_max: ClassVar[int] = 1_000_000
    """Versions deleted in one run, approximately."""
    listed_max: ClassVar[int] = 10_000_000
    """Versions listed in one run, approximately; it ends between two keys. The report names the key
    after which the next run continues."""
