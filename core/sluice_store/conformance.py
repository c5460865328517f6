"""Checks of the port's promises: those of the doctor, and what the tests' suite is made of.

The checks are plain async functions over any store. Each uses a separate prefix that ends in a
slash, and raises `Nonconforming`. The tests have more of them, which every adapter passes.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sluice_protocol.authority import SKEW_S_MAX
from sluice_protocol.errors import ChecksumRefused
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import (
    Applied,
    CreateOutcome,
    Deleted,
    Exists,
    Found,
    Mismatch,
    NotFound,
    ObjectInfo,
    ReplaceOutcome,
    Unknown,
)
from sluice_protocol.units import NS_PER_S, NULL_VERSION, ETag, ObjectKey
from sluice_store.port import ListedIncarnation, ListedObject, ObjectStore, Versioning, run_together

_T = TypeVar("_T")


class Nonconforming(AssertionError):
    """Raised when a store does not keep a promise of the port."""

    def __init__(self, promise: str, seen: str) -> None:
        super().__init__(promise, seen)
        self.promise = promise
        self.seen = seen

    def __str__(self) -> str:
        return f"{self.promise}, seen=`{self.seen}`"


def expect(promise: str, *, holds: bool, seen: object) -> None:
    """Raise `Nonconforming` unless `holds`; unlike `assert`, also under `python -O`."""
    if not holds:
        raise Nonconforming(promise, str(seen))


def expect_type(promise: str, seen: object, kind: type[_T]) -> _T:
    """Return `seen` as a `kind`, or raise `Nonconforming`."""
    if not isinstance(seen, kind):
        raise Nonconforming(promise, str(seen))
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """The outcomes of a race of conditional writes, counted."""

    applied: int
    refused: int
    unknown: int


def count_outcomes(outcomes: Sequence[CreateOutcome | ReplaceOutcome]) -> RaceResult:
    """Count the outcomes of one race."""
    return RaceResult(
        applied=sum(isinstance(outcome, Applied) for outcome in outcomes),
        refused=sum(isinstance(outcome, Exists | Mismatch) for outcome in outcomes),
        unknown=sum(isinstance(outcome, Unknown) for outcome in outcomes),
    )


def racer_body(racer: int) -> bytes:
    """Return a body that no other racer writes."""
    return f"racer {racer}".encode()


async def race_create(stores: Sequence[ObjectStore], key: ObjectKey, racers: int) -> RaceResult:
    """Create one key from `racers` concurrent tasks, each with its own body.

    Raises:
        Nonconforming: More than one create was applied, or none although no outcome is unknown, or
            the object is not a winner's.
    """
    outcomes = await run_together(
        *(stores[i % len(stores)].create(key, racer_body(i)) for i in range(racers))
    )
    result = count_outcomes(outcomes)
    await _expect_one_winner(stores, key, outcomes, result)
    return result


async def race_replace(
    stores: Sequence[ObjectStore], key: ObjectKey, if_match: ETag, racers: int
) -> RaceResult:
    """Replace one state from `racers` concurrent tasks, each with its own body."""
    outcomes = await run_together(
        *(
            stores[i % len(stores)].replace(key, racer_body(i), if_match=if_match)
            for i in range(racers)
        )
    )
    result = count_outcomes(outcomes)
    await _expect_one_winner(stores, key, outcomes, result)
    return result


async def _expect_one_winner(
    stores: Sequence[ObjectStore],
    key: ObjectKey,
    outcomes: Sequence[CreateOutcome | ReplaceOutcome],
    result: RaceResult,
) -> None:
    one = result.applied == 1 or (result.applied == 0 and result.unknown > 0)
    expect("exactly one of the racing conditional writes wins", holds=one, seen=result)
    allowed = {
        racer_body(i) for i, outcome in enumerate(outcomes) if isinstance(outcome, Applied)
    } or {racer_body(i) for i, outcome in enumerate(outcomes) if isinstance(outcome, Unknown)}
    for store in stores:
        read = expect_type("the winner's object is readable", await store.get(key), Found)
        expect("the object has the winner's bytes", holds=read.body in allowed, seen=read.body)


Check = Callable[[ObjectStore, str], Awaitable[None]]


async def create_object(store: ObjectStore, key: str, body: bytes) -> Applied:
    """Create an object, which must be applied."""
    outcome = await store.create(ObjectKey(key), body)
    return expect_type("a create of a new key is applied", outcome, Applied)


async def read_found(store: ObjectStore, key: str) -> Found:
    """Read an object, which must exist."""
    return expect_type("an object is readable", await store.get(ObjectKey(key)), Found)


async def head_object(store: ObjectStore, key: str) -> ObjectInfo:
    """Return the metadata of an object, which must exist."""
    return expect_type("a HEAD finds an object", await store.head(ObjectKey(key)), ObjectInfo)


async def check_create_once(store: ObjectStore, place: str) -> None:
    """The first create is applied; the second reports `Exists` and changes nothing."""
    await create_object(store, f"{place}once", b"first")
    again = await store.create(ObjectKey(f"{place}once"), b"second")
    expect_type("a create on an existing key reports `Exists`", again, Exists)
    read = await read_found(store, f"{place}once")
    expect("a refused create changes nothing", holds=read.body == b"first", seen=read.body)


async def check_head_reports_checksum(store: ObjectStore, place: str) -> None:
    """A HEAD reports size, tag, object version and the sha256 that was verified at upload."""
    written = await create_object(store, f"{place}head", b"checked")
    info = await head_object(store, f"{place}head")
    expect("a HEAD reports the size", holds=info.size_bytes == len(b"checked"), seen=info)
    expect("a HEAD reports the tag of the write", holds=info.etag == written.etag, seen=info)
    same = info.incarnation == written.incarnation
    expect("a HEAD reports the object version of the write", holds=same, seen=info)
    known = info.sha256 == digest_of(b"checked")
    expect("a HEAD reports the verified sha256", holds=known, seen=info.sha256)


async def check_wrong_checksum(store: ObjectStore, place: str) -> None:
    """A body that does not match its sha256 is refused and not stored."""
    key = ObjectKey(f"{place}wrong")
    try:
        outcome = await store.create(key, b"body", sha256=digest_of(b"another"))
    except ChecksumRefused:
        outcome = None
    expect("a wrong checksum is refused", holds=outcome is None, seen=type(outcome).__name__)
    expect_type("a refused body is not stored", await store.head(key), NotFound)


async def check_times(store: ObjectStore, place: str) -> None:
    """Last-Modified is within the allowed skew of the Date of the response to the write."""
    written = await create_object(store, f"{place}time", b"now")
    info = await head_object(store, f"{place}time")
    skew_ns = abs(info.last_modified_ns - written.date_ns)
    expect("Last-Modified is near Date", holds=skew_ns <= SKEW_S_MAX * NS_PER_S, seen=skew_ns)
    expect("Date does not fall", holds=info.date_ns >= written.date_ns, seen=info.date_ns)


async def check_replace(store: ObjectStore, place: str) -> None:
    """A replace with the current tag is applied; one with a stale tag reports `Mismatch`."""
    key = ObjectKey(f"{place}register")
    first = await create_object(store, key, b"one")
    swapped = await store.replace(key, b"two", if_match=first.etag)
    second = expect_type("a replace of the current state is applied", swapped, Applied)
    expect("a new state has a new tag", holds=second.etag != first.etag, seen=second.etag)
    stale = await store.replace(key, b"three", if_match=first.etag)
    expect_type("a replace of a stale state reports `Mismatch`", stale, Mismatch)
    read = await read_found(store, key)
    expect("a refused replace changes nothing", holds=read.body == b"two", seen=read.body)
    expect("a read reports the tag", holds=read.info.etag == second.etag, seen=read.info.etag)


async def collect_keys(
    store: ObjectStore, prefix: str, *, start_after: str = "", end_at: str | None = None
) -> list[ListedObject]:
    """Return every listed object of all pages."""
    pages = store.list(prefix, start_after=start_after, end_at=end_at)
    return [listed async for page in pages for listed in page.objects]


async def collect_incarnations(store: ObjectStore, prefix: str) -> list[ListedIncarnation]:
    """Return every listed object version of all pages."""
    return [one async for page in store.list_incarnations(prefix) for one in page.incarnations]


async def check_delete_spares_newer(store: ObjectStore, place: str) -> None:
    """A delete of an old object version keeps the newer one, however often it is repeated."""
    key = ObjectKey(f"{place}spared")
    old = (await create_object(store, key, b"same")).incarnation
    await store.overwrite(key, b"same")
    for _ in range(2):
        outcome = await store.delete(key, old or NULL_VERSION)
        expect_type("a delete of an object version succeeds", outcome, Deleted)
    read = await read_found(store, key)
    expect("the newer object version stays", holds=read.info.incarnation != old, seen=read.info)
    left = await collect_incarnations(store, key)
    expect("and is the only object version", holds=len(left) == 1 and left[0].current, seen=left)


async def check_delete_then_create(store: ObjectStore, place: str) -> None:
    """A key whose only version was deleted can be created again, and a late repeat keeps it."""
    key = ObjectKey(f"{place}again")
    old = (await create_object(store, key, b"same")).incarnation or NULL_VERSION
    await store.delete(key, old)
    expect_type("a deleted object is not found", await store.get(key), NotFound)
    fresh = (await create_object(store, key, b"same")).incarnation
    expect("a new object is a new object version", holds=fresh != old, seen=fresh)
    await store.delete(key, old)
    read = await read_found(store, key)
    expect("a late repeated delete keeps it", holds=read.info.incarnation == fresh, seen=read.info)


async def check_versioning(store: ObjectStore, place: str) -> None:
    """Versioning reads `Enabled`, and a write has an object version that is not `null`."""
    state = await store.read_versioning()
    expect("versioning is Enabled", holds=state is Versioning.ENABLED, seen=state)
    written = await create_object(store, f"{place}versioned", b"x")
    real = written.incarnation not in {None, NULL_VERSION}
    expect("a write has an object version", holds=real, seen=written.incarnation)
