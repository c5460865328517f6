"""The real ingest job is killed in the middle of a commit, as an operator or the kernel would.

The real `sluice spark ingest` as processes, held at a step of a commit and killed there.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import duckdb
import pytest
from support.repetitions import times
from support.spark_lake import Deployment, assert_lake_holds, make_batch

from sluice_protocol.fields import KINDS
from sluice_spark.failpoints import FAILPOINT_FOLDER_VARIABLE

Target = Literal["driver", "jvm", "worker", "workers", "group"]
"""`worker` is the one that writes or the one that reads offsets; `workers` are all of them."""
_MARK = "SLUICE_TEST_PROCESSES"
_WAIT_S = 300.0
"""Time for a step to be reached: a start of Spark on a busy machine takes minutes."""
ENDED_S = 15.0
"""Time in which no process may remain after its driver was killed."""


def wait_until(condition: Callable[[], bool], wait_s: float, what: str) -> float:
    """Return the seconds that it took until the condition was true."""
    begun = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun
        assert waited_s < wait_s, f"{what} took more than {wait_s:g} s"
        time.sleep(0.02)
    return time.monotonic() - begun


@dataclass
class IngestProcesses:
    """One ingest job at a time: its driver, its JVM and its Python workers.

    Attributes:
        store_url: The store.
        folder: For the armed steps and the output.
        kills: Targets and steps of the kills so far.
    """

    store_url: str
    folder: Path
    kills: list[tuple[Target, str]] = field(default_factory=list)
    _output: Path = Path(os.devnull)
    _driver: subprocess.Popen[bytes] | None = None
    _mark: str = ""

    def command(self, *options: str) -> list[str]:
        job = [sys.executable, "-m", "sluice_cli", "spark", "ingest", "--store", self.store_url]
        return [*job, *options]

    def environment(self) -> dict[str, str]:
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        spark = {"MASTER": "local[1]", "SPARK_DRIVER_MEMORY": "512m"}
        return os.environ | spark | {name: value, FAILPOINT_FOLDER_VARIABLE: str(self.folder)}

    def run_to_the_end(self) -> str:
        """Run the job once without a kill and return its output."""
        if self._driver is not None:
            self._driver.send_signal(signal.SIGTERM)
            assert self._driver.wait(_WAIT_S) == 0
            self._driver = None
        done = subprocess.run(
            self.command("--once"),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kill(self, target: Target, step: str, deliver: Callable[[], None]) -> None:
        """Deliver batches, hold the job at a step of their commit, and kill a process there."""
        (self.folder / f"{step}.armed").touch()
        deliver()
        if self._driver is None:
            self._output = self.folder / f"output-{len(self.kills)}"
            with self._output.open("wb") as output:
                self._driver = subprocess.Popen(
                    self.command("--trigger-s", "0.2"),
                    env=self.environment(),
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        held = self._wait_held(step)
        self.kills.append((target, step))
        match target:
            case "worker" | "workers":
                self._kill_workers(held, every=target == "workers")
                held.unlink()
            case "jvm":
                self._kill_jvm(held)
            case "driver" | "group":
                self._kill_driver(held, group=target == "group")

    def stop(self) -> None:
        """Kill what a failed test left."""
        if self._driver is not None:
            for pid in self._pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._driver.wait()

    def _wait_held(self, step: str) -> Path:
        found: list[Path] = []
        driver = self._driver
        assert driver is not None

        def held() -> bool:
            assert driver.poll() is None, self._output.read_text()
            found[:] = [path for path in self.folder.glob(f"{step}.*") if path.suffix != ".armed"]
            return bool(found)

        wait_until(held, _WAIT_S, f"step {step}")
        return found[0]

    def _kill_workers(self, held: Path, *, every: bool) -> None:
        module = "\0-m\0pyspark." if every else "pyspark.sql.streaming.python_streaming_source"
        writing = held.name.startswith("in_write") and not every
        workers = [int(held.suffix[1:])] if writing else list(self._pids(module))
        assert workers
        for pid in workers:
            os.kill(pid, signal.SIGKILL)

    def _kill_jvm(self, held: Path) -> None:
        driver = self._driver
        assert driver is not None
        (jvm,) = self._pids("org.apache.spark.deploy.SparkSubmit")
        os.kill(jvm, signal.SIGKILL)
        held.unlink()
        code = driver.wait(_WAIT_S)
        text = self._output.read_text()
        assert code == 1, f"exit code {code}: {text}"
        self._driver = None
        assert "the JVM of Spark has ended: it was killed or crashed; start the job again" in text
        assert "Py4J" not in text
        self._wait_ended()

    def _kill_driver(self, held: Path, *, group: bool) -> None:
        driver = self._driver
        assert driver is not None
        if group:
            os.killpg(driver.pid, signal.SIGKILL)
        else:
            driver.kill()
        driver.wait()
        self._driver = None
        self._wait_ended()
        held.unlink()

    def _wait_ended(self) -> None:
        wait_until(lambda: not list(self._pids()), ENDED_S, "the end of every process")

    def _pids(self, part: str = "") -> Iterator[int]:
        """Yield the processes of the job whose command contains a text."""
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            with suppress(OSError):
                environment = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                if self._mark.encode() in environment and part in command:
                    yield int(folder.name)


pytestmark = pytest.mark.spark

STEPS = (
    "before_write",
    "in_write",
    "after_write",
    "before_records_logs",
    "after_records_logs",
    "after_records_metrics",
    "before_ledger",
    "after_ledger",
    "before_ack",
    "after_ack",
)
TARGETS: tuple[Target, ...] = ("worker", "driver", "jvm", "group")
Ids = list[tuple[str, str, int]]

DELTA = """
import sys
from sluice_spark.session import SessionSettings, open_session
spark = open_session(SessionSettings(master="local[1]"), delta=True)
for kind in sys.argv[2:]:
    rows = spark.read.format("delta").load(f"{sys.argv[1]}/{kind}")
    for row in rows.select("agent_id", "boot_id", "seq").collect():
        print("ROW", kind, *row)
spark.stop()
"""


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "store", lanes=2).init()


@pytest.fixture
def processes(deployment: Deployment, tmp_path: Path) -> Iterator[IngestProcesses]:
    folder = tmp_path / "steps"
    folder.mkdir()
    started = IngestProcesses(deployment.url, folder)
    yield started
    started.stop()


def kill_at(
    processes: IngestProcesses, deployment: Deployment, kills: list[tuple[Target, str]]
) -> None:
    """Deliver a batch of each kind for each kill, and one of the batches before it again."""
    for number, (target, step) in enumerate(kills):

        def deliver(number: int = number) -> None:
            again = deployment.sent[-2:-1]
            for kind in KINDS:
                agent = f"{kind}-{number % 3}"
                deployment.deliver([make_batch(number * 10, 10, agent=agent, kind=kind)])
            deployment.enqueue(again)

        processes.kill(target, step, deliver)
    processes.run_to_the_end()
    assert processes.kills == kills


def sent_ids(deployment: Deployment, kind: str) -> Ids:
    found = (one for one in deployment.sent if one.manifest.kind == kind)
    return sorted(row[:3] for one in found for row in one.rows)


def duckdb_ids(deployment: Deployment, kind: str) -> Ids:
    files = deployment.table(kind).file_uris()
    query = "SELECT agent_id, boot_id, seq FROM read_parquet($files)"
    return sorted(duckdb.execute(query, {"files": files}).fetchall())


def delta_ids(deployment: Deployment) -> dict[str, Ids]:
    lake = str(deployment.root / "lake" / "v1")
    done = subprocess.run(
        [sys.executable, "-c", DELTA, lake, *KINDS],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found: dict[str, Ids] = {kind: [] for kind in KINDS}
    for line in done.stdout.splitlines():
        if line.startswith("ROW "):
            _, kind, agent, boot, seq = line.split()
            found[kind].append((agent, boot, int(seq)))
    return {kind: sorted(ids) for kind, ids in found.items()}


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_each_record_is_in_the_lake_once_after_kills_of_each_process_and_at_each_step(
    processes: IngestProcesses, deployment: Deployment
) -> None:
    """Each process once, at every third step; with `SLUICE_LONG_TIMES=12`, each at every step.

    A killed worker restarts the query; after other kills a new process completes the commit.
    `tests/fault/spark/test_crashes.py` stops the same code at every step without processes.
    Spark reads the tables with Delta's own reader, which downloads its jars once.
    """
    steps = STEPS[:: max(1, 3 // times(1))]
    turns = min(max(1, times(1) // 3), len(TARGETS))
    kills = [
        (TARGETS[(number + turn) % len(TARGETS)], step)
        for number, step in enumerate(steps)
        for turn in range(turns)
    ]
    # In this order: after the kill at the write no worker is alive until the next batch.
    kills += [("workers", "before_ledger"), ("workers", "after_write")]
    assert len(kills) == len(steps) * turns + 2
    kill_at(processes, deployment, kills)
    assert_lake_holds(deployment, deployment.sent)
    by_delta = delta_ids(deployment)
    for kind in KINDS:
        assert duckdb_ids(deployment, kind) == sent_ids(deployment, kind)
        assert by_delta[kind] == sent_ids(deployment, kind)
