"""The cost of the reconciler, each figure compared with a control.

1. Cold pass over batches that are enqueued: it lists and compares seals. Control: a bare loop that
   lists the same manifests and GETs each, with the same store, concurrency and process.
2. First pass over new batches: verify, index entries, enqueue. The same control, and a bare loop of
   the same requests; the requests per batch and their price on S3.
3. Memory of a cold pass over 10^5 and over 10^6 batches, which a store generates during a listing.
4. Steady lag from acceptance to the queue at a given rate of accepts, with the routes that
   `sluice reconciler` uses on a directory: full passes and tail scans. A separate process accepts.
   Controls: that process alone, and concurrently with a bare loop of the requests of a new batch.

Parts named on the command line (`cold`, `first`, `memory`, `steady`) run alone.

`SLUICE_BENCH_BATCHES` (default 20 000), `SLUICE_BENCH_RATE` (default 500 a second) and
`SLUICE_BENCH_STEADY_S` (default 20) set the sizes. The store is a directory in memory (`/dev/shm`
if it exists), so that disk speed has no effect.
"""

import asyncio
import json
import os
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from benchmarks.measure import Sample, ratio, report
from benchmarks.reconcile_steady import steady
from benchmarks.reconcile_world import (
    AGENTS,
    Counting,
    accept_many,
    bare_loop,
    full_pass,
    leave_ledger,
    leave_manifests,
    reconciler,
    same_requests,
    scratch,
    scratch_folder,
    who_is,
)
from sluice_protocol.keys import ACCEPTED, accepted_key
from sluice_protocol.prices import (
    GIB_BYTES,
    RequestCounts,
    describe_requests,
    request_dollars,
    requests_of,
)
from sluice_protocol.units import ETag, UnixNs
from sluice_store.local import open_local_store
from sluice_store.port import ListedObject, ListPage, ObjectStore

BATCHES: Final = int(os.environ.get("SLUICE_BENCH_BATCHES", "20000"))
MEMORY_COUNTS: Final = (10**5, 10**6)
PRICED_VERBS: Final = ("create", "replace", "overwrite", "list", "get", "head")
FRAME_BYTES_PRICED: Final = 1024 * 1024


async def clocked(work: Callable[[], Awaitable[int]]) -> Sample:
    """Measure one coroutine: time, and processor time of this process."""
    started, spent = time.perf_counter(), time.process_time()
    units = await work()
    cpu_s = time.process_time() - spent
    return Sample(wall_s=time.perf_counter() - started, cpu_s=cpu_s, units=units)


def compared(name: str, cold: list[Sample], control: list[Sample]) -> str:
    """Return the line that compares a pass with the bare loop."""
    low, middle, high = ratio(cold, control, lambda one: one.per_second)
    rate = statistics.median(one.per_second for one in cold)
    return (
        f"{name}: {rate:.0f} batches/s, {middle:.2f} times the bare loop of LIST and GET"
        f" ({low:.2f} to {high:.2f})"
    )


async def cold_pass(lines: list[str]) -> dict[str, list[Sample]]:
    """Run part 1: manifests and a ledger that contains them; no blob is read."""
    samples: dict[str, list[Sample]] = {"cold": [], "control": []}
    async with scratch() as store:
        await leave_manifests(store, BATCHES)
        await leave_ledger(store, BATCHES)
        for _ in range(3):
            samples["control"].append(await clocked(partial(bare_loop, store)))
            samples["cold"].append(await clocked(partial(full_pass, store)))
        lines.append(compared(f"cold pass over {BATCHES} done", **samples))
        state_bytes = await stored_state_bytes(store)
        lines.append(f"stored state: {state_bytes / AGENTS:.0f} B per (agent, boot)")
    return samples


async def stored_state_bytes(store: ObjectStore) -> int:
    """Return the size of all lane states."""
    return sum(
        [
            one.size_bytes
            async for page in store.list("reconciler/v1/lanes/")
            for one in page.objects
        ]
    )


class Made:
    """A store that generates accepted manifests page by page and keeps none."""

    def __init__(self, store: ObjectStore, count: int) -> None:
        self._store = store
        self._count = count

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any verb
        return getattr(self._store, name)

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        """List generated manifests in key order; list any other prefix from the store."""
        if prefix != ACCEPTED:
            async for page in self._store.list(prefix, start_after=start_after, end_at=end_at):
                yield page
            return
        agents = sorted(range(AGENTS), key=lambda agent: f"host-{agent}".encode().hex())
        for agent in agents:
            numbers = range(agent, self._count, AGENTS)
            for at in range(0, len(numbers), 1000):
                objects = tuple(map(listed, numbers[at : at + 1000]))
                yield ListPage(objects=objects, date_ns=UnixNs(2), last=False)


def listed(number: int) -> ListedObject:
    """Return the listing entry of a batch."""
    return ListedObject(
        key=accepted_key(who_is(number)),
        size_bytes=700,
        etag=ETag("e"),
        last_modified_ns=UnixNs(1),
    )


async def memory(lines: list[str]) -> dict[str, list[Sample]]:
    """Run part 3: how much the resident memory of a new process rises during a cold pass."""
    found: list[str] = []
    for count in MEMORY_COUNTS:
        async with scratch_folder() as (folder, store):
            await leave_ledger(store, count)
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.reconcile", "pass", str(folder), str(count)),
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await child.communicate()
            risen = json.loads(output)
            state_bytes = await stored_state_bytes(store)
        found.append(
            f"{risen['first_mb']:.1f} MB by the first and {risen['second_mb']:.1f} MB by two passes"
            f" at {count:,} ({state_bytes / AGENTS:.0f} B stored per life)"
        )
    lines.append(f"memory of a cold pass, increase: {'; '.join(found)}")
    return {}


async def pass_over_made(folder: Path, count: int) -> None:
    """Run two passes of one reconciler over generated manifests, in a separate process."""
    async with open_local_store(folder) as store:
        subject, peak = reconciler(Made(store, count)), Peak()
        before_mb, risen = peak.take(), {}
        for name in ("first_mb", "second_mb"):
            if (await subject.once()).outcome.enqueued:
                raise RuntimeError("the ledger does not contain the batches")
            risen[name] = peak.take() - before_mb
        peak.stop()
    print(json.dumps(risen))


class Peak:
    """The highest resident memory of this process, sampled a hundred times a second."""

    def __init__(self) -> None:
        self._highest_mb = 0.0
        self._ends = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._ends.wait(0.01):
            self._highest_mb = max(self._highest_mb, resident_mb())

    def take(self) -> float:
        """Return the highest value since the last call, MB."""
        highest_mb, self._highest_mb = max(self._highest_mb, resident_mb()), 0.0
        return highest_mb

    def stop(self) -> None:
        """Stop sampling."""
        self._ends.set()


def resident_mb() -> float:
    """Return the resident memory of this process now, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def first_pass(lines: list[str]) -> dict[str, list[Sample]]:
    """Run one pass over a new store, and both controls."""
    count = BATCHES // 10
    async with scratch() as store:
        await accept_many(store, range(count))
        control = [await clocked(partial(bare_loop, store))]
        counting = Counting(store)
        first = [await clocked(partial(full_pass, counting))]
        same = [await clocked(partial(same_requests, store))]
    title = f"first pass over {count}"
    lines.append(compared(title, first, control))
    share = first[0].per_second / same[0].per_second
    lines.append(
        f"{title}: {share:.2f} times a bare loop of the same requests (LIST; GET, HEAD and"
        f" 1 PUT a batch), CPU {1e3 * first[0].cpu_per_unit:.2f} ms a batch"
        f" against {1e3 * same[0].cpu_per_unit:.2f} ms"
    )
    lines.append(f"{title}: {priced(counting.counts, count)}")
    return {"first": first, "first-control": control, "first-same": same}


def priced(counts: Counter[str], batches: int) -> str:
    """Return requests per batch, and their price per GiB of 1 MiB frames."""
    requests = requests_of({verb: counts[verb] for verb in PRICED_VERBS})
    each = requests.times(1 / batches)
    gateway = request_dollars(RequestCounts(puts=2 * GIB_BYTES / FRAME_BYTES_PRICED))
    return (
        f"{each.puts + each.lists:.3f} PUT and LIST, {each.gets:.3f} GET and HEAD a batch; with"
        f" 1 MiB frames {describe_requests(requests, FRAME_BYTES_PRICED * batches)}; the gateway's"
        f" 2 PUT: {gateway:.4f} dollars"
    )


async def main() -> None:
    """Run the parts, each on a separate store."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    lines: list[str] = []
    samples: dict[str, list[Sample]] = {}
    parts = {"cold": cold_pass, "first": first_pass, "memory": memory, "steady": steady}
    for name in sys.argv[1:] or parts:
        samples |= await parts[name](lines)
    report("reconcile", lines, samples)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pass"]:
        asyncio.run(pass_over_made(Path(sys.argv[2]), int(sys.argv[3])))
    else:
        asyncio.run(main())
