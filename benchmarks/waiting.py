"""Benchmark `waiting`: a query over many small pending batches, in processor time.

The control reads and decodes each blob alone (ADR 36): one read, one strict decoding and
one Arrow array per column for each batch. Both run interleaved over the same store.
"""

import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from benchmarks.manifests import log_manifest
from benchmarks.measure import interleave, ratio, report, timed
from sluice_lake.blobs import fetch_frame
from sluice_lake.records import DecodedBatch, records_table
from sluice_protocol.authority import Authority
from sluice_protocol.frame import Frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.records import LogRecord, logs_from_records
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_query import search
from sluice_query.pending import FetchedBatches
from sluice_query.request import Query
from sluice_query.result import QuerySummary
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_queue.producer import Producer
from sluice_queue.worklists import by_lane
from sluice_store import StoreMode, create_authority, open_store
from sluice_store.port import ObjectStore

BATCHES = int(os.environ.get("SLUICE_BENCH_WAITING", "10000"))
LINES = 10
PER_LIST = 200
LANES = 4
ROUNDS = 3
RATIO_MOST = 0.33
START_NS = 1_790_000_000 * NS_PER_S
SUBJECT, CONTROL = "decoded together", "decoded alone (control)"
EVERYTHING = Query(from_ns=UnixNs(0), to_ns=UnixNs(2**62), stats_only=True)
SETTINGS = QuerySettings(threads=2, time_s_max=600)


def _batch(number: int) -> tuple[AcceptedManifest, bytes]:
    start = number // 100 * LINES
    who = Identity(
        agent_id=f"host-{number % 100}", boot_id="b", seq_start=start, seq_end=start + LINES - 1
    )
    at_ns = START_NS + number * NS_PER_S
    lines = [
        LogRecord(ts_ns=at_ns + n, body=f"request {number} {n}", attributes={"path": "/var/log/x"})
        for n in range(LINES)
    ]
    resource = (("service.name", "web"),)
    frame = encode_frame(identity=who, columns=logs_from_records(lines), resource=resource)
    manifest = log_manifest(who, frame, at_ns, (at_ns, at_ns + LINES - 1))
    return manifest, frame


async def _prepare(url: str) -> None:
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store, Authority(authority_id="A" * 26, lanes=LANES))
        made = [_batch(number) for number in range(BATCHES)]
        for manifest, frame in made:
            await store.create(ObjectKey(manifest.raw_blob_key), frame)
            await store.create(accepted_key(manifest.identity), encode_record(manifest))
        for lane, found in by_lane([manifest for manifest, _ in made], LANES).items():
            async with Producer.open(store, queue="spark", lane=lane) as producer:
                for first in range(0, len(found), PER_LIST):
                    handle = await producer.produce(found[first : first + PER_LIST])
                    await handle.result()


async def _fetch_alone(
    stores: Sequence[ObjectStore], manifests: Sequence[AcceptedManifest], settings: QuerySettings
) -> FetchedBatches:
    limit = asyncio.Semaphore(settings.fetches)

    async def fetch(one: AcceptedManifest) -> DecodedBatch:
        async with limit:
            frame = await fetch_frame(stores, one)
        assert isinstance(frame, Frame)  # noqa: S101 - the store contains every blob
        return DecodedBatch(frame=frame, accepted_at_ns=one.accepted_at_unix_ns, sequence=0)

    batches = await asyncio.gather(*map(fetch, manifests))
    table = records_table("logs", batches, plain=True)
    return FetchedBatches(tables=(table,), batches=len(batches))


@contextmanager
def _alone() -> Iterator[None]:
    with patch.object(search, "fetch_batches", _fetch_alone):
        yield


def _query(url: str) -> float:
    async def ask() -> QuerySummary:
        async with open_store(url) as store:
            searcher = Searcher(
                store=store,
                store_url=url,
                settings=SETTINGS,
                clock=SystemClock(),
                lists_accepted=False,
            )
            return (await searcher.search(EVERYTHING)).summary

    summary = asyncio.run(ask())
    assert summary.results == BATCHES * LINES, summary  # noqa: S101 - both must answer alike
    return BATCHES


def _query_alone(url: str) -> float:
    with _alone():
        return _query(url)


def main() -> int:
    """Run the benchmark; return 1 if a query needs more than a third of the control's time."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-waiting-") as folder:
        url = f"file://{folder}/store"
        asyncio.run(_prepare(url))
        samples = interleave(
            {
                SUBJECT: lambda: timed(lambda: _query(url)),
                CONTROL: lambda: timed(lambda: _query_alone(url)),
            },
            rounds=ROUNDS,
        )
    least, median, most = ratio(samples[SUBJECT], samples[CONTROL], lambda one: one.cpu_s)
    cpu_s = {name: statistics.median(one.cpu_s for one in taken) for name, taken in samples.items()}
    lines = [
        f"{BATCHES} pending batches of {LINES} records",
        *(f"{name}: {spent:.2f} s CPU" for name, spent in cpu_s.items()),
        f"ratio {median:.2f} ({least:.2f} to {most:.2f}), at most {RATIO_MOST}",
    ]
    report("waiting", lines, samples)
    return 1 if median > RATIO_MOST else 0


if __name__ == "__main__":
    sys.exit(main())
