"""Throughput of two reconciler processes that share the lanes, compared with one.

    python -m benchmarks.shared_lanes [--batches 40000] [--slow-batches 6000] [--latency-ms 20]
                                      [--rounds 3] [--unpinned] [--passes]

Each round fills a store on a directory in memory with accepted batches and starts the processes.
When they have divided the lanes, the journal of a gateway names the batches. The time runs until
every batch is in the queue. The control is one process in the same round. There are two loads:

- **processor**: the directory itself. Each process runs on one core, as with a limit of one
  processor, so the figure is what a second core with a second process adds. With `--unpinned` the
  system places all threads on all cores.
- **latency**: each call of the store takes `--latency-ms` longer, and there are no calls for many
  objects, as on S3. One process is then limited by its bound on requests in flight, not by a core.

The bar is the processor load: two processes reach 1.6 times one on two free cores. Cores may share
a physical core or be used by others. So a round also runs loops that only compute, on the same
cores, two processes and one. What two of them reach is all that two cores have; the bar is the same
share of it, 1.6 / 2. The latency load has the bar 1.6 without a correction.

The store needs no process, and this process only reads the registers five times a second. With
`--passes` full passes find the batches, as for a backlog without journals; both processes then list
all keys. The ratio of the processor time per batch shows what two processes do twice, above that of
the loops. It means something on a busy machine too.
"""

import argparse
import asyncio
import json
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
from benchmarks.reconcile_world import LANES, accept_together, scratch_folder, who_is
from benchmarks.shared_lanes_roles import SpinCount
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
from sluice_queue.inspection import read_lane_status
from sluice_reconciler.lanes.membership import MEMBERS, MemberRecord
from sluice_store import create_authority
from sluice_store.local import LocalStore
from sluice_store.port import ObjectStore, read_bodies

RATIO_MIN: Final = 1.6
CORES: Final = 2
SPIN_S: Final = 2.0
COMMAND: Final = ("sluice_cli", "reconciler")
OPTIONS: Final = ("--listen", "127.0.0.1:0")
ROLES: Final = "benchmarks.shared_lanes_roles"
PER_OBJECT: Final = 500
"""Batches that one journal object names."""
POLL_S: Final = 0.2
TIMEOUT_S: Final = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLoad:
    """The arguments of the command line."""

    batches: int
    slow_batches: int
    latency_ms: float
    rounds: int
    unpinned: bool
    passes: bool


def parse(arguments: Sequence[str]) -> SharedLoad:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.shared_lanes")
    parser.add_argument("--batches", type=int, default=40_000)
    parser.add_argument("--slow-batches", type=int, default=6_000, help="of the latency load")
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unpinned", action="store_true", help="let the system place all threads")
    parser.add_argument("--passes", action="store_true", help="find the batches by full passes")
    return SharedLoad(**vars(parser.parse_args(arguments)))


Processes = Sequence[asyncio.subprocess.Process]


async def start(count: int, load: SharedLoad, *arguments: str) -> Processes:
    """Start a module in processes, each on one core unless they are not pinned."""
    cores = sorted(os.sched_getaffinity(0))
    return [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *arguments),
            stdout=asyncio.subprocess.PIPE,
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
        keys = [accepted_key(who_is(number)) for number in numbers]
        reads = await read_bodies(store, keys)
        bodies = [body for body in reads if body is not None]
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
    return sum(one.waiting_batches for one in await read_lane_status(store, "spark"))


async def fill(
    folder: Path, store: LocalStore, batches: int, load: SharedLoad
) -> tuple[str, list[bytes]]:
    """Write the accepted batches; return a gateway process, and the journal objects to write."""
    if load.passes:
        await create_authority(store, Authority(authority_id="bench", lanes=LANES))
        await accept_together(store, range(batches))
        return "", []
    await leave_older(folder.as_uri(), ObjectFolder(path=folder, etags=False), 0)
    await accept_together(store, range(batches))
    process = await register(store)
    return process, await journals_of(store, process, batches)


async def measure(processes: int, load: SharedLoad, *, latency_ms: float) -> Sample:
    """Return the time in which this number of processes enqueues the batches."""
    batches = load.slow_batches if latency_ms else load.batches
    async with scratch_folder() as (folder, store):
        process, objects = await fill(folder, store, batches, load)
        command: tuple[str, ...] = (*COMMAND, "--store", folder.as_uri(), *OPTIONS)
        if latency_ms:
            command = (ROLES, "reconcile", str(folder), str(latency_ms))
        running = await start(processes, load, *command)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not await is_shared(store, processes):  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(POLL_S)
                before, spent_s = await batches_of(store), cpu_s(running)
                started = time.perf_counter()
                for number, body in enumerate(objects, 1):
                    await store.create(journal_key(process, number), body)
                while await batches_of(store) < batches:  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(POLL_S)
                wall_s = time.perf_counter() - started
                used_s = cpu_s(running) - spent_s
        finally:
            for one in running:
                with suppress(ProcessLookupError):
                    one.terminate()
            await asyncio.gather(*(one.communicate() for one in running))
        return Sample(wall_s=wall_s, cpu_s=used_s, units=batches - before)


async def compute(processes: int, load: SharedLoad) -> Sample:
    """Return how often this number of processes runs a loop that only computes."""
    running = await start(processes, load, ROLES, "spin", str(SPIN_S))
    printed = await asyncio.gather(*(one.communicate() for one in running))
    found = [SpinCount(**json.loads(out)) for out, _ in printed]
    return Sample(
        wall_s=max(one.wall_s for one in found),
        cpu_s=sum(one.cpu_s for one in found),
        units=sum(one.loops for one in found),
    )


def cpu_s(running: Processes) -> float:
    """Return the processor time of the processes."""
    times = [psutil.Process(one.pid).cpu_times() for one in running]
    return float(sum(one.user + one.system for one in times))


Taken = dict[str, list[Sample]]
LOADS: Final = ("processor", "latency", "loops")


def run(load: SharedLoad) -> dict[str, Taken]:
    """Measure two processes and one in turn, under each load."""
    taken: dict[str, Taken] = {name: {"two": [], "one": []} for name in LOADS}
    for _ in range(load.rounds):
        for name, processes in (("two", 2), ("one", 1)):
            taken["loops"][name].append(asyncio.run(compute(processes, load)))
            for kind, latency_ms in (("processor", 0.0), ("latency", load.latency_ms)):
                sample = asyncio.run(measure(processes, load, latency_ms=latency_ms))
                taken[kind][name].append(sample)
    return taken


def lines_of(kind: str, taken: Taken) -> list[str]:
    """Return the figures of one load."""
    low, middle, high = ratio(taken["two"], taken["one"], lambda one: one.per_second)
    least, cpu, most = ratio(taken["two"], taken["one"], lambda one: one.cpu_per_unit)
    speed = f"{kind}, two processes to one: {middle:.2f}x ({low:.2f} to {high:.2f})"
    return [
        f"{speed}, processor time of each {cpu:.2f}x ({least:.2f} to {most:.2f})",
        *(f"  {name}: {_figures(samples)}" for name, samples in taken.items()),
    ]


def _figures(samples: Sequence[Sample]) -> str:
    speeds = ", ".join(f"{one.per_second:.0f}" for one in samples)
    cores = ", ".join(f"{one.cpu_s / one.wall_s:.2f}" for one in samples)
    costs = ", ".join(f"{1e3 * one.cpu_per_unit:.3f}" for one in samples)
    return f"{speeds} a second, {cores} cores used, {costs} ms each"


def main(arguments: Sequence[str]) -> int:
    """Measure in turn, and return 1 if a bar is missed."""
    load = parse(arguments)
    taken = run(load)
    reached = {
        kind: ratio(one["two"], one["one"], lambda sample: sample.per_second)[1]
        for kind, one in taken.items()
    }
    bar = RATIO_MIN / CORES * min(CORES, reached["loops"])
    met = {"processor": reached["processor"] >= bar, "latency": reached["latency"] >= RATIO_MIN}
    verdicts = {kind: "met" if is_met else "MISSED" for kind, is_met in met.items()}
    found_by = "full passes" if load.passes else "journals"
    cores = "all threads on all cores" if load.unpinned else "each process on one core"
    sizes = f"{load.batches} and {load.slow_batches} batches, {load.latency_ms} ms"
    bars = f"{bar:.2f} here ({RATIO_MIN} on {CORES} free cores): {verdicts['processor']}"
    lines = [
        f"{sizes}, {found_by}, {cores}",
        *(line for kind in LOADS for line in lines_of(kind, taken[kind])),
        f"bar of the processor load: {bars}",
        f"bar of the latency load: {RATIO_MIN}: {verdicts['latency']}",
    ]
    samples = {f"{kind} {name}": found for kind in LOADS for name, found in taken[kind].items()}
    report("shared_lanes", lines, samples)
    return int(not all(met.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
