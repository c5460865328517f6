"""Throughput of two reconciler processes that share the lanes, compared with one.

    python -m benchmarks.shared_lanes [--batches 40000] [--rounds 3] [--unpinned] [--passes]

Each round fills a store on a directory in memory with accepted batches and starts the processes.
When they have divided the lanes, the journal of a gateway names the batches. The time runs until
every batch is in the queue. The control is one process in the same round.

Each process runs on one core, as with a limit of one processor: the figure is what a second core
with a second process adds. With `--unpinned` the system places all threads on all cores. The store
needs no process, and this process only reads the registers five times a second. With `--passes`
full passes find the batches, as for a backlog without journals; both processes then list all keys.

The ratio of the processor time per batch shows what two processes do twice. It means something on a
busy machine too.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from benchmarks.measure import Sample, ratio, report
from benchmarks.older_manifests import ObjectFolder, leave_older
from benchmarks.reconcile_world import LANES, accept_many, scratch_folder, who_is
from sluice_protocol.authority import Authority
from sluice_protocol.journals import (
    GatewayProcess,
    JournalHeader,
    encode_journal,
    journal_key,
    process_name,
    registration_key,
)
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import UnixNs
from sluice_queue.inspection import read_status
from sluice_reconciler.lanes.membership import MEMBERS, MemberRecord
from sluice_store import create_authority
from sluice_store.port import ObjectStore

RATIO_MIN: Final = 1.6
OPTIONS: Final = ("--pass-interval-s", "0.2", "--listen", "127.0.0.1:0")
PER_OBJECT: Final = 500
"""Batches that one journal object names."""
POLL_S: Final = 0.2
TIMEOUT_S: Final = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLoad:
    """The arguments of the command line."""

    batches: int
    rounds: int
    unpinned: bool
    passes: bool


def parse(arguments: Sequence[str]) -> SharedLoad:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.shared_lanes")
    parser.add_argument("--batches", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unpinned", action="store_true", help="let the system place all threads")
    parser.add_argument("--passes", action="store_true", help="find the batches by full passes")
    return SharedLoad(**vars(parser.parse_args(arguments)))


async def start(folder: Path, count: int, load: SharedLoad) -> list[asyncio.subprocess.Process]:
    """Start reconcilers on a directory, each on one core unless they are not pinned."""
    command = (sys.executable, "-m", "sluice_cli", "reconciler", "--store", folder.as_uri())
    cores = sorted(os.sched_getaffinity(0))
    return [
        await asyncio.create_subprocess_exec(
            *(*command, *OPTIONS),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            preexec_fn=None
            if load.unpinned
            else partial(os.sched_setaffinity, 0, {cores[one % len(cores)]}),
        )
        for one in range(count)
    ]


async def register(store: ObjectStore) -> str:
    """Register a gateway process; return its name."""
    started_ns = time.time_ns()
    process = process_name(UnixNs(started_ns), "01J00000000000000000000000")
    record = GatewayProcess(
        collector_id="gw",
        process=process,
        acceptance="s3_manifest",
        started_at_unix_ns=started_ns,
    )
    await store.create(registration_key(process), encode_record(record))
    return process


async def journals_of(store: ObjectStore, process: str, batches: int) -> list[bytes]:
    """Return the journal objects that name the accepted batches."""
    made: list[bytes] = []
    for first in range(0, batches, PER_OBJECT):
        numbers = range(first, min(first + PER_OBJECT, batches))
        reads = [await store.get(accepted_key(who_is(number))) for number in numbers]
        bodies = [read.body for read in reads if isinstance(read, Found)]
        header = JournalHeader(
            process=process,
            number=len(made) + 1,
            complete_through_unix_ns=time.time_ns(),
            batches=len(bodies),
        )
        made.append(encode_journal(header, bodies))
    return made


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


async def fill(folder: Path, store: ObjectStore, load: SharedLoad) -> tuple[str, list[bytes]]:
    """Write the accepted batches; return a gateway process, and the journal objects to write."""
    if load.passes:
        await create_authority(store, Authority(authority_id="bench", lanes=LANES))
        await accept_many(store, range(load.batches))
        return "", []
    await leave_older(folder.as_uri(), ObjectFolder(path=folder, etags=False), 0)
    await accept_many(store, range(load.batches))
    process = await register(store)
    return process, await journals_of(store, process, load.batches)


async def measure(processes: int, load: SharedLoad) -> Sample:
    """Return the time in which this number of processes enqueues the batches."""
    async with scratch_folder() as (folder, store):
        process, objects = await fill(folder, store, load)
        running = await start(folder, processes, load)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not await is_shared(store, processes):  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(POLL_S)
                before, spent_s = await batches_of(store), cpu_s(running)
                started = time.perf_counter()
                for number, body in enumerate(objects, 1):
                    await store.create(journal_key(process, number), body)
                while await batches_of(store) < load.batches:  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(POLL_S)
                wall_s = time.perf_counter() - started
                used_s = cpu_s(running) - spent_s
        finally:
            for one in running:
                with suppress(ProcessLookupError):
                    one.terminate()
            for one in running:
                await one.wait()
        return Sample(wall_s=wall_s, cpu_s=used_s, units=load.batches - before)


def cpu_s(running: Sequence[asyncio.subprocess.Process]) -> float:
    """Return the processor time of the processes."""
    times = [psutil.Process(one.pid).cpu_times() for one in running]
    return float(sum(one.user + one.system for one in times))


def main(arguments: Sequence[str]) -> int:
    """Measure in turn, and return 1 if the bar is missed."""
    load = parse(arguments)
    samples: dict[str, list[Sample]] = {"two": [], "one": []}
    for _ in range(load.rounds):
        for name, processes in (("two", 2), ("one", 1)):
            samples[name].append(asyncio.run(measure(processes, load)))
    low, middle, high = ratio(samples["two"], samples["one"], lambda one: one.per_second)
    _, cpu, _ = ratio(samples["two"], samples["one"], lambda one: one.cpu_per_unit)
    cores = "all threads on all cores" if load.unpinned else "each process on one core"
    lines = [
        f"{load.batches} batches, {'full passes' if load.passes else 'journals'}, {cores}",
        f"processor time per batch, two processes to one: {cpu:.2f}x",
        f"two processes to one: {middle:.2f}x ({low:.2f} to {high:.2f}), bar {RATIO_MIN}",
        *(
            f"{name}: {', '.join(f'{one.per_second:.0f}' for one in taken)} batches/s,"
            f" {', '.join(f'{one.cpu_s / one.wall_s:.2f}' for one in taken)} cores used,"
            f" {', '.join(f'{1e3 * one.cpu_per_unit:.3f}' for one in taken)} ms each"
            for name, taken in samples.items()
        ),
    ]
    report("shared_lanes", lines, samples)
    return int(middle < RATIO_MIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
