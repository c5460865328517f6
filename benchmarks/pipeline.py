"""Frames to a committed Delta table, against two plain warm processes that do the same work.

The control reads the same blobs, checks sha256, decodes, and writes Parquet by the same writer; it
commits nothing. Sluice is the whole ingest job on a warm session: `trigger` is the time of its warm
micro-batches as Spark reports it, `run` is a whole `availableNow` query, start and stop included.
`SLUICE_BENCH_MIB` sets the size of the raw columns (default 1024).
"""

import asyncio
import hashlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow.parquet as pq

from benchmarks.measure import Sample, interleave, ratio, report
from sluice_protocol.authority import Authority
from sluice_protocol.columns import LogColumns, TextColumn
from sluice_protocol.frame import decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.manifests import AcceptedManifest
from sluice_queue.producer import Producer
from sluice_spark.ingest import run_ingest
from sluice_spark.records import Decoded, records_table
from sluice_spark.session import Session, SessionSettings, open_session
from sluice_spark.settings import IngestSettings
from sluice_spark.writing import ROW_GROUP_BYTES, parquet_options
from sluice_store import create_authority, open_store

MIB: Final = 1024 * 1024
RAW_MIB: Final = int(os.environ.get("SLUICE_BENCH_MIB", "1024"))
LINES: Final = 40_000
"""Lines of a frame: about 6 MiB of raw columns."""
ROUNDS: Final = int(os.environ.get("SLUICE_BENCH_ROUNDS", "3"))
T0_NS: Final = 1_790_000_000_000_000_000
AGENT: Final = "bench"
Event: TypeAlias = Any
"""One of pyspark's listener events, which are not typed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One accepted batch and the size of its columns."""

    manifest: AcceptedManifest
    raw_bytes: int


def _lines(first: int) -> list[bytes]:
    seeded = np.random.default_rng(first)
    tokens = seeded.integers(0, 2**62, LINES).tolist()
    sizes = seeded.integers(100, 90_000, LINES).tolist()
    return [
        b"10.%d.%d.%d - - GET /api/v1/items/%d?session=%x HTTP/1.1 %d %d rt=0.%03d host=web-%d"
        % (n >> 16 & 255, n >> 8 & 255, n & 255, n, token, 200 + n % 5, size, n % 997, n % 16)
        for n, token, size in zip(itertools.count(first), tokens, sizes, strict=False)
    ]


def make_batch(root: Path, number: int) -> Batch:
    """Makes one frame of unique lines and puts its blob."""
    first = number * LINES
    bodies = _lines(first)
    offsets = np.zeros(LINES + 1, np.int32)
    np.cumsum([len(body) for body in bodies], out=offsets[1:])
    columns = LogColumns(
        ts=T0_NS + np.arange(first, first + LINES) * 1_000_003,
        body=TextColumn(offsets=offsets, data=b"".join(bodies)),
        severity=(np.arange(LINES) % 24).astype(np.uint8),
    )
    who = Identity(agent_id=AGENT, boot_id="b", seq_start=first, seq_end=first + LINES - 1)
    frame = encode_frame(identity=who, columns=columns, resource=(("host.name", "h"),))
    digest = digest_of(frame)
    path = root / blob_key(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frame)
    manifest = AcceptedManifest(
        agent_id=AGENT,
        boot_id="b",
        seq_start=first,
        seq_end=who.seq_end,
        frame_sha256=digest,
        frame_bytes=len(frame),
        raw_blob_key=blob_key(digest),
        accepted_at_unix_ns=T0_NS,
        collector_id="gw",
        wire_version=1,
        frame_version=1,
        attempt_id=digest[:26].upper(),
        kind="logs",
        record_count=LINES,
        min_ts_unix_ns=int(columns.ts[0]),
        max_ts_unix_ns=int(columns.ts[-1]),
        principal="p",
    )
    return Batch(manifest=manifest, raw_bytes=len(columns.body.data) + 13 * LINES)


def _flush(writer: pq.ParquetWriter, waiting: list[Decoded], place: Path) -> pq.ParquetWriter:
    table = records_table("logs", waiting)
    waiting.clear()
    if writer is None:
        writer = pq.ParquetWriter(place, table.schema, **parquet_options(table.schema))
    writer.write_table(table, row_group_size=table.num_rows)
    return writer


def plain(root: Path, manifests: Sequence[AcceptedManifest], place: Path, *, write: bool) -> int:
    """The control's share: read, check, decode, write; nothing around it."""
    writer, waiting, size = None, [], 0
    for manifest in manifests:
        body = (root / manifest.raw_blob_key).read_bytes()
        if hashlib.sha256(body).hexdigest() != manifest.frame_sha256:
            raise SystemExit(f"wrong bytes under {manifest.raw_blob_key}")
        frame = decode_frame(body)
        if not write:
            continue
        waiting.append(Decoded(frame=frame, accepted_at_ns=T0_NS, sequence=1))
        size += frame.payload_raw_bytes
        if size >= ROW_GROUP_BYTES:
            writer, size = _flush(writer, waiting, place), 0
    if waiting:
        writer = _flush(writer, waiting, place)
    if writer is not None:
        writer.close()
        with place.open("rb") as written:
            os.fsync(written.fileno())
    return len(manifests)


class Control:
    """Two plain processes, kept warm."""

    def __init__(self, root: Path, batches: Sequence[Batch]) -> None:
        """Starts the processes."""
        self._root = root
        self._batches = batches
        self._pool = ProcessPoolExecutor(2, get_context("spawn"))

    def run(self, *, write: bool = True) -> Sample:
        """Decodes, and writes, every batch once, half of them in each process."""
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
        """The same without writing."""
        return self.run(write=False)

    def close(self) -> None:
        """Ends the processes."""
        self._pool.shutdown()


def _sample(wall_s: float, batches: Sequence[Batch]) -> Sample:
    return Sample(wall_s=wall_s, cpu_s=0.0, units=sum(batch.raw_bytes for batch in batches))


class Sluice:
    """The ingest job on a warm session, on a fresh lake and queue each time."""

    def __init__(
        self, spark: Session, root: Path, small: Sequence[Batch], big: Sequence[Batch]
    ) -> None:
        """Listens to the session's queries."""
        self._spark = spark
        self._root = root
        self._small = small
        self._big = big
        self.triggers: list[Sample] = []
        self.small_s: list[float] = []
        self._durations: list[float] = []
        spark.streams.addListener(_listener(self._durations))

    def _reset(self) -> None:
        for place in ("lake", "queue", "manifests", ".sluice/spark"):
            shutil.rmtree(self._root / place, ignore_errors=True)
        for batches in (self._small[:1], self._small[1:], self._big):
            asyncio.run(_enqueue(self._root, batches))
        self._durations.clear()

    def run(self) -> Sample:
        """One whole run: a small micro-batch to get going, a small one, then the big ones."""
        self._reset()
        limit = self._small[0].manifest.frame_bytes
        settings = IngestSettings(once=True, max_bytes_per_trigger=limit)
        started = time.perf_counter()
        totals = run_ingest(f"file://{self._root}", settings, spark=self._spark)
        wall_s = time.perf_counter() - started
        deadline = time.perf_counter() + 5
        while len(self._durations) < totals.rounds and time.perf_counter() < deadline:
            time.sleep(0.05)
        if totals.batches != len(self._small) + len(self._big):
            raise SystemExit(f"lost batches: {totals}")
        self.small_s.append(self._durations[1])
        self.triggers.append(_sample(self._durations[2], self._big))
        return _sample(wall_s, self._big)


def workers_peak_mib() -> float:
    """Gives the most memory that any Python worker of this session has ever had, Linux only."""
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


async def _enqueue(root: Path, batches: Sequence[Batch]) -> None:
    async with (
        open_store(f"file://{root}") as store,
        Producer.open(store, queue="spark", lane=0) as producer,
    ):
        await (await producer.produce([batch.manifest for batch in batches])).result()


async def _init(root: Path) -> None:
    async with open_store(f"file://{root}") as store:
        await create_authority(store, Authority(authority_id="B" * 26, lanes=1))


def prepare(root: Path) -> tuple[list[Batch], list[Batch]]:
    """Makes the store: two small batches, then the big load."""
    asyncio.run(_init(root))
    per_batch = make_batch(root, 0).raw_bytes
    count = max(4, RAW_MIB * MIB // per_batch)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        made = list(pool.map(make_batch, itertools.repeat(root), range(count + 2)))
    return made[:2], made[2:]


def _figures(samples: dict[str, list[Sample]], small_s: Sequence[float]) -> Iterator[str]:
    control = samples["control"]
    for name, run in samples.items():
        speeds = sorted(sample.per_second / 1e6 for sample in run)
        least, middle, most = ratio(run, control, lambda sample: sample.per_second)
        yield (
            f"{name}: {speeds[len(speeds) // 2]:.0f} MB/s of raw columns,"
            f" x{middle:.2f} of the control ({least:.2f} to {most:.2f})"
        )
    spread = [sample.wall_s for sample in control]
    yield f"control varies by {(max(spread) / min(spread) - 1) * 100:.0f} %"
    yield f"most memory of one worker: {workers_peak_mib():.0f} MiB for {RAW_MIB} MiB of backlog"
    if small_s:
        yield f"micro-batch of one small work list: {sorted(small_s)[len(small_s) // 2]:.2f} s"


def main() -> int:
    """Runs it; gives 1 when a target is missed."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    spark = open_session(SessionSettings(master="local[2]"), delta=False)
    try:
        small, big = prepare(folder)
        control, sluice = Control(folder, big), Sluice(spark, folder, small, big)
        samples = interleave(
            {"control": control.run, "run": sluice.run, "decode": control.decode_only},
            rounds=ROUNDS,
        )
        samples["trigger"] = sluice.triggers[-ROUNDS:]
        control.close()
        report("pipeline", list(_figures(samples, sluice.small_s[-ROUNDS:])), samples)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
