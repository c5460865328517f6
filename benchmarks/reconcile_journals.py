"""The cost of discovery by journals, compared with an earlier checkout in one interleaved run.

A process accepts batches at a rate, as a gateway does: blob, manifest, and a journal object each
second. A reconciler process runs with the default settings of a directory. Before, the store
contains older batches that are enqueued. The same load runs with the packages of this checkout and
of the control, one after the other, in several rounds.

    python -m benchmarks.reconcile_journals CHECKOUT

CHECKOUT is a directory with another version of the project, for example made by `git worktree add`.
Without it only this checkout is measured. `SLUICE_BENCH_OLDER` (default 20 000),
`SLUICE_BENCH_RATE` (500 a second), `SLUICE_BENCH_STEADY_S` (20) and `SLUICE_BENCH_ROUNDS` (3) set
the sizes. The figures are processor time of the reconciler per new batch, requests per new batch,
listings per minute, and the time from acceptance to the queue.
"""

import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

FILE: Final = Path(__file__).resolve()
HERE: Final = FILE.parent.parent
SHM: Final = Path("/dev/shm")  # noqa: S108 - memory on purpose; a private folder is created in it
PARENT: Final = SHM if SHM.is_dir() else None
OLDER: Final = int(os.environ.get("SLUICE_BENCH_OLDER", "20000"))
RATE: Final = int(os.environ.get("SLUICE_BENCH_RATE", "500"))
STEADY_S: Final = int(os.environ.get("SLUICE_BENCH_STEADY_S", "20"))
ROUNDS: Final = int(os.environ.get("SLUICE_BENCH_ROUNDS", "3"))
READY_S: Final = 600.0
DRAIN_S: Final = 15.0
ULID_OF_PROCESS: Final = "01J00000000000000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a reconciler process spent while the load ran."""

    cpu_s: float
    wall_s: float
    requests: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of one checkout, per new batch; the percentiles are of the time to the queue.

    A listing has one or more pages. `enqueued` is the share of the accepted batches.
    """

    cpu_ms: float
    p50_s: float
    p99_s: float
    puts: float
    lists_per_minute: float
    enqueued: float


async def seed(folder: Path) -> None:
    """Write the older batches and a ledger that contains them, by the code of the checkout."""
    from benchmarks.reconcile_world import leave_ledger, leave_manifests  # noqa: PLC0415
    from sluice_store.local import open_local_store  # noqa: PLC0415

    async with open_local_store(folder) as store:
        await leave_manifests(store, OLDER)
        await leave_ledger(store, OLDER)


async def reconcile(folder: Path) -> None:
    """Run a reconciler of the checkout; print a line when it is ready, and what it spent."""
    from benchmarks.reconcile_world import Counting, reconciler  # noqa: PLC0415
    from sluice_store.local import open_local_store  # noqa: PLC0415

    async with open_local_store(folder) as store:
        counting = Counting(store)
        subject = reconciler(counting, takeover_after_s=0.2)
        running = asyncio.create_task(subject.run())
        while not is_ready(subject):  # noqa: ASYNC110 - its state has no event
            await asyncio.sleep(0.05)
        before, spent, started = Counter(counting.counts), time.process_time(), time.perf_counter()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        found = Spent(
            cpu_s=time.process_time() - spent,
            wall_s=time.perf_counter() - started,
            requests=dict(Counter(counting.counts) - before),
        )
        print(json.dumps(asdict(found)), flush=True)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def is_ready(subject: Any) -> bool:  # noqa: ANN401 - a reconciler of either checkout
    """Return True after the first full pass, and if journals exist, when they decide."""
    if not subject.health.passes:
        return False
    discovery = getattr(subject, "discovery", None)
    return discovery is None or discovery.record.journaled_since_unix_ns is not None


async def register(folder: Path) -> str:
    """Register a gateway process; return its name."""
    from sluice_protocol.journals import (  # noqa: PLC0415
        GatewayProcess,
        process_name,
        registration_key,
    )
    from sluice_protocol.manifests import encode_record  # noqa: PLC0415
    from sluice_protocol.units import UnixNs  # noqa: PLC0415
    from sluice_store.local import open_local_store  # noqa: PLC0415

    started_ns = time.time_ns()
    process = process_name(UnixNs(started_ns), ULID_OF_PROCESS)
    record = GatewayProcess(
        collector_id="gw",
        process=process,
        acceptance="s3_manifest",
        started_at_unix_ns=started_ns,
    )
    async with open_local_store(folder) as store:
        await store.create(registration_key(process), encode_record(record))
    return process


async def accept_and_journal(folder: Path, process: str) -> None:
    """Accept batches at the rate, with a journal object each second; print their number."""
    from benchmarks.reconcile_world import manifest  # noqa: PLC0415
    from sluice_protocol.journals import (  # noqa: PLC0415
        JournalHeader,
        encode_journal,
        journal_key,
    )
    from sluice_protocol.keys import accepted_key, blob_key  # noqa: PLC0415
    from sluice_protocol.manifests import encode_record  # noqa: PLC0415
    from sluice_store.local import open_local_store  # noqa: PLC0415

    noted: list[bytes] = []

    async def accept(store: Any, number: int) -> None:  # noqa: ANN401 - a store
        one, frame = manifest(number, 0)
        blob = await store.create(blob_key(one.digest), frame)
        one, _ = manifest(number, blob.date_ns)
        body = encode_record(one)
        await store.create(accepted_key(one.identity), body)
        noted.append(body)

    async def journal(store: Any) -> None:  # noqa: ANN401 - a store
        number = 0
        while True:
            await asyncio.sleep(1.0)
            number += 1
            through_ns, lines = time.time_ns() - 1_000_000, list(noted)
            noted.clear()
            header = JournalHeader(
                process=process,
                number=number,
                complete_through_unix_ns=through_ns,
                batches=len(lines),
            )
            await store.create(journal_key(process, number), encode_journal(header, lines))

    done, started = 0, time.perf_counter()
    async with open_local_store(folder) as store:
        writing = asyncio.create_task(journal(store))
        async with asyncio.TaskGroup() as tasks:
            while (now := time.perf_counter() - started) < STEADY_S:
                for number in range(done, int(now * RATE)):
                    tasks.create_task(accept(store, OLDER + number))
                done = int(now * RATE)
                await asyncio.sleep(0.01)
        await asyncio.sleep(2.5)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
    print(done)


async def start(checkout: Path, *arguments: str) -> asyncio.subprocess.Process:
    """Start a part of this file with the packages of a checkout."""
    rooms = ("", "core", "gateway", "reconciler", "spark", "gc", "query", "policies", "agent")
    path = os.pathsep.join(str(checkout / room) for room in (*rooms, "cli"))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(FILE), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )


async def output_of(checkout: Path, *arguments: str) -> str:
    """Run a part of this file to its end and return what it printed."""
    output, _ = await (await start(checkout, *arguments)).communicate()
    return output.decode()


async def measure(checkout: Path, parent: Path) -> Measured:
    """Run one load with the reconciler of a checkout."""
    from benchmarks.reconcile_steady import lags_of  # noqa: PLC0415
    from sluice_store.local import open_local_store  # noqa: PLC0415

    folder = Path(tempfile.mkdtemp(dir=parent))
    await output_of(checkout, "seed", str(folder))
    process = await register(folder)
    running = await start(checkout, "reconcile", str(folder))
    if running.stdin is None or running.stdout is None:
        raise RuntimeError("the reconciler has no pipes")
    async with asyncio.timeout(READY_S):
        if await running.stdout.readline() != b"ready\n":
            raise RuntimeError("the reconciler did not start")
    accepted = int(await output_of(HERE, "load", str(folder), process))
    async with open_local_store(folder) as store:
        lags = await lags_of(store)
        until = time.perf_counter() + DRAIN_S
        while len(lags) < accepted and time.perf_counter() < until:
            await asyncio.sleep(1.0)
            lags = await lags_of(store)
    running.stdin.write(b"\n")
    spent = Spent(**json.loads(await running.stdout.readline()))
    running.stdin.close()
    await running.wait()
    shutil.rmtree(folder)
    times = sorted(lag_s for _, lag_s in lags)
    writes = sum(spent.requests.get(verb, 0) for verb in ("create", "replace", "overwrite"))
    return Measured(
        cpu_ms=1e3 * spent.cpu_s / len(times),
        p50_s=times[len(times) // 2],
        p99_s=times[len(times) * 99 // 100],
        puts=writes / len(times),
        lists_per_minute=60 * spent.requests.get("list", 0) / spent.wall_s,
        enqueued=len(times) / accepted,
    )


async def main(control: Path | None) -> None:
    """Measure both checkouts in turns and print the figures and their ratio."""
    checkouts = {"this checkout": HERE} | ({} if control is None else {"control": control})
    found: dict[str, list[Measured]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=PARENT) as parent:
        for _ in range(ROUNDS):
            for name, checkout in checkouts.items():
                one = await measure(checkout, Path(parent))
                found[name].append(one)
                print(f"{name}: {one}", flush=True)
    for name, runs in found.items():
        print(
            f"{name}, {RATE} accepts/s, {OLDER} older batches: CPU"
            f" {statistics.median(one.cpu_ms for one in runs):.2f} ms per new batch, accepted to"
            f" enqueued p99 {statistics.median(one.p99_s for one in runs):.2f} s,"
            f" {statistics.median(one.puts for one in runs):.3f} writes per batch,"
            f" {statistics.median(one.lists_per_minute for one in runs):.0f} listings per minute"
        )
    if control is not None:
        ratios = [
            mine.cpu_ms / other.cpu_ms
            for mine, other in zip(found["this checkout"], found["control"], strict=True)
        ]
        print(
            f"CPU per new batch, ratio to the control: {statistics.median(ratios):.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    match sys.argv[1:]:
        case ["seed", folder]:
            asyncio.run(seed(Path(folder)))
        case ["reconcile", folder]:
            asyncio.run(reconcile(Path(folder)))
        case ["load", folder, process]:
            asyncio.run(accept_and_journal(Path(folder), process))
        case [checkout]:
            asyncio.run(main(Path(checkout).resolve()))
        case _:
            asyncio.run(main(None))
