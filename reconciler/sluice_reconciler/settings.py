"""Settings of the reconciler."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerSettings:
    """How the reconciler works.

    Attributes:
        queues: Queues that every accepted batch is appended to, names with commas between.
        listen: Where the operator API listens, host:port; port 0 takes a free one.
        pass_interval_s: Time from the end of one full pass to the start of the next, seconds.
        takeover_after_s: How long another reconciler may leave a batch before this one takes its
            lane over, seconds.
        concurrency: Store requests in flight, count.
        list_batches_max: Most batches in one work list, count.
        full_read_share: Share of blobs read in full although the store holds their checksum,
            0 to 1.
    """

    queues: str = "spark"
    listen: str = "127.0.0.1:8081"
    pass_interval_s: float = 2.0
    takeover_after_s: float = 10.0
    concurrency: int = 32
    list_batches_max: int = 2048
    full_read_share: float = 0.0

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The names in `queues`."""
        return tuple(name.strip() for name in self.queues.split(",") if name.strip())
