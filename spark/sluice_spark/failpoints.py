"""Fail points: named steps at which a test ends the process, as a crash would, or holds it.

The environment variable `SLUICE_FAILPOINT` is set to the name of a step, or to `name:n` for the
n-th time that the step is reached. The process ends there.

`SLUICE_FAILPOINT_FOLDER` is set to a folder in which a test arms steps of running processes: if the
file `<step>.armed` exists, one process that reaches the step renames it to `<step>.<pid>` and waits
until that file is removed. Without the variables no step has an effect.

| name | step |
|---|---|
| `before_write` | a micro-batch is planned, nothing is written |
| `in_write` | in a Python worker: the rows of a task are read, its files are not closed |
| `after_write` | data files are written, nothing is committed |
| `after_dead_letters` | dead letters are committed |
| `before_records_<kind>` / `after_records_<kind>` | around the commit of a record table |
| `before_ledger` / `after_ledger` | around the commit of the ledger |
| `before_ack` / `after_ack` | around the acknowledgement of the queue |
| `compact_after_write` / `compact_after_commit` | around the commit of a rewrite |
| `repetitions_before_record` | the repetitions of a date are removed, which is not recorded yet |
| `rollup_after_write` / `rollup_after_commit` | around the commit of a source range |
| `index_after_chunks` | the chunks of new files exist |
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FAILPOINT_VARIABLE: Final = "SLUICE_FAILPOINT"
FAILPOINT_FOLDER_VARIABLE: Final = "SLUICE_FAILPOINT_FOLDER"
FAILPOINT_EXIT_CODE: Final = 86


def end_process() -> None:
    """End the process immediately, without cleanup."""
    os._exit(FAILPOINT_EXIT_CODE)


_HOLD_MAX_S: Final = 600.0
_HOLD_POLL_S: Final = 0.02


def hold_if_armed(folder: Path, step: str) -> None:
    """Announce this process and wait, if a test has armed the step and no process took it yet."""
    held = folder / f"{step}.{os.getpid()}"
    try:
        (folder / f"{step}.armed").rename(held)
    except FileNotFoundError:
        return
    never = threading.Event()
    for _ in range(int(_HOLD_MAX_S / _HOLD_POLL_S)):
        if not held.exists():
            return
        never.wait(_HOLD_POLL_S)
    end_process()


@dataclass(slots=True, kw_only=True)
class FailPoint:
    """The step at which a job is interrupted; one value belongs to one run of a job.

    Attributes:
        step: None interrupts nothing.
        visit: The visit of the step, counted from 1, at which interruptions begin.
        folder: Where a test arms further steps, at which the process waits.
    """

    step: str | None = None
    visit: int = 1
    action: Callable[[], None] = end_process
    visits: int = 0
    folder: Path | None = None

    def reach(self, step: str) -> None:
        """Run the action if this fail point is at `step` and enough visits were made."""
        if self.folder is not None:
            hold_if_armed(self.folder, step)
        if step != self.step:
            return
        self.visits += 1
        if self.visits >= self.visit:
            self.action()


def read_failpoint(environment: Mapping[str, str] = os.environ) -> FailPoint:
    """Return the fail point that the environment describes."""
    step, _, visit = environment.get(FAILPOINT_VARIABLE, "").partition(":")
    folder = environment.get(FAILPOINT_FOLDER_VARIABLE)
    return FailPoint(
        step=step or None, visit=int(visit or 1), folder=Path(folder) if folder else None
    )
