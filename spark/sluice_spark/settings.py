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
    max_bytes_per_trigger: int = 512 * 1024 * 1024
    max_batches_per_trigger: int = 20_000
    checkpoint: str | None = None
    master: str = "local[2]"
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
