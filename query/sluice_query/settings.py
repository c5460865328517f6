"""How much a query may use."""

import os
from dataclasses import dataclass, field
from typing import Final

MEMORY_BYTES_MIN: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """Bounds of one query.

    Attributes:
        memory_bytes_max: Memory of the query engine, bytes; what is more spills to disk.
        threads: Threads of the query engine.
        time_s_max: Longest a query may take, seconds.
        tail_bytes_max: Most bytes of frames to read that are not in the lake yet; what is left
            out makes the answer partial.
        tail_frames_max: Most of such frames to read.
        tail_lists_max: Most work lists of each lane to read, the newest of them.
        landed_s: How long after its landing a batch is still looked for in the spool, seconds;
            it must be longer than landed batches wait to be enqueued.
        fetches: How many of them are read at once.
    """

    memory_bytes_max: int = 1 << 30
    threads: int = os.cpu_count() or 1
    time_s_max: float = 60.0
    tail_bytes_max: int = 256 << 20
    tail_frames_max: int = 10_000
    tail_lists_max: int = 2_000
    landed_s: float = 3600.0
    fetches: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Where queries are served, and to whom.

    Attributes:
        listen: Address and port, HOST:PORT; port 0 takes a free one.
        api_token: What callers must send as `Authorization: Bearer …`; without it the service
            listens on a loopback address only. Better in a file or in the environment than in a
            command line, which others can see.
    """

    listen: str = "127.0.0.1:8383"
    api_token: str = field(default="", repr=False)
