"""Settings of the pipeline's jobs."""

from dataclasses import dataclass

from sluice_protocol.errors import BadUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """How batches are carried into the lake.

    Attributes:
        once: Whether to end when everything that waited at the start is in the lake.
        trigger_s: Seconds between micro-batches when it runs on.
        max_bytes_per_trigger: Frame bytes that one micro-batch takes.
        max_batches_per_trigger: Accepted batches that one micro-batch takes.
        checkpoint: Folder of the streaming checkpoint; by default beside a local store, and in the
            cache folder for any other.
        master: Spark's master; what `spark-submit` says wins.
        driver_memory: Heap of the driver's JVM.
    """

    once: bool = False
    trigger_s: float = 10.0
    max_bytes_per_trigger: int = 1024 * 1024 * 1024
    max_batches_per_trigger: int = 20_000
    checkpoint: str | None = None
    master: str = "local[2,4]"
    driver_memory: str = "1g"

    def __post_init__(self) -> None:
        """Refuses what would never run."""
        if self.trigger_s < 0 or self.max_bytes_per_trigger < 1 or self.max_batches_per_trigger < 1:
            raise BadUsage(
                "trigger_s is at least 0, the limits of a trigger at least 1,"
                f" trigger_s=`{self.trigger_s}`,"
                f" max_bytes_per_trigger=`{self.max_bytes_per_trigger}`,"
                f" max_batches_per_trigger=`{self.max_batches_per_trigger}`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings:
    """How the lake is maintained.

    Attributes:
        target_bytes: Size that data files should have; smaller than half of it is small.
        grace_s: Seconds after the end of a date until its partition counts as closed.
        open_partitions: Whether to rewrite partitions that may still receive batches, too.
        vacuum_hours: Hours beyond the retry horizon that old files are kept for readers; negative
            keeps them for ever.
        dry_run: Whether to change nothing.
        master: Spark's master; what `spark-submit` says wins.
        driver_memory: Heap of the driver's JVM.
    """

    target_bytes: int = 128 * 1024 * 1024
    grace_s: int = 3600
    open_partitions: bool = False
    vacuum_hours: int = 24
    dry_run: bool = False
    master: str = "local[2,4]"
    driver_memory: str = "1g"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How a job that has nothing else to choose runs.

    Attributes:
        master: Spark's master; what `spark-submit` says wins.
        driver_memory: Heap of the driver's JVM.
    """

    master: str = "local[2,4]"
    driver_memory: str = "1g"
