"""Settings of the Spark jobs."""

from dataclasses import dataclass
from typing import ClassVar

from sluice_protocol.errors import BadUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """Settings of the ingest job.

    Attributes:
        once: Exit when every batch that was queued at the start is in the lake.
        trigger_s: Seconds between micro-batches, unless `once` is set.
        max_bytes_per_trigger: Maximum frame bytes of a micro-batch.
        checkpoint: Folder for streaming checkpoints; each query begins a new one. Default: in the
            user's cache folder.
    """

    once: bool = False
    trigger_s: float = 10.0
    max_bytes_per_trigger: int = 1024 * 1024 * 1024
    checkpoint: str | None = None
    max_batches_per_trigger: ClassVar[int] = 20_000
    """Accepted batches of a micro-batch: the driver has their entries in memory."""
    restarts_max: ClassVar[int] = 8
    """Restarts of the query after transient errors, without a committed micro-batch in between,
    after which the job fails: their pauses take four minutes at most."""
    stall_timeout_s: ClassVar[float] = 900.0
    """Time without progress of a busy query after which it is restarted: Spark's calls to the store
    have longer timeouts than a micro-batch needs."""

    def __post_init__(self) -> None:
        if self.trigger_s < 0 or self.max_bytes_per_trigger < 1:
            raise BadUsage(
                f"cannot run ingest: trigger_s must be at least 0 and max_bytes_per_trigger "
                f"at least 1, trigger_s=`{self.trigger_s}`, "
                f"max_bytes_per_trigger=`{self.max_bytes_per_trigger}`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings:
    """Settings of compaction.

    Attributes:
        open_partitions: Also rewrite partitions that may still receive batches.
        vacuum_hours: Hours beyond the retry horizon for which replaced files are kept for readers;
            a negative number keeps them permanently.
        chunk_days: Days for which rollup chunks are kept; 0 keeps them permanently. Their rows stay
            in the table `rollups`.
        await_rollups: Whether retention keeps samples of metrics until rollups contain them. It
            never waits if there are no rollups.
        dedupe: Attributes that name a log record of its sender, for example `log.file.path` and
            `log.offset`. Of the records with the same values, body and severity, the first one
            is kept. Empty: none are compared.
        dedupe_metrics: Whether points of one series with the same time and value are stored once.
        dry_run: Report only; change nothing.
    """

    open_partitions: bool = False
    vacuum_hours: int = 24
    chunk_days: int = 30
    await_rollups: bool = True
    dedupe: tuple[str, ...] = ()
    dedupe_metrics: bool = False
    dry_run: bool = False
    target_bytes: ClassVar[int] = 128 * 1024 * 1024
    """Target size of data files; one of less than half of it is rewritten. Larger files save no
    request of a query that matters, and cost more to rewrite."""
    dedupe_window_s: ClassVar[int] = 24 * 3600
    """Time after the first record was accepted within which a repetition is recognised: senders
    repeat within minutes, and each merge compares the records of one more day."""
    grace_s: ClassVar[int] = 3600
    """Time after the end of a date before its partition is rewritten: late batches of the date come
    in it, and `open_partitions` does not wait for it."""

    def __post_init__(self) -> None:
        if not all(self.dedupe):
            raise BadUsage("cannot run compaction: no name in dedupe may be empty")
