"""Settings of queries and of the query service, and the defaults of a query's parameters."""

import os
from dataclasses import dataclass, field
from typing import ClassVar, Final

from sluice_protocol.settings_checks import check_number

FROM_DEFAULT: Final = "1h"
LIMIT_DEFAULT: Final = 1_000
STEP_DEFAULT: Final = "1m"
VALUES_DEFAULT: Final = 10
_FRAMES_MIN: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """Bounds of one query.

    Attributes:
        memory_bytes_max: Memory of the query engine, bytes; more data is spilled to disk.
        threads: Threads of the query engine.
        time_s_max: Longest time for one query, seconds.
        tail_bytes_max: Most bytes of pending batches' blobs to read, the newest batches first; what
            is left out makes the result partial. The most batches and work lists follow from it:
            10 000 batches, and 2 000 lists of each lane, for each 256 MiB.
    """

    memory_bytes_max: int = 1 << 30
    threads: int = os.cpu_count() or 1
    time_s_max: float = 60.0
    tail_bytes_max: int = 256 << 20
    accepted_list_max: ClassVar[int] = 5_000
    """Accepted manifests that a query lists, five requests of a bucket, to find batches that are
    not enqueued yet where gateways write no journals; in a larger store it relies on the
    reconciler's last full pass."""
    transferred_s: ClassVar[float] = 3600.0
    """How long after its transfer a batch is read from the spool: the reconciler enqueues it in
    this time."""
    max_staleness_s: ClassVar[float] = 10.0
    """How far a range may reach beyond the time through which an answer is complete: gateways
    report every 5 s."""
    sample_records_max: ClassVar[int] = 1_000_000
    """Matching records after which fields and values are no longer counted, newest files first."""
    fetches: ClassVar[int] = 8
    """Pending batches that are read concurrently: more share one core for decoding."""

    def __post_init__(self) -> None:
        for name in ("memory_bytes_max", "threads"):
            check_number(name, getattr(self, name), 1)
        check_number("time_s_max", self.time_s_max, 0, above=True)
        check_number("tail_bytes_max", self.tail_bytes_max, 0)

    @property
    def tail_frames_max(self) -> int:
        """Return the most pending batches to read, the newest of them: a GET for each."""
        return max(_FRAMES_MIN, self.tail_bytes_max * _FRAMES_MIN // (256 << 20))

    @property
    def tail_lists_max(self) -> int:
        """Return the most work lists to read of each lane, the newest of them."""
        return self.tail_frames_max // 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Where queries are served, and to which callers.

    Attributes:
        listen: Address and port, HOST:PORT; port 0 selects a free port.
        allowed_hosts: Names under which clients reach the service, without ports, separated by
            commas. The address of the connection is always allowed.
        api_token: The token that clients send as `Authorization: Bearer …`. Without it the service
            listens on a loopback address only. Set it in a file or in the environment: other users
            of the machine can read a command line.
        operators: Who may also delete records, as `name=<sha256 of the token>`, separated by
            commas. Empty refuses every delete. The name is recorded in the delete.
        reconciler: A reconciler with live records, `http://host:port`, from which a live tail
            reads; empty polls the store.
        reconciler_token: Its `api_token`; safer in the environment than on a command line.
        download_s_max: Longest time for one download, seconds.
    """

    listen: str = "127.0.0.1:8383"
    allowed_hosts: str = ""
    api_token: str = field(default="", repr=False)
    operators: str = ""
    reconciler: str = ""
    reconciler_token: str = field(default="", repr=False)
    download_s_max: float = 600.0
    tail_s_max: ClassVar[float] = 3600.0
    """Time after which the service ends a live tail, so that it forgets clients that disappeared
    silently; others resume.
    """

    def __post_init__(self) -> None:
        check_number("download_s_max", self.download_s_max, 0, above=True)
