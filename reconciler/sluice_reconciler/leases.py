"""Leases over one lane, shared by HTTP consumers that do not know each other.

States of an entry, and its transitions:

    pending    `claim`                                              → leased
    leased     `commit` by its lease                                → committed
               `fail` by its lease, or the lease expired            → pending, attempts + 1
               `extend` by its lease                                → leased, with a later end
    committed  every entry below it is committed too                → acknowledged, by the shell

Each claim has a separate lease id. A commit under an older id is refused after the entry was
claimed again, so two consumers never both believe that they committed it. Delivery is at least
once: the work of a consumer that finished after its lease expired is repeated. Leases exist in
memory only; after a restart every entry behind `acked_through` is pending again.

Pure: no I/O, clock or randomness.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from sluice_protocol.units import NS_PER_S
from sluice_queue.entries import Descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One claimed entry.

    Attributes:
        since_ns: By the monotonic clock.
        ends_ns: When the entry may be claimed again, by the monotonic clock.
    """

    lease_id: str
    entry: Descriptor
    consumer: str
    since_ns: int
    ends_ns: int
    attempts: int


@dataclass(slots=True, kw_only=True)
class LaneLeases:
    """The states of the entries of one lane behind `acked_through`."""

    acked_through: int
    _pending: list[tuple[int, Descriptor]] = field(default_factory=list)
    _leased: dict[int, Lease] = field(default_factory=dict)
    _committed: dict[int, str] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        """Number of entries that are not claimed."""
        return len(self._pending)

    @property
    def claimed(self) -> tuple[str, ...]:
        """The ids of all leases, and of those committed and not acknowledged."""
        return (*(one.lease_id for one in self._leased.values()), *self._committed.values())

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Every lease, oldest entry first."""
        return tuple(self._leased[sequence] for sequence in sorted(self._leased))

    def offer(self, entries: tuple[Descriptor, ...]) -> None:
        """Add entries that were read from the lane."""
        self._pending += [(0, entry) for entry in entries]

    def expire(self, now_ns: int) -> int:
        """Return entries whose lease expired to the pending ones; return their number."""
        ended = [lease for lease in self._leased.values() if lease.ends_ns <= now_ns]
        for lease in ended:
            self._put_back(lease)
        return len(ended)

    def _put_back(self, lease: Lease) -> None:
        del self._leased[lease.entry.sequence]
        self._pending.append((lease.attempts + 1, lease.entry))
        self._pending.sort(key=lambda one: one[1].sequence)

    def claim(self, lease_id: str, consumer: str, now_ns: int, ends_ns: int) -> Lease | None:
        """Lease the oldest pending entry; return None if there is none."""
        if not self._pending:
            return None
        attempts, entry = self._pending.pop(0)
        lease = Lease(
            lease_id=lease_id,
            entry=entry,
            consumer=consumer,
            since_ns=now_ns,
            ends_ns=ends_ns,
            attempts=attempts,
        )
        self._leased[entry.sequence] = lease
        return lease

    def commit(self, lease_id: str) -> bool:
        """Commit the leased entry; return False if the lease has ended.

        A commit that is repeated because its acknowledgement failed is the same commit.
        """
        lease = self._find(lease_id)
        if lease is None:
            return lease_id in self._committed.values()
        del self._leased[lease.entry.sequence]
        self._committed[lease.entry.sequence] = lease_id
        return True

    def fail(self, lease_id: str) -> bool:
        """Return the leased entry to the pending ones; return False if the lease has ended."""
        lease = self._find(lease_id)
        if lease is not None:
            self._put_back(lease)
        return lease is not None

    def extend(self, lease_id: str, ends_ns: int) -> bool:
        """Set a later end of a lease; return False if the lease has ended."""
        lease = self._find(lease_id)
        if lease is not None:
            self._leased[lease.entry.sequence] = replace(lease, ends_ns=ends_ns)
        return lease is not None

    def _find(self, lease_id: str) -> Lease | None:
        return next((one for one in self._leased.values() if one.lease_id == lease_id), None)

    def acknowledgeable(self) -> int:
        """Return the highest sequence through which every entry is committed."""
        at = self.acked_through
        while at + 1 in self._committed:
            at += 1
        return at

    def acknowledged(self, through: int) -> None:
        """Record that the lane was acknowledged through a sequence."""
        self.acked_through = max(self.acked_through, through)
        self._committed = {
            one: lease_id for one, lease_id in self._committed.items() if one > self.acked_through
        }


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
