"""Faults of calls, and plans of when each happens."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Fault(StrEnum):
    """A fault of one call; the name states whether the call is applied."""

    NOT_SENT = "not_sent"
    TIMEOUT_BEFORE = "timeout_before"
    RESET_BEFORE = "reset_before"
    TIMEOUT_AFTER = "timeout_after"
    RESET_AFTER = "reset_after"
    APPLIED_LATE = "applied_late"
    """The client times out; the call is applied some calls later."""
    TRUNCATED = "truncated"
    """The response ends inside its body; applied."""
    CONFLICT = "conflict"
    """409 ConditionalRequestConflict; not applied."""
    PRECONDITION = "precondition"
    """412; not applied, and wrong unless another writer was first: for broken stores."""
    SLOW_DOWN = "slow_down"
    """503 SlowDown; not applied."""
    ERROR_AFTER = "error_after"
    """500 InternalError; applied nevertheless."""
    DENIED = "denied"
    """403 AccessDenied; not applied."""
    CLOCK_JUMP = "clock_jump"
    """The store's clock moves by a fixed step before the call, which then proceeds."""
    CRASH_BEFORE = "crash_before"
    """The calling process dies before sending."""
    CRASH_AFTER = "crash_after"
    """The calling process dies after the call was applied, before it receives the response."""


class Crashed(BaseException):
    """Raised when the calling process dies: no handler of the code under test may catch this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call, as a plan receives it.

    Attributes:
        number: Counts every call of the store from 0.
        method: `PUT`, `GET`, `HEAD`, `DELETE` or `LIST`.
        key: The key or prefix, without the deployment's.
        conditional: Whether it has a precondition.
    """

    number: int
    method: str
    key: str
    conditional: bool


class FaultPlan(Protocol):
    """Decides what happens to each call."""

    def fault_of(self, call: Call) -> Fault | None: ...


class NoFaults:
    """A plan without faults."""

    def fault_of(self, call: Call) -> Fault | None:
        del call
        return None


class Scripted:
    """Faults by the number of the call: to fail each call in turn."""

    def __init__(self, faults: Mapping[int, Fault]) -> None:
        self._faults = faults

    def fault_of(self, call: Call) -> Fault | None:
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
        """Count the matching calls and return the fault for the n-th."""
        if call.method != self.method or not call.key.startswith(self.prefix):
            return None
        self.seen += 1
        return self.fault if self.seen == self.nth else None


class RandomFaults:
    """A random mix of faults that a seed replays."""

    def __init__(self, rng: random.Random, rate: float, faults: Sequence[Fault]) -> None:
        """Set the source of randomness, the share of calls with a fault, and the faults."""
        self._rng = rng
        self._rate = rate
        self._faults = faults

    def fault_of(self, call: Call) -> Fault | None:
        del call
        return self._rng.choice(self._faults) if self._rng.random() < self._rate else None
