"""Two real processes on one store; each is killed in the middle of its tasks."""

import asyncio
import json
import math
import random
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.maintain_processes import MaintenanceProcesses, parent_of, wait_for
from support.past_orphan import plant_past_orphan
from support.spark_lake import Deployment, assert_lake_holds, make_batch, sent_rows
from support.spark_local import ingest_locally

from sluice_maintain.tasks import TaskName
from sluice_protocol.fields import KINDS
from sluice_protocol.keys import blob_key
from sluice_protocol.system_clock import SystemClock

COMMON = """
[maintain]
listen = "127.0.0.1:0"
stop_grace_s = 5
"""
WITHOUT_SPARK = """
tasks = ["retention", "queue", "noncurrent", "audit", "gc"]
[maintain.every_s]
queue = 1
retention = 1
audit = 2
gc = 2
[maintain.gc]
grace_s = 0
max_delete_ratio = 1.0
key_file = "auditor.pem"
shards = 4
"""
ONE_SPARK_TASK = """
tasks = ["{task}"]
[maintain.every_s]
{task} = 1
[maintain.ingest]
trigger_s = 1
[maintain.compact]
open_partitions = true
"""
SPARK_KILLS = (
    (TaskName.COMPACT, "compact_after_write", False),
    (TaskName.COMPACT, "compact_after_commit", True),
    (TaskName.ROLLUP, "rollup_after_write", False),
    (TaskName.ROLLUP, "rollup_after_commit", True),
    (TaskName.INDEX, "index_after_chunks", True),
    (TaskName.INGEST, "after_write", False),
    (TaskName.INGEST, "before_ack", True),
)
"""The task, the step at which its process is killed, and whether the other process is killed too.

The tasks without Spark are killed at every read and write in `tests/fault/maintain`.
"""


Start = Callable[[str], MaintenanceProcesses]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "store", lanes=2)


@pytest.fixture
def start(deployment: Deployment, tmp_path: Path) -> Iterator[Start]:
    made: list[MaintenanceProcesses] = []

    def begin(settings: str) -> MaintenanceProcesses:
        folder = tmp_path / "processes"
        folder.mkdir()
        made.append(MaintenanceProcesses(deployment.root, folder, COMMON + settings))
        return made[0]

    yield begin
    for one in made:
        one.clean_up()


def read(url: str, path: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers)) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_audits_and_collection_survive_kills_at_random_times(
    deployment: Deployment, start: Start
) -> None:
    """The orphan is deleted, every accepted blob stays, and the chain of certificates is intact."""
    orphan = make_batch(9_000, agent="gone")
    age_s = 30 * 86_400
    clock = SystemClock()
    asyncio.run(plant_past_orphan(deployment.root, orphan.frame, age_s=age_s, clock=clock))
    deployment.init()
    batches = [make_batch(start * 10, agent=f"a{start % 5}") for start in range(60)]
    deployment.deliver(batches)
    processes = start(WITHOUT_SPARK)
    rng = random.Random(7)
    processes.start()
    processes.start()
    for task in ("gc", "audit", "gc", "queue", "audit", "gc"):
        processes.kill_owner(task, rng.uniform(0, 0.6))
        processes.start()
    killed = processes.outcomes("gc") + processes.outcomes("audit")
    wait_for(lambda: not (deployment.root / blob_key(orphan.manifest.digest)).exists(), "gc")
    wait_for(lambda: processes.outcomes("gc")[-2:] == ["done", "done"], "two cycles")
    running = next(one for one in processes.started if one.poll() is None)
    url = processes.url(running)
    wait_for(lambda: read(url, "/readyz") == (200, "ready\n"), "readiness")
    assert "<td>gc</td>" in read(url, "/")[1]
    shown = json.loads(read(url, "/", Accept="application/json")[1])
    assert {one["task"] for one in shown["tasks"]} == set(TaskName)
    assert read(url, "/v1/status")[0] == 200
    assert 'sluice_maintain_running{task="gc"}' in read(url, "/metrics")[1]
    wait_for(lambda: not any(map(processes.has_lease_of_ended, TaskName)), "the end of old leases")
    processes.stop()

    assert all((deployment.root / blob_key(one.manifest.digest)).exists() for one in batches)
    assert processes.command("audit", "verify", "--key-file", "auditor.pem").returncode == 0
    assert "lost" in [*killed, *processes.outcomes("gc"), *processes.outcomes("audit")]
    status = processes.status()
    assert {status[task]["lease_owner"] for task in status} == {""}
    assert status["gc"]["last_outcome"] in ("done", "stopped")


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "task",
    [
        pytest.param(TaskName.COMPACT, id="compaction"),
        pytest.param(TaskName.ROLLUP, id="rollup"),
        pytest.param(TaskName.INDEX, id="index"),
        pytest.param(TaskName.INGEST, id="ingestion"),
    ],
)
def test_processes_killed_during_a_task_with_spark_lose_and_double_nothing(
    deployment: Deployment, start: Start, task: TaskName
) -> None:
    """The next process continues, from the lease's end, and the records are those sent."""
    deployment.init()

    def deliver(number: int) -> None:
        deployment.deliver([make_batch(number * 10, agent=kind, kind=kind) for kind in KINDS])
        if task is not TaskName.INGEST or number < 2:
            ingest_locally(deployment.url)

    for number in range(6):
        deliver(number)
    processes = start(ONE_SPARK_TASK.format(task=task))
    kills = [(step, both) for one, step, both in SPARK_KILLS if one is task]
    processes.start()
    processes.start()
    for number, (step, both) in enumerate(kills, start=6):
        (processes.folder / f"{step}.armed").touch()
        deliver(number)
        worker = processes.wait_until_held(step)
        owner = processes.owner_of(task)
        assert owner is not None
        assert parent_of(worker) == owner.pid
        processes.kill(processes.running if both else [owner])
        for _ in range(2 - len(processes.running)):
            processes.start()
        wait_for(partial(processes.has_lost, task, owner), f"the end of the lease of {step}")
    deliver(len(kills) + 6)
    if task is TaskName.INGEST:
        wait_for(lambda: len(deployment.rows("batches")) == len(deployment.sent), "ingestion")
    else:
        wait_for(partial(processes.has_succeeded, task, time.time_ns()), task)
    processes.stop()
    assert_lake_holds(deployment, deployment.sent)
    if task is TaskName.COMPACT:
        assert len(deployment.table("logs").file_uris()) < len(deployment.sent) / 3
    if task is TaskName.ROLLUP:
        values = [struct.unpack("<d", row[5])[0] for row in sent_rows(deployment.sent, "metrics")]
        minutes = [row for row in deployment.rows("rollups") if row["window"] == "1m"]
        assert sum(row["count"] for row in minutes) == sum(not math.isnan(one) for one in values)
    if task is TaskName.INDEX:
        done = processes.command("spark", "index", "--json")
        assert (done.returncode, json.loads(done.stdout)["indexed"]) == (0, 0), done.stderr
