"""Leases over one lane for consumers that speak HTTP: they share it without knowing each other.

States of an entry, and who moves it:

    waiting    handed out by `claim`                                → leased
    leased     `commit` by its lease                                → committed
               `fail` by its lease, or the lease ran out            → waiting again, attempts + 1
               `extend` by its lease                                → leased, longer
    committed  everything below it is committed too                 → acknowledged, by the shell

Each hand-out has a lease id of its own; a commit under an older id is refused once the entry was
handed out again, so two consumers never both believe to have committed it. Delivery is at least
once: a consumer that finished after its lease ran out did the work for nothing. Leases live in
memory alone; after a restart everything behind `acked_through` waits again.

Pure: no I/O, clock or randomness.
"""

from dataclasses import dataclass, field, replace

from sluice_queue.entries import Descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One entry in somebody's hands.

    Attributes:
        lease_id: Names this hand-out and no other.
        entry: What was handed out.
        consumer: Who said it was asking.
        ends_ns: When it may be handed out again.
        attempts: How often it was handed out before.
    """

    lease_id: str
    entry: Descriptor
    consumer: str
    ends_ns: int
    attempts: int


@dataclass(slots=True, kw_only=True)
class LaneLeases:
    """What became of the entries of one lane behind `acked_through`."""

    acked_through: int
    _waiting: list[tuple[int, Descriptor]] = field(default_factory=list)
    _leased: dict[int, Lease] = field(default_factory=dict)
    _committed: set[int] = field(default_factory=set)

    @property
    def waiting(self) -> int:
        """How many known entries are in nobody's hands."""
        return len(self._waiting)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Every lease, oldest entry first."""
        return tuple(self._leased[sequence] for sequence in sorted(self._leased))

    def offer(self, entries: tuple[Descriptor, ...]) -> None:
        """Takes in entries that the lane handed out for the first time."""
        self._waiting += [(0, entry) for entry in entries]

    def expire(self, now_ns: int) -> int:
        """Puts entries back whose lease ran out; gives how many."""
        ended = [lease for lease in self._leased.values() if lease.ends_ns <= now_ns]
        for lease in ended:
            self._put_back(lease)
        return len(ended)

    def _put_back(self, lease: Lease) -> None:
        del self._leased[lease.entry.sequence]
        self._waiting.append((lease.attempts + 1, lease.entry))
        self._waiting.sort(key=lambda one: one[1].sequence)

    def claim(self, lease_id: str, consumer: str, ends_ns: int) -> Lease | None:
        """Hands the oldest waiting entry out, or gives None."""
        if not self._waiting:
            return None
        attempts, entry = self._waiting.pop(0)
        lease = Lease(
            lease_id=lease_id, entry=entry, consumer=consumer, ends_ns=ends_ns, attempts=attempts
        )
        self._leased[entry.sequence] = lease
        return lease

    def commit(self, lease_id: str) -> bool:
        """Marks the leased entry as done; False when that lease no longer holds anything."""
        lease = self._find(lease_id)
        if lease is None:
            return False
        del self._leased[lease.entry.sequence]
        self._committed.add(lease.entry.sequence)
        return True

    def fail(self, lease_id: str) -> bool:
        """Puts the leased entry back at once; False when that lease no longer holds anything."""
        lease = self._find(lease_id)
        if lease is not None:
            self._put_back(lease)
        return lease is not None

    def extend(self, lease_id: str, ends_ns: int) -> bool:
        """Moves the end of a lease; False when it no longer holds anything."""
        lease = self._find(lease_id)
        if lease is not None:
            self._leased[lease.entry.sequence] = replace(lease, ends_ns=ends_ns)
        return lease is not None

    def _find(self, lease_id: str) -> Lease | None:
        return next((one for one in self._leased.values() if one.lease_id == lease_id), None)

    def frontier(self) -> int:
        """Gives the highest sequence below which everything is committed."""
        at = self.acked_through
        while at + 1 in self._committed:
            at += 1
        return at

    def acknowledged(self, through: int) -> None:
        """Takes note that the lane was acknowledged up to `through`."""
        self.acked_through = max(self.acked_through, through)
        self._committed = {one for one in self._committed if one > self.acked_through}
