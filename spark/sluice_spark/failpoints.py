"""Fail points: named steps at which a test ends the process, as a crash would.

The environment variable `SLUICE_FAILPOINT` is set to the name of a step, or to `name:n` for the
n-th time that the step is reached. Without the variable no step has an effect.

| name | step |
|---|---|
| `before_write` | a micro-batch is planned, nothing is written |
| `after_write` | data files are written, nothing is committed |
| `after_dead_letters` | dead letters are committed |
| `before_records_<kind>` / `after_records_<kind>` | around the commit of a record table |
| `before_ledger` / `after_ledger` | around the commit of the ledger |
| `before_ack` / `after_ack` | around the acknowledgement of the queue |
| `compact_after_write` / `compact_after_commit` | around the commit of a rewrite |
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

FAILPOINT_VARIABLE: Final = "SLUICE_FAILPOINT"
FAILPOINT_EXIT_CODE: Final = 86


def end_process() -> None:
    """End the process immediately, without cleanup."""
    os._exit(FAILPOINT_EXIT_CODE)


@dataclass(slots=True, kw_only=True)
class FailPoint:
    """The step at which a job is interrupted; one value belongs to one run of a job.

    Attributes:
        step: Name of the step; None interrupts nothing.
        visit: The visit of the step, counted from 1, from which on it is interrupted.
        action: What happens there.
        visits: How often the step was reached so far.
    """

    step: str | None = None
    visit: int = 1
    action: Callable[[], None] = end_process
    visits: int = 0

    def reach(self, step: str) -> None:
        """Run the action if `step` is the step of this fail point and its visit has come."""
        if step != self.step:
            return
        self.visits += 1
        if self.visits >= self.visit:
            self.action()


def read_failpoint(environment: Mapping[str, str] = os.environ) -> FailPoint:
    """Return the fail point that `SLUICE_FAILPOINT` names."""
    step, _, visit = environment.get(FAILPOINT_VARIABLE, "").partition(":")
    return FailPoint(step=step or None, visit=int(visit or 1))
