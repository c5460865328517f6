"""Settings of the reconciler."""

from dataclasses import dataclass, field, replace
from typing import Final

from sluice_protocol.errors import BadUsage

TAIL_S: Final = 0.2
"""Between two tail scans of a directory, where a listing is free, seconds."""

CONCURRENCY: Final = 32
CONCURRENCY_LOCAL: Final = 4
"""Threads of one process that write a directory take turns; measured in `docs/reconciler.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerSettings:
    """How the reconciler works.

    Attributes:
        queues: Queues that every accepted batch is appended to, names with commas between.
        listen: Where the operator API listens, host:port; port 0 takes a free one.
        pass_interval_s: Time from the end of one full pass to the start of the next, seconds; at
            least four times as long as the pass took.
        takeover_after_s: How long another reconciler may leave a batch before this one takes its
            lane over, seconds.
        shards: Spans of agents that a full pass walks at once, count; more are quicker where a LIST
            takes long, and cost one more LIST each.
        concurrency: Store requests in flight, count. None means 4 on a directory, where more only
            wait for each other, and 32 on S3.
        list_batches_max: Most batches that are taken at once, and so in one work list, count; more
            save writes, fewer shorten the way of the first of them.
        pack_by_time: Whether the by-time entries of what is taken at once go into one object per
            hour; one PUT a batch instead of three (ADR 0047). None means on a directory.
        tail_interval_s: Time between two looks behind the last key of each active life, seconds; 0
            for never. None means 0.2 on a directory and never on S3, where events cost less.
        scan_interval_s: Time between two scans of the by-time index, seconds.
        collect_interval_s: Time between two runs of the collector, seconds.
        collect_grace_s: Time between an acknowledgement and the delete of its work list, seconds.
        http_queues: Queues served over HTTP, names with commas between; each is fed like `queues`.
        lease_s: How long an entry handed out over HTTP is held, seconds.
        api_token: What callers of `/v1/` must send as `Authorization: Bearer …`; without it the
            service listens on a loopback address only.
        event_queue_url: SQS queue with object events of the bucket; empty for none.
        event_queue_endpoint: Server of that queue; AWS's own when empty.
        live_bytes_max: Bytes of recent records kept for `/v1/live`; above 0 each newly accepted
            blob is read once more and decoded. 0 keeps none.
        live_agent_bytes_max: Most of them of one agent, bytes.
        full_read_share: Share of blobs read in full although the store holds their checksum,
            0 to 1.
    """

    queues: str = "spark"
    listen: str = "127.0.0.1:8081"
    pass_interval_s: float = 1.0
    takeover_after_s: float = 10.0
    shards: int = 1
    concurrency: int | None = None
    list_batches_max: int = 512
    pack_by_time: bool | None = None
    tail_interval_s: float | None = None
    scan_interval_s: float = 5.0
    collect_interval_s: float = 60.0
    collect_grace_s: float = 3600.0
    http_queues: str = ""
    lease_s: float = 60.0
    api_token: str = field(default="", repr=False)
    event_queue_url: str = ""
    event_queue_endpoint: str = ""
    live_bytes_max: int = 0
    live_agent_bytes_max: int = 1024 * 1024
    full_read_share: float = 0.0

    def __post_init__(self) -> None:
        """Refuses what could not work.

        Raises:
            BadUsage: A number is out of range, or there is no queue.
        """
        counts = ("shards", "concurrency", "list_batches_max")
        seconds = ("pass_interval_s", "scan_interval_s", "collect_interval_s", "lease_s")
        rest = ("takeover_after_s", "tail_interval_s", "collect_grace_s", "live_bytes_max")
        for name, low in [(one, 1) for one in counts] + [(one, 0.01) for one in seconds]:
            _check(name, getattr(self, name), low)
        for name in (*rest, "live_agent_bytes_max"):
            _check(name, getattr(self, name), 0)
        _check("full_read_share", self.full_read_share, 0, 1)
        if not self.queue_names:
            raise BadUsage("queues names no queue: give at least one, as `spark`")

    def on(self, url: str) -> "ReconcilerSettings":
        """Gives the settings with what hangs on the kind of store filled in."""
        local = url.startswith("file:")
        tail_s, requests = (TAIL_S, CONCURRENCY_LOCAL) if local else (0.0, CONCURRENCY)
        return replace(
            self,
            tail_interval_s=tail_s if self.tail_interval_s is None else self.tail_interval_s,
            concurrency=requests if self.concurrency is None else self.concurrency,
            pack_by_time=local if self.pack_by_time is None else self.pack_by_time,
        )

    @property
    def http_queue_names(self) -> tuple[str, ...]:
        """The names in `http_queues`."""
        return _names(self.http_queues)

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Every queue that batches are appended to."""
        return tuple(dict.fromkeys((*_names(self.queues), *self.http_queue_names)))


def _check(name: str, value: float | None, low: float, high: float = float("inf")) -> None:
    if value is not None and not low <= value <= high:
        most = "" if high == float("inf") else f" and at most {high}"
        raise BadUsage(f"{name} must be at least {low}{most}, {name}=`{value}`")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
