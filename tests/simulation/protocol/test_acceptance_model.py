"""Every interleaving of uploads and sweeps, within bounds.

No interleaving breaks a guarantee, and each planted omission breaks one.
"""

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from support import mutants
from support.model import explore
from support.model_expiry import HORIZON
from support.model_store import (
    MARGIN,
    Blob,
    Bounds,
    Held,
    Late,
    Manifest,
    Rules,
    Store,
    Sweeper,
    World,
    info_of,
    offer,
    upload_at,
)
from support.repetitions import times

from sluice_protocol import acceptance as a
from sluice_protocol import blob_deletion as d
from sluice_protocol.outcomes import Exists
from sluice_protocol.units import UnixNs

ORPHAN = Store(blobs=(Blob("A", 1, 0),), next_number=10)
EMPTY = Store(next_number=10)
ACCEPTED = Store(blobs=(Blob("A", 1, 0),), manifest=Manifest("A", "u0", 0), next_number=10)
UNPROVED = Store(blobs=(Blob("A", 1, 0),), manifest=Manifest("A", "u0", 4), next_number=10)
"""A manifest that appeared too long after its blob: no response 200 was sent for it."""
OWNED_BY_OTHER = Store(
    blobs=(Blob("B", 1, 0), Blob("A", 2, 0)), manifest=Manifest("B", "u0", 0), next_number=10
)


CONDEMNED = (Sweeper("proved", 4, frozenset(), Blob("A", 1, 0), 1),)
"""A sweeper that proved the blob an orphan just before the unproved manifest appeared."""


def condemned(*uploads: tuple[str, str, bool]) -> World:
    return World(4, UNPROVED, (), CONDEMNED, waiting=uploads)


def world(store: Store, *uploads: tuple[str, str, bool], sweepers: int = 1, now: int = 0) -> World:
    return World(now, store, (), (Sweeper(),) * sweepers, waiting=uploads)


NEW = ("u1", "A", False)
SECOND = ("u2", "A", False)
RIVAL = ("u2", "B", False)
RETRY = ("u1", "A", True)

SOUND = {
    "an old orphan is met": (world(ORPHAN, NEW), Bounds(time_max=5)),
    "two uploads of the same bytes": (world(EMPTY, NEW, SECOND), Bounds(time_max=4, faults_max=0)),
    "two uploads of other bytes": (world(EMPTY, NEW, RIVAL), Bounds(time_max=4, faults_max=0)),
    "two uploads of other bytes, one of which are an orphan's": (
        world(ORPHAN, NEW, RIVAL, now=2),
        Bounds(time_max=4, faults_max=0),
    ),
    "an old blob of a conflict": (world(OWNED_BY_OTHER, NEW), Bounds(time_max=5)),
    "a retry of something accepted": (world(ACCEPTED, RETRY), Bounds(time_max=9)),
    "a retry of something condemned": (condemned(RETRY), Bounds(time_max=9)),
    "two retries of something condemned": (
        condemned(RETRY, ("u2", "A", True)),
        Bounds(time_max=6, faults_max=0),
    ),
    "a wrong blob under the key": (
        world(Store(blobs=(Blob("A", 1, 0), Blob("A", 2, 0, wrong=True)), next_number=10), NEW),
        Bounds(time_max=5, faults_max=0),
    ),
    "a cached duplicate": (world(ORPHAN, NEW, SECOND), Bounds(time_max=3, faults_max=0)),
    "two sweepers": (world(ORPHAN, NEW, sweepers=2), Bounds(time_max=5, faults_max=0)),
    "two cycles": (world(ORPHAN, NEW), Bounds(time_max=7, faults_max=0, cycles_max=2)),
}


def held(store: Store, *seen: a.Observation, dated: int = 1, waits: bool = True) -> World:
    """Return a world in which upload u0 is held in a write since `dated`; the time is 4.

    `waits` is False when its gateway no longer waits for the response.
    """
    progress = a.begin(offer("u0", "A", sent_before=False))
    for observation in seen:
        progress = a.step(progress, observation)
    stalled = upload_at("u0", progress)
    if waits:
        return World(4, store, (stalled,), (Sweeper(),), held=(Held(0, dated),), waiting=(SECOND,))
    late = Late(type(progress.action).__name__, "A", "u0", dated=dated)
    return World(4, store, (), (Sweeper(),), frozenset({late}), waiting=(SECOND,))


YOUNG = (Exists(date_ns=UnixNs(1)), info_of(Blob("A", 1, 0), 1))
"""What u0 has seen of the orphan when it creates its manifest."""
BRIEF = Bounds(time_max=4, faults_max=0)
LATE = {
    "a manifest becomes visible late": (held(ORPHAN, *YOUNG), BRIEF),
    "a manifest becomes visible late, later": (
        held(ORPHAN, *YOUNG),
        Bounds(time_max=5, faults_max=0),
    ),
    "a blob becomes visible late": (held(EMPTY, dated=0), Bounds(time_max=5, faults_max=0)),
    "a put is applied late": (held(ORPHAN, *YOUNG, waits=False), BRIEF),
}
"""An object becomes visible later than its timestamp, or the server applies a write late."""
SOUND |= LATE

DEEP = {
    "two uploads, two faults": (world(EMPTY, NEW, SECOND), Bounds(time_max=5, faults_max=1)),
    "a rival, one fault": (world(EMPTY, NEW, RIVAL), Bounds(time_max=5, faults_max=1)),
    "an orphan, two uploads": (world(ORPHAN, NEW, SECOND), Bounds(time_max=5, faults_max=0)),
    "an orphan, two faults": (world(ORPHAN, NEW), Bounds(time_max=7, faults_max=2)),
    "an old orphan": (world(ORPHAN, NEW), Bounds(time_max=9)),
    "an old blob of a conflict": (world(OWNED_BY_OTHER, NEW), Bounds(time_max=9)),
    "an orphan, two sweepers": (world(ORPHAN, NEW, sweepers=2), Bounds(time_max=7)),
}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", DEEP)
def test_acceptance_keeps_its_guarantees_in_larger_bounds(name: str) -> None:
    """The same with more faults, actors and time, up to 160,000 states each."""
    start, bounds = DEEP[name]
    bounds = dataclasses.replace(bounds, states_max=times(160_000))
    found = explore(start, Rules(cache_accepted=True), bounds)
    print(f"{name}: {found.states} states, complete={found.complete}")
    assert found.broken is None, "\n".join(found.trail)


WITHOUT_REFERENCES = tuple(c for c in d.DELETION_CLAUSES if c is not d.references_absent)
"""The clauses when no reverse reference is read at the deletion, because they are packed."""
BOTH = (d.DELETION_CLAUSES, WITHOUT_REFERENCES)
"""A sweeper may use either: the two keys that a blob's envelope names suffice."""
LARGE = ("two uploads of the same bytes", "two uploads of other bytes", "two sweepers")


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n in LARGE else n for n in SOUND]
)
def test_acceptance_keeps_its_guarantees(name: str) -> None:
    """No interleaving within the bounds ends in a 200 or a 409 whose blob is deleted.

    No sweeper proves a blob unnamed that a manifest names at that moment.
    References are a second defence: at each deletion, the sweeper may read them or not.
    """
    start, bounds = SOUND[name]
    found = explore(start, Rules(cache_accepted=True, deletion_clauses=BOTH), bounds)
    assert found.broken is None, "\n".join(found.trail)
    assert found.complete, f"stopped at {found.states} states"
    assert found.states > 100


UNVERSIONED = tuple(
    clause
    for clause in d.DELETION_CLAUSES
    if clause not in {d.versioning_enabled, d.incarnation_exact, d.still_listed}
)
"""The checks of a sweeper that takes a key for an object version."""


def blind(key: str) -> tuple[d.ClauseCheck, ...]:
    """Return the clauses of a sweeper that does not read one of the two keys of the envelope."""

    def check(evidence: d.Evidence) -> d.MustKeep | None:
        assert evidence.envelope is not None
        changed: dict[str, d.ManifestLookup] = {key: d.ManifestLookup.ABSENT}
        envelope = dataclasses.replace(evidence.envelope, **changed)
        return d.envelope_unnamed(dataclasses.replace(evidence, envelope=envelope))

    return tuple(check if c is d.envelope_unnamed else c for c in WITHOUT_REFERENCES)


ONE_FAULT = Bounds(time_max=4)

PLANTED: dict[str, tuple[Rules, World, Bounds]] = {
    **{
        step.__name__: (Rules(step=step), start, bounds)
        for step, start, bounds in (
            (mutants.no_age_rule, world(ORPHAN, NEW), BRIEF),
            (mutants.no_date_rule, world(EMPTY, NEW), BRIEF),
            (mutants.no_date_rule_on_exists, world(EMPTY, NEW), ONE_FAULT),
            (mutants.retry_without_head, condemned(RETRY), BRIEF),
            (mutants.retry_with_bare_head, condemned(RETRY), BRIEF),
            (mutants.exists_is_success, world(EMPTY, NEW, RIVAL), BRIEF),
            (mutants.unknown_is_failure, world(EMPTY, NEW), ONE_FAULT),
            (mutants.empty_read_is_proof, world(EMPTY, NEW), ONE_FAULT),
            (mutants.conflict_without_proof, world(OWNED_BY_OTHER, NEW), BRIEF),
        )
    },
    "no check after an object became visible": (
        Rules(writer_settles=False, readers_settle=False),
        *LATE["a manifest becomes visible late"],
    ),
    "only the writer checks": (
        Rules(readers_settle=False),
        *LATE["a manifest becomes visible late"],
    ),
    "a check with too large a bound": (
        Rules(visibility_bound=HORIZON + MARGIN),
        *LATE["a manifest becomes visible late"],
    ),
    "a server that dates a write by its arrival": (
        Rules(writer_settles=False, readers_settle=False),
        *LATE["a put is applied late"],
    ),
    "a cache that outlives its proof": (
        Rules(cache_accepted=True, cache_expires=False),
        replace(world(EMPTY, SECOND, now=4), cache=frozenset({("A", 1)})),
        BRIEF,
    ),
    "a cache filled by reads": (
        Rules(cache_reads=True),
        condemned(RETRY, ("u2", "A", False)),
        BRIEF,
    ),
    "a sweeper with a shorter horizon": (
        Rules(sweeper_horizon=HORIZON - 3),
        world(ORPHAN, NEW),
        BRIEF,
    ),
    "a deletion that does not read the accepted key": (
        Rules(deletion_clauses=(blind("accepted"),)),
        world(ORPHAN, NEW),
        BRIEF,
    ),
    "a deletion that does not read the quarantine key": (
        Rules(deletion_clauses=(blind("quarantine"),)),
        world(OWNED_BY_OTHER, NEW),
        BRIEF,
    ),
    "suspended versioning": (
        Rules(versioned=False, plan_clauses=d.PLAN_CLAUSES[2:], deletion_clauses=(UNVERSIONED,)),
        world(ORPHAN, NEW),
        Bounds(time_max=6, faults_max=0),
    ),
    "absence by lagging references": (
        Rules(lagging_references=True),
        world(ORPHAN, NEW),
        BRIEF,
    ),
}


@pytest.mark.daily(10)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_omission_is_found(name: str) -> None:
    """Each omission has a counterexample, so the exploration above could have found it."""
    rules, start, bounds = PLANTED[name]
    found = explore(start, rules, bounds)
    assert found.broken is not None, f"not found in {found.states} states"
    print(f"{name}: {found.broken}", *found.trail, sep="\n  ")


def test_mutants_differ_from_the_state_machine() -> None:
    """Every planted step differs from the product's function."""
    planted: list[Callable[..., object]] = [
        rules.step for rules, _, _ in PLANTED.values() if rules.step is not Rules().step
    ]
    assert len(planted) == len(set(planted)) == 9
