"""The store of the model checker: its versions, responses and timestamps.

Also the states, bounds and rules that it explores; `model` has the transitions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace
from support.model_expiry import HORIZON, PRODUCT_EXPIRY, ExpiryRules, Lake

from sluice_protocol import acceptance as a
from sluice_protocol import blob_deletion as d
from sluice_protocol.identity import Identity
from sluice_protocol.outcomes import Applied, Exists, NotFound, ObjectInfo, Unknown, UnknownReason
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.local.layout import is_late

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
    lake: Lake | None = None
    """None where batches never expire."""


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
    expiry: ExpiryRules = PRODUCT_EXPIRY


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


# --- the store's responses ---------------------------------------------------------------------


def info_of(blob: Blob, now: int) -> ObjectInfo:
    return ObjectInfo(
        key=ObjectKey(blob.digest),
        size_bytes=1,
        etag=ETag("e"),
        incarnation=ObjectVersion(str(blob.number)),
        last_modified_ns=UnixNs(blob.born),
        sha256=Digest("wrong" if blob.wrong else blob.digest),
        date_ns=UnixNs(now),
    )


def applied(now: int) -> Applied:
    return Applied(etag=ETag("e"), incarnation=None, date_ns=UnixNs(now))


def _add_blob(store: Store, blob: Blob, *, versioned: bool) -> Store:
    kept = store.blobs
    if not versioned:
        kept = tuple(one for one in kept if one.digest != blob.digest)
    return replace(store, blobs=(*kept, blob), next_number=store.next_number + 1)


@cache
def perform(  # noqa: PLR0911 - one line per request
    store: Store, upload: Upload, now: int, rules: Rules, dated: int | None = None
) -> tuple[Store, a.Observation]:
    """Perform one request of an upload immediately and return the store's true response.

    It is a pure function, whose results are kept: states differ mostly in what it does not read.
    With `dated`, the object has this older timestamp, which is not checked yet.
    """
    digest, name = upload.progress.offer.digest, upload.name
    born, late = (now, False) if dated is None else (dated, _marks(rules))
    current = store.current(digest)
    match upload.progress.action:
        case a.CreateBlob() if current is not None:
            return store, Exists(date_ns=UnixNs(now))
        case a.CreateBlob() | a.OverwriteBlob():
            number = store.next_number if rules.versioned else 0
            blob = Blob(digest, number, born, marked=late)
            return _add_blob(store, blob, versioned=rules.versioned), applied(born)
        case a.HeadBlob():
            return _head_blob(store, digest, now, rules)
        case a.CreateManifest() if store.manifest is not None:
            return store, Exists(date_ns=UnixNs(now))
        case a.CreateManifest():
            return replace(store, manifest=Manifest(digest, name, born, late)), applied(born)
        case a.ReadManifest():
            store = read_settled(store, now, rules, "manifest")
            return store, _read(store.manifest, now)
        case a.CreateQuarantine():
            if any(kept.digest == digest for kept in store.quarantine):
                return store, Exists(date_ns=UnixNs(now))
            kept = (*store.quarantine, Manifest(digest, name, born, late))
            return replace(store, quarantine=kept), applied(born)
        case a.HeadQuarantine():
            store = read_settled(store, now, rules, "quarantine")
            [kept_one] = [kept for kept in store.quarantine if kept.digest == digest]
            return store, info_of(Blob(digest, 0, kept_one.born), now)
        case other:
            raise AssertionError(other)


def _head_blob(
    store: Store, digest: str, now: int, rules: Rules
) -> tuple[Store, ObjectInfo | NotFound]:
    store = read_settled(store, now, rules, "blobs")
    current = store.current(digest)
    return store, NotFound(date_ns=UnixNs(now)) if current is None else info_of(current, now)


def _read(manifest: Manifest | None, now: int) -> a.Observation:
    if manifest is None:
        return NotFound(date_ns=UnixNs(now))
    return a.ManifestRead(
        digest=Digest(manifest.digest),
        attempt_id=manifest.attempt,
        accepted_at_ns=UnixNs(0),
        last_modified_ns=UnixNs(manifest.born),
        date_ns=UnixNs(now),
    )


# --- timestamps of objects that became visible late ---------------------------------------------

M = TypeVar("M", Blob, Manifest)


def _marks(rules: Rules) -> bool:
    return rules.writer_settles or rules.readers_settle


def _settled(one: M, now: int, rules: Rules) -> M:
    """Check the timestamp of one object, as the directory store does."""
    if not one.marked:
        return one
    late = is_late(one.born, now, rules.visibility_bound)
    return replace(one, born=now if late else one.born, marked=False)


def read_settled(store: Store, now: int, rules: Rules, what: str) -> Store:
    """Return the store after a reader checked the timestamps of what it reads."""
    if not rules.readers_settle:
        return store
    return settled(store, now, rules, what)


def settled(store: Store, now: int, rules: Rules, what: str) -> Store:
    match what:
        case "blobs" if any(blob.marked for blob in store.blobs):
            return replace(store, blobs=tuple(_settled(one, now, rules) for one in store.blobs))
        case "manifest" if store.manifest is not None and store.manifest.marked:
            return replace(store, manifest=_settled(store.manifest, now, rules))
        case "quarantine" if any(kept.marked for kept in store.quarantine):
            kept = tuple(_settled(one, now, rules) for one in store.quarantine)
            return replace(store, quarantine=kept)
        case _:
            return store


KINDS = {
    "CreateBlob": "blobs",
    "OverwriteBlob": "blobs",
    "CreateManifest": "manifest",
    "CreateQuarantine": "quarantine",
}


def checked_by_writer(
    store: Store, upload: Upload, now: int, rules: Rules, dated: int
) -> tuple[Store, int]:
    """Return the store after the writer's check, and the timestamp that its response contains."""
    if not rules.writer_settles:
        return store, dated
    kind = KINDS[type(upload.progress.action).__name__]
    store = settled(store, now, rules, kind)
    if kind == "blobs":
        return store, store.blobs[-1].born
    named = (store.manifest,) if kind == "manifest" else store.quarantine
    return store, next(one.born for one in named if one and one.attempt == upload.name)
