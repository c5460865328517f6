"""Settings of the reconciler."""

from dataclasses import dataclass, field, fields, replace
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.settings_checks import check_number, is_base_url
from sluice_store.url import is_local

TAIL_S: Final = 0.2
"""Interval of tail scans on a directory, where a listing is free, seconds."""

FRESHNESS_S_MAX: Final = 30.0
"""Live records report `partial` if the reconciler has not looked for new batches for a minute."""

CONCURRENCY: Final = 32
CONCURRENCY_LOCAL: Final = 4
"""Threads that write to one directory block each other; measured in `docs/reconciler.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerOptions:
    """What an operator sets of the reconciler.

    Attributes:
        queues: Queues that every accepted batch is appended to, names separated by commas.
        listen: Address of the operator API, host:port; port 0 selects a free port.
        allowed_hosts: Names under which clients reach the service, without ports, separated by
            commas. The address of the connection is always allowed.
        freshness_s: How long a batch may be named by a journal before it is enqueued, about,
            seconds, at most 30. The reconciler then reads and processes journals, and lists gateway
            processes, once in this time, with requests whose number does not depend on that of the
            batches. 0 means four times a second.
        advertise_url: URL of the operator API as other processes reach it; empty for the address
            that the service listens on.
        pack_references: Whether the packed entry of a raw blob is also its reverse reference, so
            that none is written for it alone (ADR 27).
        http_queues: Queues served over HTTP, names separated by commas; every accepted batch is
            appended to them too.
        door_window_s: How long a request in a combined batch is remembered after its acceptance,
            seconds. Repetitions within this time are left out.
        lease_s: Duration of a lease on an entry claimed over HTTP, seconds.
        api_token: The token that clients send as `Authorization: Bearer …`. Without it the service
            listens on a loopback address only. Set it in a file or in the environment: other users
            of the machine can read a command line.
        event_queue_url: SQS queue with object events of the bucket; empty for none. The endpoint of
            another server than AWS is that of `AWS_ENDPOINT_URL_SQS`.
        sns_topics: ARNs of the SNS topics whose messages `POST /hooks/sns` accepts, separated by
            commas; empty turns the webhook off.
        live_bytes_max: Memory for recent records in `/v1/live`, bytes. 0 keeps none; otherwise each
            newly accepted blob is read a second time and decoded.
    """

    queues: str = "spark"
    listen: str = "127.0.0.1:8081"
    allowed_hosts: str = ""
    freshness_s: float = 0.0
    advertise_url: str = ""
    pack_references: bool = False
    http_queues: str = ""
    door_window_s: float = 3600.0
    lease_s: float = 60.0
    api_token: str = field(default="", repr=False)
    event_queue_url: str = ""
    sns_topics: str = ""
    live_bytes_max: int = 0

    def __post_init__(self) -> None:
        check_number("lease_s", self.lease_s, 0.01)
        for name in ("live_bytes_max", "door_window_s"):
            check_number(name, getattr(self, name), 0)
        check_number("freshness_s", self.freshness_s, 0, FRESHNESS_S_MAX)
        if self.advertise_url and not is_base_url(self.advertise_url):
            raise BadUsage(
                "advertise_url must be a URL such as http://reconciler-1:8081,"
                f" advertise_url=`{self.advertise_url}`"
            )
        if not self.queue_names:
            raise BadUsage("queues names no queue: name at least one, such as `spark`")

    def on(self, url: str) -> "ReconcilerSettings":
        """Return all settings, with the values that depend on the kind of store."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        settings = ReconcilerSettings(**given)
        local = is_local(url)
        tail_s, requests = (TAIL_S, CONCURRENCY_LOCAL) if local else (0.0, CONCURRENCY)
        return replace(
            settings,
            tail_interval_s=tail_s
            if settings.tail_interval_s is None
            else settings.tail_interval_s,
            concurrency=requests if settings.concurrency is None else settings.concurrency,
        )

    @property
    def http_queue_names(self) -> tuple[str, ...]:
        """The names in `http_queues`."""
        return _names(self.http_queues)

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Every queue that batches are appended to."""
        return tuple(dict.fromkeys((*_names(self.queues), *self.http_queue_names)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerSettings(ReconcilerOptions):
    """How the reconciler works: the options, and constants with their reasons.

    Attributes:
        pass_interval_s: Time from the end of one full pass to the start of the next while not every
            gateway writes a journal. A pass then finds every batch, so it is repeated without a
            break; the pause lasts at least four times as long as the pass.
        journaled_pass_interval_s: Longest time between the beginnings of two full passes while
            journals name every batch: a pass is the safety net then. It begins 60 s after the one
            before, or 10 s for each 1 000 manifests if that is later. A gateway that is late causes
            an additional pass.
        pass_pages_per_s: LIST requests per second of a full pass while journals name every batch; 0
            for no limit. It is the safety net and must not disturb gateways. A pass for a gateway
            that died is not limited.
        journal_interval_s: Time between two listings of the registered gateway processes, seconds:
            a new process is found before its first journal object is a second old.
        journal_poll_s: Time between two reads of the next journal object of each open process: a
            gateway writes one a second, so this adds an eighth of a second on average.
        hold_interval_s: Time between two checks of held batches, and of quarantined uploads without
            a reference. Held batches are rare, and an operator acts on them in minutes.
        share_lanes: Whether reconcilers divide the lanes among themselves. Members that do not
            see each other work as without it: a lane is taken over when a batch of it was left.
        takeover_after_s: How long another reconciler may leave a batch before this one takes its
            lane over, if lanes are not shared: longer than its writes take.
        shards: Spans of agents that a full pass lists concurrently. Each costs one more LIST.
        concurrency: Store requests in flight. None means 4 on a directory, where more requests
            only block each other, and 32 on S3.
        list_batches_max: Batches that are processed together, and so in one work list. More save
            no writes per batch that matter; fewer reduce the latency of the first of them.
        tail_interval_s: Time between two scans behind the last key of each active boot; 0 turns
            them off. None means 0.2 on a directory and 0 on S3, where events cost less.
        scan_interval_s: Time between two scans of the by-time index, while full passes decide.
        collect_interval_s: Time between two runs of the collector. A run without work costs one
            read for each lane.
        collect_grace_s: Time from an acknowledgement to the deletion of its work list: readers
            that began before still find it.
        event_queue_polls: Long polls of the event queue that wait concurrently. One poll receives
            at most ten messages.
        live_agent_bytes_max: Memory for the recent records of one agent: a busy one must not
            displace all others.
    """

    pass_interval_s: float = 1.0
    journaled_pass_interval_s: float = 86_400.0
    pass_pages_per_s: float = 50.0
    journal_interval_s: float = 1.0
    journal_poll_s: float = 0.25
    hold_interval_s: float = 60.0
    share_lanes: bool = True
    takeover_after_s: float = 10.0
    shards: int = 1
    concurrency: int | None = None
    list_batches_max: int = 512
    tail_interval_s: float | None = None
    scan_interval_s: float = 5.0
    collect_interval_s: float = 60.0
    collect_grace_s: float = 3600.0
    event_queue_polls: int = 4
    live_agent_bytes_max: int = 1024 * 1024

    @property
    def read_interval_s(self) -> float:
        """Time between two passes over the journals of open processes, seconds."""
        return max(self.journal_poll_s, self.freshness_s)

    @property
    def listing_interval_s(self) -> float:
        """Time between two listings of the registered gateway processes, seconds."""
        return max(self.journal_interval_s, self.freshness_s)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
