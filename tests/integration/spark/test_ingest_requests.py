"""The requests of a micro-batch to queue and tables, compared with the cost model."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest
from aiohttp import web
from support.memory_bucket import MemoryBucket
from support.memory_bucket.bucket import S3Reply
from support.memory_bucket.faults import Call
from support.memory_bucket.server import MemoryServer, serve_memory
from support.reconciler_seed import accept_logs
from support.spark_local import ingester, pending_rows

from sluice_cli.cost import (
    COMMIT_GETS,
    LEDGER_FILE_GETS,
    TABLE_GETS,
    TABLE_LISTS,
    TABLES,
)
from sluice_protocol.system_clock import SystemClock
from sluice_reconciler.service import Reconciler
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_spark.ingest.microbatch import open_snapshot
from sluice_store import StoreMode, create_authority, open_store

ROUNDS = 4
AGENTS = 4
CHECKPOINT_SHARE = 2.0
"""The part of `TABLE_GETS` that a checkpoint every 50 commits needs; these rounds write none."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryServer]:
    """Serve a bucket that notes listings too, and accepts the bodies of the Parquet writer."""
    monkeypatch.setattr(MemoryServer, "_bucket_request", _noting_listings)
    monkeypatch.setattr(MemoryBucket, "put", _decoding_chunks)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    found: list[MemoryServer] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serve_memory({"key": "secret"}) as running:
            running.make_bucket("b")
            found.append(running)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    yield found[0]
    stop.set()
    thread.join()


_bucket_request, _put = MemoryServer._bucket_request, MemoryBucket.put


def _noting_listings(
    self: MemoryServer, request: web.Request, name: str, body: bytes
) -> web.Response:
    prefix = request.rel_url.query.get("prefix", "")
    self.seen.append(Call(number=len(self.seen), method="LIST", key=prefix, conditional=False))
    return _bucket_request(self, request, name, body)


def _decoding_chunks(
    self: MemoryBucket, key: str, body: bytes, headers: Mapping[str, str]
) -> S3Reply:
    if "STREAMING" not in headers.get("x-amz-content-sha256", ""):
        return _put(self, key, body, headers)
    found, rest = b"", body
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if not length:
            break
        found, rest = found + rest[:length], rest[length + 2 :]
    kept = {k: v for k, v in headers.items() if not k.startswith("x-amz-c")}
    return _put(self, key, found, kept)


async def accept(url: str, number: int, at_ns: int) -> None:
    """Accept and enqueue one batch of each agent.

    All rounds have one accepted time, because a round reads only the ledger files of one hour.
    """
    async with open_store(url, StoreMode.CREATE) as store:
        if not number:
            await create_authority(store)
        for agent in range(AGENTS):
            await accept_logs(store, [f"{number}"], seq=number, at_ns=at_ns, agent=f"host-{agent}")
        await (await Reconciler.of(store)).once()


@pytest.mark.long
def test_requests_of_micro_batches(server: MemoryServer) -> None:
    url = f"s3://b/p?endpoint={server.endpoint}&region=us-east-1"
    at_ns = SystemClock().now_ns()
    asyncio.run(accept(url, 0, at_ns))
    rounds: list[Counter[tuple[str, str]]] = []
    lanes: set[int] = set()
    with FencedConsumers(url, "spark") as consumers:
        consumers.open(open_snapshot(url).committed_through)
        job = ingester(url, consumers)
        for number in range(1, ROUNDS + 1):
            asyncio.run(accept(url, number, at_ns))
            rows = pending_rows(url)
            lanes = {row.lane for row in rows}
            before = len(server.seen)
            job.ingest(rows)
            seen = server.seen[before:]
            rounds.append(Counter((call.method, call.key.split("/")[1]) for call in seen))
    for commits, counted in enumerate(rounds[1:], start=2):
        assert counted["LIST", "lake"] == TABLES * TABLE_LISTS
        assert counted["PUT", "lake"] == TABLES + len(lanes) + 1
        tables = TABLES * (TABLE_GETS - CHECKPOINT_SHARE + COMMIT_GETS * commits)
        ledger_files = LEDGER_FILE_GETS * (commits - 1)
        assert counted["GET", "lake"] + counted["HEAD", "lake"] == tables + ledger_files
        assert counted["PUT", "queue"] == len(lanes)
        assert counted["GET", "raw-blobs"] == AGENTS
