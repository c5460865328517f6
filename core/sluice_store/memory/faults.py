"""What may happen to a call, and plans of when it does."""

import random  # noqa: TID251 - the type of the seeded source that comes in
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol


class Fault(StrEnum):
    """What happens to one call; the name says whether it is applied."""

    NOT_SENT = "not_sent"
    TIMEOUT_BEFORE = "timeout_before"
    RESET_BEFORE = "reset_before"
    TIMEOUT_AFTER = "timeout_after"
    RESET_AFTER = "reset_after"
    APPLIED_LATE = "applied_late"
    """The client times out; the call is applied some calls later."""
    TRUNCATED = "truncated"
    """The answer breaks off in its body; applied."""
    CONFLICT = "conflict"
    """409 ConditionalRequestConflict; not applied."""
    PRECONDITION = "precondition"
    """412; not applied, and a lie unless another writer was there: for planted broken stores."""
    SLOW_DOWN = "slow_down"
    """503 SlowDown; not applied."""
    ERROR_AFTER = "error_after"
    """500 InternalError; applied all the same."""
    DENIED = "denied"
    """403 AccessDenied; not applied."""
    CLOCK_JUMP = "clock_jump"
    """The store's clock moves by the plan's step before the call, which goes on."""
    CRASH_BEFORE = "crash_before"
    """The calling process dies before sending."""
    CRASH_AFTER = "crash_after"
    """The calling process dies after the call was applied, before it sees the answer."""


class Crashed(BaseException):
    """The calling process is gone: no handler of the code under test may catch this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call, as a plan sees it.

    Attributes:
        number: Counts every call of the store from 0.
        method: `PUT`, `GET`, `HEAD`, `DELETE` or `LIST`.
        key: The key or prefix, without the deployment's.
        conditional: Whether it carried a precondition.
    """

    number: int
    method: str
    key: str
    conditional: bool


class FaultPlan(Protocol):
    """Decides what happens to each call."""

    def fault_of(self, call: Call) -> Fault | None:
        """Gives the fault of a call, or None when nothing happens to it."""
        ...


class NoFaults:
    """Nothing ever happens."""

    def fault_of(self, call: Call) -> Fault | None:
        """Gives None."""
        del call
        return None


class Scripted:
    """Faults by the number of the call: to fail each call in turn."""

    def __init__(self, faults: Mapping[int, Fault]) -> None:
        """Takes a fault per call number."""
        self._faults = faults

    def fault_of(self, call: Call) -> Fault | None:
        """Gives the fault of this number."""
        return self._faults.get(call.number)


@dataclass(slots=True)
class OnKey:
    """The n-th call of a method under a prefix."""

    method: str
    prefix: str
    nth: int
    fault: Fault
    seen: int = 0

    def fault_of(self, call: Call) -> Fault | None:
        """Counts the calls that fit and hits one."""
        if call.method != self.method or not call.key.startswith(self.prefix):
            return None
        self.seen += 1
        return self.fault if self.seen == self.nth else None


WRITE_FAULTS: Final = tuple(
    fault for fault in Fault if fault not in {Fault.PRECONDITION, Fault.CLOCK_JUMP}
)
READ_FAULTS: Final = (
    Fault.NOT_SENT,
    Fault.TIMEOUT_BEFORE,
    Fault.RESET_AFTER,
    Fault.TRUNCATED,
    Fault.SLOW_DOWN,
    Fault.DENIED,
    Fault.CRASH_BEFORE,
)


class RandomFaults:
    """A seeded mix of faults, so that a seed replays."""

    def __init__(self, rng: random.Random, rate: float, faults: Sequence[Fault]) -> None:
        """Takes the source, the share of calls that are hit, and what may hit them."""
        self._rng = rng
        self._rate = rate
        self._faults = faults

    def fault_of(self, call: Call) -> Fault | None:
        """Draws."""
        del call
        return self._rng.choice(self._faults) if self._rng.random() < self._rate else None
