"""The leases of one lane over HTTP: every operation of `LaneLeases` on two entries."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

from deploy.pictures.drawing import Drawing, DrawnState, Step, arrow
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_queue.entries import Descriptor
from sluice_reconciler.leases import LaneLeases

_ENTRIES: Final = (1, 2)
_ENDS_NS: Final = 10


def _entries(after: int) -> tuple[Descriptor, ...]:
    return tuple(
        Descriptor(
            sequence=sequence,
            location=ObjectKey("list"),
            size_bytes=1,
            batches=1,
            frame_bytes=1,
            first_accepted_at_ns=UnixNs(0),
            last_accepted_at_ns=UnixNs(0),
            ingested_at_ns=UnixNs(0),
        )
        for sequence in _ENTRIES
        if sequence > after
    )


@dataclass(slots=True)
class _Lane:
    """The leases of a lane, with the lease that each entry was committed under."""

    leases: LaneLeases
    claims: int = 0
    committed: set[int] = field(default_factory=set)

    def states(self) -> dict[int, str]:
        """Return the state of each entry."""
        leased = {one.entry.sequence for one in self.leases.leases}
        return {one: self._state(one, leased) for one in _ENTRIES}

    def _state(self, sequence: int, leased: set[int]) -> str:
        if sequence <= self.leases.acked_through:
            return "acknowledged"
        if sequence in leased:
            return "leased"
        return "committed" if sequence in self.committed else "pending"


def _claim(lane: _Lane) -> None:
    lane.claims += 1
    lane.leases.claim(str(lane.claims), "consumer", 0, _ENDS_NS)


def _commit(lane: _Lane) -> None:
    for one in lane.leases.leases[:1]:
        if lane.leases.commit(one.lease_id):
            lane.committed.add(one.entry.sequence)


def _commit_last(lane: _Lane) -> None:
    for one in lane.leases.leases[-1:]:
        if lane.leases.commit(one.lease_id):
            lane.committed.add(one.entry.sequence)


def _fail(lane: _Lane) -> None:
    for one in lane.leases.leases[:1]:
        lane.leases.fail(one.lease_id)


def _extend(lane: _Lane) -> None:
    for one in lane.leases.leases[:1]:
        lane.leases.extend(one.lease_id, 2 * _ENDS_NS)


def _expire(lane: _Lane) -> None:
    lane.leases.expire(2 * _ENDS_NS)


def _acknowledge(lane: _Lane) -> None:
    lane.leases.acknowledged(lane.leases.acknowledgeable())


def _restart(lane: _Lane) -> None:
    after = lane.leases.acked_through
    lane.leases = LaneLeases(acked_through=after)
    lane.leases.offer(_entries(after))
    lane.committed.clear()


_OPERATIONS: Final[tuple[tuple[str, Callable[[_Lane], None]], ...]] = (
    ("claim", _claim),
    ("commit", _commit),
    ("commit", _commit_last),
    ("fail", _fail),
    ("extend", _extend),
    ("expire", _expire),
    ("acknowledge", _acknowledge),
    ("restart", _restart),
)


def explore() -> frozenset[Step]:
    """Return every change of an entry's state by one operation, from each reachable lane."""
    fresh = _Lane(LaneLeases(acked_through=0))
    fresh.leases.offer(_entries(0))
    steps: set[Step] = set()
    reached: set[tuple[str, ...]] = set()
    waiting = [fresh]
    while waiting:
        lane = waiting.pop()
        before = lane.states()
        if tuple(before.values()) in reached:
            continue
        reached.add(tuple(before.values()))
        for event, operate in _OPERATIONS:
            after = deepcopy(lane)
            operate(after)
            states = after.states()
            steps |= {
                (before[one], event, states[one]) for one in _ENTRIES if before[one] != states[one]
            }
            if after.leases.leases != lane.leases.leases and states == before:
                steps.add(("leased", event, "leased"))
            waiting.append(after)
    return frozenset(steps)


DRAWING: Final = Drawing(
    name="queue-lease",
    title="A queue entry that HTTP consumers lease",
    summary=(
        "One entry of a lane from the append to the acknowledgement. Leases exist in memory, so"
        " after a restart every entry that is not acknowledged is pending again."
    ),
    states=(
        DrawnState(name="pending", title="pending", kind="start"),
        DrawnState(
            name="leased", title="leased", kind="action", note="one lease id for each claim"
        ),
        DrawnState(name="committed", title="committed", kind="action"),
        DrawnState(name="acknowledged", title="acknowledged", kind="good"),
    ),
    edges=(
        arrow("pending", "leased", "claim", "claim"),
        arrow("leased", "committed", "commit under its lease id", "commit"),
        arrow("leased", "leased", "extend", "extend"),
        arrow("leased", "pending", "fail", "fail"),
        arrow("leased", "pending", "the lease expires", "expire"),
        arrow("leased", "pending", "the reconciler restarts", "restart"),
        arrow("committed", "acknowledged", "every entry below it is committed", "acknowledge"),
        arrow("committed", "pending", "the reconciler restarts", "restart"),
    ),
    explore=explore,
)
