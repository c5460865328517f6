"""The real ingest job is killed in the middle of a commit, as an operator or the kernel would."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from support.repetitions import times
from support.spark_kills import IngestProcesses, Target
from support.spark_lake import Deployment, assert_lake_holds, make_batch

pytestmark = pytest.mark.spark

KINDS = ("logs", "metrics", "entries")
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


@pytest.mark.timeout(1200)
def test_each_record_is_in_the_lake_once_after_kills(
    processes: IngestProcesses, deployment: Deployment
) -> None:
    """A killed worker restarts the query, after other kills a new process completes the commit.

    The long test below has every process and step.
    """
    kills: list[tuple[Target, str]] = [
        ("worker", "in_write"),
        ("group", "before_ledger"),
    ]
    kill_at(processes, deployment, kills)
    assert_lake_holds(deployment, deployment.sent)
    for kind in KINDS:
        assert duckdb_ids(deployment, kind) == sent_ids(deployment, kind)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_each_record_is_in_the_lake_once_after_kills_of_each_process_and_at_each_step(
    processes: IngestProcesses, deployment: Deployment
) -> None:
    """Each process once, at every third step; with `SLUICE_LONG_TIMES=12`, each at every step.

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
