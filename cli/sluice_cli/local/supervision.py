"""Decides what follows the start, the readiness and the end of a supervised process.

The states of a process: `starting` until its health check succeeds, then `ready`. Its end leads to
`waiting`, and after a pause to `starting` again; or to `refused`, if it rejected its settings
before it was ever ready, because another start would fail in the same way.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sluice_protocol.errors import ExitCode
from sluice_protocol.units import NS_PER_S

PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 30.0
STABLE_S: Final = 60.0
"""A process that was ready for this long has recovered: the next pause is short again."""
_DOUBLINGS_MAX: Final = 16


class ServicePhase(StrEnum):
    """The state of a supervised process."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedRun:
    """What the supervisor knows of one service.

    Attributes:
        ready_since_ns: The monotonic time of its readiness; None if it is not ready.
        failures: Ends since it was last stable.
        pause_s: In `waiting`, the time to the next start.
    """

    phase: ServicePhase = ServicePhase.WAITING
    ready_since_ns: int | None = None
    was_ready: bool = False
    failures: int = 0
    starts: int = 0
    pause_s: float = 0.0


def after_start(run: SupervisedRun) -> SupervisedRun:
    """Return the state after a process was started."""
    return replace(run, phase=ServicePhase.STARTING, starts=run.starts + 1, ready_since_ns=None)


def after_ready(run: SupervisedRun, now_ns: int) -> SupervisedRun:
    """Return the state after a health check succeeded."""
    if run.phase is ServicePhase.READY:
        return run
    return replace(run, phase=ServicePhase.READY, ready_since_ns=now_ns, was_ready=True)


def after_exit(run: SupervisedRun, exit_code: int, now_ns: int) -> SupervisedRun:
    """Return the state after the process ended without a request to stop.

    `exit_code` is negative for a signal; `now_ns` is monotonic.
    """
    ready_ns = 0 if run.ready_since_ns is None else now_ns - run.ready_since_ns
    failures = 1 if ready_ns >= STABLE_S * NS_PER_S else run.failures + 1
    refused = exit_code == ExitCode.BAD_USAGE.value and not run.was_ready
    pause_s = min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(failures - 1, _DOUBLINGS_MAX))
    return replace(
        run,
        phase=ServicePhase.REFUSED if refused else ServicePhase.WAITING,
        ready_since_ns=None,
        failures=failures,
        pause_s=pause_s,
    )
