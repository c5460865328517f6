"""Settings of maintenance: those of the process, of all tasks by their names, and of each task."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from sluice_gc.key_ranges import split_shards
from sluice_gc.settings import (
    AuditSettings,
    CycleSettings,
    ExpirySettings,
    PlanSettings,
    default_key_file,
)
from sluice_maintain.tasks import TRAITS, TaskName
from sluice_maintain.time_windows import parse_windows
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import KINDS
from sluice_protocol.settings_checks import check_number
from sluice_spark.settings import CompactSettings, IngestSettings
from sluice_store.url import with_profile

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Job = TypeVar("Job", bound=DataclassInstance)

DAY_S: Final = 86_400.0
EVERY_S: Final = dict.fromkeys(TaskName, DAY_S) | {
    TaskName.ROLLUP: 300.0,
    TaskName.INDEX: 3600.0,
    TaskName.RETENTION: 6 * 3600.0,
    TaskName.QUEUE: 900.0,
}
"""Seconds from the start of a run to the start of the next, unless `every_s` names the task."""
BACKOFF_S: Final = dict.fromkeys(TaskName, 60.0) | {TaskName.AUDIT: 900.0, TaskName.GC: 900.0}
"""Pause after a second failure. It is long for tasks that read every manifest."""


@contextmanager
def _checking(table: str) -> Iterator[None]:
    """Name the table in the errors about its settings."""
    try:
        yield
    except BadUsage as error:
        raise BadUsage(f"cannot run maintenance: in [maintain.{table}], {error}") from error


def _job_of(kind: "type[Job]", options: object, **more: Any) -> "Job":  # noqa: ANN401 - values of several types
    """Return the settings of a job: those that the options have too, and the given ones."""
    shared = {
        one.name: getattr(options, one.name) for one in fields(kind) if hasattr(options, one.name)
    }
    return kind(**{**shared, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy:
    """When a task runs.

    Attributes:
        every_s: Seconds from the start of a run to the start of the next.
        window: When the task may start; see `sluice_maintain.time_windows`.
        timeout_s: Longest run; a longer one is stopped and counts as failed. 0 means no limit.
        profile: AWS profile with the credentials of the task; empty for those of the process.
        jitter: Share of `every_s` by which a start is delayed at most: two processes that were
            started together do not compete for every lease.
        backoff_max_s: Longest pause after failures. `sluice maintain resume` ends a pause.
    """

    task: TaskName
    enabled: bool = True
    every_s: float = DAY_S
    window: str = ""
    timeout_s: float = 6 * 3600.0
    profile: str = ""
    jitter: float = 0.05
    backoff_s: float = 60.0
    backoff_max_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """The ingest job, which runs continuously.

    Attributes:
        trigger_s: Seconds between micro-batches.
        max_bytes_per_trigger: Maximum frame bytes of a micro-batch.
    """

    trigger_s: float = 10.0
    max_bytes_per_trigger: int = IngestSettings().max_bytes_per_trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """Compaction of the tables.

    Attributes:
        open_partitions: Also rewrite partitions that may still receive batches.
        vacuum_hours: Hours beyond the retry horizon for which replaced files are kept; -1 keeps
            them permanently.
        chunk_days: Days for which rollup chunks are kept; 0 keeps them permanently.
        await_rollups: Keep samples of metrics until rollups contain them.
        dedupe: Attributes that name a log record; see `sluice spark compact`.
        dedupe_metrics: Store points of one series with the same time and value once.
    """

    open_partitions: bool = False
    vacuum_hours: int = CompactSettings().vacuum_hours
    chunk_days: int = CompactSettings().chunk_days
    await_rollups: bool = True
    dedupe: tuple[str, ...] = ()
    dedupe_metrics: bool = False

    def job(self) -> CompactSettings:
        """Return the settings of one run."""
        return _job_of(CompactSettings, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoncurrentOptions:
    """Deletion of noncurrent versions of derived data, where the store has no lifecycle.

    Attributes:
        retention_s: Seconds for which a superseded version is kept.
    """

    retention_s: int = ExpirySettings().retention_s

    def job(self) -> ExpirySettings:
        """Return the settings of one run."""
        return _job_of(ExpirySettings, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GcOptions:
    """Audits, and garbage collection: each cycle audits, executes the due plan, and plans again.

    Attributes:
        key_file: The auditor's key; the first audit of a store creates it.
        trusted_keys: Further trusted public keys, base64 of the 32 raw bytes.
        shards: Parts of the sha256 space; see `sluice audit run`.
        deep: Share of blobs that an audit reads and hashes, 0.0 to 1.0.
        max_delete_ratio: Highest share of all blobs that a plan may delete.
        plan: Whether the task `audit` makes a plan after each audit.
        execute_only: Whether the task `gc` only executes the due plan; it needs `trusted_keys`
            only, and the task `audit` with `plan` makes the plans.
        grace_s: Minimum age of a plan before its execution, seconds.
        deletes_per_s_max: Highest number of deletions per second; 0 means no limit.
        undo: Copy each blob to `gc/v1/trash/` before it is deleted.
        require_approval: Execute only plans that an operator approved.
    """

    key_file: Path = field(default_factory=default_key_file)
    trusted_keys: tuple[str, ...] = ()
    shards: int = 16
    deep: float = 0.0
    max_delete_ratio: float = 0.1
    plan: bool = False
    execute_only: bool = False
    grace_s: float = DAY_S
    deletes_per_s_max: float = 0.0
    undo: bool = False
    require_approval: bool = False
    audit_age_s_max: ClassVar[float] = 2 * DAY_S
    """With `execute_only`, highest age of the newest audit: one audit a day may fail."""

    def __post_init__(self) -> None:
        with _checking("gc"):
            check_number("deep", self.deep, 0, 1)
            check_number("max_delete_ratio", self.max_delete_ratio, 0, 1)
            split_shards(self.shards)
            check_number("grace_s", self.grace_s, 0)
            check_number("deletes_per_s_max", self.deletes_per_s_max, 0)

    def audit(self) -> AuditSettings:
        """Return the settings of one audit."""
        return _job_of(AuditSettings, self)

    def plan_job(self) -> PlanSettings:
        """Return the settings of the plan after an audit."""
        return _job_of(PlanSettings, self)

    def cycle(self) -> CycleSettings:
        """Return the settings of one cycle; the scheduler repeats it."""
        return _job_of(CycleSettings, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainSettings:
    """Settings of `sluice maintain`.

    Attributes:
        listen: Address of the status page, host:port; port 0 selects a free port.
        allowed_hosts: Names under which clients reach the service, without ports, separated by
            commas. The address of the connection is always allowed.
        api_token: The token that clients send as `Authorization: Bearer …`. Without it the service
            listens on a loopback address only. Set it in a file or in the environment: other users
            of the machine can read a command line.
        tasks: The tasks that this process runs.
        every_s: Seconds from the start of a run to the start of the next, by task.
        window: When a task may start, in UTC, by task: `22:00-04:00, sat 00:00-24:00`.
        profile: AWS profile with the credentials of a task, by task.
        timeout_s: Longest run except of `ingest`, seconds; a longer one fails. 0 means no limit.
        stop_grace_s: Seconds that a stopped task has to reach a safe point.
        ingest: Continuous ingestion.
        compact: Compaction of the tables.
        retention_days: Days for which records are kept, by kind. The days of other kinds are those
            of `sluice retention set --tables`; by default they are kept permanently, and so are
            rollups and the bytes of accepted batches. Compaction removes the rows.
        noncurrent: Deletion of noncurrent versions.
        gc: Audits and cycles of garbage collection.
    """

    listen: str = "127.0.0.1:8083"
    allowed_hosts: str = ""
    api_token: str = field(default="", repr=False)
    tasks: tuple[TaskName, ...] = tuple(one for one in TaskName if one is not TaskName.AUDIT)
    every_s: dict[str, float] = field(default_factory=dict)
    window: dict[str, str] = field(default_factory=dict)
    profile: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 6 * 3600.0
    stop_grace_s: float = 60.0
    ingest: IngestOptions = field(default_factory=IngestOptions)
    compact: CompactOptions = field(default_factory=CompactOptions)
    retention_days: dict[str, int] = field(default_factory=dict)
    noncurrent: NoncurrentOptions = field(default_factory=NoncurrentOptions)
    gc: GcOptions = field(default_factory=GcOptions)
    poll_s: ClassVar[float] = 10.0
    """Seconds between two decisions what to run: a decision reads nine small objects."""
    lease_s: ClassVar[float] = 90.0
    """Duration of a lease: the time that a killed process delays its tasks; a renewal costs a
    write.
    """
    spark_jobs: ClassVar[int] = 2
    """Spark tasks that run concurrently: compaction, which is long, and rollups next to it."""
    session_idle_s: ClassVar[float] = 1800.0
    """Seconds without a task after which a worker ends: rollups, every 5 minutes, keep the JVM."""
    session_jobs_max: ClassVar[int] = 1000
    """Tasks after which a worker is replaced: a JVM that leaks a little is bounded."""

    def __post_init__(self) -> None:
        for name, low in (("timeout_s", 0), ("stop_grace_s", 0)):
            if not getattr(self, name) >= low:
                raise BadUsage(
                    f"cannot run maintenance: {name} in [maintain] must be at least {low},"
                    f" {name}=`{getattr(self, name)}`"
                )
        for table in ("every_s", "window", "profile"):
            with _checking(table):
                _check_tasks(getattr(self, table))
        with _checking("every_s"):
            for task, value in self.every_s.items():
                check_number(task, value, 1)
        with _checking("retention_days"):
            for kind, days in self.retention_days.items():
                _check_retention(kind, days)
        with _checking("window"):
            for text in self.window.values():
                parse_windows(text)
        with _checking("ingest"):
            self.ingest_job(once=False)
        with _checking("compact"):
            self.compact.job()

    def check_profiles(self, url: str) -> None:
        """Refuse profiles for a store in a directory, which has no credentials."""
        with _checking("profile"):
            for profile in self.profile.values():
                with_profile(url, profile)

    def policies(self) -> Mapping[TaskName, TaskPolicy]:
        """Return when each task runs."""
        return {
            task: TaskPolicy(
                task=task,
                enabled=task in self.tasks,
                every_s=self.every_s.get(task, EVERY_S[task]),
                window=self.window.get(task, ""),
                timeout_s=0.0 if TRAITS[task].continuous else self.timeout_s,
                profile=self.profile.get(task, ""),
                backoff_s=BACKOFF_S[task],
            )
            for task in TaskName
        }

    def ingest_job(self, *, once: bool) -> IngestSettings:
        """Return the settings of the ingest job."""
        return _job_of(IngestSettings, self.ingest, once=once)


def _check_retention(kind: str, days: int) -> None:
    if kind not in KINDS:
        raise BadUsage(f"no kind has this name: use one of {', '.join(KINDS)}, kind=`{kind}`")
    check_number(kind, days, 1)


def _check_tasks(named: Mapping[str, object]) -> None:
    for name in named.keys() - set(TaskName):
        raise BadUsage(f"no task has this name: use one of {', '.join(TaskName)}, task=`{name}`")
