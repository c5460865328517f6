"""Processes of the benchmark `end_to_end`: clients, a reconciler, a consumer and a reader.

Each prints one line when it is ready, works, and writes its figures to a file. All times are of the
clock of this machine, so they need no clock of the store, which S3 reports in whole seconds.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import structlog
import uvloop

from benchmarks.accept_load import (
    NotAccepted,
    Send,
    UploadBatch,
    send_until_accepted,
    uploading,
)
from benchmarks.reconcile_world import LANES, Counting
from sluice_protocol.identity import Identity
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.request import Query
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_queue.consumer import Consumer
from sluice_queue.register import Descriptor
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import open_store
from sluice_store.port import ObjectStore

AGENTS_EACH: Final = 25
"""Agents of one client process."""
IN_FLIGHT_MAX: Final = 400
"""Uploads in flight of one client process; beyond it the client is late."""
FRAME_BYTES: Final = 2048
POLL_S: Final = 0.1
"""Time between two reads of the registers by the consumer; a part of each measured lag."""
ACKNOWLEDGE_S: Final = 15.0
"""Age at which the consumer acknowledges an entry, in place of the ingest job."""
PROBE: Final = "probe"
PROBES_PER_S: Final = 5
QUERY_PAUSE_S: Final = 0.25
RANGE_S: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCost:
    """What a process spent.

    Attributes:
        late: Uploads that were sent more than 0.1 s late.
        repeated: Tries that were not accepted, by their reason; the batch was sent again.
    """

    cpu_s: float
    requests: dict[str, int]
    failed: int = 0
    late: int = 0
    repeated: dict[str, int] = field(default_factory=dict)


def agent_of(client: int, number: int) -> str:
    """Return the agent of an upload of a client."""
    return f"load-{client}-{number % AGENTS_EACH}"


def agents_of(clients: int) -> list[str]:
    """Return every agent that uploads."""
    return [agent_of(one, n) for one in range(clients) for n in range(AGENTS_EACH)] + [PROBE]


def _wait_for_line() -> None:
    sys.stdin.readline()


async def client(out: Path, port: int, number: int, rate: float, seconds: float) -> RoleCost:
    """Upload at a rate, whatever the latency; store when each upload was accepted."""
    count = int(rate * seconds)
    accepted = np.full(count, np.nan)
    failed = late = 0
    met: Counter[str] = Counter()
    gate = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def upload(send: Send, one: int, due_s: float) -> None:
        nonlocal failed, late
        async with gate:
            seq = one // AGENTS_EACH
            who = Identity(agent_id=agent_of(number, one), boot_id="b", seq_start=seq, seq_end=seq)
            batch = UploadBatch(FRAME_BYTES, port, who, time.time_ns())
            late += time.perf_counter() - due_s > 0.1
            try:
                await send_until_accepted(send, batch, met)
                accepted[one] = time.time()
            except NotAccepted:
                failed += 1

    print("ready", flush=True)
    await asyncio.to_thread(_wait_for_line)
    spent = time.process_time()
    async with uploading(port, duplicate=None) as send, asyncio.TaskGroup() as tasks:
        started_s, sent = time.perf_counter(), 0
        while sent < count:
            due = min(count, int((time.perf_counter() - started_s) * rate))
            for one in range(sent, due):
                tasks.create_task(upload(send, one, started_s + one / rate))
            sent = due
            await asyncio.sleep(0.01)
    np.save(out / f"accepted-{number}.npy", accepted)
    return RoleCost(
        cpu_s=time.process_time() - spent,
        requests={},
        failed=int(failed),
        late=int(late),
        repeated=dict(met),
    )


async def reconcile(url: str, flags: str) -> RoleCost:
    """Run a reconciler with the default settings of the store, or those in a JSON object."""
    settings = replace(ReconcilerSettings(), **json.loads(flags)).on(url)
    async with open_store(url) as store:
        counting = Counting(store)
        subject = await Reconciler.of(counting, settings=settings)
        running = asyncio.create_task(subject.run())
        while not subject.health.journal_passes:  # noqa: ASYNC110 - its state has no event
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        await asyncio.to_thread(_wait_for_line)  # the load begins
        before, spent = Counter(counting.counts), time.process_time()
        await asyncio.to_thread(_wait_for_line)  # it has ended
        requests = dict(Counter(counting.counts) - before)
        found = RoleCost(cpu_s=time.process_time() - spent, requests=requests)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return found


class QueueWatcher:
    """Reads new entries of one lane, stores when each was seen, and acknowledges old ones."""

    def __init__(self, store: ObjectStore, consumer: Consumer, seen: dict[str, float]) -> None:
        self._store = store
        self._consumer = consumer
        self._seen = seen
        self._entries: list[tuple[float, Descriptor]] = []

    async def poll(self) -> None:
        """Read what is new."""
        fetch = self._consumer.fetch_handle().fetch
        for entry in await self._consumer.next_descriptors(1000):
            now_s = time.time()
            self._entries.append((now_s, entry))
            for one in (await fetch(entry)).batches:
                self._seen[f"{one.agent_id} {one.seq_start}"] = now_s
        old = [entry for at_s, entry in self._entries if at_s < time.time() - ACKNOWLEDGE_S]
        if old:
            await self._consumer.ack_through(old[-1].sequence)
            del self._entries[: len(old)]


async def consume(url: str, out: Path) -> RoleCost:
    """Watch every lane until a line is read; store when each batch was first in the queue."""
    seen: dict[str, float] = {}
    async with open_store(url) as store:
        lanes = [
            QueueWatcher(store, await Consumer.open(store, queue="spark", lane=lane), seen)
            for lane in range(LANES)
        ]
        print("ready", flush=True)
        ending = asyncio.create_task(asyncio.to_thread(_wait_for_line))
        spent = time.process_time()
        while not ending.done():
            await asyncio.gather(*(one.poll() for one in lanes))
            await asyncio.sleep(POLL_S)
    (out / "seen.json").write_text(json.dumps(seen))
    return RoleCost(cpu_s=time.process_time() - spent, requests={})


def _searcher(store: ObjectStore, url: str) -> Searcher:
    settings = QuerySettings(threads=1)
    return Searcher(store=store, store_url=url, settings=settings, clock=SystemClock())


def _newest() -> Query:
    from_ns = time.time_ns() - RANGE_S * NS_PER_S
    to_ns = from_ns + 3600 * NS_PER_S
    return Query(from_ns=UnixNs(from_ns), to_ns=UnixNs(to_ns), agents=(PROBE,))


async def _warm_up(url: str, port: int) -> None:
    """Query until a first probe is visible: what a service does once is not measured."""
    who = Identity(agent_id=PROBE, boot_id="b", seq_start=0, seq_end=0)
    async with uploading(port) as send, open_store(url) as store:
        await send(UploadBatch(FRAME_BYTES, port, who, time.time_ns()))
        for _ in range(100):
            if (await _searcher(store, url).search(_newest())).records:
                return
            await asyncio.sleep(0.1)


async def query(url: str, out: Path, port: int) -> RoleCost:
    """Upload probes at a low rate, and query until each is visible; store the lags."""
    accepted: dict[int, float] = {}
    lags: dict[int, float] = {}
    took: list[float] = []
    await _warm_up(url, port)
    print("ready", flush=True)
    await asyncio.to_thread(_wait_for_line)
    ending = asyncio.create_task(asyncio.to_thread(_wait_for_line))

    async def send_probes() -> None:
        async with uploading(port) as send:
            for seq in range(1, 1 << 30):
                if ending.done():
                    return
                who = Identity(agent_id=PROBE, boot_id="b", seq_start=seq, seq_end=seq)
                with suppress(RuntimeError, OSError, TimeoutError):
                    await send(UploadBatch(FRAME_BYTES, port, who, time.time_ns()))
                    accepted[seq] = time.time()
                await asyncio.sleep(1 / PROBES_PER_S)

    spent = time.process_time()
    async with open_store(url) as store, asyncio.TaskGroup() as tasks:
        tasks.create_task(send_probes())
        searcher = _searcher(store, url)
        while not ending.done():
            began_s = time.perf_counter()
            found = await searcher.search(_newest())
            took.append(time.perf_counter() - began_s)
            now_s = time.time()
            for row in found.records:
                seq = int(str(row["seq"]))
                if seq in accepted:
                    lags.setdefault(seq, max(0.0, now_s - accepted[seq]))
            await asyncio.sleep(QUERY_PAUSE_S)
    unseen = [seq for seq, at_s in accepted.items() if seq not in lags and at_s < now_s - 10]
    figures = {"lags": list(lags.values()), "unseen": unseen, "took": took}
    (out / "visible.json").write_text(json.dumps(figures))
    return RoleCost(cpu_s=time.process_time() - spent, requests={})


def main(arguments: list[str]) -> None:
    """Run one role, and print what it spent."""
    match arguments:
        case ["client", out, port, number, rate, seconds]:
            work = client(Path(out), int(port), int(number), float(rate), float(seconds))
        case ["reconcile", url, flags]:
            work = reconcile(url, flags)
        case ["consume", url, out]:
            work = consume(url, Path(out))
        case ["query", url, out, port]:
            work = query(url, Path(out), int(port))
        case _:
            raise SystemExit(f"unknown role, arguments=`{arguments}`")
    print(json.dumps(asdict(uvloop.run(work))), flush=True)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    main(sys.argv[1:])
