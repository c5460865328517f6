"""The moves of the reconciler and of a query in the simulation of acceptance journals."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from support.journal_types import (
    Moves,
    Rules,
    SimObject,
    SimProgress,
    SimPublished,
    SimRegistration,
    SimRound,
    SimWorld,
    batch_of,
    ns,
)

from sluice_protocol.journals import (
    JOURNAL_REPLACED_AFTER_S,
    ProcessProgress,
    decide_frontier,
    decode_journal,
    journal_key,
)
from sluice_protocol.units import NS_PER_S, UnixNs

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
