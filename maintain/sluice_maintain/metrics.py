"""Metrics of maintenance. `task` and `outcome` have a fixed set of values.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_maintain_runs_total | counter | task, outcome | runs of this process that ended |
| sluice_maintain_run_seconds_total | counter | task | duration of these runs |
| sluice_maintain_running | gauge | task | 1 while this process runs the task |
| sluice_maintain_last_success_unixtime_seconds | gauge | task | last success of any process |
| sluice_maintain_overdue_seconds | gauge | task | time since the task was due; alert on it |
| sluice_maintain_failures | gauge | task | consecutive failures |
| sluice_maintain_halted | gauge | task | 1 while the task waits for `sluice maintain resume` |
| sluice_maintain_last_figure | gauge | task, figure | what the running or the last run counted |
| sluice_maintain_dead_letters | gauge | | accepted batches whose blob could not be ingested |
| sluice_maintain_leases_lost_total | counter | task | runs whose lease was lost |
| sluice_maintain_worker_starts_total | counter | worker | started worker processes |
"""

from prometheus_client import CollectorRegistry, Counter, Gauge

from sluice_maintain.lease_rules import RunResult
from sluice_maintain.status import MaintenanceStatus, count_dead_letters
from sluice_maintain.tasks import TaskName
from sluice_protocol.units import NS_PER_S


class MaintenanceMetrics:
    """The metrics of one process, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.runs = self._counter("runs", "Runs that ended.", "task", "outcome")
        self.seconds = self._counter("run_seconds", "Duration of runs.", "task")
        self.leases_lost = self._counter("leases_lost", "Runs whose lease was lost.", "task")
        self.worker_starts = self._counter("worker_starts", "Started workers.", "worker")
        self.running = self._gauge("running", "Whether the task runs here.")
        self.last_success = self._gauge(
            "last_success_unixtime_seconds", "Last success of any process."
        )
        self.overdue = self._gauge("overdue_seconds", "Time since it was due.")
        self.failures = self._gauge("failures", "Consecutive failures.")
        self.halted = self._gauge("halted", "Whether it waits for a resume.")
        self.dead_letters = Gauge(
            "sluice_maintain_dead_letters", "Batches missing from the lake.", registry=self.registry
        )
        self.figures = self._gauge("last_figure", "What the last run counted.", "figure")

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"sluice_maintain_{name}", meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *more: str) -> Gauge:
        labels = ("task", *more)
        return Gauge(f"sluice_maintain_{name}", meaning, labels, registry=self.registry)

    def count_run(self, task: TaskName, result: RunResult, elapsed_s: float) -> None:
        """Record the end of a run of this process."""
        self.runs.labels(task.value, result.outcome.value).inc()
        self.seconds.labels(task.value).inc(elapsed_s)
        for name, value in result.figures.items():
            self.figures.labels(task.value, name).set(value)

    def show(self, status: MaintenanceStatus) -> None:
        """Set the gauges to the state of all tasks."""
        self.dead_letters.set(count_dead_letters(status) or 0)
        for one in status.tasks:
            for name, value in one.figures.items():
                self.figures.labels(one.task, name).set(value)
            self.running.labels(one.task).set(one.runs_here)
            self.overdue.labels(one.task).set(one.overdue_s)
            self.failures.labels(one.task).set(one.failures)
            self.halted.labels(one.task).set(bool(one.halted))
            if one.last_success_unix_ns is not None:
                self.last_success.labels(one.task).set(one.last_success_unix_ns / NS_PER_S)
