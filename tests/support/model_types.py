"""The states, bounds and rules that the model checker explores; `model` has the transitions."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from sluice_protocol import acceptance as a
from sluice_protocol import blob_deletion as d
from sluice_protocol.identity import Identity
from sluice_protocol.outcomes import Unknown, UnknownReason
from sluice_protocol.units import Digest

HORIZON = 3
MARGIN = 1
IDENTITY = Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=0)
LOST = Unknown(reason=UnknownReason.TIMEOUT)
Step = Callable[[a.Progress, a.Observation], a.Progress]


class Blob(Struct, frozen=True, cache_hash=True, gc=False):
    """One object version of one digest; `wrong` bytes fail their checksum."""

    digest: str
    number: int
    born: int
    wrong: bool = False
    marked: bool = False
    """Its timestamp was not checked since it became visible."""


class Manifest(Struct, frozen=True, cache_hash=True, gc=False):
    """The identity manifest, or a quarantine manifest when `digest` is the refused one."""

    digest: str
    attempt: str
    born: int
    marked: bool = False


class Store(Struct, frozen=True, cache_hash=True, gc=False):
    """The stored objects: versions oldest first; the last one of a digest is current."""

    blobs: tuple[Blob, ...] = ()
    manifest: Manifest | None = None
    quarantine: tuple[Manifest, ...] = ()
    next_number: int = 1

    def current(self, digest: str) -> Blob | None:
        found = [blob for blob in self.blobs if blob.digest == digest]
        return found[-1] if found else None


class Upload(Struct, frozen=True, cache_hash=True, gc=False):
    """The handling of one upload by one gateway.

    `number` represents the progress: a state is hashed about ten times, its progress only once.
    """

    name: str
    number: int
    alive: bool = True

    @property
    def progress(self) -> a.Progress:
        return PROGRESSES[self.number]


PROGRESSES: list[a.Progress] = []
_NUMBERS: dict[a.Progress, int] = {}


def number_of(progress: a.Progress) -> int:
    """Return the number of a progress; a new one gets the next number."""
    number = _NUMBERS.get(progress)
    if number is None:
        number = _NUMBERS[progress] = len(PROGRESSES)
        PROGRESSES.append(progress)
    return number


def upload_at(name: str, progress: a.Progress) -> Upload:
    """Return an upload with this progress."""
    return Upload(name, number_of(progress))


class Late(Struct, frozen=True, cache_hash=True, gc=False):
    """A request that is still in flight after its sender stopped waiting for the response."""

    kind: str
    digest: str
    attempt: str = ""
    number: int = 0
    dated: int | None = None
    """Its time, when the server dates a request by its arrival."""


class Held(Struct, frozen=True, cache_hash=True, gc=False):
    """A write that has its timestamp and is held before, or just after, it becomes visible."""

    index: int
    dated: int
    visible: bool = False


class Sweeper(Struct, frozen=True, cache_hash=True, gc=False):
    """One cycle: begin, read accepted/, read quarantine/, pick a version, prove, delete."""

    phase: str = "idle"
    started: int = 0
    named: frozenset[str] = frozenset()
    target: Blob | None = None
    cycles: int = 0


class World(Struct, frozen=True, cache_hash=True, gc=False):
    """The state of all actors and the store."""

    now: int
    store: Store
    uploads: tuple[Upload, ...]
    sweepers: tuple[Sweeper, ...] = ()
    late: frozenset[Late] = frozenset()
    faults: int = 0
    waiting: tuple[tuple[str, str, bool], ...] = ()
    """Uploads that have not begun: (name, digest, sent_before)."""
    acked: frozenset[tuple[str, str]] = frozenset()
    """Verdicts sent so far: (kind, digest)."""
    cache: frozenset[tuple[str, int]] = frozenset()
    """Digests that the gateways remember, with the time of the proof."""
    held: tuple[Held, ...] = ()
    holds: int = 0
    """Writes that were held so far."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rules:
    """The system under test: the product's functions, or a mutant of them."""

    step: Step = a.step
    first: Callable[[a.Offer], a.Progress] = a.begin
    plan_clauses: tuple[d.ClauseCheck, ...] = d.PLAN_CLAUSES
    deletion_clauses: tuple[tuple[d.ClauseCheck, ...], ...] = (d.DELETION_CLAUSES,)
    """The lists of clauses that a sweeper may check at a deletion; every choice is explored."""
    superseded_clauses: tuple[d.ClauseCheck, ...] = d.NONCURRENT_CLAUSES
    sweeper_horizon: int = HORIZON
    versioned: bool = True
    lagging_references: bool = False
    cache_accepted: bool = False
    """The product's cache: what this gateway has accepted itself."""
    cache_expires: bool = True
    """Whether an entry ends with its proof."""
    visibility_bound: int = MARGIN
    writer_settles: bool = True
    """Whether a writer checks the timestamp after its object became visible."""
    readers_settle: bool = True
    """Whether a reader checks a timestamp that its writer did not."""
    cache_reads: bool = False
    """The planted cache: what was only read."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The bounds of the exploration."""

    time_max: int = 7
    faults_max: int = 1
    states_max: int = 2_000_000
    cycles_max: int = 1
    held_max: int = 0
    """Writes that become visible late."""


@dataclass
class Found:
    """The result of an exploration."""

    states: int
    broken: str | None = None
    trail: list[str] = field(default_factory=list)
    complete: bool = True


def offer(name: str, digest: str, *, sent_before: bool) -> a.Offer:
    return a.Offer(
        identity=IDENTITY,
        digest=Digest(digest),
        size_bytes=1,
        attempt_id=name,
        window_ns=HORIZON - MARGIN,
        sent_before=sent_before,
    )
