"""The steady part of the benchmark `reconcile`: from acceptance to the queue, at a given rate."""

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.measure import Sample
from benchmarks.reconcile_world import (
    CONCURRENCY,
    accept,
    manifest,
    reconciler,
    requests_of,
    scratch_folder,
)
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import encode_record
from sluice_queue.inspection import read_lane
from sluice_queue.lane import list_lanes
from sluice_queue.worklists import read_work_list
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore

RATE: Final = int(os.environ.get("SLUICE_BENCH_RATE", "500"))
STEADY_S: Final = int(os.environ.get("SLUICE_BENCH_STEADY_S", "20"))
NEW_LIVES_S: Final = 3
"""Only a full pass finds a new boot, so its lag is reported separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the process that accepts batches reached; an acceptance is two PUTs."""

    accepted: int
    wall_s: float
    cpu_s: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return (
            f"{self.accepted / self.wall_s:.0f} accepts/s of {RATE}, p50 {self.p50_ms:.1f} ms,"
            f" p99 {self.p99_ms:.0f} ms, CPU {1e3 * self.cpu_s / self.accepted:.2f} ms each"
        )


async def steady(lines: list[str]) -> dict[str, list[Sample]]:
    """Run part 4: the load alone, with bare requests, and with a reconciler."""
    async with scratch_folder() as (folder, _):
        lines.append(f"steady, the load alone: {await load(folder)}")
    async with scratch_folder() as (folder, store):
        loaded, reached = await asyncio.gather(load(folder), bare_requests(store))
        lines.append(
            "steady, the load with a bare loop of a batch's GET, HEAD and 1 PUT: "
            f"{reached:.0f} batches/s; {loaded}"
        )
    async with scratch_folder() as (folder, store):
        await steady_on(folder, store, lines)
    return {}


async def load(folder: Path) -> Load:
    """Accept batches at the rate, in a separate process."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.reconcile_steady", str(folder)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await child.communicate()
    return Load(**json.loads(output))


async def accept_at_rate(folder: Path) -> None:
    """Accept batches at the rate and print what was reached."""
    took: list[float] = []

    async def one(store: ObjectStore, number: int) -> None:
        started = time.perf_counter()
        await accept(store, number)
        took.append(time.perf_counter() - started)

    started, done = time.perf_counter(), 0
    async with open_local_store(folder) as store, asyncio.TaskGroup() as tasks:
        while (now := time.perf_counter() - started) < STEADY_S:
            for number in range(done, int(now * RATE)):
                tasks.create_task(one(store, number))
            done = int(now * RATE)
            await asyncio.sleep(0.01)
    took.sort()
    reached = Load(
        accepted=done,
        wall_s=time.perf_counter() - started,
        cpu_s=time.process_time(),
        p50_ms=1e3 * took[len(took) // 2],
        p99_ms=1e3 * took[len(took) * 99 // 100],
    )
    print(json.dumps(asdict(reached)))


async def bare_requests(store: ObjectStore) -> float:
    """Make the requests of new batches as fast as possible; return batches per second."""
    one, _ = manifest(0, 1)
    key, done, started = accepted_key(one.identity), 0, time.perf_counter()
    await store.create(key, encode_record(one))

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() - started < STEADY_S:
            done += 1
            await requests_of(store, done, key)

    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    return done / STEADY_S


async def steady_on(folder: Path, store: ObjectStore, lines: list[str]) -> None:
    """Run a reconciler with the load, then read the lag of each batch."""
    subject = reconciler(store)
    running, spent = asyncio.create_task(subject.run()), time.process_time()
    loaded = await load(folder)
    await asyncio.sleep(3)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    cpu_s, found = time.process_time() - spent, await lags_of(store)
    began_ns = min(at_ns for at_ns, _ in found)
    edge_ns = began_ns + int(NEW_LIVES_S * 1e9)
    lags = sorted(lag_s for at_ns, lag_s in found if at_ns >= edge_ns)
    young = max(lag_s for at_ns, lag_s in found if at_ns < edge_ns)
    lines.append(
        f"steady: accepted to enqueued p50 {lags[len(lags) // 2]:.2f} s, p99 "
        f"{lags[len(lags) * 99 // 100]:.2f} s, max {lags[-1]:.2f} s (max {young:.2f} s in the "
        f"first {NEW_LIVES_S} s, when all boots are new), {len(found)} of {loaded.accepted} "
        f"enqueued, CPU {1e3 * cpu_s / len(found):.2f} ms each; {loaded}"
    )


async def lags_of(store: ObjectStore) -> list[tuple[int, float]]:
    """Return each batch's acceptance, Unix ns, and the time from it to the append, seconds."""
    found: list[tuple[int, float]] = []
    for lane in await list_lanes(store, "spark"):
        view = await read_lane(store, lane.queue, lane.lane)
        for entry in view.descriptors:
            for one in (await read_work_list(store, lane, entry)).batches:
                at_ns = one.accepted_at_unix_ns
                found.append((at_ns, (entry.ingested_at_ns - at_ns) / 1e9))
    return found


if __name__ == "__main__":
    asyncio.run(accept_at_rate(Path(sys.argv[1])))
