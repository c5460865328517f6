"""The states and rules of the simulation of acceptance journals; all states are immutable.

Time is in ticks of 30 seconds. What a gateway process writes is decided by the product's
`JournalBook`; a state contains a frozen copy of it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from support.builders import manifest

from sluice_gateway.journal import JournalBook, PendingObject, must_register_again
from sluice_protocol.authority import AcceptanceMode
from sluice_protocol.clock import MachineInstant
from sluice_protocol.journals import FENCE_S, process_name
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S, UnixNs

TICK_S = 30
START_TICK = 10
BATCHES = "ABCD"
NEVER_NS = UnixNs(0)
JUMP_TICKS = 2 * int(FENCE_S) // TICK_S + 1
"""A pause after which every fence has lapsed and every pass may replace a journal."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The steps of the protocol; a planted omission sets one of them to False."""

    registers_first: bool = True
    bound_before_list: bool = True
    duplicates_journaled: bool = True
    store_clock: bool = True
    time_before_collecting: bool = True
    noted_before_answer: bool = True
    fenced: bool = True
    fence_after_manifest: bool = True
    fence_counts_suspension: bool = True
    new_name_after_lapse: bool = True
    pass_after_lapse: bool = True
    waits_for_pass: bool = True
    pass_dated_by_start: bool = True
    in_order: bool = True
    closes_last: bool = True
    spool_replaced_by_successor: bool = True
    spool_starts_at_its_frontier: bool = True
    published_after_enqueueing: bool = True


def ns(tick: int) -> UnixNs:
    """Return the store's clock at a tick."""
    return UnixNs(tick * TICK_S * NS_PER_S)


@cache
def manifest_bytes(batch: str) -> bytes:
    """Return the manifest of a batch."""
    return encode_record(manifest(BATCHES.index(batch) * 10))


@cache
def batch_of(seq_start: int) -> str:
    """Return the batch with this first sequence number."""
    return BATCHES[seq_start // 10]


@dataclass(frozen=True, slots=True)
class Book:
    """A frozen copy of a `JournalBook`."""

    process: str
    durable_from: MachineInstant | None
    begun: MachineInstant | None
    pending: PendingObject | None
    closed: bool
    held_bytes: int
    through_ns: UnixNs
    number: int
    entries: tuple[bytes, ...]


def freeze(book: JournalBook) -> Book:
    """Return the state of a book."""
    return Book(
        book.process,
        book.durable_from,
        book.begun,
        book.pending,
        book.closed,
        book.held_bytes,
        book._through_ns,
        book._number,
        tuple(book._entries),
    )


def thaw(state: Book) -> JournalBook:
    """Return a book with this state."""
    book = JournalBook(state.process, state.durable_from, state.through_ns)
    book.begun, book.pending, book.closed = state.begun, state.pending, state.closed
    book.held_bytes, book._number = state.held_bytes, state.number
    book._entries = deque(state.entries)
    return book


EMPTY_BOOK = freeze(JournalBook("", None))


@dataclass(frozen=True, slots=True)
class SimUpload:
    """One upload at a gateway. Stages: arrived, prechecked, exists, noted, checked, answered."""

    batch: str
    stage: str = "arrived"
    own: bool = True


@dataclass(frozen=True, slots=True)
class SimGateway:
    """One gateway process.

    Attributes:
        name: The gateway; each start is a new process of it.
        acceptance: Where it accepts.
        book: Its journal.
        answered: The store's clock in the newest response.
        slept: Ticks during which the machine was suspended.
        superseded: The journals of earlier registrations.
        landed: Batches of a spool that are in the authority and not marked in the spool.
    """

    name: str
    acceptance: AcceptanceMode = "s3_manifest"
    skew: int = 0
    alive: bool = True
    asleep: bool = False
    slept: int = 0
    book: Book = EMPTY_BOOK
    answered: int = 0
    uploads: tuple[SimUpload, ...] = ()
    known: frozenset[str] = frozenset()
    superseded: tuple[Book, ...] = ()
    stopping: bool = False
    landed: frozenset[str] = frozenset()

    @property
    def is_spool(self) -> bool:
        return self.acceptance == "local_spool"

    @property
    def is_registered(self) -> bool:
        return bool(self.book.process)

    def instant(self, now: int, rules: Rules) -> MachineInstant:
        """Return the instant by its clocks; they differ between machines."""
        boot = now if rules.fence_counts_suspension else now - self.slept
        return MachineInstant(boottime_ns=ns(boot), wall_ns=ns(boot + self.skew))

    def is_lapsed(self, now: int, rules: Rules) -> bool:
        """Return True if it may not respond 200."""
        if not rules.fenced or self.is_spool:
            return False
        return must_register_again(self.book.durable_from, self.instant(now, rules), FENCE_S)


@dataclass(frozen=True, slots=True)
class SimSpool:
    """The durable state of the spool, which its processes share.

    Attributes:
        accepted: Batches that it accepted and that are not marked as landed.
        open: Whether the authority has an open registration of it.
        process: The name of its last registered process.
        through: A time before which everything that it acknowledged has landed and is journaled.
    """

    accepted: frozenset[str] = frozenset()
    open: bool = False
    process: str = ""
    through: UnixNs = NEVER_NS


@dataclass(frozen=True, slots=True)
class SimRegistration:
    """A stored registration; its Last-Modified is `written`."""

    process: str
    name: str
    acceptance: AcceptanceMode
    started_ns: UnixNs
    written: int


@dataclass(frozen=True, slots=True)
class SimObject:
    """A stored journal object; its Last-Modified is `written`."""

    process: str
    number: int
    body: bytes
    written: int


@dataclass(frozen=True, slots=True)
class SimProgress:
    """What a reader processed of one journal."""

    number: int = 0
    through_ns: UnixNs | None = None
    closed: bool = False


@dataclass(frozen=True, slots=True)
class SimRound:
    """The round of a reader. Steps: idle, started, listed; then each process, then the claim.

    Attributes:
        bound: The store's clock that bounds the claim.
        listed: The registrations of the listing.
        seen: Per process, the journal objects that were listed; None before that.
        skipped: Processes that are not read further in this round.
        read: The batches that it read from journals.
        backlog: Batches of processed objects that are not enqueued; only with an omission.
    """

    step: str = "idle"
    bound: int = 0
    listed: tuple[SimRegistration, ...] = ()
    seen: tuple[tuple[str, tuple[SimObject, ...]], ...] = ()
    skipped: frozenset[str] = frozenset()
    progress: tuple[tuple[str, SimProgress], ...] = ()
    read: frozenset[str] = frozenset()
    backlog: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SimPublished:
    """What the reconciler published."""

    until_ns: UnixNs = NEVER_NS
    progress: tuple[tuple[str, SimProgress], ...] = ()
    pass_began: int | None = None


@dataclass(frozen=True, slots=True)
class SimWorld:
    """Everything.

    Attributes:
        late: Writes that the store applies after their sender stopped waiting.
        acked: Per batch, the tick of its first 200.
        running: The running full pass: when it began, and what existed then.
        ended: When the last ended full pass began.
        lives: Number of gateway processes that were started.
        sends: Number of uploads that clients may still send.
        broken: The violation, if any.
    """

    now: int = START_TICK
    gateways: tuple[SimGateway, ...] = ()
    spool: SimSpool = field(default_factory=SimSpool)
    manifests: frozenset[str] = frozenset()
    registrations: tuple[SimRegistration, ...] = ()
    objects: tuple[SimObject, ...] = ()
    late: frozenset[SimObject | str] = frozenset()
    acked: tuple[tuple[str, int], ...] = ()
    enqueued: frozenset[str] = frozenset()
    running: tuple[int, frozenset[str]] | None = None
    ended: int | None = None
    reconciler: SimRound = field(default_factory=SimRound)
    query: SimRound = field(default_factory=SimRound)
    published: SimPublished = field(default_factory=SimPublished)
    lives: int = 0
    sends: int = 30
    faults: int = 30
    names: int = 0
    broken: str = ""

    def with_gateway(self, index: int, **changes: Any) -> "SimWorld":
        changed = replace(self.gateways[index], **changes)
        return replace(
            self, gateways=(*self.gateways[:index], changed, *self.gateways[index + 1 :])
        )


def ticked(world: SimWorld, ticks: int) -> SimWorld:
    """Return the state some ticks later."""
    gateways = tuple(
        replace(one, slept=one.slept + ticks) if one.asleep else one for one in world.gateways
    )
    return replace(world, now=world.now + ticks, gateways=gateways)


Move = tuple[str, str, Callable[[], SimWorld]]
"""The kind of a transition, its description, and the state after it."""
Moves = Iterator[Move]


def next_name(world: SimWorld, named_ns: UnixNs) -> tuple[SimWorld, str]:
    """Return a new name of a process; the ULID is a number."""
    name = process_name(named_ns, f"{world.names:026d}")
    return replace(world, names=world.names + 1), name
