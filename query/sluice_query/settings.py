"""Settings of queries and of the query service."""

import os
from dataclasses import dataclass, field

from sluice_protocol.settings_checks import check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """Bounds of one query.

    Attributes:
        memory_bytes_max: Memory of the query engine, bytes; more data is spilled to disk.
        threads: Threads of the query engine.
        time_s_max: Longest time for one query, seconds.
        tail_bytes_max: Most bytes of pending batches' blobs to read, the newest batches first; what
            is left out makes the result partial.
        tail_frames_max: Most pending batches to read, the newest of them.
        tail_lists_max: Most work lists to read of each lane, the newest of them.
        landed_s: How long after its transfer a spooled batch is still searched in the spool,
            seconds; it must exceed the time until a transferred batch is enqueued.
        accepted_list_max: Most accepted manifests that a query lists to find batches that are not
            enqueued yet; in a larger store it relies on the reconciler's last full pass. 0 never
            lists them.
        max_staleness_s: How far the time range may reach beyond the time through which an answer
            is known to be complete, seconds. Gateways report at least every 5 s.
        sample_records_max: Matching records after which the fields and values of records are no
            longer counted, the newest files first.
        fetches: Pending batches that are read concurrently.
    """

    memory_bytes_max: int = 1 << 30
    threads: int = os.cpu_count() or 1
    time_s_max: float = 60.0
    tail_bytes_max: int = 256 << 20
    tail_frames_max: int = 10_000
    tail_lists_max: int = 2_000
    landed_s: float = 3600.0
    accepted_list_max: int = 5_000
    max_staleness_s: float = 10.0
    sample_records_max: int = 1_000_000
    fetches: int = 8

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BadUsage: A number is out of range.
        """
        for name in ("memory_bytes_max", "threads", "fetches"):
            check_number(name, getattr(self, name), 1)
        check_number("time_s_max", self.time_s_max, 0, above=True)
        for name in (
            *("tail_bytes_max", "tail_frames_max", "tail_lists_max", "landed_s"),
            *("accepted_list_max", "max_staleness_s", "sample_records_max"),
        ):
            check_number(name, getattr(self, name), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Where queries are served, and to which callers.

    Attributes:
        listen: Address and port, HOST:PORT; port 0 selects a free port.
        allowed_hosts: Names under which clients reach the service, without ports, separated by
            commas. The address of the connection is always allowed.
        api_token: The token that callers send as `Authorization: Bearer …`. Without it the service
            listens on a loopback address only. Set it in a file or in the environment: other users
            of the machine can read a command line.
        operators: Who may also delete records, as `name=<sha256 of the token>`, separated by
            commas. Empty refuses every delete. The name is recorded in the delete.
        reconciler: A reconciler with live records, `http://host:port`, from which a live tail
            reads; empty polls the store.
        reconciler_token: Its `api_token`; safer in the environment than on a command line.
        tail_s_max: Time after which the service ends a live tail, seconds; clients resume it.
        download_s_max: Longest time for one download, seconds.
    """

    listen: str = "127.0.0.1:8383"
    allowed_hosts: str = ""
    api_token: str = field(default="", repr=False)
    operators: str = ""
    reconciler: str = ""
    reconciler_token: str = field(default="", repr=False)
    tail_s_max: float = 3600.0
    download_s_max: float = 600.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BadUsage: A number is out of range.
        """
        check_number("tail_s_max", self.tail_s_max, 0, above=True)
        check_number("download_s_max", self.download_s_max, 0, above=True)
