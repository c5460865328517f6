"""Building blocks of the conformance checks and the doctor: expectations and races."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from sluice_protocol.outcomes import (
    Applied,
    CreateOutcome,
    Exists,
    Found,
    Mismatch,
    ReplaceOutcome,
    Unknown,
)
from sluice_protocol.units import ETag, ObjectKey
from sluice_store.port import ObjectStore

_T = TypeVar("_T")


class Nonconforming(AssertionError):
    """Raised when a store does not keep a promise of the port."""

    def __init__(self, promise: str, seen: str) -> None:
        super().__init__(promise, seen)
        self.promise = promise
        self.seen = seen

    def __str__(self) -> str:
        return f"{self.promise}, seen=`{self.seen}`"


def expect(promise: str, *, holds: bool, seen: object) -> None:
    """Raise `Nonconforming` unless `holds`; unlike `assert`, also under `python -O`."""
    if not holds:
        raise Nonconforming(promise, str(seen))


def expect_type(promise: str, seen: object, kind: type[_T]) -> _T:
    """Return `seen` as a `kind`, or raise `Nonconforming`."""
    if not isinstance(seen, kind):
        raise Nonconforming(promise, str(seen))
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """The outcomes of a race of conditional writes, counted."""

    applied: int
    refused: int
    unknown: int


def count_outcomes(outcomes: Sequence[CreateOutcome | ReplaceOutcome]) -> RaceResult:
    """Count the outcomes of one race."""
    return RaceResult(
        applied=sum(isinstance(outcome, Applied) for outcome in outcomes),
        refused=sum(isinstance(outcome, Exists | Mismatch) for outcome in outcomes),
        unknown=sum(isinstance(outcome, Unknown) for outcome in outcomes),
    )


def racer_body(racer: int) -> bytes:
    """Return a body that no other racer writes."""
    return f"racer {racer}".encode()


async def race_create(stores: Sequence[ObjectStore], key: ObjectKey, racers: int) -> RaceResult:
    """Create one key from `racers` concurrent tasks, each with its own body.

    Raises:
        Nonconforming: More than one create was applied, or none although no outcome is unknown, or
            the object is not a winner's.
    """
    outcomes = await asyncio.gather(
        *(stores[i % len(stores)].create(key, racer_body(i)) for i in range(racers))
    )
    result = count_outcomes(outcomes)
    await _expect_one_winner(stores, key, outcomes, result)
    return result


async def race_replace(
    stores: Sequence[ObjectStore], key: ObjectKey, if_match: ETag, racers: int
) -> RaceResult:
    """Replace one state from `racers` concurrent tasks, each with its own body."""
    outcomes = await asyncio.gather(
        *(
            stores[i % len(stores)].replace(key, racer_body(i), if_match=if_match)
            for i in range(racers)
        )
    )
    result = count_outcomes(outcomes)
    await _expect_one_winner(stores, key, outcomes, result)
    return result


async def _expect_one_winner(
    stores: Sequence[ObjectStore],
    key: ObjectKey,
    outcomes: Sequence[CreateOutcome | ReplaceOutcome],
    result: RaceResult,
) -> None:
    one = result.applied == 1 or (result.applied == 0 and result.unknown > 0)
    expect("exactly one of the racing conditional writes wins", holds=one, seen=result)
    allowed = {
        racer_body(i) for i, outcome in enumerate(outcomes) if isinstance(outcome, Applied)
    } or {racer_body(i) for i, outcome in enumerate(outcomes) if isinstance(outcome, Unknown)}
    for store in stores:
        read = expect_type("the winner's object is readable", await store.get(key), Found)
        expect("the object has the winner's bytes", holds=read.body in allowed, seen=read.body)


async def increment(store: ObjectStore, key: ObjectKey, times: int, writer: str) -> int:
    """Add one to a counter `times` times by compare-and-swap; return the number of lost swaps.

    Every body contains the writer and its turn, so that no two states are equal and a read shows
    whether an unknown swap was applied.
    """
    lost = 0
    for turn in range(times):
        mark = f"{writer}.{turn}"
        while not await _swap_once(store, key, mark):
            lost += 1
    return lost


async def _swap_once(store: ObjectStore, key: ObjectKey, mark: str) -> bool:
    read = expect_type("the counter is readable", await store.get(key), Found)
    count, *marks = read.body.decode().split(" ")
    if mark in marks:
        return True  # an earlier try with an unknown outcome was applied
    body = " ".join([str(int(count) + 1), *marks, mark]).encode()
    return isinstance(await store.replace(key, body, if_match=read.info.etag), Applied)


async def read_counter(store: ObjectStore, key: ObjectKey) -> int:
    """Return the value of a counter that `increment` changes."""
    read = expect_type("the counter is readable", await store.get(key), Found)
    return int(read.body.split(b" ", 1)[0])
