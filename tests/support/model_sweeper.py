"""The sweeper of the acceptance model: its audit, its plan and its deletes, one call at a time.

The product's deletion clauses decide; the model gathers their evidence from its store.
"""

from collections.abc import Iterator
from functools import cache

from msgspec.structs import replace
from support.model_store import read_settled
from support.model_types import Blob, Bounds, Late, Rules, Store, Sweeper, World

from sluice_protocol import blob_deletion as d
from sluice_protocol.units import Digest, ObjectKey, ObjectVersion, UnixNs

PROVED_NAMED = "proved although it is named"
"""The kind of a verdict of a sweeper that breaks invariant I7."""


def sweeper_moves(
    world: World, index: int, sweeper: Sweeper, rules: Rules, bounds: Bounds
) -> Iterator[tuple[str, World]]:
    """Yield every next state that a sweeper's next call leads to."""

    def put(after: Sweeper, base: World = world) -> World:
        sweepers = list(base.sweepers)
        sweepers[index] = after
        return replace(base, sweepers=tuple(sweepers))

    who = f"sweeper {index}"
    if sweeper.phase in {"read", "planned"}:
        listed = read_settled(world.store, world.now, rules, "blobs")
        if listed is not world.store:
            yield f"{who}: lists blobs", replace(world, store=listed)
            return
    match sweeper.phase:
        case "idle" if sweeper.cycles < bounds.cycles_max:
            begun = Sweeper("begun", world.now, frozenset(), None, sweeper.cycles + 1)
            yield f"{who}: audit starts", put(begun)
        case "begun":
            named = _accepted_names(world.store, rules)
            half = replace(sweeper, phase="half", named=named)
            yield f"{who}: audit lists accepted/", put(half)
        case "half":
            named = sweeper.named | _quarantined_names(world.store, rules)
            yield (
                f"{who}: audit lists quarantine/",
                put(replace(sweeper, phase="read", named=named)),
            )
        case "read":
            for blob in world.store.blobs:
                if _proved(world.store, world.now, sweeper, blob, rules):
                    planned = replace(sweeper, phase="planned", target=blob)
                    yield f"{who}: plans {blob.digest}#{blob.number}", put(planned)
        case "planned" if sweeper.target is not None:
            blob = sweeper.target
            verdicts = _still_proved(world.store, world.now, sweeper, blob, rules)
            if True in verdicts:
                after = Sweeper("proved", target=blob, cycles=sweeper.cycles)
                proved = put(after, _judged(world, blob))
                yield f"{who}: proves {blob.digest}#{blob.number} again", proved
            if False in verdicts:
                yield (
                    f"{who}: keeps {blob.digest}#{blob.number}",
                    put(Sweeper(cycles=sweeper.cycles)),
                )
        case "proved" if sweeper.target is not None:
            blob = sweeper.target
            request = Late("delete", blob.digest, "", blob.number)
            sent = put(Sweeper(cycles=sweeper.cycles), replace(world, late=world.late | {request}))
            yield f"{who}: sends delete of {blob.digest}#{blob.number}", sent
        case _:
            return


def _judged(world: World, blob: Blob) -> World:
    """Return the world with a note if a manifest names the version that a sweeper has proved.

    An older version may go although it is named: its manifest has the current version.
    """
    store = world.store
    current = store.current(blob.digest)
    named = {one.digest for one in (store.manifest, *store.quarantine) if one is not None}
    replaced = current is not None and current != blob and not current.wrong
    if replaced or blob.digest not in named:
        return world
    return replace(world, acked=world.acked | {(PROVED_NAMED, blob.digest)})


def _accepted_names(store: Store, rules: Rules) -> frozenset[str]:
    if rules.lagging_references or store.manifest is None:
        return frozenset()
    return frozenset({store.manifest.digest})


def _quarantined_names(store: Store, rules: Rules) -> frozenset[str]:
    if rules.lagging_references:
        return frozenset()
    return frozenset(kept.digest for kept in store.quarantine)


@cache
def _proved(store: Store, now: int, sweeper: Sweeper, blob: Blob, rules: Rules) -> bool:
    """Return True if a plan would list the blob."""
    evidence = _evidence(store, now, sweeper, blob, rules)
    return any(
        isinstance(d.decide_deletion(evidence, clauses), d.MayDelete)
        for clauses in (rules.plan_clauses, rules.superseded_clauses)
    )


@cache
def _still_proved(
    store: Store, now: int, sweeper: Sweeper, blob: Blob, rules: Rules
) -> frozenset[bool]:
    """Return what each list of clauses decides at deletion, over evidence that is read again."""
    evidence = _evidence(store, now, sweeper, blob, rules)
    superseded = isinstance(d.decide_deletion(evidence, rules.superseded_clauses), d.MayDelete)
    return frozenset(
        superseded or isinstance(d.decide_deletion(evidence, clauses), d.MayDelete)
        for clauses in rules.deletion_clauses
    )


def _evidence(store: Store, now: int, sweeper: Sweeper, blob: Blob, rules: Rules) -> d.Evidence:
    digest = Digest(blob.digest)
    named = blob.digest in _accepted_names(store, rules) | _quarantined_names(store, rules)
    accepted = store.manifest is not None and store.manifest.digest == blob.digest
    quarantined = any(kept.digest == blob.digest for kept in store.quarantine)
    seen = not rules.lagging_references
    return d.Evidence(
        candidate=d.Candidate(
            key=ObjectKey(blob.digest),
            digest=digest,
            incarnation=ObjectVersion(str(blob.number)),
            last_modified_ns=UnixNs(blob.born),
            size_bytes=1,
        ),
        retry_horizon_ns=rules.sweeper_horizon,
        now_ns=UnixNs(now),
        versioning_enabled=rules.versioned,
        audit=d.AuditResult(
            audit_id="audit",
            started_at_ns=UnixNs(sweeper.started),
            complete=True,
            names_blob=blob.digest in sweeper.named,
        ),
        references=int(named),
        envelope=d.EnvelopeLookup(
            accepted=d.ManifestLookup.NAMES_IT if accepted and seen else d.ManifestLookup.ABSENT,
            quarantine=d.ManifestLookup.NAMES_IT
            if quarantined and seen
            else d.ManifestLookup.ABSENT,
        ),
        listed=_listed(store, blob),
        current=_current(store, blob),
    )


def _listed(store: Store, blob: Blob) -> d.ListedNow | None:
    for stored in store.blobs:
        if (stored.digest, stored.number) == (blob.digest, blob.number):
            return d.ListedNow(
                incarnation=ObjectVersion(str(stored.number)),
                last_modified_ns=UnixNs(stored.born),
                current=stored == store.current(blob.digest),
            )
    return None


def _current(store: Store, blob: Blob) -> d.CurrentRead | None:
    current = store.current(blob.digest)
    if current is None:
        return None
    digest = Digest("wrong" if current.wrong else current.digest)
    return d.CurrentRead(incarnation=ObjectVersion(str(current.number)), digest=digest)
