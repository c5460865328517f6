"""Settings of maintenance: one for the process, and a policy for each task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sluice_gc.key_ranges import split_shards
from sluice_gc.settings import AuditSettings, CycleSettings, PlanSettings, default_key_file
from sluice_maintain.task_policy import DAY_S, TaskPolicy, checking, job_of
from sluice_maintain.tasks import TaskName
from sluice_protocol.errors import BadUsage
from sluice_protocol.settings_checks import check_number
from sluice_spark.settings import CompactSettings, IngestSettings
from sluice_store.url import with_profile
from sluice_store.version_expiry import ExpirySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPolicy(TaskPolicy):
    """The ingest job, which runs continuously.

    Attributes:
        trigger_s: Seconds between micro-batches.
        max_bytes_per_trigger: Maximum frame bytes of a micro-batch.
        max_batches_per_trigger: Maximum number of accepted batches of a micro-batch.
        checkpoint: Folder for streaming checkpoints; empty for the default.
        fenced_wait_s: Pause after another ingest job acquired the queue.
    """

    task = TaskName.INGEST
    timeout_s: float = 0.0
    trigger_s: float = 10.0
    max_bytes_per_trigger: int = IngestSettings().max_bytes_per_trigger
    max_batches_per_trigger: int = IngestSettings().max_batches_per_trigger
    checkpoint: str = ""
    fenced_wait_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupPolicy(TaskPolicy):
    """Rollups of metrics."""

    task = TaskName.ROLLUP
    every_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPolicy(TaskPolicy):
    """Compaction of the tables.

    Attributes:
        target_bytes: Target size of data files.
        grace_s: Seconds after the end of a date before its partition is rewritten.
        open_partitions: Also rewrite partitions that may still receive batches.
        vacuum_hours: Hours beyond the retry horizon for which replaced files are kept; a negative
            number keeps them permanently.
        chunk_days: Days for which rollup chunks are kept; 0 keeps them permanently.
        await_rollups: Whether retention keeps samples of metrics until rollups contain them.
        dedupe: Attributes that name a log record of its sender; see `sluice spark compact`.
        dedupe_metrics: Whether points of one series with the same time and value are stored once.
        dedupe_window_s: Seconds after the first record within which a repetition is recognised.
    """

    task = TaskName.COMPACT
    target_bytes: int = CompactSettings().target_bytes
    grace_s: int = CompactSettings().grace_s
    open_partitions: bool = False
    vacuum_hours: int = CompactSettings().vacuum_hours
    chunk_days: int = CompactSettings().chunk_days
    await_rollups: bool = True
    dedupe: tuple[str, ...] = ()
    dedupe_metrics: bool = False
    dedupe_window_s: int = CompactSettings().dedupe_window_s

    def job(self) -> CompactSettings:
        """Return the settings of one run."""
        return job_of(CompactSettings, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPolicy(TaskPolicy):
    """Index chunks of new data files."""

    task = TaskName.INDEX
    every_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy(TaskPolicy):
    """Deletes of records by age. Compaction removes their rows; rollups are kept.

    Attributes:
        logs_days: Days for which logs are kept; 0 keeps them permanently.
        metrics_days: Days for which samples of metrics are kept; 0 keeps them permanently.
        entries_days: Days for which opaque entries are kept; 0 keeps them permanently.
        raw_blobs_days: Must be 0: the bytes of accepted batches are permanent.
    """

    task = TaskName.RETENTION
    every_s: float = 6 * 3600.0
    logs_days: int = 0
    metrics_days: int = 0
    entries_days: int = 0
    raw_blobs_days: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BadUsage: A number of days is negative, blobs would expire, or as `TaskPolicy`.
        """
        TaskPolicy.__post_init__(self)
        if self.raw_blobs_days:
            raise BadUsage(
                "cannot expire raw-blobs/: every acknowledged batch keeps its bytes permanently,"
                " and the lake is rebuilt from them; remove the key from [maintain.retention];"
                " [maintain.gc] deletes the blobs that no manifest names,"
                f" raw_blobs_days=`{self.raw_blobs_days}`"
            )
        days = (self.logs_days, self.metrics_days, self.entries_days)
        if min(days) < 0:
            raise BadUsage(
                "cannot run maintenance: days in [maintain.retention] must be at least 0; 0 keeps"
                f" records permanently, days=`{min(days)}`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy(TaskPolicy):
    """Deletion of work lists and segments that no reader needs; the reconciler does the same.

    Attributes:
        grace_s: Seconds from an acknowledgement to the deletion of its work list.
    """

    task = TaskName.QUEUE
    every_s: float = 900.0
    grace_s: float = 3600.0

    def _check(self) -> None:
        check_number("grace_s", self.grace_s, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoncurrentPolicy(TaskPolicy):
    """Deletion of noncurrent versions of derived data, where the store has no lifecycle.

    Attributes:
        retention_s: Seconds for which a superseded version is kept.
    """

    task = TaskName.NONCURRENT
    retention_s: int = ExpirySettings().retention_s

    def job(self) -> ExpirySettings:
        """Return the settings of one run."""
        return job_of(ExpirySettings, self)


def _check_audit(policy: "AuditPolicy | GcPolicy") -> None:
    check_number("deep", policy.deep, 0, 1)
    check_number("max_delete_ratio", policy.max_delete_ratio, 0, 1)
    split_shards(policy.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPolicy(TaskPolicy):
    """Audits without deletions; each cycle of `gc` contains an audit.

    Attributes:
        key_file: The auditor's key; the first audit of a store creates it.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        shards: Parts of the sha256 space; see `sluice audit run`.
        deep: Share of blobs that are read and hashed, 0.0 to 1.0.
        repair_references: Whether missing reverse references are written, unless the reconciler
            packs them (`pack_references`).
        prune_evidence: Whether evidence that the new certificate no longer keeps is removed.
        plan: Whether a plan is made after the audit, for a task `gc` with `execute_only`.
        max_delete_ratio: Highest share of all blobs that such a plan may delete.
    """

    task = TaskName.AUDIT
    enabled: bool = False
    backoff_s: float = 900.0
    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    shards: int = 16
    deep: float = 0.0
    repair_references: bool = True
    prune_evidence: bool = True
    plan: bool = False
    max_delete_ratio: float = 0.1

    def _check(self) -> None:
        _check_audit(self)

    def job(self, seed: int) -> AuditSettings:
        """Return the settings of one audit; the seed selects the sample of `deep`."""
        return job_of(AuditSettings, self, deep_seed=seed)

    def plan_job(self) -> PlanSettings:
        """Return the settings of the plan after an audit."""
        return job_of(PlanSettings, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GcPolicy(TaskPolicy):
    """Cycles of garbage collection: audit, execute the due plan, plan again.

    Attributes:
        key_file: The auditor's key; the first audit of a store creates it.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        shards: Parts of the sha256 space; see `sluice audit run`.
        deep: Share of blobs that are read and hashed, 0.0 to 1.0.
        max_delete_ratio: Highest share of all blobs that a plan may delete.
        grace_s: Minimum age of a plan before its execution, seconds.
        deletes_per_s_max: Highest number of deletions per second; 0 means no limit.
        undo: Whether each blob is copied to `gc/v1/trash/` before it is deleted.
        require_approval: Whether only plans are executed that an operator approved.
        repair_references: Whether missing reverse references are written, unless the reconciler
            packs them (`pack_references`).
        execute_only: Whether only the due plan is executed. The task `audit` with `plan` then
            makes the plans, in a process with other credentials; only `trusted_keys` are needed.
        audit_age_s_max: With `execute_only`, highest age of the newest audit, seconds.
    """

    task = TaskName.GC
    backoff_s: float = 900.0
    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    shards: int = 16
    deep: float = 0.0
    max_delete_ratio: float = 0.1
    grace_s: float = DAY_S
    deletes_per_s_max: float = 0.0
    undo: bool = False
    require_approval: bool = False
    repair_references: bool = True
    execute_only: bool = False
    audit_age_s_max: float = 2 * DAY_S

    def _check(self) -> None:
        _check_audit(self)
        check_number("grace_s", self.grace_s, 0)
        check_number("deletes_per_s_max", self.deletes_per_s_max, 0)
        check_number("audit_age_s_max", self.audit_age_s_max, 0, above=True)

    def job(self) -> CycleSettings:
        """Return the settings of one cycle; the scheduler repeats it."""
        return job_of(CycleSettings, self, every_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainSettings:
    """Settings of `sluice maintain`.

    Attributes:
        listen: Address of the status page, host:port; port 0 selects a free port.
        allowed_hosts: Names under which clients reach the page, without ports, separated by commas.
        api_token: The token that readers of the status must send as `Authorization: Bearer …`.
            Without it the page is served on a loopback address only.
        poll_s: Seconds between two decisions what to run.
        lease_s: Duration of a lease, seconds; a running task renews it three times as often.
        stop_grace_s: Time that a stopped task has to reach a safe point, seconds.
        spark_jobs: Spark tasks that run concurrently in the shared session, count.
        session_idle_s: Seconds without a task after which a worker process ends.
        session_jobs_max: Tasks after which a worker process is replaced, count.
        master: Spark master URL.
        driver_memory: Heap size of each JVM.
        ingest: Continuous ingestion.
        rollup: Rollups of metrics.
        compact: Compaction of the tables.
        index: Index chunks.
        retention: Deletes of records by age.
        queue: Deletion of old work lists.
        noncurrent: Deletion of noncurrent versions.
        audit: Audits without garbage collection.
        gc: Cycles of garbage collection.
    """

    listen: str = "127.0.0.1:8083"
    allowed_hosts: str = ""
    api_token: str = field(default="", repr=False)
    poll_s: float = 10.0
    lease_s: float = 90.0
    stop_grace_s: float = 60.0
    spark_jobs: int = 2
    session_idle_s: float = 1800.0
    session_jobs_max: int = 1000
    master: str = "local[2,4]"
    driver_memory: str = "1g"
    ingest: IngestPolicy = field(default_factory=IngestPolicy)
    rollup: RollupPolicy = field(default_factory=RollupPolicy)
    compact: CompactPolicy = field(default_factory=CompactPolicy)
    index: IndexPolicy = field(default_factory=IndexPolicy)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    noncurrent: NoncurrentPolicy = field(default_factory=NoncurrentPolicy)
    audit: AuditPolicy = field(default_factory=AuditPolicy)
    gc: GcPolicy = field(default_factory=GcPolicy)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BadUsage: A number is out of range.
        """
        lows = {"poll_s": 0.1, "lease_s": 10, "stop_grace_s": 0, "spark_jobs": 1}
        for name, low in (lows | {"session_idle_s": 1, "session_jobs_max": 1}).items():
            if not getattr(self, name) >= low:
                raise BadUsage(
                    f"cannot run maintenance: {name} in [maintain] must be at least {low},"
                    f" {name}=`{getattr(self, name)}`"
                )

        with checking(TaskName.INGEST):
            self.ingest_job(once=False)
            check_number("fenced_wait_s", self.ingest.fenced_wait_s, 0)
        with checking(TaskName.COMPACT):
            self.compact.job()

    def check_profiles(self, url: str) -> None:
        """Check that the store of this URL has credentials if a task selects a profile.

        Raises:
            BadUsage: The store is a directory.
        """
        for task, policy in self.policies().items():
            with checking(task):
                with_profile(url, policy.profile)

    def policies(self) -> Mapping[TaskName, TaskPolicy]:
        """Return the policy of every task."""
        return {task: getattr(self, task.value) for task in TaskName}

    def ingest_job(self, *, once: bool) -> IngestSettings:
        """Return the settings of the ingest job."""
        return job_of(
            IngestSettings,
            self.ingest,
            once=once,
            checkpoint=self.ingest.checkpoint or None,
            master=self.master,
            driver_memory=self.driver_memory,
        )
