"""The reconciler's cost, each figure beside its control.

1. Cold pass over batches that are done: it lists and compares seals. Control: a bare loop that
   lists the same manifests and GETs each, with the same store, concurrency and process.
2. First pass over batches that nobody has seen: verify, three index entries, enqueue. The same
   control, and a bare loop of the same requests; the requests per batch and their price on S3.
3. Memory of a cold pass over 10^5 and over 10^6 batches, which a store makes up while it lists.
4. Steady lag from acceptance to the queue at a given rate of accepts, as `sluice reconciler` runs
   on a directory: full passes and tail scans. The accepts have a process of their own. Controls:
   that process alone, and beside a bare loop of the requests that a new batch costs.

Parts 2 and 4 run with an object per by-time entry, and with packs (ADR 0047). Parts named on the
command line (`cold`, `first`, `memory`, `steady`) run alone.

`SLUICE_BENCH_BATCHES` (default 20 000), `SLUICE_BENCH_RATE` (default 500 a second) and
`SLUICE_BENCH_STEADY_S` (default 20) set the sizes. The
store is a directory in memory (`/dev/shm` where it exists), so that disks do not count.
"""

import asyncio
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from benchmarks.measure import Sample, ratio, report
from sluice_protocol.authority import Authority
from sluice_protocol.identity import Identity
from sluice_protocol.keys import ACCEPTED, accepted_key, blob_key, digest_of, lane_of
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.outcomes import Applied
from sluice_protocol.units import ETag, ObjectKey, UnixNs
from sluice_queue.lane import Lane, Tools
from sluice_queue.view import list_lanes, read_lane
from sluice_queue.worklists import read_work_list
from sluice_reconciler.lane_owner import LaneOwner
from sluice_reconciler.lane_state import Pending
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.local import open_local_store
from sluice_store.port import ListedObject, ListPage, ObjectStore

BATCHES: Final = int(os.environ.get("SLUICE_BENCH_BATCHES", "20000"))
RATE: Final = int(os.environ.get("SLUICE_BENCH_RATE", "500"))
STEADY_S: Final = int(os.environ.get("SLUICE_BENCH_STEADY_S", "20"))
NEW_LIVES_S: Final = 3
"""A new life is found by a full pass alone; its time is told apart."""
AGENTS: Final = 50
LANES: Final = 4
BOOT: Final = "0b0f1c52-7a4e-4a51-9d36-3f0f5d1f2a11"
MEMORY_COUNTS: Final = (10**5, 10**6)
ON_A_DIRECTORY: Final = ReconcilerSettings().on("file:")
CONCURRENCY: Final = ON_A_DIRECTORY.concurrency or 1
PRICE_PUT: Final = 0.005 / 1000
PRICE_GET: Final = 0.0004 / 1000
FRAME_BYTES_PRICED: Final = 1024 * 1024
SHM: Final = Path("/dev/shm")  # noqa: S108 - memory on purpose; a private folder inside it


class Counting:
    """The store port, counting requests."""

    def __init__(self, store: ObjectStore) -> None:
        """Wraps a store."""
        self._store = store
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any verb
        """Counts a verb and hands it on."""
        self.counts[name] += 1
        return getattr(self._store, name)


def who_is(number: int) -> Identity:
    """Gives whose batch it is."""
    seq = number // AGENTS * 100
    agent = f"host-{number % AGENTS}"
    return Identity(agent_id=agent, boot_id=BOOT, seq_start=seq, seq_end=seq + 99)


def manifest(number: int, at_ns: int) -> tuple[AcceptedManifest, bytes]:
    """Gives one batch of an agent, and its frame."""
    frame = b"frame %d" % number
    digest = digest_of(frame)
    who = who_is(number)
    return AcceptedManifest(
        agent_id=who.agent_id,
        boot_id=who.boot_id,
        seq_start=who.seq_start,
        seq_end=who.seq_end,
        frame_sha256=digest,
        frame_bytes=len(frame),
        raw_blob_key=blob_key(digest),
        accepted_at_unix_ns=at_ns,
        collector_id="gw-1",
        wire_version=1,
        frame_version=1,
        attempt_id="01M7Y05M6XJ11BR5GNJGCQQRNJ",
        kind="logs",
        record_count=100,
        min_ts_unix_ns=at_ns,
        max_ts_unix_ns=at_ns,
        principal=who.agent_id,
    ), frame


async def accept(store: ObjectStore, number: int) -> None:
    """Leaves a batch as a gateway does, accepted at the store's time of its blob."""
    one, frame = manifest(number, 0)
    match await store.create(blob_key(one.digest), frame):
        case Applied(date_ns=date_ns):
            one, _ = manifest(number, date_ns)
        case other:
            raise RuntimeError(other)
    await store.create(accepted_key(one.identity), encode_record(one))


async def accept_many(store: ObjectStore, numbers: range) -> None:
    """Leaves many batches, several at once."""
    gate = asyncio.Semaphore(64)

    async def gated(number: int) -> None:
        async with gate:
            await accept(store, number)

    for at in range(numbers.start, numbers.stop, 5000):
        chunk = range(at, min(at + 5000, numbers.stop))
        await asyncio.gather(*(gated(number) for number in chunk))


async def bare_loop(store: ObjectStore) -> int:
    """The control: list everything accepted and GET each, as many at once as the pass may."""
    gate, count = asyncio.Semaphore(CONCURRENCY), 0

    async def gated(key: ObjectKey) -> None:
        async with gate:
            await store.get(key)

    async for page in store.list(ACCEPTED):
        count += len(page.objects)
        async with asyncio.TaskGroup() as tasks:
            for one in page.objects:
                tasks.create_task(gated(one.key))
    return count


async def same_requests(store: ObjectStore, puts: int) -> int:
    """The second control: the requests of a first pass, with nothing between them."""
    gate, count = asyncio.Semaphore(CONCURRENCY), 0

    async def gated(number: int, key: ObjectKey) -> None:
        async with gate:
            await requests_of(store, number, key, puts)

    async for page in store.list(ACCEPTED):
        async with asyncio.TaskGroup() as tasks:
            for one in page.objects:
                tasks.create_task(gated(count, one.key))
                count += 1
    return count


async def requests_of(store: ObjectStore, number: int, key: ObjectKey, puts: int) -> None:
    """Makes the requests that a new batch costs, in folders like those of the indexes."""
    await store.get(key)
    await store.head(key)
    for root in range(puts):
        place = f"doctor/v1/{root}/{number % 256:02x}/{number % 251:02x}/{number}"
        await store.create(ObjectKey(place), b"x" * 200)


def reconciler(store: ObjectStore, **settings: Any) -> Reconciler:  # noqa: ANN401 - its fields
    """Gives a fresh reconciler, as after a restart."""
    authority = Authority(authority_id="bench", lanes=LANES)
    return Reconciler(store, authority, settings=replace(ON_A_DIRECTORY, **settings))


async def full_pass(store: ObjectStore, **settings: Any) -> int:  # noqa: ANN401 - its fields
    """The subject: one pass of a fresh process."""
    return (await reconciler(store, **settings).once()).listed


async def clocked(work: Callable[[], Awaitable[int]]) -> Sample:
    """Measures one coroutine: time, and processor time of this process."""
    started, spent = time.perf_counter(), time.process_time()
    units = await work()
    cpu_s = time.process_time() - spent
    return Sample(wall_s=time.perf_counter() - started, cpu_s=cpu_s, units=units)


def compared(name: str, cold: list[Sample], control: list[Sample]) -> str:
    """Gives the line that compares a pass with the bare loop."""
    low, middle, high = ratio(cold, control, lambda one: one.per_second)
    rate = statistics.median(one.per_second for one in cold)
    return (
        f"{name}: {rate:.0f} batches/s, {middle:.2f} times the bare loop of LIST and GET"
        f" ({low:.2f} to {high:.2f})"
    )


async def cold_pass(lines: list[str]) -> dict[str, list[Sample]]:
    """Part 1, on manifests and a ledger that knows them; blobs play no part."""
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
    """Gives the size of all lane states."""
    return sum(
        [
            one.size_bytes
            async for page in store.list("reconciler/v1/lanes/")
            for one in page.objects
        ]
    )


class Made:
    """A store whose accepted manifests are made up page by page and held nowhere."""

    def __init__(self, store: ObjectStore, count: int) -> None:
        """Wraps a store that holds everything else."""
        self._store = store
        self._count = count

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any verb
        """Hands every other verb on."""
        return getattr(self._store, name)

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        """Lists made-up manifests in key order, else what the store lists."""
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
    """Gives how a listing shows a batch."""
    return ListedObject(
        key=accepted_key(who_is(number)),
        size_bytes=700,
        etag=ETag("e"),
        last_modified_ns=UnixNs(1),
    )


async def memory(lines: list[str]) -> dict[str, list[Sample]]:
    """Part 3: how far the resident memory of a fresh process rises over a cold pass."""
    found: list[str] = []
    for count in MEMORY_COUNTS:
        async with scratch_folder() as (folder, store):
            await leave_ledger(store, count)
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.reconcile", "pass", str(folder), str(count)),
                stdout=asyncio.subprocess.PIPE,
            )
            told, _ = await child.communicate()
            risen = json.loads(told)
            state_bytes = await stored_state_bytes(store)
        found.append(
            f"{risen['first_mb']:.1f} MB by the first and {risen['second_mb']:.1f} MB by two passes"
            f" at {count:,} ({state_bytes / AGENTS:.0f} B stored per life)"
        )
    lines.append(f"memory of a cold pass, risen by: {'; '.join(found)}")
    return {}


async def pass_over_made(folder: Path, count: int) -> None:
    """The process of its own: two passes of one reconciler over made-up manifests."""
    async with open_local_store(folder) as store:
        subject, peak = reconciler(Made(store, count)), Peak()
        before_mb, risen = peak.take(), {}
        for name in ("first_mb", "second_mb"):
            if (await subject.once()).outcome.enqueued:
                raise RuntimeError("the ledger did not know them")
            risen[name] = peak.take() - before_mb
        peak.stop()
    print(json.dumps(risen))


class Peak:
    """The highest resident memory of this process, looked at a hundred times a second."""

    def __init__(self) -> None:
        """Starts looking."""
        self._highest_mb = 0.0
        self._ends = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._ends.wait(0.01):
            self._highest_mb = max(self._highest_mb, resident_mb())

    def take(self) -> float:
        """Gives the highest since the last call, MB."""
        highest_mb, self._highest_mb = max(self._highest_mb, resident_mb()), 0.0
        return highest_mb

    def stop(self) -> None:
        """Stops looking."""
        self._ends.set()


def resident_mb() -> float:
    """Gives the resident memory of this process now, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def first_pass(lines: list[str]) -> dict[str, list[Sample]]:
    """Part 2, with an object per by-time entry and with packs."""
    samples: dict[str, list[Sample]] = {}
    for name, packed in (("first", False), ("first-packed", True)):
        samples |= await first_pass_of(name, lines, packed=packed)
    return samples


async def first_pass_of(name: str, lines: list[str], *, packed: bool) -> dict[str, list[Sample]]:
    """One store, one pass over it, and both controls."""
    count = BATCHES // 10
    async with scratch() as store:
        await accept_many(store, range(count))
        control = [await clocked(partial(bare_loop, store))]
        counting = Counting(store)
        first = [await clocked(partial(full_pass, counting, pack_by_time=packed))]
        same = [await clocked(partial(same_requests, store, 1 if packed else 3))]
    title = f"first pass over {count}{', by-time entries packed' if packed else ''}"
    lines.append(compared(title, first, control))
    share = first[0].per_second / same[0].per_second
    lines.append(
        f"{title}: {share:.2f} times a bare loop of the same requests (LIST; GET, HEAD and"
        f" {1 if packed else 3} PUT a batch), CPU {1e3 * first[0].cpu_per_unit:.2f} ms a batch"
        f" against {1e3 * same[0].cpu_per_unit:.2f} ms"
    )
    lines.append(f"{title}: {priced(counting.counts, count)}")
    return {name: first, f"{name}-control": control, f"{name}-same": same}


def priced(counts: Counter[str], batches: int) -> str:
    """Gives requests per batch and their price per GiB of 1 MiB frames, beside the gateway's."""
    writes = sum(counts[verb] for verb in ("create", "replace", "overwrite", "list"))
    reads = sum(counts[verb] for verb in ("get", "head"))
    per_gib = 1024**3 / FRAME_BYTES_PRICED / batches
    dollars = (writes * PRICE_PUT + reads * PRICE_GET) * per_gib
    return (
        f"{writes / batches:.3f} PUT and LIST, {reads / batches:.3f} GET and HEAD a"
        f" batch; ${dollars:.4f} a GiB of 1 MiB frames (the gateway's 2 PUT:"
        f" ${2 * PRICE_PUT * 1024:.4f})"
    )


async def leave_manifests(store: ObjectStore, count: int) -> None:
    """Leaves accepted manifests without blobs."""
    gate = asyncio.Semaphore(64)

    async def gated(number: int) -> None:
        async with gate:
            one, _ = manifest(number, 1)
            await store.create(accepted_key(one.identity), encode_record(one))

    for at in range(0, count, 5000):
        numbers = range(at, min(at + 5000, count))
        await asyncio.gather(*(gated(number) for number in numbers))


async def leave_ledger(store: ObjectStore, count: int) -> None:
    """Leaves lane states that know every batch."""
    owners = [
        await LaneOwner.take(store, Lane(queue="spark", lane=lane), Tools())
        for lane in range(LANES)
    ]
    for agent in range(AGENTS):
        ledger = owners[lane_of(f"host-{agent}", LANES)].ledger
        for number in range(agent, count, AGENTS):
            ledger.add(pending(who_is(number)))
    for owner in owners:
        await owner.close()


def pending(who: Identity) -> Pending:
    """Gives a batch as the ledger takes it."""
    return Pending(
        agent_id=who.agent_id, boot_id=who.boot_id, seq_start=who.seq_start, seq_end=who.seq_end
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the process that accepts batches reached.

    Attributes:
        accepted: Batches.
        wall_s: From the first to the last answer, seconds.
        cpu_s: Processor time, seconds.
        p50_ms: Of an acceptance, its two PUTs, milliseconds.
        p99_ms: So for that.
    """

    accepted: int
    wall_s: float
    cpu_s: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        """Gives it in words."""
        return (
            f"{self.accepted / self.wall_s:.0f} accepts/s of {RATE}, p50 {self.p50_ms:.1f} ms,"
            f" p99 {self.p99_ms:.0f} ms, CPU {1e3 * self.cpu_s / self.accepted:.2f} ms each"
        )


async def steady(lines: list[str]) -> dict[str, list[Sample]]:
    """Part 4: the load alone, the load beside bare requests, and the load beside a reconciler."""
    async with scratch_folder() as (folder, _):
        lines.append(f"steady, the load alone: {await load(folder)}")
    for puts in (3, 1):
        async with scratch_folder() as (folder, store):
            beside, reached = await asyncio.gather(load(folder), bare_requests(store, puts))
            lines.append(
                f"steady, the load beside a bare loop of a batch's GET, HEAD and {puts} PUT:"
                f" {reached:.0f} batches/s; {beside}"
            )
    for packed in (False, True):
        async with scratch_folder() as (folder, store):
            await steady_on(folder, store, lines, packed=packed)
    return {}


async def load(folder: Path) -> Load:
    """Accepts at the rate in a process of its own."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.reconcile", "accept", str(folder)),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await child.communicate()
    return Load(**json.loads(told))


async def accept_at_rate(folder: Path) -> None:
    """The process of its own: accepts, and tells what it reached."""
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


async def bare_requests(store: ObjectStore, puts: int) -> float:
    """Makes the requests of new batches as fast as they go; gives how many batches a second."""
    one, _ = manifest(0, 1)
    key, done, started = accepted_key(one.identity), 0, time.perf_counter()
    await store.create(key, encode_record(one))

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() - started < STEADY_S:
            done += 1
            await requests_of(store, done, key, puts)

    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    return done / STEADY_S


async def steady_on(folder: Path, store: ObjectStore, lines: list[str], *, packed: bool) -> None:
    """Runs a reconciler beside the load, then reads how late each batch came."""
    subject = reconciler(store, pack_by_time=packed)
    running, spent = asyncio.create_task(subject.run()), time.process_time()
    beside = await load(folder)
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
        f"steady, {'by-time entries packed (default)' if packed else 'an object per entry'}:"
        " accepted to enqueued"
        f" p50 {lags[len(lags) // 2]:.2f} s, p99 {lags[len(lags) * 99 // 100]:.2f} s,"
        f" max {lags[-1]:.2f} s (max {young:.2f} s in the first {NEW_LIVES_S} s, when all lives"
        f" are new), {len(found)} of {beside.accepted} enqueued,"
        f" CPU {1e3 * cpu_s / len(found):.2f} ms each; {beside}"
    )


async def lags_of(store: ObjectStore) -> list[tuple[int, float]]:
    """Gives each batch's acceptance, Unix ns, and the store's time from there to its append, s."""
    found: list[tuple[int, float]] = []
    for lane in await list_lanes(store, "spark"):
        view = await read_lane(store, lane.queue, lane.lane)
        for entry in view.descriptors:
            for one in (await read_work_list(store, lane, entry)).batches:
                at_ns = one.accepted_at_unix_ns
                found.append((at_ns, (entry.ingested_at_ns - at_ns) / 1e9))
    return found


@asynccontextmanager
async def scratch() -> AsyncIterator[ObjectStore]:
    """Gives an empty store in memory."""
    async with scratch_folder() as (_, store):
        yield store


@asynccontextmanager
async def scratch_folder() -> AsyncIterator[tuple[Path, ObjectStore]]:
    """Gives an empty store in memory, and where it is."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-", dir=SHM if SHM.is_dir() else None))
    try:
        async with open_local_store(folder) as store:
            yield folder, store
    finally:
        shutil.rmtree(folder)


async def main() -> None:
    """Runs the parts, each on a store of its own."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    lines: list[str] = []
    samples: dict[str, list[Sample]] = {}
    parts = {"cold": cold_pass, "first": first_pass, "memory": memory, "steady": steady}
    for name in sys.argv[1:] or parts:
        samples |= await parts[name](lines)
    report("reconcile", lines, samples)


if __name__ == "__main__":
    if sys.argv[1:2] == ["accept"]:
        asyncio.run(accept_at_rate(Path(sys.argv[2])))
    elif sys.argv[1:2] == ["pass"]:
        asyncio.run(pass_over_made(Path(sys.argv[2]), int(sys.argv[3])))
    else:
        asyncio.run(main())
