"""The states and rules of the simulation of acceptance journals; all states are immutable.

Also here: the moves of the reconciler and of a query in the simulation of acceptance journals.

Time is in ticks of 30 seconds. What a gateway process writes is decided by the product's
`JournalBook`; a state contains a frozen copy of it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from support.builders import manifest

from sluice_gateway.journal import JournalBook, PendingObject, must_register_again
from sluice_protocol.authority import AcceptanceMode
from sluice_protocol.clock import MachineInstant
from sluice_protocol.journals import (
    FENCE_S,
    JOURNAL_REPLACED_AFTER_S,
    ProcessProgress,
    decide_frontier,
    decode_journal,
    journal_key,
    process_name,
)
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


_LAPSE_NS = int(JOURNAL_REPLACED_AFTER_S * NS_PER_S)


def keeper_moves(world: SimWorld, rules: Rules) -> Moves:
    """Yield restarts of the reconciler, and removals of journals."""
    restarted = SimRound(progress=world.published.progress)
    yield "restart", "the reconciler restarts", partial(replace, world, reconciler=restarted)
    yield from _removals(world, rules)


def pass_moves(world: SimWorld, rules: Rules) -> Moves:
    """Yield the move of the full pass."""
    if world.running is None:
        running = (world.now, world.manifests)
        yield "pass", "a full pass begins", partial(replace, world, running=running)
        return
    began, found = world.running
    dated = began if rules.pass_dated_by_start else world.now
    yield (
        "pass",
        f"the full pass of {began} ends",
        partial(replace, world, running=None, ended=dated, enqueued=world.enqueued | found),
    )


def _removals(world: SimWorld, rules: Rules) -> Moves:
    """Yield the removal of a journal that is closed, or older than an ended pass by the lapse."""
    progress = dict(world.published.progress)
    for one in world.registrations:
        newest = max([one.written, *(o.written for o in world.objects if o.process == one.process)])
        over = world.ended is not None and ns(world.ended) >= ns(newest) + _LAPSE_NS
        done = progress.get(one.process, SimProgress()).closed
        if one.acceptance == "s3_manifest" and over and (done or rules.waits_for_pass):
            yield "remove", f"{one.process[-2:]} is removed", partial(_removed, world, one)


def _removed(world: SimWorld, one: SimRegistration) -> SimWorld:
    return replace(
        world,
        registrations=tuple(each for each in world.registrations if each != one),
        objects=tuple(each for each in world.objects if each.process != one.process),
    )


# --- rounds --------------------------------------------------------------------------------------


def _changed(world: SimWorld, who: str, state: SimRound) -> SimWorld:
    changed: dict[str, Any] = {who: state}
    return replace(world, **changed)


def round_moves(world: SimWorld, who: str, rules: Rules) -> Moves:
    """Yield the next step of a reader: `reconciler`, or `query`, which enqueues nothing."""
    state: SimRound = getattr(world, who)
    if state.backlog:
        yield "enqueue", f"{who} enqueues", partial(_flushed, world, who, state)
    match state.step:
        case "idle":
            yield "round", f"{who} begins a round", partial(_started, world, who, state, rules)
        case "started":
            yield "round", f"{who} lists processes", partial(_listed, world, who, state, rules)
        case _:
            yield from _reading(world, who, state, rules)


def _flushed(world: SimWorld, who: str, state: SimRound) -> SimWorld:
    after = _changed(world, who, replace(state, backlog=frozenset()))
    return replace(after, enqueued=world.enqueued | state.backlog)


def _started(world: SimWorld, who: str, state: SimRound, rules: Rules) -> SimWorld:
    progress = state.progress if who == "reconciler" else world.published.progress
    begun = replace(
        state, step="started", bound=world.now, progress=progress, seen=(), skipped=frozenset()
    )
    if not rules.bound_before_list:
        begun = replace(begun, listed=world.registrations)
    return _changed(world, who, begun)


def _listed(world: SimWorld, who: str, state: SimRound, rules: Rules) -> SimWorld:
    if not rules.bound_before_list:
        return _changed(world, who, replace(state, step="listed", bound=world.now))
    return _changed(world, who, replace(state, step="listed", listed=world.registrations))


def _reading(world: SimWorld, who: str, state: SimRound, rules: Rules) -> Moves:
    seen = dict(state.seen)
    for one in state.listed:
        if one.process not in seen:
            name = f"{who} lists {one.process[-2:]}"
            yield "round", name, partial(_objects_listed, world, who, state, one)
            return
        if one.process in state.skipped:
            continue
        done = dict(state.progress).get(one.process, SimProgress())
        following = next((o for o in seen[one.process] if o.number > done.number), None)
        if following is None:
            continue
        name = f"{who} reads {one.process[-2:]}/{following.number}"
        yield "round", name, partial(_processed, world, who, state, following, rules)
        if world.faults:
            yield (
                "fail",
                f"{name}: the read fails",
                partial(_read_failed, world, who, state, following, rules),
            )
        return
    yield "round", f"{who} decides", partial(_decided, world, who, state, rules)


def _objects_listed(world: SimWorld, who: str, state: SimRound, one: SimRegistration) -> SimWorld:
    found = sorted((o for o in world.objects if o.process == one.process), key=lambda o: o.number)
    return _changed(world, who, replace(state, seen=(*state.seen, (one.process, tuple(found)))))


def _processed(
    world: SimWorld, who: str, state: SimRound, one: SimObject, rules: Rules
) -> SimWorld:
    done = dict(state.progress)
    before = done.get(one.process, SimProgress())
    if rules.in_order and one.number != before.number + 1:
        return _changed(world, who, replace(state, skipped=state.skipped | {one.process}))
    journal = decode_journal(journal_key(one.process, one.number), one.body)
    named = frozenset(batch_of(each.seq_start) for each in journal.manifests)
    assert named <= world.manifests, "an entry names a manifest that does not exist"
    done[one.process] = SimProgress(
        one.number, UnixNs(journal.header.complete_through_unix_ns), journal.header.closed
    )
    after = replace(state, progress=tuple(done.items()), read=state.read | named)
    if who == "query":
        return _changed(world, who, after)
    if not rules.published_after_enqueueing:
        return _changed(world, who, replace(after, backlog=state.backlog | named))
    return replace(_changed(world, who, after), enqueued=world.enqueued | named)


def _read_failed(
    world: SimWorld, who: str, state: SimRound, one: SimObject, rules: Rules
) -> SimWorld:
    """Stop with this process for the round; the omission continues with the next number."""
    hurt = replace(world, faults=world.faults - 1)
    if rules.in_order:
        return _changed(hurt, who, replace(state, skipped=state.skipped | {one.process}))
    left = tuple((process, tuple(o for o in found if o != one)) for process, found in state.seen)
    return _changed(hurt, who, replace(state, seen=left))


def _progress_of(state: SimRound, rules: Rules) -> Iterator[ProcessProgress]:
    seen, done = dict(state.seen), dict(state.progress)
    for one in state.listed:
        mine = done.get(one.process, SimProgress())
        newest = ns(max([one.written, *(o.written for o in seen.get(one.process, ()))]))
        yield ProcessProgress(
            collector_id=one.name,
            process=one.process,
            acceptance=one.acceptance if rules.spool_replaced_by_successor else "s3_manifest",
            complete_through_ns=mine.through_ns or one.started_ns,
            newest_ns=newest if rules.pass_after_lapse else UnixNs(newest - _LAPSE_NS),
            closed=mine.closed,
        )


def _decided(world: SimWorld, who: str, state: SimRound, rules: Rules) -> SimWorld:
    """Decide the time with the product's function, and check the claim."""
    ended = world.ended if who == "reconciler" else world.published.pass_began
    pass_ns = None if ended is None else ns(ended)
    if not rules.waits_for_pass:
        pass_ns = ns(state.bound)
    frontier = decide_frontier(ns(state.bound), _progress_of(state, rules), pass_ns)
    until_ns = frontier.complete_through_ns
    idle = replace(state, step="idle", listed=(), seen=(), skipped=frozenset())
    answer = world.enqueued
    if who == "reconciler":
        until_ns = max(until_ns, world.published.until_ns)
        published = SimPublished(until_ns, state.progress, world.ended)
        world = replace(world, published=published)
    else:
        until_ns = max(until_ns, world.published.until_ns)
        answer |= state.read
        idle = replace(idle, read=frozenset())
    missing = [b for b, at in world.acked if ns(at) < until_ns and b not in answer]
    after = _changed(world, who, idle)
    if missing:
        after = replace(after, broken=f"{who} claims {until_ns // ns(1)} without {missing}")
    return after
