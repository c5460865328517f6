"""Benchmark `pipeline_executors`: ingestion with two executors of a cluster and with one.

A master and two workers with one core each run as separate processes on this machine. In each round
a driver with one executor and one with two ingest the same backlog, each in a new session.
The first query of a session is not counted. The figure is the sum of the micro-batches, as Spark
reports it. The machine needs two cores that are mostly idle.

`SLUICE_BENCH_MIB` sets the size of the raw columns (default 3072), and `TMPDIR` the directory. The
fixed part of a micro-batch is not halved, so smaller backlogs have a lower ratio.
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.measure import Sample, interleave, ratio, report
from benchmarks.pipeline import RAW_MIB, Sluice, prepare
from benchmarks.pipeline_batches import PipelineBatch
from sluice_protocol.manifests import AcceptedManifest
from sluice_spark.session import SessionSettings, open_session

ROUNDS: Final = 3
RUNS: Final = 3
"""Counted queries of a session."""
BAR: Final = 1.7
WORKERS: Final = 2


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The batches of a folder, as the drivers read them."""

    manifests: tuple[AcceptedManifest, ...]
    raw_bytes: tuple[int, ...]


def main() -> None:
    """Run the rounds and print the ratio."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-executors-"))
    try:
        batches = prepare(folder)
        backlog = Backlog(
            manifests=tuple(one.manifest for one in batches),
            raw_bytes=tuple(one.raw_bytes for one in batches),
        )
        (folder / "backlog.json").write_bytes(msgspec.json.encode(backlog))
        with cluster(folder / "cluster") as master:
            subjects: dict[str, Callable[[], Sample]] = {
                "one": lambda: _drive(folder, master, 1),
                "two": lambda: _drive(folder, master, 2),
            }
            samples = interleave(subjects, rounds=ROUNDS, warmup=0)
    finally:
        shutil.rmtree(folder)
    low, middle, high = ratio(samples["two"], samples["one"], lambda one: one.per_second)
    speeds = {
        who: statistics.median(one.per_second for one in taken) / 1e6
        for who, taken in samples.items()
    }
    line = (
        f"{RAW_MIB} MiB of raw columns: one executor {speeds['one']:.0f} MB/s, two"
        f" {speeds['two']:.0f} MB/s, x{middle:.2f} ({low:.2f} to {high:.2f}; bar {BAR})"
    )
    report("pipeline_executors", [line], samples)


def _drive(folder: Path, master: str, executors: int) -> Sample:
    """Run a driver; return its median query."""
    command = [sys.executable, "-m", "benchmarks.pipeline_executors"]
    command += ["drive", str(folder), master, str(executors)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    wall_s, units = json.loads(done.stdout.splitlines()[-1])
    return Sample(wall_s=wall_s, cpu_s=0.0, units=units)


def drive(folder: Path, master: str, executors: int) -> None:
    """Ingest the backlog several times and print the median time and the bytes."""
    backlog = msgspec.json.decode((folder / "backlog.json").read_bytes(), type=Backlog)
    batches = [
        PipelineBatch(manifest=manifest, raw_bytes=raw_bytes)
        for manifest, raw_bytes in zip(backlog.manifests, backlog.raw_bytes, strict=True)
    ]
    conf = {
        "spark.cores.max": str(executors),
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    spark = open_session(SessionSettings(master=master, conf=conf), delta=False)
    try:
        _await_executors(spark.sparkContext, executors)
        sluice = Sluice(spark, folder)
        for _ in range(1 + RUNS):
            sluice.run(batches)
    finally:
        spark.stop()
    counted = sluice.triggers[1:]
    wall_s = statistics.median(one.wall_s for one in counted)
    print(json.dumps([wall_s, counted[0].units]), flush=True)


def _await_executors(context: object, executors: int) -> None:
    """Return once the executors are registered; the driver is one entry of the list."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        scala = context._jsc.sc()  # type: ignore[attr-defined]  # noqa: SLF001 - pyspark has no such call
        if scala.getExecutorMemoryStatus().size() > executors:
            return
        time.sleep(0.1)
    raise SystemExit(f"{executors} executors did not start within 60 s")


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Run a master and workers with one core each; yield the URL of the master."""
    folder.mkdir()
    port, *others = _free_ports(2 + 2 * WORKERS)
    url = f"spark://127.0.0.1:{port}"
    here = ("--host", "127.0.0.1")
    with ExitStack() as stack:
        name = "org.apache.spark.deploy.master.Master"
        ui = ("--port", str(port), "--webui-port", str(others.pop()))
        stack.enter_context(_daemon(folder / "master.log", port, name, *here, *ui))
        name = "org.apache.spark.deploy.worker.Worker"
        for number in range(WORKERS):
            own = others.pop()
            ports = ("--port", str(own), "--webui-port", str(others.pop()))
            places = ("--work-dir", str(folder / f"work-{number}"), "--cores", "1")
            work = (name, *here, *ports, *places, "--memory", "1g", url)
            stack.enter_context(_daemon(folder / f"worker-{number}.log", own, *work))
        yield url


@contextmanager
def _daemon(log: Path, port: int, *arguments: str) -> Iterator[None]:
    import pyspark  # noqa: PLC0415 - takes most of a second

    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [str(spark_class), *arguments], stdout=sink, stderr=sink, env=environment
        )
        try:
            _await_port(port, process)
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("a daemon of Spark did not start; see its log")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        drive(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main()
