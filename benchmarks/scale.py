"""The scale curve: bytes a second and processor seconds a GiB, by the number of each role.

    make scale [BATCHES=400] [WRITE=1]

Real processes on one machine and a store in memory: gateways behind a client that uploads to them
in turn, reconcilers that share the lanes, then the Spark jobs. Three curves, in each of which one
number changes: reconcilers with as many lanes, gateways, agents. A point lasts until every batch is
in the queue. The client signs beforehand and is not counted; it needs a part of the same cores, so
bytes a second stop growing when the cores are busy. What grows or not beyond that shows in the
processor seconds of a GiB: they would stay equal if each process did only its own work.

The Spark jobs run over two loads, and what counts is the difference: the start of a job costs more
than a small load, and varies by seconds, so the small load is measured three times. The control of
compaction is DuckDB, which reads the same files, sorts their rows by the same columns and writes
one Parquet file, without deletes, ledger and checks.

With `WRITE=1` the result file is written, and from it a part of docs/sizing.md.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import psutil
from deploy.page_sections import markdown_table, split_section

from benchmarks.accept_load import SERIAL, plain_headers, signed_headers, uploading
from benchmarks.accept_servers import child, free_port, principals, tree_cpu_of, until_live
from sluice_protocol.authority import Authority
from sluice_protocol.columns import LogColumns, TextColumn
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.upload_http import FRAME_MEDIA_TYPE, UPLOAD_PATH
from sluice_queue.inspection import read_lane_status
from sluice_store import StoreMode, create_authority, open_store

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/sizing.md"
RESULTS: Final = Path(__file__).with_name("scale.json")
BEGIN: Final = "<!-- written by `make scale WRITE=1` -->\n"
END: Final = "<!-- end of scale -->"
GIB: Final = 1 << 30
IN_FLIGHT: Final = 16
WAIT_S: Final = 300.0
"""Longest time until every batch is in the queue."""
LINES, FEW_LINES = 2_000, 100
"""Lines of a batch: about 0.25 MiB, as an agent seals it under load, and 12 KiB."""
COMMAND: Final = (sys.executable, "-c", "from sluice_cli.main import main; main()")
"""The command of this checkout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """How many of each role, and the load."""

    gateways: int = 2
    reconcilers: int = 2
    lanes: int = 4
    agents: int = 100
    lines: int = LINES


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a point cost. `raw_bytes` are the bytes of the lines; times are seconds."""

    batches: int
    raw_bytes: int
    accepted_s: float
    enqueued_s: float
    gateway_cpu_s: float
    reconciler_cpu_s: float


class LoadBatch:
    """A frame of distinct lines of an access log, with the signed headers for each gateway."""

    def __init__(self, agent: int, lines: int, ports: Sequence[int]) -> None:
        number = next(SERIAL)
        seeded = np.random.default_rng(number)
        tokens = seeded.integers(0, 2**62, lines).tolist()
        bodies = [
            b"10.0.%d.%d - - GET /api/v1/items/%d?session=%x HTTP/1.1 %d %d rt=0.%03d host=web-%d"
            % (n % 256, token % 256, n, token, 200 + n % 5, token % 90_000, n % 997, n % 16)
            for n, token in enumerate(tokens)
        ]
        offsets = np.zeros(lines + 1, np.int32)
        np.cumsum([len(body) for body in bodies], out=offsets[1:])
        data = b"".join(bodies)
        columns = LogColumns(
            ts=time.time_ns() + np.arange(lines), body=TextColumn(offsets=offsets, data=data)
        )
        first = number * lines
        self.identity = Identity(
            agent_id=f"scale-{agent}", boot_id="b", seq_start=first, seq_end=first + lines - 1
        )
        self.raw_bytes = len(data)
        self.frame = encode_frame(identity=self.identity, columns=columns)
        self.plain = plain_headers(self.frame, digest_of(self.frame), FRAME_MEDIA_TYPE)
        self.port = ports[number % len(ports)]
        self.signed = signed_headers(self.plain, UPLOAD_PATH, self.port)


@contextmanager
def deployment(point: Point, folder: Path) -> Iterator[tuple[str, list[int], list[int], list[int]]]:
    """Run the gateways and the reconcilers of a point; yield store, ports and process ids."""
    url = f"file://{folder}/store"
    asyncio.run(_create(url, point.lanes))
    file = folder / "principals.toml"
    file.write_text(principals([f"scale-{n}" for n in range(point.agents)]))
    with ExitStack() as stack:
        ports = [free_port() for _ in range(point.gateways)]
        gateways = [
            stack.enter_context(
                child(
                    *(*COMMAND, "gateway", "--store", url, "--listen", f"127.0.0.1:{port}"),
                    *("--principals", str(file), "--skip-probe"),
                )
            ).pid
            for port in ports
        ]
        reconcilers = [
            stack.enter_context(
                child(*COMMAND, "reconciler", "--store", url, "--listen", "127.0.0.1:0")
            ).pid
            for _ in range(point.reconcilers)
        ]
        for port in ports:
            until_live(port)
        time.sleep(8.0)  # the reconcilers divide the lanes: two heartbeats
        yield url, ports, gateways, reconcilers


async def _create(url: str, lanes: int) -> None:
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store, Authority(authority_id="scale", lanes=lanes))


async def _upload(batches: Sequence[LoadBatch], ports: Sequence[int]) -> None:
    for_port = {port: [one for one in batches if one.port == port] for port in ports}

    async def one_gateway(port: int, mine: list[LoadBatch]) -> None:
        waiting = iter(mine)
        async with uploading(port) as send:

            async def work() -> None:
                for one in waiting:
                    await send(one)  # type: ignore[arg-type]  # has what it reads

            await asyncio.gather(*(work() for _ in range(IN_FLIGHT // len(ports))))

    await asyncio.gather(*(one_gateway(port, mine) for port, mine in for_port.items()))


async def _until_enqueued(url: str, count: int) -> None:
    async with open_store(url) as store:
        until_s = time.perf_counter() + WAIT_S
        while time.perf_counter() < until_s:
            lanes = await read_lane_status(store, "spark")
            if sum(one.waiting_batches for one in lanes) >= count:
                return
            await asyncio.sleep(0.1)
    raise SystemExit(f"not every batch is in the queue after {WAIT_S:.0f} s")


def measure(point: Point, batches: int, folder: Path) -> Figures:
    """Upload the load of a point, and wait until it is in the queue."""
    with deployment(point, folder) as (url, ports, gateways, reconcilers):
        made = [LoadBatch(n % point.agents, point.lines, ports) for n in range(batches)]
        before = [sum(map(tree_cpu_of, pids)) for pids in (gateways, reconcilers)]
        began_s = time.perf_counter()
        asyncio.run(_upload(made, ports))
        accepted_s = time.perf_counter() - began_s
        asyncio.run(_until_enqueued(url, batches))
        enqueued_s = time.perf_counter() - began_s
        after = [sum(map(tree_cpu_of, pids)) for pids in (gateways, reconcilers)]
    spent = [end - start for start, end in zip(before, after, strict=True)]
    return Figures(
        batches=batches,
        raw_bytes=sum(one.raw_bytes for one in made),
        accepted_s=accepted_s,
        enqueued_s=enqueued_s,
        gateway_cpu_s=spent[0],
        reconciler_cpu_s=spent[1],
    )


JOBS: Final = {
    "ingest": ("ingest", "--once"),
    "compact": ("compact", "--open-partitions"),
    "index": ("index",),
}
"""The Spark jobs in their order, with their arguments."""
CONTROL: Final = "control of compact"
REWRITE: Final = """
import duckdb, sys
duckdb.connect(config={"threads": 2}).execute(
    "COPY (SELECT * FROM read_parquet(?, hive_partitioning = false)"
    " ORDER BY ts, agent_id, boot_id, seq)"
    f" TO '{sys.argv[2]}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1,"
    " ROW_GROUP_SIZE 65536)",
    [sys.argv[1]],
)
"""


def spark_costs(batches: int, parent: Path | None) -> dict[str, float]:
    """Return the processor seconds a GiB of each job and of the control, between two loads."""
    few = [_job_costs(batches, parent) for _ in range(STARTS)]
    many = _job_costs(batches * MORE_TIMES, parent)
    return {
        name: (many.cpu_s[name] - median(one.cpu_s[name] for one in few))
        / (many.raw_bytes - few[0].raw_bytes)
        * GIB
        for name in many.cpu_s
    }


@dataclass(frozen=True, slots=True)
class _JobCosts:
    raw_bytes: int
    cpu_s: dict[str, float]


def _job_costs(batches: int, parent: Path | None) -> _JobCosts:
    """Return the processor seconds of each job and of the control over one load."""
    cpu_s: dict[str, float] = {}
    with _scratch(parent) as folder:
        raw_bytes = measure(Point(), batches, folder).raw_bytes
        for name, job in JOBS.items():
            if name == "compact":
                files = f"{folder}/store/lake/v1/logs/*/*.parquet"
                control = (sys.executable, "-c", REWRITE, files, f"{folder}/control.parquet")
                cpu_s[CONTROL] = _cpu_of(*control)
            cpu_s[name] = _cpu_of(*COMMAND, "spark", *job, "--store", f"file://{folder}/store")
    print(json.dumps({"batches": batches, **cpu_s}), flush=True)
    return _JobCosts(raw_bytes, cpu_s)


@contextmanager
def _scratch(parent: Path | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sluice-scale-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cpu_of(*command: str) -> float:
    """Run a command; return the processor seconds of its processes, as seen just before its end.

    The Java process of Spark is not waited for, so the system does not add it up.
    """
    spent_s = 0.0
    with child(*command) as process:
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                spent_s = max(spent_s, tree_cpu_of(process.pid))
            time.sleep(0.05)
        if process.returncode:
            raise SystemExit(f"a job failed, command=`{command}`")
    return spent_s


CURVES: Final = {
    "lanes": [Point(reconcilers=n, lanes=n) for n in (1, 2, 4, 8)],
    "gateways": [Point(gateways=n) for n in (1, 2, 4)],
    "agents": [Point(agents=n, lines=FEW_LINES) for n in (10, 100, 1_000, 10_000)],
}
"""The points of each curve, by the field that changes."""
MORE_TIMES: Final = 10
"""How many times the batches of the small load the other load of the Spark jobs has."""
STARTS: Final = 3
"""How often the small load of the Spark jobs is measured."""
FEW_TIMES: Final = 25
"""How many more batches of few lines are sent."""
HEADS: Final = {
    "lanes": "reconcilers, and lanes",
    "gateways": "gateways",
    "agents": "agents, batches of 100 lines",
}


def run(batches: int, parent: Path | None) -> dict[str, Any]:
    """Measure every point, and the Spark jobs."""
    curves: dict[str, list[dict[str, Any]]] = {name: [] for name in CURVES}
    for name, points in CURVES.items():
        for point in points:
            count = batches if point.lines == LINES else batches * FEW_TIMES
            with _scratch(parent) as folder:
                one = asdict(point) | asdict(measure(point, count, folder))
            curves[name].append(one)
            print(json.dumps(one), flush=True)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "revision": _revision(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "curves": curves,
        "job_cpu_s_per_gib": spark_costs(batches, parent),
    }


def _revision() -> str:
    command = ("git", "rev-parse", "--short=8", "HEAD")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout[:8]


def section(results: dict[str, Any]) -> str:
    """Return the curves as tables, and what the figures mean for ten gigabytes a second."""
    machine = (
        f"{results['date']}, revision `{results['revision']}`, {results['machine']}, which the"
        " client, every gateway and every reconciler share; the store is a directory in memory.\n"
    )
    parts = [machine]
    for name, points in results["curves"].items():
        head = (HEADS[name], "MB/s accepted", "MB/s until in the queue")
        cost = ("gateways, CPU s a GiB", "reconcilers, CPU s a GiB")
        parts.append(markdown_table((*head, *cost), map(_row, points, [name] * len(points))))
    return "\n".join((*parts, _model(results)))


def _row(one: dict[str, Any], name: str) -> tuple[object, ...]:
    size = one["raw_bytes"]
    return (
        one[name],
        f"{size / one['accepted_s'] / 1e6:.0f}",
        f"{size / one['enqueued_s'] / 1e6:.0f}",
        f"{one['gateway_cpu_s'] / size * GIB:.1f}",
        f"{one['reconciler_cpu_s'] / size * GIB:.1f}",
    )


WANTED_BYTES: Final = 10e9
SEALED_BYTES: Final = 4 << 20
"""The bytes with which an agent seals a batch, before compression."""


def _model(results: dict[str, Any]) -> str:
    base = results["curves"]["gateways"][1]
    size, batch_bytes = base["raw_bytes"], base["raw_bytes"] / base["batches"]
    cost = {
        "gateways": base["gateway_cpu_s"] / size * GIB,
        "reconcilers": base["reconciler_cpu_s"] / size * GIB,
        **results["job_cpu_s_per_gib"],
    }
    control_s = cost.pop(CONTROL)
    rows = (
        (name, f"{cpu_s:.1f}", f"{cpu_s * WANTED_BYTES / GIB:.0f}") for name, cpu_s in cost.items()
    )
    total = sum(cost.values()) * WANTED_BYTES / GIB
    puts = 2 * WANTED_BYTES / SEALED_BYTES
    return (
        f"Compaction costs {cost['compact'] / control_s:.1f} times its control, DuckDB, which needs"
        f" {control_s:.1f} CPU s a GiB to read, sort and write the same rows.\n\n"
        f"What 10 GB/s of lines would need, if each cost stays as it is in batches of"
        f" {batch_bytes / 1e6:.2f} MB:\n\n"
        + markdown_table(("role", "CPU s a GiB", "cores for 10 GB/s"), rows)
        + f"\nThat is {total:.0f} cores of this machine. Batches of 4 MiB are {puts:.0f} PUTs a"
        " second of blobs and manifests. The weakest assumption: that costs stay equal with"
        " hundreds of processes. What they share is the store and the registers of the lanes, and"
        " neither was loaded with more than this machine has.\n"
    )


def main(arguments: Sequence[str]) -> None:
    """Run the curves, and print their section."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale")
    parser.add_argument("--batches", type=int, default=400, help="of 0.25 MiB, for each point")
    parser.add_argument("--write", action="store_true", help="write the results and the page")
    memory = Path("/dev/shm")  # noqa: S108 - a file system in memory
    options = parser.parse_args(arguments)
    results = run(options.batches, memory if memory.is_dir() else None)
    print(section(results))
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        before, _, after = split_section(PAGE.read_text(), BEGIN, END)
        PAGE.write_text(f"{before}\n{section(results)}\n{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
