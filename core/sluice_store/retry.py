"""Writes that are retried until their outcome is known, with pauses and bounds.

The outcome of a conditional write can be `Unknown`: the store may have applied it or not. Sending
the same bytes to the same key again settles a create, because the second create reports `Exists`.
Each helper here repeats one call in this way. It pauses between two tries, for a random time below
a limit that doubles (exponential backoff with full jitter), and raises `OutcomeUnknown` when its
bounds are spent.

The compare-and-swap loops of the queue and of the lane owner use `RetryBudget` only. How a swap
with an unknown outcome is settled depends on the record that was written, so each loop settles it
in its state machine. The acceptance machine of the gateway decides after each outcome what to send
next, and bounds its tries itself.

Objects are deleted and replaced here by the version that a read has just shown as current. A delete
names a version, so it never removes what another writer adds meanwhile. A store without versioning
shows no version: there only lifecycle rules of the operator remove objects.
"""

import random  # noqa: TID251 - the type of the source of jitter, which the caller passes
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice_protocol.clock import Clock
from sluice_protocol.errors import OutcomeUnknown, StoreUnavailable
from sluice_protocol.outcomes import (
    Applied,
    Deleted,
    Exists,
    Found,
    NotFound,
    ObjectInfo,
    Unknown,
    UnknownReason,
)
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.port import ObjectStore

_DOUBLINGS_MAX: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """Bounds of one operation and of the pauses between its tries.

    Attributes:
        tries_max: Number of tries after which the operation ends in `OutcomeUnknown`.
        total_s: Time after which no further try begins, in seconds.
        backoff_s: Upper limit of the first pause, in seconds; it doubles with each try.
        backoff_max_s: Upper limit of every pause, in seconds.
    """

    tries_max: int = 40
    total_s: float = 60.0
    backoff_s: float = 0.01
    backoff_max_s: float = 1.0


WRITE_RETRY: Final = RetrySettings(tries_max=6, total_s=60.0, backoff_s=0.05, backoff_max_s=1.0)
"""Bounds of a single write that no other writer competes for: at most 1.55 s of pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """What a retry needs besides the call: time, jitter and bounds."""

    clock: Clock
    rng: random.Random
    settings: RetrySettings = WRITE_RETRY

    @classmethod
    def seeded_by(cls, clock: Clock, settings: RetrySettings = WRITE_RETRY) -> "Backoff":
        """Return a backoff whose jitter is seeded by the clock's present time.

        Two processes get different jitter. A simulation with a virtual clock replays it.
        """
        rng = random.Random(clock.now_ns())  # noqa: S311 - jitter, not a secret
        return cls(clock=clock, rng=rng, settings=settings)


class RetryBudget:
    """The tries of one operation: counts them and pauses between them."""

    def __init__(self, operation: str, key: ObjectKey, backoff: Backoff) -> None:
        self._operation = operation
        self._key = key
        self._backoff = backoff
        self._ends_ns = backoff.clock.monotonic_ns() + int(backoff.settings.total_s * NS_PER_S)
        self.tries = 0

    async def wait_or_raise(self, cause: object = None) -> None:
        """Count a try without a known outcome and wait before the next one.

        The message reports `cause`, which is the error or the outcome of that try. `OutcomeUnknown`
        ends the tries, with `cause` chained.
        """
        self.tries += 1
        settings, clock = self._backoff.settings, self._backoff.clock
        if self.tries >= settings.tries_max or clock.monotonic_ns() >= self._ends_ns:
            raise OutcomeUnknown(self._operation, self._key, self.tries, _describe(cause)) from (
                cause if isinstance(cause, Exception) else None
            )
        doublings = min(self.tries - 1, _DOUBLINGS_MAX)
        limit_s = min(settings.backoff_max_s, settings.backoff_s * 2**doublings)
        await clock.sleep(self._backoff.rng.uniform(0, limit_s))


def _describe(cause: object) -> str:
    match cause:
        case Unknown(reason=UnknownReason.FOREIGN, detail=detail):
            return f"the response is not the store's: {detail}; check proxies and firewalls"
        case Unknown(reason=reason, detail=detail):
            return f"{reason}: {detail}" if detail else str(reason)
        case Exception():
            return str(cause)
        case _:
            return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameBytes:
    """The key has exactly these bytes, written by an earlier try or by another writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBytes:
    """The key has other bytes; nothing was written."""

    body: bytes


CreateOnceOutcome = Applied | SameBytes | OtherBytes


async def create_known(
    store: ObjectStore,
    key: ObjectKey,
    body: bytes,
    backoff: Backoff,
    *,
    retry_unsent: bool = False,
) -> Applied | Exists:
    """Create an object under `If-None-Match: *` and retry until the outcome is known.

    `Exists` may be the result of an earlier try of this call. Use it where the key determines the
    bytes, or where the caller does not need to know who wrote them. `retry_unsent` also retries a
    request that could not be sent (`StoreUnavailable`).
    """
    budget = RetryBudget("create", key, backoff)
    while True:
        try:
            outcome = await store.create(key, body)
        except StoreUnavailable as error:
            if not retry_unsent:
                raise
            await budget.wait_or_raise(error)
            continue
        if not isinstance(outcome, Unknown):
            return outcome
        await budget.wait_or_raise(outcome)


async def create_once(
    store: ObjectStore, key: ObjectKey, body: bytes, backoff: Backoff
) -> CreateOnceOutcome:
    """Create an object, retry until the outcome is known, and compare the bytes that exist."""
    budget = RetryBudget("create", key, backoff)
    while True:
        outcome = await store.create(key, body)
        if isinstance(outcome, Applied):
            return outcome
        if isinstance(outcome, Exists):
            read = await store.get(key)
            if isinstance(read, Found):
                return SameBytes() if read.body == body else OtherBytes(body=read.body)
        await budget.wait_or_raise(outcome)  # unknown, or deleted between the create and the read


async def overwrite_known(
    store: ObjectStore, key: ObjectKey, body: bytes, backoff: Backoff
) -> Applied:
    """Write an object whatever the key contains, and retry until the outcome is known."""
    budget = RetryBudget("overwrite", key, backoff)
    while True:
        outcome = await store.overwrite(key, body)
        if isinstance(outcome, Applied):
            return outcome
        await budget.wait_or_raise(outcome)


VERSIONS_MAX: Final = 100
"""Versions of one object that `delete_versions` deletes, at most."""


class CurrentDeletion(Enum):
    """The outcome of deleting the current version of an object."""

    MISSING = "missing"
    """No object exists under the key."""
    DELETED = "deleted"
    UNKNOWN = "unknown"
    """The version may still exist; the same call may be repeated."""
    UNVERSIONED = "unversioned"
    """The store has no versions: nothing was deleted, and no other delete there would succeed."""

    @property
    def is_gone(self) -> bool:
        """Whether the version that was current no longer exists."""
        return self in (CurrentDeletion.MISSING, CurrentDeletion.DELETED)


async def delete_current_version(store: ObjectStore, key: ObjectKey) -> CurrentDeletion:
    """Delete the current version of an object."""
    match await store.head(key):
        case NotFound():
            return CurrentDeletion.MISSING
        case ObjectInfo(incarnation=incarnation) if incarnation is not None:
            outcome = await store.delete(key, incarnation)
            is_deleted = isinstance(outcome, Deleted)
            return CurrentDeletion.DELETED if is_deleted else CurrentDeletion.UNKNOWN
        case ObjectInfo():
            return CurrentDeletion.UNVERSIONED


async def delete_versions(store: ObjectStore, key: ObjectKey) -> None:
    """Delete an object with all noncurrent versions, each of which becomes current in turn."""
    for _ in range(VERSIONS_MAX):
        outcome = await delete_current_version(store, key)
        if outcome in (CurrentDeletion.MISSING, CurrentDeletion.UNVERSIONED):
            return


async def replace_version(
    store: ObjectStore, key: ObjectKey, body: bytes, backoff: Backoff
) -> None:
    """Overwrite an object of a single writer, and delete the version that was current before.

    Raises:
        StoreError: The store is unreachable or refused a request; the new bytes may be stored.
    """
    old = await store.head(key)
    await overwrite_known(store, key, body, backoff)
    if isinstance(old, ObjectInfo) and old.incarnation is not None:
        await store.delete(key, old.incarnation)
