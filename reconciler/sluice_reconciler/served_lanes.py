"""Which consumers hold leases of the lanes that a process serves over HTTP."""

from collections.abc import Iterable
from typing import Final

import msgspec

from sluice_protocol.units import NS_PER_S
from sluice_reconciler.leases import Lease

HOLDERS_MAX: Final = 100
"""Consumers of one lane that are listed, those with the oldest claims."""


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer that holds leases of a lane.

    Attributes:
        consumer: The name that it gave; empty if it gave none.
        entries: Number of entries that it claimed and has not committed.
        oldest_s: Time since the oldest of these claims, seconds.
        ends_s: Time until the first of these leases ends, seconds.
        attempts: How often one of these entries was claimed before, at most.
    """

    consumer: str
    entries: int
    oldest_s: float
    ends_s: float
    attempts: int


class ServedLane(msgspec.Struct, frozen=True, kw_only=True):
    """One lane that a process serves over HTTP.

    Attributes:
        queue: Name of the queue.
        lane: Number of the lane.
        epoch: The epoch that the process opened.
        consumer_id: The id under which it did, 32 hex digits. If the register of the lane contains
            another id, another process opened the lane since.
        opened_s: Time since then, seconds.
        holders: The consumers that hold leases, the oldest claim first; at most 100.
    """

    queue: str
    lane: int
    epoch: int
    consumer_id: str
    opened_s: float
    holders: tuple[LeaseHolder, ...]


def holders_of(leases: Iterable[Lease], now_ns: int) -> tuple[LeaseHolder, ...]:
    """Return the consumers of leases that have not ended, the oldest claim first."""
    by_consumer: dict[str, list[Lease]] = {}
    for lease in leases:
        if lease.ends_ns > now_ns:
            by_consumer.setdefault(lease.consumer, []).append(lease)
    holders = [
        LeaseHolder(
            consumer=consumer,
            entries=len(some),
            oldest_s=(now_ns - min(one.since_ns for one in some)) / NS_PER_S,
            ends_s=(min(one.ends_ns for one in some) - now_ns) / NS_PER_S,
            attempts=max(one.attempts for one in some),
        )
        for consumer, some in by_consumer.items()
    ]
    return tuple(sorted(holders, key=lambda one: -one.oldest_s)[:HOLDERS_MAX])
