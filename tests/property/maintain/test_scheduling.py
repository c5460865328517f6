"""Runs of the scheduler over virtual time: no starvation, no conflicts, no runs in a burst."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.maintain_processes import SLOTS, at, policy_of, situation
from support.repetitions import examples

from sluice_maintain.lease_rules import RecordWriter, RunResult, acquire, end_run
from sluice_maintain.scheduler import decide
from sluice_maintain.tasks import TRAITS, TaskName, conflicting
from sluice_protocol.maintenance import RunOutcome, TaskRecord

STEP_S = 5.0
LONGEST_S = 120.0
EVERY_S = 60.0
POLICIES = {
    task: policy_of(task, every_s=EVERY_S, backoff_s=5.0, backoff_max_s=40.0) for task in TaskName
}
GAP_S = 8 * (EVERY_S + LONGEST_S)
"""Far longer than an interval and the runs of every task that may come first."""


@dataclass
class VirtualProcess:
    """One process: the tasks that it runs, and when each ends."""

    owner: str
    running: dict[TaskName, tuple[float, str]] = field(default_factory=dict)


@dataclass
class VirtualMaintenance:
    """Several processes over the same records, in steps of virtual time."""

    rng: random.Random
    processes: list[VirtualProcess]
    failing: TaskName | None
    records: dict[TaskName, TaskRecord | None] = field(
        default_factory=lambda: dict.fromkeys(TaskName)
    )
    starts: dict[TaskName, list[float]] = field(
        default_factory=lambda: {task: [] for task in TaskName}
    )

    def step(self, now_s: float) -> None:
        for process in self.processes:
            self._end(process, now_s)
            known = [record for record in self.records.values() if record is not None]
            found = decide(
                situation(
                    *known,
                    now_s=now_s,
                    policies=POLICIES,
                    running=frozenset(process.running),
                    owner=process.owner,
                )
            )
            for task in found.start:
                self._start(process, task, now_s)
            self._check()

    def _start(self, process: VirtualProcess, task: TaskName, now_s: float) -> None:
        nonce = f"{process.owner}{task}{now_s}"
        writer = RecordWriter(owner=process.owner, nonce=nonce)
        record = acquire(self.records[task], at(now_s), writer, task=task, lease_s=1_000_000)
        assert record is not None
        self.records[task] = record
        process.running[task] = (now_s + self.rng.uniform(0, LONGEST_S), nonce)
        self.starts[task].append(now_s)

    def _end(self, process: VirtualProcess, now_s: float) -> None:
        for task, (ends_s, nonce) in list(process.running.items()):
            if ends_s <= now_s:
                del process.running[task]
                wrong = task is self.failing or self.rng.random() < 0.2
                outcome = RunOutcome.FAILED if wrong else RunOutcome.DONE
                self.records[task] = end_run(
                    self.records[task],
                    at(now_s),
                    RecordWriter(owner=process.owner, nonce=f"{nonce}."),
                    lease=nonce,
                    result=RunResult(outcome=outcome, figures={}),
                )

    def _check(self) -> None:
        running = [task for process in self.processes for task in process.running]
        assert len(running) == len(set(running))
        assert not any(other in running for task in running for other in conflicting(task))
        for process in self.processes:
            for kind, slots in SLOTS.items():
                assert sum(TRAITS[task].worker is kind for task in process.running) <= slots


@settings(max_examples=examples(20), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    seed=st.integers(0, 2**32),
    processes=st.integers(1, 3),
    failing=st.sampled_from([None, *TaskName]),
)
def test_every_task_keeps_running_whatever_the_others_do(
    seed: int, processes: int, failing: TaskName | None
) -> None:
    world = VirtualMaintenance(
        rng=random.Random(seed),
        processes=[VirtualProcess(f"p{number}") for number in range(processes)],
        failing=failing,
    )
    end_s = 2.5 * GAP_S
    for number in range(int(end_s / STEP_S)):
        world.step(number * STEP_S)
    for task, starts in world.starts.items():
        gaps = [after - before for before, after in pairwise([0.0, *starts, end_s])]
        assert max(gaps) < GAP_S, f"{task} waited {max(gaps):g} s"


@settings(max_examples=examples(20), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(seed=st.integers(0, 2**32), down_s=st.floats(0, 10_000))
def test_a_task_never_starts_more_often_than_its_interval(seed: int, down_s: float) -> None:
    """Also after a time without a process."""
    world = VirtualMaintenance(
        rng=random.Random(seed), processes=[VirtualProcess("p")], failing=None
    )
    for number in range(100):
        world.step(number * STEP_S)
    for number in range(100):
        world.step(100 * STEP_S + down_s + number * STEP_S)
    failed = {
        run.started_at_unix_ns
        for record in world.records.values()
        if record is not None
        for run in record.runs
        if run.outcome != RunOutcome.DONE
    }
    for task, starts in world.starts.items():
        if TRAITS[task].continuous:
            continue
        for before, after in pairwise(starts):
            assert after - before >= EVERY_S or at(before) in failed
