"""Settings of audit and garbage collection."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


def default_key_file() -> Path:
    """Return the default path of the auditor's key, `$XDG_STATE_HOME/sluice/auditor.pem`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "sluice" / "auditor.pem"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Settings of an audit.

    Attributes:
        key_file: The auditor's Ed25519 private key, PEM, PKCS 8. `sluice audit key` creates it, or
            the first audit of a store without certificates.
        shards: Number of parts of the sha256 space; a divisor of 256. More shards need less
            memory each: with 16 shards, 10^7 blobs need less than 1 GiB.
        reads_max: Most manifest bodies that one task reads concurrently.
        deep: Share of blobs that are read and hashed, 0.0 to 1.0. If above 0.0, every manifest is
            read again too.
        deep_seed: Seed that selects the blobs of a share below 1.0.
        list_blobs: Whether `raw-blobs/` is listed. If not, the audit finds no missing blobs, and a
            plan reads its candidates from an inventory.
        concurrent_tasks: Ranges and shards that one process audits concurrently; each needs memory
            for its rows. Spark runs one on each core.
        ranges: Number of key ranges of manifests, at most one per agent. 0 derives it from the
            cores and the counts of the previous audit, about 200,000 manifests each.
        repair_references: Whether missing reverse references of accepted manifests are written, one
            object each. A shard whose missing references are packed (`pack_references` of the
            reconciler) writes none; false saves the search for packed ones too.
    """

    key_file: Path = field(default_factory=default_key_file)
    shards: int = 16
    reads_max: int = 32
    deep: float = 0.0
    deep_seed: int = 0
    list_blobs: bool = True
    concurrent_tasks: int = 4
    ranges: int = 0
    repair_references: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Settings of a plan.

    Attributes:
        key_file: The key that signs the plan; its public key is trusted for certificates too.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        max_delete_ratio: Highest share of all current blobs and of their bytes that a plan may
            delete, 0.0 to 1.0. A plan above it is refused; inspect it before you raise the limit.
        clock_skew_s_max: Highest difference between the clocks of this machine and the
            store, in seconds.
    """

    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    max_delete_ratio: float = 0.5
    clock_skew_s_max: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run.

    Attributes:
        key_file: The key whose public half is trusted for certificates and plans.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        grace_s: Minimum age of a plan before its execution, in seconds; 24 h by default, so that an
            operator can inspect it.
        clock_skew_s_max: Highest difference between the clocks of this machine and the
            store, in seconds.
        batch: Candidates proved and deleted together; versioning is read before each batch.
        proofs_at_once: Candidates of a batch whose evidence is read concurrently.
        deletes_per_s_max: Highest number of deletions per second; 0 means no limit.
        undo: Whether each blob is copied to `gc/v1/trash/` before it is deleted.
        require_approval: Whether only plans are executed that an operator approved.
        dry_run: Stop after the proofs. Nothing is deleted or written.
    """

    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    grace_s: float = 86_400.0
    clock_skew_s_max: float = 300.0
    batch: int = 200
    proofs_at_once: int = 16
    deletes_per_s_max: float = 0.0
    undo: bool = False
    require_approval: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Where the tasks of an audit, plan or run are executed.

    Attributes:
        engine: `local` in this process, or `spark` on Spark's executors.
        master: Spark's master unless `spark-submit` sets it; `local[2]` runs two concurrent tasks.
        driver_memory: Heap of Spark's JVM on one machine. Evidence does not pass through it.
    """

    engine: Literal["local", "spark"] = "local"
    master: str = "local[2]"
    driver_memory: str = "1g"


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSettings:
    """Settings of unattended cycles.

    Attributes:
        key_file: The auditor's key.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        shards: See `AuditSettings`.
        deep: See `AuditSettings`; every cycle uses another sample.
        max_delete_ratio: See `PlanSettings`.
        grace_s: See `RunSettings`.
        deletes_per_s_max: See `RunSettings`.
        undo: See `RunSettings`.
        require_approval: See `RunSettings`. The newest approved plan is executed.
        repair_references: See `AuditSettings`.
        every_s: Seconds from the end of a cycle to the next; 0 runs one cycle only.
        metrics_file: A Prometheus text file for the textfile collector of the node exporter,
            written after every cycle; none if empty.
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
    repair_references: bool = True
    every_s: float = 0.0
    metrics_file: Path | None = None

    def for_audit(self, seed: int) -> AuditSettings:
        """Return the settings of one audit."""
        return AuditSettings(
            key_file=self.key_file,
            shards=self.shards,
            deep=self.deep,
            deep_seed=seed,
            repair_references=self.repair_references,
        )

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
            trusted_keys=self.trusted_keys,
            grace_s=self.grace_s,
            deletes_per_s_max=self.deletes_per_s_max,
            undo=self.undo,
            require_approval=self.require_approval,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InventorySettings:
    """The inventory that names candidates if the audit did not list blobs.

    Attributes:
        inventory_store: Store URL of the bucket or directory with the inventory; none if empty.
        inventory_manifest: Key of its `manifest.json`.
        inventory_bucket: The bucket that it must describe; by default the bucket of `--store`.
        inventory_age_s_max: Its maximum age, in seconds.
    """

    inventory_store: str = ""
    inventory_manifest: str = "manifest.json"
    inventory_bucket: str = ""
    inventory_age_s_max: float = 7 * 86_400.0
