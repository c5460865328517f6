"""Benchmark `gc`: the deletion plan on Spark compared with DuckDB's anti-join of the same shards.

Both read the same Parquet files with the same number of threads. Starting Spark and DuckDB is not
measured. The plan does more: it checks the sha256 of every file, applies the clauses, and writes
candidates; the control only counts keys. `SLUICE_BENCH_GC_BLOBS` sets the sizes, by default 10^6,
5·10^6 and 10^7.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.measure import Sample, interleave, ratio, report, timed
from sluice_gc.candidates import PlanTotals
from sluice_gc.evidence_files import BLOBS, NAMES, EvidenceFile, put_table
from sluice_gc.key_ranges import DigestShard, split_shards
from sluice_gc.planner import PlanTask, plan_shards
from sluice_gc.task_engine import SparkTaskEngine
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S
from sluice_spark.session import SessionSettings, open_session
from sluice_store import open_store
from sluice_store.retry import Backoff

SHARDS: Final = 256
TASKS_PER_CORE: Final = 8
CORES: Final = 2
REFERENCED: Final = 0.9
SIZES: Final = "1000000,5000000,10000000"
NOW_NS: Final = 1_800_000_000 * NS_PER_S
HORIZON_NS: Final = 7 * 86_400 * NS_PER_S

Files = list[tuple[str, tuple[EvidenceFile, ...], tuple[EvidenceFile, ...]]]


def main() -> None:
    """Run every size and print ratios, growth and memory."""
    session = open_session(SessionSettings(master=f"local[{CORES}]"), delta=False)
    sizes = [int(one) for one in os.environ.get("SLUICE_BENCH_GC_BLOBS", SIZES).split(",")]
    lines: list[str] = []
    samples: dict[str, list[Sample]] = {}
    walls: dict[int, float] = {}
    for blobs in sizes:
        walls[blobs] = _measure(session, blobs, lines, samples)
    if len(sizes) > 1:
        grown = (walls[sizes[-1]] / walls[sizes[0]]) / (sizes[-1] / sizes[0])
        lines.append(
            f"growth {sizes[0]:,} to {sizes[-1]:,}: {grown:.2f} of linear growth (target: 1.0)"
        )
    lines.append(
        f"peak memory: {_peak_gib():.2f} GiB, driver, JVM and workers together (target: 4)"
    )
    lines.append(
        "requests: 2 GET per shard to read, 1 PUT per shard with candidates, none per blob"
    )
    session.stop()
    report("gc", lines, samples)


def _measure(
    session: Any,  # noqa: ANN401 - pyspark has no types
    blobs: int,
    lines: list[str],
    samples: dict[str, list[Sample]],
) -> float:
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-gc-"))
    try:
        files = asyncio.run(_make(folder, blobs))
        subjects: dict[str, Callable[[], Sample]] = {
            f"plan {blobs}": lambda: timed(lambda: _plan(session, folder, files, blobs)),
            f"duckdb {blobs}": lambda: timed(lambda: _control(folder, blobs)),
        }
        taken = interleave(subjects, rounds=3, warmup=1)
    finally:
        shutil.rmtree(folder)
    samples.update(taken)
    plan, control = taken[f"plan {blobs}"], taken[f"duckdb {blobs}"]
    low, middle, high = ratio(plan, control, lambda sample: sample.wall_s)
    wall_s = sorted(sample.wall_s for sample in plan)[len(plan) // 2]
    lines.append(
        f"{blobs:,} blobs, {int(blobs * REFERENCED):,} named: plan {wall_s:.2f} s,"
        f" {middle:.2f} x DuckDB ({low:.2f} to {high:.2f}; gate at 10^7: 2.0)"
    )
    return wall_s


async def _make(folder: Path, blobs: int) -> Files:
    """Write the shards of a store with `blobs` blobs, as an audit would."""
    rng = np.random.default_rng(blobs)
    files: Files = []
    backoff = Backoff.seeded_by(SystemClock())
    async with open_store(f"file://{folder}/store") as store:
        for shard in split_shards(SHARDS):
            digests = _digests(rng, shard, blobs // SHARDS)
            named = np.sort(rng.permutation(len(digests))[: int(len(digests) * REFERENCED)])
            names = pa.table([_column(digests[named])], schema=NAMES)
            put = [
                await put_table(store, "audit/", "names", shard.name, names, backoff=backoff),
                await put_table(
                    store, "audit/", "blobs", shard.name, _blobs(rng, digests), backoff=backoff
                ),
            ]
            files.append((shard.name, (put[0],), (put[1],)))
    return files


def _digests(rng: np.random.Generator, shard: DigestShard, count: int) -> npt.NDArray[np.uint8]:
    rows = rng.integers(0, 256, size=(count, 32), dtype=np.uint8)
    rows[:, 0] = rng.integers(shard.first, shard.end, size=count, dtype=np.uint8)
    order = np.argsort(rows.view(">u8").reshape(count, 4)[:, 0], kind="stable")
    return rows[order]


def _column(rows: npt.NDArray[np.uint8]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(rows).tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), len(rows), [None, data])


def _blobs(rng: np.random.Generator, digests: npt.NDArray[np.uint8]) -> pa.Table:
    count = len(digests)
    ids = rng.bytes(16 * count).hex().encode()
    offsets = np.arange(count + 1, dtype=np.int32) * 32
    incarnations = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(ids))
    stamps = NOW_NS - 2 * HORIZON_NS + rng.integers(0, 10**9, size=count)
    return pa.table(
        [
            _column(digests),
            incarnations,
            pa.array(stamps, pa.int64()),
            pa.array(rng.integers(200, 10**6, size=count), pa.int64()),
            pa.array(np.ones(count, bool), pa.bool_()),
        ],
        schema=BLOBS,
    )


def _plan(session: Any, folder: Path, files: Files, blobs: int) -> float:  # noqa: ANN401
    engine = SparkTaskEngine(session, f"file://{folder}/store")
    count = CORES * TASKS_PER_CORE
    tasks = [
        PlanTask(
            folder=f"plans/{os.urandom(8).hex()}/",
            shards=tuple(files[at::count]),
            now_ns=NOW_NS,
            retry_horizon_ns=HORIZON_NS,
            versioning_enabled=True,
            audit_id="A",
            audit_started_at_ns=NOW_NS,
        )
        for at in range(count)
    ]
    sums = PlanTotals()
    for group in asyncio.run(_run(engine, tasks)):
        for facts in group:
            sums.add(facts)
    _check(sums.summary().orphans.incarnations, blobs)
    return float(blobs)


async def _run(engine: SparkTaskEngine, tasks: list[PlanTask]) -> list[Any]:
    return list(await engine.run(partial(plan_shards, clock=SystemClock()), tasks))


def _control(folder: Path, blobs: int) -> float:
    place = folder / "store" / "audit"
    with duckdb.connect(config={"threads": CORES}) as connection:
        found = connection.execute(
            "SELECT count(*) FROM read_parquet(?) b ANTI JOIN read_parquet(?) n USING (sha256)",
            [f"{place}/blobs/*.parquet", f"{place}/names/*.parquet"],
        ).fetchone()
    _check(int(found[0]) if found else 0, blobs)
    return float(blobs)


def _peak_gib() -> float:
    """Return the sum of the peak memory of this process and all processes that it started."""
    peaks: dict[int, tuple[int, int]] = {}
    for place in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            rows = dict(line.split(":", 1) for line in place.read_text().splitlines())
            peak_kib = int(rows.get("VmHWM", "0").split()[0])
            peaks[int(place.parent.name)] = (int(rows["PPid"]), peak_kib)
    mine = {os.getpid()}
    for _ in range(4):  # driver, JVM, daemon, worker
        mine |= {pid for pid, (parent, _) in peaks.items() if parent in mine}
    return sum(peaks[pid][1] for pid in mine) / 2**20


def _check(orphans: int, blobs: int) -> None:
    per_shard = blobs // SHARDS
    wanted = SHARDS * (per_shard - int(per_shard * REFERENCED))
    if orphans != wanted:
        raise SystemExit(f"wrong result: {orphans} orphans instead of {wanted}")


if __name__ == "__main__":
    main()
