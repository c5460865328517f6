"""How far the journal of one gateway process was read and processed.

States of a journal object, and its transitions:

    unread      `read`, and it is the next number                     → pending
    pending     every entry is enqueued, held, or names no manifest   → processed
                another reconciler published its number               → processed
    missing     a later object exists, or it cannot be decoded        → the journal is broken
    broken      a full pass that began after the next object was
                written has ended: it listed what the object named    → processed
    pending     too many entries are left, of lanes that are halted   → abandoned
    abandoned   a full pass that began after it was written has ended → processed

Objects become processed in order, so one number describes what is done.

Entries of lanes that other reconcilers work on are not kept: the object names these lanes in
`elsewhere` until their owner has published a later time. If this process takes such a lane over
before, the object is read again. Pure: no I/O, clock or randomness.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from sluice_protocol.journals import JOURNAL_REPLACED_AFTER_S, GatewayProcess, ProcessProgress
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs

SKEW_S: Final = 10.0
"""How far two responses of the store may disagree about its clock."""
BREAK_MARGIN_S: Final = 15.0
"""Time from the Last-Modified of an object until a listing certainly contains what existed before
it was written: an object appears at most 10 s after its Last-Modified."""

NEVER: Final = UnixNs(0)


@dataclass(slots=True, kw_only=True)
class UnprocessedObject:
    """A journal object that was read and is not processed yet.

    Attributes:
        left: Accepted keys that are neither enqueued nor held.
        due_ns: When they are processed (again), by the monotonic clock.
        attempted: Whether they were processed before; `left` may name other reconcilers' lanes.
        written_ns: Its Last-Modified.
        abandoned: Lanes of entries that are no longer in `left`: a full pass enqueues them.
        elsewhere: Lanes of entries that are not in `left`, because another reconciler worked on
            them when the object was read.
        lost: Whether the object did not exist when it was read again, so that a full pass is due.
    """

    number: int
    complete_through_ns: UnixNs
    closed: bool
    left: dict[ObjectKey, int]
    due_ns: int
    written_ns: UnixNs
    attempted: bool = False
    abandoned: frozenset[int] = frozenset()
    elsewhere: frozenset[int] = frozenset()
    lost: bool = False

    @property
    def is_done(self) -> bool:
        """Whether every entry is enqueued, held, or without a manifest."""
        return self.attempted and not (self.left or self.abandoned or self.elsewhere)

    @property
    def is_abandoned(self) -> bool:
        """Whether only a full pass, or the owner of a lane, can finish it."""
        return bool(self.abandoned) and not (self.left or self.elsewhere)

    @property
    def lanes_left(self) -> frozenset[int]:
        """The lanes in which an entry is not done."""
        return self.abandoned.union(self.elsewhere, self.left.values())

    def is_left_in(self, lane: int) -> bool:
        """Return True if an entry of a lane is not done."""
        return lane in self.abandoned or lane in self.elsewhere or lane in self.left.values()

    def finish(self, keys: AbstractSet[ObjectKey]) -> None:
        """Drop entries that are enqueued or held, or name no manifest."""
        self.left = {key: lane for key, lane in self.left.items() if key not in keys}

    def regain(self, entries: Mapping[ObjectKey, int], lanes: frozenset[int], now_ns: int) -> None:
        """Add the entries of lanes that this process works on now, from a second reading.

        Each entry has its lane, and is due now by the monotonic clock.
        """
        self.left |= entries
        self.elsewhere -= lanes
        self.due_ns = now_ns

    def lose(self, lanes: frozenset[int]) -> None:
        """Leave lanes to a full pass, because the object no longer exists."""
        self.elsewhere -= lanes
        self.abandoned |= lanes
        self.lost = True

    def cover_lanes(
        self, through_ns: Mapping[int, int], pass_began_ns: int, known_ns: UnixNs
    ) -> list[ObjectKey]:
        """Drop what other reconcilers have enqueued or held, and return it.

        A time that journals decide and that is later than this object's shows that a later object
        of the same process is done in that lane. A time that a full pass decided covers the object
        if the pass began after it was written. `through_ns` has the published time of each lane
        that another reconciler works on, `pass_began_ns` is when the last complete full pass began,
        and `known_ns` is that of the journal.
        """
        listed_ns = self.written_ns + int(SKEW_S * NS_PER_S)
        bound_ns = min(listed_ns, max(pass_began_ns, self.complete_through_ns, known_ns))
        covered = {lane for lane, at_ns in through_ns.items() if at_ns > bound_ns}
        done = [key for key, lane in self.left.items() if lane in covered]
        for key in done:
            del self.left[key]
        self.abandoned -= covered
        self.elsewhere -= covered
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenJournal:
    """A place at which a journal cannot be read.

    Attributes:
        next_number: The number at which reading continues.
        appeared_ns: The Last-Modified of an object at least as new as the missing one.
    """

    next_number: int
    appeared_ns: UnixNs
    reason: str

    def is_healed_by(self, pass_began_ns: UnixNs | None) -> bool:
        """Return True if a full pass that began then listed what the missing object named."""
        return pass_began_ns is not None and pass_began_ns >= self.healed_from_ns

    @property
    def healed_from_ns(self) -> UnixNs:
        """When a full pass must begin to replace the missing object."""
        return UnixNs(self.appeared_ns + int(BREAK_MARGIN_S * NS_PER_S))


@dataclass(slots=True, kw_only=True)
class ProcessJournal:
    """The journal of one registered process.

    Attributes:
        processed: The number of its last processed object.
        complete_through_ns: The time of that object; before the first, the start of the process.
        registered_ns: The Last-Modified of the registration.
        written_ns: The Last-Modified of its newest known object, the registration included.
        silent_at_ns: The store's clock when a listing last showed no further object.
        pending: Objects that were read and are not processed, in order.
        broken: Why reading does not continue, if so.
    """

    registration: GatewayProcess
    registered_ns: UnixNs
    processed: int = 0
    complete_through_ns: UnixNs
    written_ns: UnixNs
    silent_at_ns: UnixNs = NEVER
    closed: bool = False
    pending: deque[UnprocessedObject] = field(default_factory=deque)
    broken: BrokenJournal | None = None

    @classmethod
    def of(
        cls, registration: GatewayProcess, written_ns: UnixNs, published: int = 0
    ) -> "ProcessJournal":
        """Return a journal that is not read yet.

        The object with the `published` number is read again, because its header states the time;
        `written_ns` is the Last-Modified of the registration.
        """
        return cls(
            registration=registration,
            registered_ns=written_ns,
            processed=max(0, published - 1),
            complete_through_ns=UnixNs(registration.started_at_unix_ns),
            written_ns=written_ns,
        )

    @property
    def process(self) -> str:
        """The name of the process."""
        return self.registration.process

    @property
    def known_ns(self) -> UnixNs:
        """A published time shows nothing about this process unless it is later.

        It may have been decided before the process was registered. The objects of a process that
        accepts in the store have later times than its registration anyway. A spool transfers
        batches under a time that may be long past.
        """
        if self.registration.acceptance != "local_spool":
            return NEVER
        return UnixNs(self.registered_ns + int(BREAK_MARGIN_S * NS_PER_S))

    @property
    def read_through(self) -> int:
        """The number of the last object that was read."""
        return self.pending[-1].number if self.pending else self.processed

    @property
    def is_read(self) -> bool:
        """Whether a closed object was read: there is nothing after it."""
        return self.pending[-1].closed if self.pending else self.closed

    def read(self, one: UnprocessedObject, written_ns: UnixNs) -> None:
        """Add the next object."""
        if one.number != self.read_through + 1:
            raise AssertionError("a number of the journal was skipped")
        self.pending.append(one)
        self.written_ns = max(self.written_ns, written_ns)

    def settle(self) -> None:
        """Process the first objects without entries that are left."""
        while self.pending and self.pending[0].is_done:
            self._finish(self.pending.popleft())

    def cover(self, number: int) -> list[UnprocessedObject]:
        """Process the objects that another reconciler published as processed; return them."""
        covered: list[UnprocessedObject] = []
        while self.pending and self.pending[0].number <= number:
            covered.append(self.pending.popleft())
            self._finish(covered[-1])
        return covered

    def _finish(self, one: UnprocessedObject) -> None:
        self.processed = one.number
        self.complete_through_ns = max(self.complete_through_ns, one.complete_through_ns)
        self.closed = one.closed

    def abandon(self, *, elsewhere: bool) -> list[ObjectKey]:
        """Leave what is left of attempted objects to the next full pass; return these entries.

        Adjacent abandoned objects become one, so that a lane that is halted for days costs no
        memory per object. With `elsewhere`, the lanes in `elsewhere` are left too, because the
        objects themselves are too many.
        """
        keys: list[ObjectKey] = []
        kept: deque[UnprocessedObject] = deque()
        for one in self.pending:
            if one.attempted:
                one.abandoned |= frozenset(one.left.values())
                keys += one.left
                one.left = {}
            if one.attempted and elsewhere:
                one.abandoned |= one.elsewhere
                one.elsewhere = frozenset()
            if (
                kept
                and kept[-1].is_abandoned
                and one.attempted
                and not (one.elsewhere or one.closed)
            ):
                before = kept.pop()
                one.abandoned |= before.abandoned
                one.lost |= before.lost
            kept.append(one)
        self.pending = kept
        return keys

    def heal(self, pass_began_ns: UnixNs | None) -> bool:
        """Skip what a full pass has replaced; return True if reading continues."""
        for one in self.pending:
            margin_ns = int(BREAK_MARGIN_S * NS_PER_S)
            if one.abandoned and (pass_began_ns or 0) >= one.written_ns + margin_ns:
                one.abandoned, one.lost = frozenset(), False
        broken = self.broken
        if broken is None or self.pending or not broken.is_healed_by(pass_began_ns):
            return False
        self.processed, self.broken = broken.next_number - 1, None
        return True

    def progress(self, date_ns: UnixNs, lane: int | None = None) -> ProcessProgress:
        """Return how far the process is complete in one lane, or in lanes where nothing is left.

        `date_ns` is the store's clock. Without a lane, these are the lanes that no pending entry
        belongs to.
        """
        through_ns, closed = self.complete_through_ns, self.closed
        for one in self.pending:
            if not one.attempted or (lane is not None and one.is_left_in(lane)):
                break
            through_ns, closed = max(through_ns, one.complete_through_ns), one.closed
        lapsed_ns = self.written_ns + int(JOURNAL_REPLACED_AFTER_S * NS_PER_S)
        # Only a listing shows that no newer object exists.
        newest_ns = self.written_ns if self.silent_at_ns >= lapsed_ns else date_ns
        return ProcessProgress(
            collector_id=self.registration.collector_id,
            process=self.process,
            acceptance=self.registration.acceptance,
            complete_through_ns=through_ns,
            newest_ns=max(newest_ns, self.written_ns),
            closed=closed,
        )

    def is_replaced(self) -> bool:
        """Return True if the process has been silent too long to acknowledge anything.

        A listing has shown that its newest object is older than `JOURNAL_REPLACED_AFTER_S`. The
        journal of a spool is never replaced: it may acknowledge for days without the store.
        """
        return self.is_silent(JOURNAL_REPLACED_AFTER_S)

    def is_silent(self, seconds: float) -> bool:
        """Return True if a listing showed that a process in the store was silent for this time."""
        if self.registration.acceptance == "local_spool" or self.is_read:
            return False
        return self.silent_at_ns >= self.written_ns + int(seconds * NS_PER_S)


def lanes_left(journals: Iterable[ProcessJournal]) -> frozenset[int]:
    """Return the lanes that some pending entry belongs to."""
    return frozenset(
        lane
        for journal in journals
        for one in journal.pending
        if one.attempted
        for lane in one.lanes_left
    )


def holder_text(progress: ProcessProgress | None) -> str | None:
    """Return the text that names what holds the frontier back."""
    return None if progress is None else f"{progress.collector_id} (process {progress.process})"


def entries_pending(journals: Collection[ProcessJournal]) -> int:
    """Return the number of entries that are neither enqueued nor held."""
    return sum(len(one.left) for journal in journals for one in journal.pending)
