"""Real `sluice maintain` processes on one store, killed while they run a task.

Also here: records of maintenance tasks for tests.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.constants import command_with_constants
from support.sluice_process import run_process

from sluice_maintain.scheduler import Situation
from sluice_maintain.settings import MaintainSettings, TaskPolicy
from sluice_maintain.tasks import TaskName, WorkerKind
from sluice_protocol.maintenance import (
    RunOutcome,
    TaskLease,
    TaskRecord,
    TaskRun,
    decode_task_record,
    task_record_key,
)
from sluice_protocol.units import NS_PER_S
from sluice_spark.failpoints import FAILPOINT_FOLDER_VARIABLE

WAIT_S = 1200.0
_QUICK = (
    "sluice_maintain.settings:MaintainSettings.poll_s=0.3",
    "sluice_maintain.settings:MaintainSettings.lease_s=10.0",
    "sluice_maintain.scheduler:FENCED_WAIT_S=1.0",
    f"sluice_maintain.settings:BACKOFF_S={json.dumps(dict.fromkeys(TaskName, 1.0))}",
)
"""Constants of the processes: leases and pauses of a killed process end within seconds."""


def wait_for(condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    ends = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < ends, f"{what} took more than {wait_s:g} s"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def parent_of(pid: int) -> int:
    found = re.search(r"^PPid:\t(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@dataclass
class MaintenanceProcesses:
    """Processes that share a store and a settings file.

    Attributes:
        root: The directory of the store.
        folder: For the settings file, armed steps and output.
        settings: The text of `sluice.toml`.
    """

    root: Path
    folder: Path
    settings: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "sluice.toml").write_text(f'store = "file://{self.root}"\n{self.settings}')

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sluice_cli", *arguments]
        return run_process(command, cwd=self.folder, text=True, timeout=WAIT_S)

    def start(self) -> subprocess.Popen[bytes]:
        path = self.folder / f"output-{len(self.started)}"
        spark = {"MASTER": "local[1]", "SPARK_DRIVER_MEMORY": "512m"}
        environment = os.environ | spark | {FAILPOINT_FOLDER_VARIABLE: str(self.folder)}
        with path.open("wb") as output:
            process = subprocess.Popen(
                [*command_with_constants(*_QUICK), "maintain"],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=output,
            )
        self.started.append(process)
        return process

    def output(self, process: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"output-{self.started.index(process)}").read_text()

    def url(self, process: subprocess.Popen[bytes]) -> str:
        found: list[str] = []

        def is_listening() -> bool:
            assert process.poll() is None, self.output(process)
            found[:] = re.findall(r"http://127\.0\.0\.1:\d+", self.output(process))
            return bool(found)

        wait_for(is_listening, "the start")
        return found[0]

    def record(self, task: str) -> TaskRecord | None:
        key = task_record_key(task)
        try:
            return decode_task_record(key, (self.root / key).read_bytes())
        except FileNotFoundError:
            return None

    def outcomes(self, task: str) -> list[str]:
        record = self.record(task)
        return [run.outcome for run in record.runs] if record is not None else []

    def has_lost(self, task: str, process: subprocess.Popen[bytes]) -> bool:
        """Return True if a run of a killed process is recorded as lost."""
        record = self.record(task)
        runs = record.runs if record is not None else ()
        return any(one.outcome == "lost" and f"-{process.pid}-" in one.owner for one in runs)

    def has_succeeded(self, task: str, since_ns: int) -> bool:
        """Return True if a run that started after a time has succeeded."""
        record = self.record(task)
        runs = record.runs if record is not None else ()
        return any(one.outcome == "done" and one.started_at_unix_ns > since_ns for one in runs)

    def owner_of(self, task: str) -> subprocess.Popen[bytes] | None:
        """Return the process that has the lease of a task."""
        record = self.record(task)
        if record is None or record.lease is None:
            return None
        pid = int(record.lease.owner.rsplit("-", 2)[1])
        return next((one for one in self.started if one.pid == pid and one.poll() is None), None)

    def has_lease_of_ended(self, task: str) -> bool:
        """Return True if a process that has ended still has the lease of a task."""
        record = self.record(task)
        return record is not None and record.lease is not None and self.owner_of(task) is None

    def kill_owner(self, task: str, delay_s: float) -> subprocess.Popen[bytes]:
        """Kill the process that runs a task, some time after it was seen to run it."""
        found: list[subprocess.Popen[bytes]] = []

        def is_running() -> bool:
            found[:] = [one] if (one := self.owner_of(task)) is not None else []
            return bool(found)

        wait_for(is_running, f"a run of {task}")
        time.sleep(delay_s)
        self.kill(found)
        return found[0]

    @property
    def running(self) -> list[subprocess.Popen[bytes]]:
        """The processes that have not ended."""
        return [one for one in self.started if one.poll() is None]

    def kill(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Kill processes together; wait until they and their workers have ended."""
        workers = [pid for one in processes for pid in self.workers_of(one.pid)]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        wait_for(lambda: not any(is_alive(pid) for pid in workers), "the end of the workers")

    def wait_until_held(self, step: str) -> int:
        """Wait until a worker waits at an armed step; return its process id."""
        held: list[Path] = []

        def is_held() -> bool:
            found = self.folder.glob(f"{step}.*")
            held[:] = [path for path in found if path.suffix != ".armed"]
            return bool(held)

        wait_for(is_held, step)
        return int(held[0].suffix[1:])

    def workers_of(self, pid: int) -> list[int]:
        children = Path(f"/proc/{pid}/task/{pid}/children")
        with suppress(OSError):
            return [int(child) for child in children.read_text().split()]
        return []

    def stop(self) -> None:
        """Stop every process in an orderly way; each must exit with 0.

        One that is still starting would be ended by the signal itself.
        """
        running = self.running
        for process in running:
            self.url(process)
        for process in running:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(WAIT_S) for process in running]
        assert codes == [0] * len(running), [self.output(one)[-2000:] for one in running]

    def clean_up(self) -> None:
        """Kill what a failed test left; workers end with their process."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()

    def status(self) -> dict[str, dict[str, object]]:
        done = self.command("maintain", "status", "--json")
        return {one["task"]: one for one in json.loads(done.stdout)["tasks"]}


NOW_NS = 1_767_225_600 * NS_PER_S
"""2026-01-01T00:00:00Z, a Thursday."""
SLOTS = {WorkerKind.INGEST: 1, WorkerKind.SPARK: 2, WorkerKind.PLAIN: 2}


def at(seconds: float) -> int:
    """Return an instant, seconds after `NOW_NS`."""
    return NOW_NS + round(seconds * NS_PER_S)


def ran(
    task: TaskName,
    outcome: RunOutcome = RunOutcome.DONE,
    *,
    started_s: float,
    ended_s: float,
    failures: int = 0,
) -> TaskRecord:
    run = TaskRun(
        started_at_unix_ns=at(started_s),
        ended_at_unix_ns=at(ended_s),
        outcome=outcome.value,
        owner="a",
    )
    return TaskRecord(task=task.value, revision=1, nonce="n", runs=(run,), failures=failures)


def policy_of(task: TaskName, **values: Any) -> TaskPolicy:
    """Return the policy of a task that is on, with other values than the default ones."""
    return replace(MaintainSettings(tasks=tuple(TaskName)).policies()[task], **values)


def leased(
    task: TaskName, *, owner: str = "b", started_s: float = 0.0, expires_s: float = 60.0
) -> TaskRecord:
    """Return the record of a task that a process runs."""
    lease = TaskLease(
        owner=owner,
        nonce="lease",
        started_at_unix_ns=at(started_s),
        expires_at_unix_ns=at(expires_s),
    )
    return TaskRecord(task=task.value, revision=1, nonce="n", lease=lease)


def situation(
    *records: TaskRecord,
    now_s: float = 0.0,
    settings: MaintainSettings | None = None,
    policies: Mapping[TaskName, TaskPolicy] | None = None,
    running: frozenset[TaskName] = frozenset(),
    slots: dict[WorkerKind, int] | None = None,
    owner: str = "a",
) -> Situation:
    """Return a situation; tasks without a record never ran."""
    known: dict[TaskName, TaskRecord | None] = dict.fromkeys(TaskName)
    known |= {TaskName(record.task): record for record in records}
    return Situation(
        now_ns=at(now_s),
        owner=owner,
        policies=policies or (settings or MaintainSettings()).policies(),
        records=known,
        running=running,
        slots=slots or SLOTS,
    )
