"""Which lanes a reconciler works on, if several share a store. Pure: no I/O, clock or randomness.

Each reconciler has a member record, `reconciler/v1/members/<ulid>.json`, which it writes again as
its heartbeat. The record names the lanes that the member works on. From the same live members,
every member computes the same assignment.

States of a lane as one member sees it, and its transitions:

    of another    assigned to this member, and no live member names it      → working
                  assigned to this member for `HANDOVER_MAX_S`              → working
    working       assigned to another live member                           → released
    released      the ledger is stored, and the record names it no more     → of another

Membership only avoids that two reconcilers do the same work. It proves nothing: the owner term in
the lane state fences an owner that does not know that it lost a lane (ADR 24 and 25).
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from sluice_protocol.keys import RECONCILER
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.lanes.host_processes import HostProcess
from sluice_reconciler.loop_health import StalledLoop

MEMBERS: Final = f"{RECONCILER}members/"

HEARTBEAT_S: Final = 3.0
"""Time between two heartbeats of a member, seconds."""
MEMBER_DEAD_AFTER_S: Final = 12.0
"""Age of a member record, by the store's clock, from which the member counts as dead, seconds."""
WORK_S: Final = 9.0
"""Time since its last heartbeat after which a member stops working, seconds; it counts as dead
later.
"""
HANDOVER_MAX_S: Final = 20.0
"""How long a member waits for a live one to release a lane, seconds. Then it takes the lane over,
which fences the other."""
TAKEOVER_S_MAX: Final = MEMBER_DEAD_AFTER_S + HANDOVER_MAX_S + 2 * HEARTBEAT_S
"""Time after a member starts, stops or dies within which each lane has an owner again, seconds."""
FORGET_S: Final = 3600.0
"""Age from which the record of a dead member is deleted, seconds."""


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One running reconciler.

    Attributes:
        member: Its ULID.
        url: Where other processes and clients reach its operator API; empty if they cannot.
        lanes: The lanes that it works on, of every queue, in order.
        leaving: Whether it stopped: its lanes may be taken.
        process: The process, so that another one of the same machine can see that it has ended.
        host: The name of its machine.
        stalled: Its loops that have failed for some seconds.
    """

    schema: Literal["sluice.reconciler_member.v2"] = "sluice.reconciler_member.v2"
    member: str
    url: str = ""
    lanes: tuple[int, ...] = ()
    leaving: bool = False
    process: HostProcess | None = None
    host: str = ""
    stalled: tuple[StalledLoop, ...] = ()


def member_key(member: str) -> ObjectKey:
    """Return the key of a member record."""
    return ObjectKey(f"{MEMBERS}{member}.json")


def is_live(written_ns: UnixNs, date_ns: UnixNs) -> bool:
    """Return True if a record that was written then belongs to a live member.

    A record from the future is of a clock that was ahead: a live member writes it again.
    """
    return abs(date_ns - written_ns) < MEMBER_DEAD_AFTER_S * NS_PER_S


def is_forgotten(written_ns: UnixNs, date_ns: UnixNs) -> bool:
    """Return True if a record is so old that it is deleted."""
    return date_ns - written_ns >= FORGET_S * NS_PER_S


def assign_lanes(members: Collection[str], lanes: int) -> dict[int, str]:
    """Return the member that each lane is assigned to.

    Every lane is assigned to the member with the highest hash of both (rendezvous hashing) that has
    fewer than its share. No member has more than one lane more than another one.
    """
    ordered = sorted(set(members))
    if not ordered:
        return {}
    low, extra = divmod(lanes, len(ordered))
    assigned: dict[int, str] = {}
    count: Counter[str] = Counter()
    for lane in range(lanes):
        full = low + (sum(one > low for one in count.values()) < extra)
        free = [one for one in ordered if count[one] < full]
        member = max(free, key=lambda one: _weight(lane, one))
        assigned[lane] = member
        count[member] += 1
    return assigned


def _weight(lane: int, member: str) -> bytes:
    return hashlib.blake2b(f"{lane}/{member}".encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneShares:
    """What one member does next.

    Attributes:
        working: The lanes that it works on from now on.
        released: The lanes among those it worked on that it hands over.
        awaited: The lanes that are assigned to it and that a live member has not released yet.
    """

    working: frozenset[int]
    released: frozenset[int]
    awaited: frozenset[int]


def decide_shares(
    me: str,
    live: Mapping[str, Collection[int]],
    working: frozenset[int],
    lanes: int,
    overdue: frozenset[int] = frozenset(),
) -> LaneShares:
    """Decide which lanes a member works on.

    Args:
        me: The member.
        live: The lanes that each other live member names.
        working: The lanes that this member works on.
        lanes: Number of lanes.
        overdue: Awaited lanes that were not released in time.
    """
    assigned = assign_lanes({me, *live}, lanes)
    wanted = frozenset(lane for lane, member in assigned.items() if member == me)
    named = frozenset(lane for one in live.values() for lane in one)
    awaited = (wanted & named) - working - overdue
    return LaneShares(working=wanted - awaited, released=working - wanted, awaited=awaited)
