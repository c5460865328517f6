"""Settings of audit and garbage collection."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


def default_key_file() -> Path:
    """Gives where the auditor's key is kept: `$XDG_STATE_HOME/sluice/auditor.pem`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "sluice" / "auditor.pem"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """How an audit is made.

    Attributes:
        key_file: The auditor's Ed25519 private key, PEM, PKCS 8. `sluice audit key` makes it, or
            the first audit of a store that has no certificate yet.
        shards: Files into which the sha256 space is split; a divisor of 256. More shards need
            less memory each: 16 hold 10^7 blobs in well under 1 GiB.
        reads_max: Manifest bodies read at once by one task.
        deep: Share of blobs that are read again whole and hashed, 0.0 to 1.0. Manifests are then
            read again too.
        deep_seed: Chooses which blobs a share below 1.0 holds; another seed, other blobs.
        list_blobs: Whether `raw-blobs/` is listed. Without it the audit says nothing of missing
            blobs, and a plan on it takes its candidates from an inventory.
        ranges: Into how many key ranges manifests are cut, at most one an agent; 0 cuts as the
            cores and the last audit's counts want it, about 200 000 manifests each.
    """

    key_file: Path = field(default_factory=default_key_file)
    shards: int = 16
    reads_max: int = 32
    deep: float = 0.0
    deep_seed: int = 0
    list_blobs: bool = True
    ranges: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What a plan may propose.

    Attributes:
        key_file: The key that signs the plan; its public key is trusted for certificates too.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        max_delete_ratio: Most that may go, as a share of all incarnations and of all bytes, 0.0
            to 1.0. A plan above it is refused: look at what it lists, then raise it by hand.
        clock_skew_s_max: Most that this machine's clock and the store's may differ, in seconds.
    """

    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    max_delete_ratio: float = 0.5
    clock_skew_s_max: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How a plan is carried out.

    Attributes:
        key_file: The key whose public half is trusted for certificates and plans.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        grace_s: How old a plan must be before it is carried out, in seconds; 24 h by default, so
            that a person can look at it.
        clock_skew_s_max: Most that this machine's clock and the store's may differ, in seconds.
        batch: Candidates proved and deleted together; versioning is read before each batch.
        proofs_at_once: Candidates of a batch whose evidence is read at the same time.
        deletes_per_s_max: Upper limit of deletions a second; 0 is no limit.
        undo: Whether each blob is copied to `gc/v1/trash/` before it is deleted.
        dry_run: Stop after the proofs: nothing is deleted and nothing is written.
    """

    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    grace_s: float = 86_400.0
    clock_skew_s_max: float = 300.0
    batch: int = 200
    proofs_at_once: int = 16
    deletes_per_s_max: float = 0.0
    undo: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Where the tasks of an audit, plan or run are done.

    Attributes:
        engine: `local` in this process, or `spark` on Spark's executors.
        master: Spark's master when `spark-submit` gives none; `local[2]` is two tasks at once.
        driver_memory: Heap of Spark's JVM on one machine; evidence does not go through it.
    """

    engine: Literal["local", "spark"] = "local"
    master: str = "local[2]"
    driver_memory: str = "1g"


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSettings:
    """Unattended work: audit, carry out the plan whose grace is over, plan again.

    Attributes:
        key_file: The auditor's key.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        shards: See `AuditSettings`.
        deep: See `AuditSettings`; another sample in every cycle.
        max_delete_ratio: See `PlanSettings`.
        grace_s: See `RunSettings`.
        deletes_per_s_max: See `RunSettings`.
        undo: See `RunSettings`.
        every_s: Seconds from the end of a cycle to the next; 0 makes one cycle and ends.
        metrics_file: A Prometheus text file that is written after every cycle, for the node
            exporter's textfile collector; none when empty.
    """

    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    shards: int = 16
    deep: float = 0.0
    max_delete_ratio: float = 0.1
    grace_s: float = 86_400.0
    deletes_per_s_max: float = 0.0
    undo: bool = False
    every_s: float = 0.0
    metrics_file: Path | None = None

    def for_audit(self, seed: int) -> AuditSettings:
        """Gives the settings of one audit."""
        return AuditSettings(
            key_file=self.key_file, shards=self.shards, deep=self.deep, deep_seed=seed
        )

    def for_plan(self) -> PlanSettings:
        """Gives the settings of one plan."""
        return PlanSettings(
            key_file=self.key_file,
            trusted_keys=self.trusted_keys,
            max_delete_ratio=self.max_delete_ratio,
        )

    def for_run(self) -> RunSettings:
        """Gives the settings of one run."""
        return RunSettings(
            key_file=self.key_file,
            trusted_keys=self.trusted_keys,
            grace_s=self.grace_s,
            deletes_per_s_max=self.deletes_per_s_max,
            undo=self.undo,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InventorySettings:
    """Where the candidates of a plan come from when the audit listed no blobs.

    Attributes:
        inventory_store: Store URL of the bucket or directory that holds the inventory; none when
            empty.
        inventory_manifest: Key of its `manifest.json` there.
        inventory_bucket: The bucket that it must be of; that of `--store` when empty.
        inventory_age_s_max: How old it may be, in seconds.
    """

    inventory_store: str = ""
    inventory_manifest: str = "manifest.json"
    inventory_bucket: str = ""
    inventory_age_s_max: float = 7 * 86_400.0
