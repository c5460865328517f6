"""A breadth-first checker of acceptance and deletion over one identity.

Also here: the sweeper of the acceptance model: its audit, its plan and its deletes, one call at a
time.

Actors: uploads (each driven by the product's `acceptance.step`), sweepers (driven by the product's
deletion clauses), and a store with versions. Every interleaving of their single store calls is
explored, up to stated bounds: with lost responses, late writes, writes that become visible later
than their timestamp, late and repeated deletes, crashes and the passing of time. The search is
breadth first, so a counterexample is a shortest one. Where batches may expire, ingestion, the
expiry run, holds, compaction, rebuilds and restored tables are further actors (`model_expiry`).

Time is whole units; `HORIZON` and `MARGIN` represent the authority's settings.

The product's deletion clauses decide; the model gathers their evidence from its store.
"""

from collections import deque
from collections.abc import Iterator
from functools import cache

from msgspec.structs import replace
from support.model_expiry import (
    EXPIRED_EARLY,
    HORIZON,
    PROVED_HELD,
    PROVED_LOST,
    Lake,
    expiry_lookup,
    faults_of_proof,
    is_expired,
    lake_moves,
    may_be_gone,
)
from support.model_store import (
    KINDS,
    LOST,
    MARGIN,
    PROGRESSES,
    Blob,
    Bounds,
    Found,
    Held,
    Late,
    Rules,
    Step,
    Store,
    Sweeper,
    Upload,
    World,
    applied,
    checked_by_writer,
    number_of,
    offer,
    perform,
    read_settled,
    upload_at,
)

from sluice_protocol import acceptance as a
from sluice_protocol import blob_deletion as d
from sluice_protocol.outcomes import Applied
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
            named = _accepted_names(world.store, world.lake, rules)
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
                if _proved(world.store, world.lake, world.now, sweeper, blob, rules):
                    planned = replace(sweeper, phase="planned", target=blob)
                    yield f"{who}: plans {blob.digest}#{blob.number}", put(planned)
        case "planned" if sweeper.target is not None:
            blob = sweeper.target
            verdicts = _still_proved(world.store, world.lake, world.now, sweeper, blob, rules)
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
    if world.lake is not None:
        named |= world.lake.named_elsewhere
    replaced = current is not None and current != blob and not current.wrong
    if replaced or blob.digest not in named:
        return world
    faults = set(faults_of_proof(world.lake, blob.digest))
    others = {one.digest for one in store.quarantine}
    others |= world.lake.named_elsewhere if world.lake is not None else frozenset()
    if not is_expired(world.lake, blob.digest) or blob.digest in others:
        faults.add(PROVED_NAMED)
    return replace(world, acked=world.acked | {(fault, blob.digest) for fault in faults})


def _accepted_names(store: Store, lake: Lake | None, rules: Rules) -> frozenset[str]:
    """Return the digests that manifests name which have not expired."""
    named = frozenset() if lake is None else lake.named_elsewhere
    if rules.lagging_references or store.manifest is None:
        return named
    digest = store.manifest.digest
    if not is_expired(lake, digest):
        return named | {digest}
    return named if rules.expiry.by_manifest else named - {digest}


def _quarantined_names(store: Store, rules: Rules) -> frozenset[str]:
    if rules.lagging_references:
        return frozenset()
    return frozenset(kept.digest for kept in store.quarantine)


@cache
def _proved(
    store: Store, lake: Lake | None, now: int, sweeper: Sweeper, blob: Blob, rules: Rules
) -> bool:
    """Return True if a plan would list the blob."""
    evidence = _evidence(store, lake, now, sweeper, blob, rules)
    return any(
        isinstance(d.decide_deletion(evidence, clauses), d.MayDelete)
        for clauses in (rules.plan_clauses, rules.superseded_clauses)
    )


@cache
def _still_proved(
    store: Store, lake: Lake | None, now: int, sweeper: Sweeper, blob: Blob, rules: Rules
) -> frozenset[bool]:
    """Return what each list of clauses decides at deletion, over evidence that is read again."""
    evidence = _evidence(store, lake, now, sweeper, blob, rules)
    superseded = isinstance(d.decide_deletion(evidence, rules.superseded_clauses), d.MayDelete)
    return frozenset(
        superseded or isinstance(d.decide_deletion(evidence, clauses), d.MayDelete)
        for clauses in rules.deletion_clauses
    )


def _evidence(
    store: Store, lake: Lake | None, now: int, sweeper: Sweeper, blob: Blob, rules: Rules
) -> d.Evidence:
    digest = Digest(blob.digest)
    names = _accepted_names(store, lake, rules) | _quarantined_names(store, rules)
    named = blob.digest in names
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
            accepted=_lookup(lake, digest) if accepted and seen else d.ManifestLookup.ABSENT,
            quarantine=d.ManifestLookup.NAMES_IT
            if quarantined and seen
            else d.ManifestLookup.ABSENT,
        ),
        expiry=expiry_lookup(lake, rules.expiry),
        listed=_listed(store, blob),
        current=_current(store, blob),
    )


def _lookup(lake: Lake | None, digest: str) -> d.ManifestLookup:
    expired = is_expired(lake, digest)
    return d.ManifestLookup.EXPIRED if expired else d.ManifestLookup.NAMES_IT


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


# --- held writes --------------------------------------------------------------------------------


def _held_moves(
    world: World, held: Held, upload: Upload, rules: Rules
) -> Iterator[tuple[str, World]]:
    """Yield the next step of a held write: it becomes visible, then its writer continues."""
    action = type(upload.progress.action).__name__
    others = tuple(one for one in world.held if one != held)
    free = replace(world, held=others)
    if not held.visible:
        store, seen = perform(world.store, upload, world.now, rules, held.dated)
        if not isinstance(seen, Applied):
            found = replace(free, store=store)
            yield (
                f"{upload.name}: {action} -> Exists",
                _observed(found, held.index, upload, seen, rules),
            )
            return
        visible = replace(held, visible=True)
        name = f"{upload.name}: {action} of {held.dated} becomes visible"
        if KINDS[action] != "blobs":
            yield name, replace(world, store=store, held=(*others, visible))
            return
        store, born = checked_by_writer(store, upload, world.now, rules, held.dated)
        after = _observed(replace(free, store=store), held.index, upload, applied(born), rules)
        yield f"{name} -> Applied", after
        return
    store, born = checked_by_writer(world.store, upload, world.now, rules, held.dated)
    after = _observed(replace(free, store=store), held.index, upload, applied(born), rules)
    yield f"{upload.name}: {action} -> Applied of {born}", after


WRITES = (a.CreateBlob, a.OverwriteBlob, a.CreateManifest, a.CreateQuarantine)


# --- transitions -------------------------------------------------------------------------------


def transitions(world: World, rules: Rules, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """Yield every next state with the name of the transition to it."""
    if world.now < bounds.time_max:
        yield f"tick to {world.now + 1}", replace(world, now=world.now + 1)
    yield from _arrivals(world, rules)
    for index, upload in enumerate(world.uploads):
        if upload.alive:
            yield from _upload_moves(world, index, upload, rules, bounds)
    for index, sweeper in enumerate(world.sweepers):
        yield from sweeper_moves(world, index, sweeper, rules, bounds)
    for request in world.late:
        yield from _late_transitions(world, request, rules)
    if world.lake is not None:
        deleting = any(one.kind == "delete" for one in world.late)
        deleting |= any(one.phase == "proved" for one in world.sweepers)
        for name, lake, verdict in lake_moves(
            world.lake, world.store, world.now, rules.expiry, deleting=deleting
        ):
            after = replace(world, lake=lake)
            if verdict is not None and world.store.manifest is not None:
                after = _told(after, verdict, world.store.manifest.digest)
            yield name, after


def _arrivals(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    if not world.waiting:
        return
    (name, digest, sent_before), *rest = world.waiting
    later = replace(world, waiting=tuple(rest))
    proofs = [proved_at for known, proved_at in world.cache if known == digest]
    if proofs and (not rules.cache_expires or _is_fresh(max(proofs), world.now)):
        outlived = world.now - max(proofs) >= HORIZON - MARGIN
        kind = "cache without a proof" if outlived and rules.cache_accepted else "200"
        yield f"{name}: answered from the cache", _told(later, kind, digest)
        return
    started = upload_at(name, rules.first(offer(name, digest, sent_before=sent_before)))
    yield f"{name}: begins", replace(later, uploads=(*world.uploads, started))


def _is_fresh(proved_at: int, now: int) -> bool:
    return now < a.cacheable_until_ns(UnixNs(proved_at), HORIZON - MARGIN)


def _told(world: World, kind: str, digest: str) -> World:
    return replace(world, acked=world.acked | {(kind, digest)})


def _upload_moves(
    world: World, index: int, upload: Upload, rules: Rules, bounds: Bounds
) -> Iterator[tuple[str, World]]:
    action = type(upload.progress.action).__name__
    held = next((one for one in world.held if one.index == index), None)
    if held is not None:
        yield from _held_moves(world, held, upload, rules)
        return
    store, seen = perform(world.store, upload, world.now, rules)
    if world.holds < bounds.held_max and isinstance(upload.progress.action, WRITES):
        more = (*world.held, Held(index, world.now))
        name = f"{upload.name}: {action} is dated {world.now} and held"
        yield name, replace(world, held=more, holds=world.holds + 1)
    yield (
        f"{upload.name}: {action} -> {type(seen).__name__}",
        _observed(replace(world, store=store), index, upload, seen, rules),
    )
    if world.faults >= bounds.faults_max:
        return
    hurt = replace(world, faults=world.faults + 1)
    if isinstance(upload.progress.action, WRITES):
        yield (
            f"{upload.name}: {action} applied, answer lost",
            _observed(replace(hurt, store=store), index, upload, LOST, rules),
        )
        late = Late(action, upload.progress.offer.digest, upload.name)
        pending = replace(hurt, late=hurt.late | {late})
        yield (
            f"{upload.name}: {action} under way, answer lost",
            _observed(pending, index, upload, LOST, rules),
        )
        dead = _with_upload(pending, index, replace(upload, alive=False))
        yield f"{upload.name}: {action} under way, gateway dies", dead


def _with_upload(world: World, index: int, upload: Upload) -> World:
    uploads = list(world.uploads)
    uploads[index] = upload
    return replace(world, uploads=tuple(uploads))


@cache
def _step(step: Step, number: int, seen: a.Observation) -> int:
    """Take a step of the product, or of a mutant, from a numbered progress to the next one.

    A step is a pure function, so its results are kept.
    """
    return number_of(step(PROGRESSES[number], seen))


def _observed(world: World, index: int, upload: Upload, seen: a.Observation, rules: Rules) -> World:
    number = _step(rules.step, upload.number, seen)
    progress = PROGRESSES[number]
    digest = progress.offer.digest
    if rules.cache_reads and isinstance(seen, a.ManifestRead) and seen.digest == digest:
        world = replace(world, cache=world.cache | {(digest, world.now)})
    match progress.action:
        case a.Accepted():
            world = _told(world, "200", digest)
            if rules.cache_accepted and progress.proved_at_ns is not None:
                entry = (str(digest), int(progress.proved_at_ns))
                world = replace(world, cache=world.cache | {entry})
        case a.Conflict():
            world = _told(world, "409", digest)
        case a.RetriesExhausted() if progress.tries < a.TRIES_MAX:
            world = _told(world, "failed without effect", digest)
        case a.Corrupt() | a.RetriesExhausted():
            pass
        case _:
            return _with_upload(world, index, replace(upload, number=number))
    return _with_upload(world, index, replace(upload, number=number, alive=False))


def _late_transitions(world: World, request: Late, rules: Rules) -> Iterator[tuple[str, World]]:
    """A late write applies once; a late delete may apply repeatedly."""
    gone = replace(world, late=world.late - {request})
    if request.kind == "delete":
        kept = tuple(
            b for b in world.store.blobs if (b.digest, b.number) != (request.digest, request.number)
        )
        store = replace(world.store, blobs=kept)
        if not rules.expiry.manifest_stays and is_expired(world.lake, request.digest):
            store = replace(store, manifest=None)
        yield "late delete applies", replace(world, store=store)
        return
    progress = a.begin(offer(request.attempt, request.digest, sent_before=False))
    actions: dict[str, a.Action] = {
        "CreateBlob": a.CreateBlob(),
        "OverwriteBlob": a.OverwriteBlob(),
        "CreateManifest": a.CreateManifest(accepted_at_ns=UnixNs(0)),
        "CreateQuarantine": a.CreateQuarantine(
            accepted_digest=Digest(""), observed_at_ns=UnixNs(0)
        ),
    }
    action = actions[request.kind]
    ghost = upload_at(request.attempt, replace(progress, action=action))
    store, _ = perform(world.store, ghost, world.now, rules, request.dated)
    yield f"late {request.kind} of {request.attempt} applies", replace(gone, store=store)


# --- guarantees --------------------------------------------------------------------------------


_FORBIDDEN = {
    "cache without a proof": "was answered from memory after its proof had ended",
    PROVED_NAMED: "was proved unnamed while a manifest named it",
    PROVED_HELD: "was proved while a hold covered it",
    PROVED_LOST: "was proved while its records were not in the table",
    EXPIRED_EARLY: "expired before its age",
}
"""Kinds of verdicts that no actor may send."""


def broken_guarantee(world: World) -> str | None:
    """Return the first guarantee that this state breaks."""
    store = world.store
    for kind, digest in world.acked:
        blob = store.current(digest)
        readable = blob is not None and not blob.wrong
        if kind in {"200", "409"} and not readable and not may_be_gone(world.lake, digest):
            return f"{kind} was sent for {digest} and its blob is deleted"
        owner = None if store.manifest is None else store.manifest.digest
        if kind == "200" and owner != digest:
            return f"200 was sent for {digest} and the manifest names {owner}"
        if kind == "409" and owner in {None, digest}:
            return f"409 was sent for {digest} and the manifest names {owner}"
        if kind in _FORBIDDEN:
            return f"{digest} {_FORBIDDEN[kind]}"
        if kind == "failed without effect" and owner == digest:
            return f"{digest} was said to have had no effect and it owns the identity"
    return None


def canonical(world: World, rules: Rules) -> World:
    """Return the state without what no later transition reads.

    States that differ only in that have the same futures, so one of them is explored:
    an upload that has ended; a late write of an object that exists and is never deleted; a late
    delete of a version that is gone, because its number is never used again; what the gateways
    remember when no upload is waiting; what a sweeper has read once it has proved its target; and
    the order of the sweepers, which are equal.
    """
    uploads, sweepers, late, known = world.uploads, world.sweepers, world.late, world.cache
    if uploads and not world.held:
        uploads = _alive(uploads)
    if len(sweepers) > 1:
        sweepers = _in_order(sweepers)
    if late:
        late = _with_effect(world.store, late, rules)
    if known and not world.waiting:
        known = frozenset()
    same = uploads is world.uploads and sweepers is world.sweepers
    if same and late is world.late and known is world.cache:
        return world
    return replace(world, uploads=uploads, sweepers=sweepers, late=late, cache=known)


@cache
def _alive(uploads: tuple[Upload, ...]) -> tuple[Upload, ...]:
    alive = tuple(upload for upload in uploads if upload.alive)
    return uploads if alive == uploads else alive


@cache
def _in_order(sweepers: tuple[Sweeper, ...]) -> tuple[Sweeper, ...]:
    ordered = tuple(sorted(sweepers, key=repr))
    return sweepers if ordered == sweepers else ordered


@cache
def _with_effect(store: Store, late: frozenset[Late], rules: Rules) -> frozenset[Late]:
    kept = frozenset(one for one in late if _has_effect(store, one, rules))
    return late if kept == late else kept


def _has_effect(store: Store, request: Late, rules: Rules) -> bool:
    match request.kind:
        case "delete":
            return not rules.versioned or any(blob.number == request.number for blob in store.blobs)
        case "CreateManifest":
            return store.manifest is None
        case "CreateQuarantine":
            return all(kept.digest != request.digest for kept in store.quarantine)
        case _:
            return True


def explore(start: World, rules: Rules, bounds: Bounds) -> Found:
    """Explore every state within the bounds, or up to the first broken guarantee."""
    parents: dict[World, tuple[World, str] | None] = {start: None}
    todo = deque([start])
    while todo:
        world = todo.popleft()
        for name, reached in transitions(world, rules, bounds):
            after = canonical(reached, rules)
            if after in parents:
                continue
            parents[after] = (world, name)
            broken = broken_guarantee(after)
            if broken is not None:
                return Found(len(parents), broken, _trail(parents, after))
            if len(parents) >= bounds.states_max:
                return Found(len(parents), complete=False)
            todo.append(after)
    return Found(len(parents))


def _trail(parents: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    names: list[str] = []
    step = parents[world]
    while step is not None:
        before, name = step
        names.append(name)
        step = parents[before]
    return names[::-1]
