"""Benchmark `gc`: the deletion plan compared with DuckDB's anti-join of the same shards.

The plan runs in this process, as `sluice gc plan` does by default, and on Spark, with as many cores
as DuckDB and with shards as an audit makes them by default. It reads the names and the eligible
versions, which an audit writes after its own join (ADR 38). It checks the sha256 of every file
that it reads, joins again, applies the clauses and writes candidates. The control counts keys in
the files of names and of all blobs. Three more figures: the plan in which every candidate is the
blob of an expired batch, compared with the plan of as many orphans; the plan of an inventory or of
an audit without the eligible versions, which reads all blobs; and the processor time in which an
audit joins and writes them. The start of Spark and DuckDB is not measured.

`SLUICE_BENCH_GC_BLOBS` sets the sizes, by default 10^6, 5·10^6 and 10^7, and
`SLUICE_BENCH_GC_ENGINES` the engines, by default `local,spark`. `SLUICE_BENCH_GC_NAMED` is the
share of the blobs that a manifest names, by default 0.9; 0 plans every blob.
"""

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.measure import (
    Sample,
    forget_peaks,
    interleave,
    peak_gib,
    ratio,
    report,
    timed,
)
from sluice_gc.certificate import ShardFiles
from sluice_gc.eligible_versions import eligible_table, join_names
from sluice_gc.evidence_files import BLOBS, NAMES, put_table
from sluice_gc.key_ranges import DigestShard, split_shards
from sluice_gc.planner import TASKS_TOGETHER, PlanRule, PlanTask, plan_shards, task_count
from sluice_gc.settings import AuditSettings
from sluice_gc.task_engine import (
    LocalTaskEngine,
    SparkTaskEngine,
    TaskEngine,
    reuse_freed_memory,
)
from sluice_protocol.collection_records import EvidenceFile
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_spark.session import SessionSettings, open_session
from sluice_store import StoreMode, open_store
from sluice_store.retry import Backoff

SHARDS: Final = AuditSettings().shards
ENGINES: Final = "local,spark"
GATES: Final = {1_000_000: 3.0, 10_000_000: 1.2}
MEMORY_GIB_MAX: Final = 1.5
CORES: Final = 2
ROUNDS: Final = 5
REFERENCED: Final = float(os.environ.get("SLUICE_BENCH_GC_NAMED", "0.9"))
SIZES: Final = "1000000,5000000,10000000"
NOW_NS: Final = 1_800_000_000 * NS_PER_S
HORIZON_NS: Final = 7 * 86_400 * NS_PER_S

Files = list[ShardFiles]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence of an audit: each shard's names with its eligible versions, or with all blobs.

    `expired` names every blob that no manifest names.
    `joined_cpu_s` is the processor time in which the eligible versions were joined and written.
    """

    eligible: Files
    all_blobs: Files
    expired: tuple[EvidenceFile, ...]
    joined_cpu_s: float


def main() -> None:
    """Run every size on every engine and print ratios, growth and memory."""
    sizes = [int(one) for one in os.environ.get("SLUICE_BENCH_GC_BLOBS", SIZES).split(",")]
    lines: list[str] = []
    samples: dict[str, list[Sample]] = {}
    for engine in os.environ.get("SLUICE_BENCH_GC_ENGINES", ENGINES).split(","):
        session = None
        if engine == "spark":
            session = open_session(SessionSettings(master=f"local[{CORES}]"), delta=False)
        walls = {blobs: _measure(session, blobs, lines, samples) for blobs in sizes}
        if len(sizes) > 1:
            grown = (walls[sizes[-1]] / walls[sizes[0]]) / (sizes[-1] / sizes[0])
            lines.append(
                f"{engine}: growth {sizes[0]:,} to {sizes[-1]:,}: {grown:.2f} of linear growth"
            )
        if session is not None:
            session.stop()
    lines.append(
        "requests: 2 GET per shard to read, 1 PUT per shard with candidates, none per blob"
    )
    report("gc", lines, samples)


def _measure(
    session: Any,  # noqa: ANN401 - pyspark has no types
    blobs: int,
    lines: list[str],
    samples: dict[str, list[Sample]],
) -> float:
    engine = "local" if session is None else "spark"
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-gc-"))
    try:
        made = asyncio.run(_make(folder, blobs))
        subjects: dict[str, Callable[[], Sample]] = {
            f"duckdb with {engine} {blobs}": lambda: timed(lambda: _control(folder, blobs)),
            f"{engine} {blobs}": lambda: timed(
                lambda: _plan(session, folder, made.eligible, blobs)
            ),
            f"{engine} {blobs}, expired": lambda: timed(
                lambda: _plan(session, folder, made.eligible, blobs, made.expired)
            ),
            f"{engine} {blobs}, all blobs": lambda: timed(
                lambda: _plan(session, folder, made.all_blobs, blobs)
            ),
        }
        forget_peaks()
        _plan(session, folder, made.eligible, blobs, made.expired)
        peak = peak_gib()
        taken = interleave(subjects, rounds=ROUNDS, warmup=1)
    finally:
        shutil.rmtree(folder)
    samples.update(taken)
    control, plan, expired, all_blobs = taken.values()
    low, middle, high = ratio(plan, control, lambda sample: sample.wall_s)
    wall_s = statistics.median(sample.wall_s for sample in plan)
    gate = f"; bar {GATES[blobs]}" if blobs in GATES else ""
    lines.append(
        f"{engine}, {blobs:,} blobs, {int(blobs * REFERENCED):,} named: plan {wall_s:.2f} s,"
        f" {middle:.2f} x DuckDB ({low:.2f} to {high:.2f}{gate});"
        f" peak memory of all its processes {peak:.2f} GiB (bar {MEMORY_GIB_MAX})"
    )
    if session is None:  # the processes of Spark do not end, so their time is unknown
        control_s = statistics.median(sample.cpu_s for sample in control)
        lines.append(
            "  processor time: plan {:.2f} x ({:.2f} to {:.2f})".format(
                *_in_order(ratio(plan, control, lambda sample: sample.cpu_s))
            )
            + f"; audit, to join and write the eligible versions once: {made.joined_cpu_s:.2f} s,"
            f" {made.joined_cpu_s / control_s:.2f} x"
        )
    lines.append(
        "  plan of as many expired batches: {:.2f} x the plan of orphans ({:.2f} to {:.2f};"
        " bar 1.2)".format(*_in_order(ratio(expired, plan, lambda sample: sample.cpu_s)))
    )
    lines.append(
        "  plan that reads all blobs: {:.2f} x DuckDB ({:.2f} to {:.2f})".format(
            *_in_order(ratio(all_blobs, control, lambda sample: sample.wall_s))
        )
    )
    return wall_s


def _in_order(ratios: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return median, minimum and maximum."""
    low, middle, high = ratios
    return middle, low, high


async def _make(folder: Path, blobs: int) -> Evidence:
    """Write the shards of a store with `blobs` blobs, as an audit would."""
    rng = np.random.default_rng(blobs)
    eligible: Files = []
    all_blobs: Files = []
    expired: list[EvidenceFile] = []
    joined_cpu_s = 0.0
    async with open_store(f"file://{folder}/store", StoreMode.CREATE) as store:
        put = partial(put_table, store, "audit/", backoff=Backoff.seeded_by(SystemClock()))
        for shard in split_shards(SHARDS):
            digests = _digests(rng, shard, blobs // SHARDS)
            named = np.sort(rng.permutation(len(digests))[: int(len(digests) * REFERENCED)])
            names = pa.table([_column(digests[named])], schema=NAMES)
            listed = _blobs(rng, digests)
            by_name = (await put("names", shard.name, names),)
            all_blobs.append((shard.name, by_name, (await put("blobs", shard.name, listed),)))
            started = time.process_time()
            joined = eligible_table(join_names(listed, names["sha256"]))
            eligible.append((shard.name, by_name, (await put("eligible", shard.name, joined),)))
            joined_cpu_s += time.process_time() - started
            others = pa.table([_column(np.delete(digests, named, axis=0))], schema=NAMES)
            expired.append(await put("expired", shard.name, others))
    return Evidence(
        eligible=eligible,
        all_blobs=all_blobs,
        expired=tuple(expired),
        joined_cpu_s=joined_cpu_s,
    )


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


def _plan(
    session: Any,  # noqa: ANN401 - pyspark has no types
    folder: Path,
    files: Files,
    blobs: int,
    expired: tuple[EvidenceFile, ...] = (),
) -> float:
    count = task_count(files, CORES if session else 1)
    rule = PlanRule(
        now_ns=UnixNs(NOW_NS),
        retry_horizon_ns=HORIZON_NS,
        versioning_enabled=True,
        audit_id="A",
        audit_started_at_ns=UnixNs(NOW_NS),
    )
    tasks = [
        PlanTask(
            folder=f"plans/{os.urandom(8).hex()}/",
            shards=tuple(files[at::count]),
            rule=rule,
            expired=expired,
        )
        for at in range(count)
    ]
    found = asyncio.run(_run(session, f"file://{folder}/store", tasks))
    summaries = [one.summary for group in found for one in group]
    tallies = [one.expired_tally if expired else one.orphans for one in summaries]
    _check(sum(one.incarnations for one in tallies), blobs)
    return float(blobs)


async def _run(session: Any, url: str, tasks: list[PlanTask]) -> list[Any]:  # noqa: ANN401
    async with open_store(url) as store:
        engine: TaskEngine = LocalTaskEngine(store)
        reuse_freed_memory()
        if session is not None:
            engine = SparkTaskEngine(session, url)
        work = partial(plan_shards, clock=SystemClock())
        return list(await engine.run(work, tasks, together=TASKS_TOGETHER))


def _control(folder: Path, blobs: int) -> float:
    place = folder / "store" / "audit"
    with duckdb.connect(config={"threads": CORES}) as connection:
        found = connection.execute(
            "SELECT count(*) FROM read_parquet(?) b ANTI JOIN read_parquet(?) n USING (sha256)",
            [f"{place}/blobs/*.parquet", f"{place}/names/*.parquet"],
        ).fetchone()
    _check(int(found[0]) if found else 0, blobs)
    return float(blobs)


def _check(orphans: int, blobs: int) -> None:
    per_shard = blobs // SHARDS
    wanted = SHARDS * (per_shard - int(per_shard * REFERENCED))
    if orphans != wanted:
        raise SystemExit(f"wrong result: {orphans} orphans instead of {wanted}")


if __name__ == "__main__":
    main()
