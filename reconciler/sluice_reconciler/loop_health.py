"""The health of each loop of the reconciler, and what logs and `/readyz` report about it.

One rule holds for every loop of every service:

    A failure is cleared by the next try of the same loop that the store answers, also if that try
    finds nothing to do. It stops no other loop. Pauses after a failure have a bound in seconds that
    does not depend on how long the failure lasted.

So work continues within `RECOVERY_S` of the end of an outage, whatever its length. A counter that
only a rare success resets, such as that of a full pass a day, would break the rule.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec
import structlog

from sluice_protocol.units import NS_PER_S

log = structlog.get_logger()

RECOVERY_S: Final = 10.0
"""Time from the end of an outage within which every loop works again, seconds."""
RETRY_S: Final = 1.0
"""Pause of a needed loop after a failure, seconds."""
LATER_S: Final = 5.0
"""Pause of every other loop after a failure, at most, seconds."""
STALLED_S: Final = 5.0
"""Duration of a failure from which a loop counts as stalled, seconds. Longer than the pauses
between a few tries, and short enough that an operator sees it within 10 s."""
LOG_AGAIN_S: Final = 10.0
"""Time between two log lines about one failure that continues, seconds."""
REASON_CHARS_MAX: Final = 300


class Loop(StrEnum):
    """A loop of the reconciler, as logs and reports name it."""

    JOURNALS = "journals"
    PASSES = "full_pass"
    MEMBERS = "members"
    BOOT_TAILS = "boot_tails"
    TIME_INDEX = "time_index"
    HELD_BATCHES = "held_batches"
    JOURNAL_REMOVAL = "journal_removal"
    EXPIRED_ENTRIES = "expired_entries"
    RETIRED_BOOTS = "retired_boots"
    COLLECTOR = "collector"
    EVENT_QUEUE = "event_queue"


NEEDED: Final = frozenset({Loop.JOURNALS, Loop.PASSES, Loop.MEMBERS})
"""Loops without which batches are not enqueued: while one is stalled, the service is not ready."""


class StalledLoop(msgspec.Struct, frozen=True, kw_only=True):
    """A loop whose tries fail."""

    loop: Loop
    reason: str


@dataclass(slots=True)
class _Failure:
    """Tries that failed one after the other."""

    since_ns: int
    reason: str
    logged_ns: int
    tries: int = 1


@dataclass(slots=True, kw_only=True)
class ReconcilerHealth:
    """The state of every loop.

    Attributes:
        journal_passes: Successful while journals decide the frontier.
    """

    now_ns: Callable[[], int]
    passes: int = 0
    journal_passes: int = 0
    ended: bool = False
    _failing: dict[Loop, _Failure] = field(default_factory=dict)

    def succeed(self, loop: Loop) -> None:
        """Record a try that the store answered."""
        failure = self._failing.pop(loop, None)
        if failure is not None:
            failed_s = round(self._age_s(failure.since_ns), 1)
            log.info("loop_recovered", loop=loop.value, failed_s=failed_s, tries=failure.tries)

    def fail(self, loop: Loop, error: Exception) -> None:
        """Record a try that failed; of a failure that continues, a line is logged now and then."""
        now_ns, reason, failure = self.now_ns(), str(error), self._failing.get(loop)
        if failure is None:
            failure = _Failure(since_ns=now_ns, reason=reason, logged_ns=now_ns)
            self._failing[loop] = failure
        else:
            failure.reason = reason
            failure.tries += 1
            if self._age_s(failure.logged_ns) < LOG_AGAIN_S:
                return
            failure.logged_ns = now_ns
        log.warning("route_failed", route=loop.value, reason=reason, tries=failure.tries)

    def failures(self, loop: Loop) -> int:
        """Return how many tries of a loop failed since its last success."""
        failure = self._failing.get(loop)
        return 0 if failure is None else failure.tries

    @property
    def stalled(self) -> tuple[StalledLoop, ...]:
        """The loops that have failed for `STALLED_S`, in the order of their names."""
        return tuple(
            StalledLoop(loop=loop, reason=failure.reason[:REASON_CHARS_MAX])
            for loop, failure in sorted(self._failing.items())
            if self._age_s(failure.since_ns) >= STALLED_S
        )

    def why_not_ready(self) -> str:
        """Return why batches are not enqueued; empty if they are."""
        if self.ended:
            return "the work has ended: restart the process"
        for one in self.stalled:
            if one.loop in NEEDED:
                return f"no try has succeeded lately, loop=`{one.loop}`, reason=`{one.reason}`"
        if self.passes + self.journal_passes == 0:
            return "no full pass has ended and no journal was read yet: it has just started"
        return ""

    def _age_s(self, since_ns: int) -> float:
        return (self.now_ns() - since_ns) / NS_PER_S
