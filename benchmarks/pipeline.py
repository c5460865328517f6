"""Benchmark `pipeline`: from frames to a committed Delta table, compared with two plain processes.

The control processes are warm. They read the same blobs, check the sha256, decode, and write
Parquet with the same writer and the same memory allocator settings, but commit nothing. The subject
is the ingest job with its default settings on a warm session. `trigger` is the sum of its
micro-batches as reported by Spark. `run` is the whole `availableNow` query, including start and
stop. Both are from the same run.

`SLUICE_BENCH_MIB` sets the size of the raw columns (default 3072), and `TMPDIR` the directory. On a
disk that is slower than the processors, both sides wait for it equally.
"""

import asyncio
import hashlib
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow.parquet as pq

from benchmarks.measure import Sample, interleave, ratio, report
from benchmarks.pipeline_batches import T0_NS, PipelineBatch, make_batch
from sluice_cli.cost import TABLE_GETS, TABLE_LISTS, TABLES
from sluice_lake.records import DecodedBatch, records_table
from sluice_protocol.authority import Authority
from sluice_protocol.frame import decode_frame
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.prices import RequestCounts, describe_requests
from sluice_queue.producer import Producer
from sluice_spark.ingest.job import run_ingest
from sluice_spark.ingest.microbatch import IngestTotals
from sluice_spark.ingest.write_tasks import ROW_GROUP_BYTES
from sluice_spark.session import WORKER_ALLOCATOR, Session, SessionSettings, open_session
from sluice_spark.settings import IngestSettings
from sluice_spark.written_files import parquet_options
from sluice_store import StoreMode, create_authority, open_store

MIB: Final = 1024 * 1024
RAW_MIB: Final = int(os.environ.get("SLUICE_BENCH_MIB", "3072"))
ROUNDS: Final = int(os.environ.get("SLUICE_BENCH_ROUNDS", "3"))
SMALL: Final = 3
"""The number of small micro-batches, each one work list of one frame; the first is not counted."""
MEMORY_SHARE: Final = 10
"""The short backlog is this fraction of the whole backlog."""
LONG_LIST, SHORT_LIST = 50, 10
"""Batches of a work list in the large load, and where micro-batches are small."""
TRIGGER_BAR, RUN_BAR, DECODE_BAR = 0.9, 0.8, 0.9
SMALL_BAR_S: Final = 1.5
MEMORY_BAR: Final = 1.15
"""Maximum ratio of a worker's memory between the two backlogs: noise, not growth."""
Event: TypeAlias = Any
"""An event of pyspark's listener, which has no types here."""


def _flush(writer: pq.ParquetWriter, waiting: list[DecodedBatch], place: Path) -> pq.ParquetWriter:
    table = records_table("logs", waiting)
    waiting.clear()
    if writer is None:
        writer = pq.ParquetWriter(place, table.schema, **parquet_options(table.schema))
    writer.write_table(table, row_group_size=table.num_rows)
    return writer


def plain(root: Path, manifests: Sequence[AcceptedManifest], place: Path, *, write: bool) -> int:
    """Do the control's work: read, check, decode and write."""
    writer, waiting, size = None, [], 0
    for manifest in manifests:
        body = (root / manifest.raw_blob_key).read_bytes()
        if hashlib.sha256(body).hexdigest() != manifest.frame_sha256:
            raise SystemExit(f"wrong bytes under {manifest.raw_blob_key}")
        frame = decode_frame(body)
        if not write:
            continue
        waiting.append(DecodedBatch(frame=frame, accepted_at_ns=T0_NS, sequence=1))
        size += frame.raw_bytes
        if size >= ROW_GROUP_BYTES:
            writer, size = _flush(writer, waiting, place), 0
    if waiting:
        writer = _flush(writer, waiting, place)
    if writer is not None:
        writer.close()
        with place.open("rb") as written:
            os.fsync(written.fileno())
    return len(manifests)


@contextmanager
def _environment(more: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Control:
    """Two plain processes that stay warm."""

    def __init__(self, root: Path, batches: Sequence[PipelineBatch]) -> None:
        self._root = root
        self._batches = batches
        self._pool = ProcessPoolExecutor(2, get_context("spawn"))
        with _environment(dict(WORKER_ALLOCATOR)):
            for started in [self._pool.submit(os.getpid) for _ in range(2)]:
                started.result()

    def run(self, *, write: bool = True) -> Sample:
        """Decode and write every batch once, half of them in each process."""
        half = len(self._batches) // 2
        shares = [self._batches[:half], self._batches[half:]]
        started = time.perf_counter()
        asked = [
            self._pool.submit(
                plain,
                self._root,
                [batch.manifest for batch in share],
                self._root / f"control-{n}",
                write=write,
            )
            for n, share in enumerate(shares)
        ]
        for one in asked:
            one.result()
        return _sample(time.perf_counter() - started, self._batches)

    def decode_only(self) -> Sample:
        """Decode every batch once, without writing."""
        return self.run(write=False)

    def close(self) -> None:
        """Stop the processes."""
        self._pool.shutdown()


def _sample(wall_s: float, batches: Sequence[PipelineBatch]) -> Sample:
    return Sample(wall_s=wall_s, cpu_s=0.0, units=sum(batch.raw_bytes for batch in batches))


class Sluice:
    """The ingest job on a warm session, each time with a fresh lake and queue."""

    def __init__(self, spark: Session, root: Path) -> None:
        """Register a listener for the queries of the session."""
        self._spark = spark
        self._root = root
        self._durations: list[float] = []
        self.triggers: list[Sample] = []
        self.micro_batches = self.files = 0
        spark.streams.addListener(_listener(self._durations))

    def _reset(self, lists: Sequence[Sequence[PipelineBatch]]) -> None:
        for place in ("lake", "queue", "manifests", ".sluice/spark"):
            shutil.rmtree(self._root / place, ignore_errors=True)
        for batches in lists:
            asyncio.run(_enqueue(self._root, batches))
        self._durations.clear()

    def _ingest(self, expected: int, settings: IngestSettings) -> tuple[float, IngestTotals]:
        started = time.perf_counter()
        totals = run_ingest(f"file://{self._root}", settings, spark=self._spark)
        wall_s = time.perf_counter() - started
        deadline = time.perf_counter() + 5
        while len(self._durations) < totals.rounds and time.perf_counter() < deadline:
            time.sleep(0.05)
        if totals.batches != expected:
            raise SystemExit(f"lost batches: {totals}")
        return wall_s, totals

    def run(self, batches: Sequence[PipelineBatch]) -> Sample:
        """Run the job once over a backlog, with default settings."""
        self._reset(_lists(batches, LONG_LIST))
        wall_s, totals = self._ingest(len(batches), IngestSettings(once=True))
        self.triggers.append(_sample(sum(self._durations), batches))
        self.micro_batches, self.files = totals.rounds, totals.files
        return _sample(wall_s, batches)

    def small(self, batches: Sequence[PipelineBatch]) -> float:
        """Run micro-batches of one small work list each in one query; return the median time."""
        self._reset([[batch] for batch in batches])
        self._ingest(len(batches), IngestSettings(once=True, max_bytes_per_trigger=1))
        return statistics.median(self._durations[1:])

    def peak_mib(self, batches: Sequence[PipelineBatch], limit: int) -> float:
        """Return a worker's peak memory after a backlog in equal micro-batches."""
        self._reset(_lists(batches, SHORT_LIST))
        self._ingest(len(batches), IngestSettings(once=True, max_bytes_per_trigger=limit))
        return workers_peak_mib()


def _lists(batches: Sequence[PipelineBatch], size: int) -> list[Sequence[PipelineBatch]]:
    return [batches[first : first + size] for first in range(0, len(batches), size)]


def workers_peak_mib() -> float:
    """Return the peak memory of all Python workers of this session so far (Linux only)."""
    peak_kib = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = (status.parent / "cmdline").read_bytes()
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except (OSError, ValueError):
            continue
        ours = f"{sys.prefix}/".encode() in command and b"pyspark.daemon" in command
        if ours and "VmHWM" in lines:
            peak_kib = max(peak_kib, int(lines["VmHWM"].split()[0]))
    return peak_kib / 1024


def _listener(durations: list[float]) -> object:
    from pyspark.sql.streaming import StreamingQueryListener  # noqa: PLC0415

    class Listener(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Event) -> None: ...  # noqa: N802

        def onQueryProgress(self, event: Event) -> None:  # noqa: N802
            if event.progress.numInputRows:
                durations.append(event.progress.durationMs["triggerExecution"] / 1000)

        def onQueryTerminated(self, event: Event) -> None: ...  # noqa: N802

    return Listener()


async def _enqueue(root: Path, batches: Sequence[PipelineBatch]) -> None:
    async with (
        open_store(f"file://{root}") as store,
        Producer.open(store, queue="spark", lane=0) as producer,
    ):
        await (await producer.produce([batch.manifest for batch in batches])).result()


async def _init(root: Path) -> None:
    async with open_store(f"file://{root}", StoreMode.CREATE) as store:
        await create_authority(store, Authority(authority_id="B" * 26, lanes=1))


def prepare(root: Path) -> list[PipelineBatch]:
    """Create the store and the load."""
    asyncio.run(_init(root))
    count = max(MEMORY_SHARE * 2, RAW_MIB * MIB // make_batch(root, 0).raw_bytes)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        return list(pool.map(make_batch, itertools.repeat(root), range(count)))


def _bar(name: str, value: float, bar: float, *, most: bool = False) -> tuple[str, bool]:
    """Return the comparison of a figure with its target, and whether the target is met."""
    met = value <= bar if most else value >= bar
    return (
        f"target {name} {'at most' if most else 'at least'} {bar}: {'met' if met else 'MISSED'}",
        met,
    )


def _speeds(samples: dict[str, list[Sample]], bars: dict[str, float]) -> Iterator[tuple[str, bool]]:
    for name, taken in samples.items():
        speeds = sorted(sample.per_second / 1e6 for sample in taken)
        least, middle, most = ratio(taken, samples["control"], lambda one: one.per_second)
        line = f"{name}: {speeds[len(speeds) // 2]:.0f} MB/s of raw columns"
        if name in bars:
            bar, met = _bar("x", middle, bars[name])
            yield f"{line}, x{middle:.2f} of the control ({least:.2f} to {most:.2f}), {bar}", met
        else:
            yield line, True


def _apart(samples: dict[str, list[Sample]], micro_batches: int) -> Iterator[tuple[str, bool]]:
    around = [r.wall_s - t.wall_s for r, t in zip(samples["run"], samples["trigger"], strict=True)]
    spread = [sample.wall_s for sample in samples["control"]]
    yield f"{micro_batches} micro-batches; start and stop {statistics.median(around):.2f} s", True
    yield f"control varies by {(max(spread) / min(spread) - 1) * 100:.0f} %", True


def _priced(batches: int, micro_batches: int, files: int) -> str:
    """Return what blobs and commits of a run would cost on S3, per GiB of raw columns."""
    commits = RequestCounts(puts=TABLES + 1, lists=TABLES * TABLE_LISTS, gets=TABLES * TABLE_GETS)
    made = commits.times(micro_batches) + RequestCounts(puts=files, gets=batches)
    return f"as on S3, without the queue, {describe_requests(made, RAW_MIB * MIB)}"


def _memory(sluice: Sluice, batches: Sequence[PipelineBatch]) -> tuple[str, bool]:
    short = batches[: len(batches) // MEMORY_SHARE]
    limit = sum(batch.manifest.frame_bytes for batch in short) // 2
    sluice.peak_mib(short, limit)
    one = sluice.peak_mib(short, limit)
    ten = sluice.peak_mib(batches, limit)
    verdict, met = _bar("x", ten / one, MEMORY_BAR, most=True)
    line = f"{one:.0f} MiB, of {MEMORY_SHARE} times the backlog {ten:.0f} MiB, x{ten / one:.2f}"
    return f"peak memory of a worker: {line}, {verdict}", met


def measure(folder: Path, spark: Session) -> tuple[list[tuple[str, bool]], dict[str, list[Sample]]]:
    """Return the figures, each with whether its target is met, and the samples."""
    batches = prepare(folder)
    control, sluice = Control(folder, batches), Sluice(spark, folder)
    # Measured before any larger load, because the peak of a worker never decreases.
    memory = _memory(sluice, batches)
    subjects: dict[str, Callable[[], Sample]] = {
        "control": control.run,
        "run": lambda: sluice.run(batches),
        "decode": control.decode_only,
    }
    samples = interleave(subjects, rounds=ROUNDS)
    samples["trigger"] = sluice.triggers[-ROUNDS:]
    control.close()
    small_s = statistics.median(sluice.small(batches[:SMALL]) for _ in range(3))
    verdict, met = _bar("s", small_s, SMALL_BAR_S, most=True)
    figures = [
        *_speeds(samples, {"trigger": TRIGGER_BAR, "run": RUN_BAR, "decode": DECODE_BAR}),
        *_apart(samples, sluice.micro_batches),
        (_priced(len(batches), sluice.micro_batches, sluice.files), True),
        (f"micro-batch of one small work list: {small_s:.2f} s, {verdict}", met),
        memory,
    ]
    return figures, samples


def main() -> int:
    """Run the benchmark; return 1 if a target is missed."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    spark = open_session(SessionSettings(master="local[2]"), delta=False)
    try:
        figures, samples = measure(folder, spark)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    place = f"{RAW_MIB} MiB of raw columns in {folder.parent}"
    report("pipeline", [place, *(line for line, _ in figures)], samples)
    return 0 if all(met for _, met in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
