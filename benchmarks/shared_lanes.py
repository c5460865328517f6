"""Throughput of two reconciler processes that share the lanes, compared with one.

Each round fills a store on a directory in memory with accepted batches, starts the processes, and
measures from the moment at which they share the lanes until every batch is in the queue. The
control is one process in the same round. The ratio of the processor time per batch shows what two
processes lose by sharing; unlike the rate, it means something on a busy machine too.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from benchmarks.measure import Sample, ratio, report
from benchmarks.reconcile_world import LANES, accept_many, scratch_folder
from sluice_protocol.authority import Authority
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_queue.inspection import read_status
from sluice_reconciler.lanes.membership import MEMBERS, MemberRecord
from sluice_store import create_authority
from sluice_store.port import ObjectStore

RATIO_MIN: Final = 1.6
OPTIONS: Final = ("--pass-interval-s", "0.2", "--listen", "127.0.0.1:0")


async def start(folder: Path, count: int) -> list[asyncio.subprocess.Process]:
    """Start reconcilers on a directory."""
    command = (sys.executable, "-m", "sluice_cli", "reconciler", "--store", folder.as_uri())
    return [
        await asyncio.create_subprocess_exec(
            *(*command, *OPTIONS),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for _ in range(count)
    ]


async def is_shared(store: ObjectStore, count: int) -> bool:
    """Return True if this number of members works on every lane."""
    shares: list[Sequence[int]] = []
    async for page in store.list(MEMBERS):
        for one in page.objects:
            read = await store.get(one.key)
            if isinstance(read, Found):
                shares.append(decode_record(one.key, read.body, MemberRecord).lanes)
    busy = [one for one in shares if one]
    return len(busy) == count and sum(map(len, busy)) == LANES


async def batches_of(store: ObjectStore) -> int:
    """Return the number of batches that the queue contains."""
    return sum(one.waiting_batches for one in await read_status(store, "spark"))


async def measure(processes: int, batches: int) -> Sample:
    """Return the time in which this number of processes enqueues the batches."""
    async with scratch_folder() as (folder, store):
        await create_authority(store, Authority(authority_id="bench", lanes=LANES))
        await accept_many(store, range(batches))
        running = await start(folder, processes)
        try:
            async with asyncio.timeout(900):
                while not await is_shared(store, processes):  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(0.05)
                before, spent_s = await batches_of(store), cpu_s(running)
                started = time.perf_counter()
                while await batches_of(store) < batches:  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(0.05)
                wall_s = time.perf_counter() - started
                used_s = cpu_s(running) - spent_s
        finally:
            for one in running:
                one.terminate()
            for one in running:
                await one.wait()
        return Sample(wall_s=wall_s, cpu_s=used_s, units=batches - before)


def cpu_s(running: Sequence[asyncio.subprocess.Process]) -> float:
    """Return the processor time of the processes."""
    times = [psutil.Process(one.pid).cpu_times() for one in running]
    return float(sum(one.user + one.system for one in times))


def main() -> int:
    """Measure in turn, and return 1 if the bar is missed."""
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    samples: dict[str, list[Sample]] = {"two": [], "one": []}
    for _ in range(3):
        for name, processes in (("two", 2), ("one", 1)):
            samples[name].append(asyncio.run(measure(processes, batches)))
    low, middle, high = ratio(samples["two"], samples["one"], lambda one: one.per_second)
    _, cpu, _ = ratio(samples["two"], samples["one"], lambda one: one.cpu_per_unit)
    lines = [
        f"processor time per batch, two processes to one: {cpu:.2f}x",
        f"two processes to one: {middle:.2f}x ({low:.2f} to {high:.2f}), bar {RATIO_MIN}",
        *(
            f"{name}: {', '.join(f'{one.per_second:.0f}' for one in taken)} batches/s"
            for name, taken in samples.items()
        ),
    ]
    report("shared_lanes", lines, samples)
    return int(middle < RATIO_MIN)


if __name__ == "__main__":
    sys.exit(main())
