"""Random walks over the simulation of acceptance journals: a seed replays its walk.

Also here: the moves of gateway processes and of the store in the simulation of acceptance journals.

Each walk draws how often every actor acts and how often each kind of move is made. Walks therefore
differ in character: one has many deaths, another a slow reconciler.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from support.journal_model import (
    BATCHES,
    EMPTY_BOOK,
    JUMP_TICKS,
    Book,
    Moves,
    Rules,
    SimGateway,
    SimObject,
    SimRegistration,
    SimUpload,
    SimWorld,
    freeze,
    keeper_moves,
    manifest_bytes,
    next_name,
    ns,
    pass_moves,
    round_moves,
    thaw,
    ticked,
)

from sluice_gateway.journal import JournalBook, PendingObject
from sluice_protocol.authority import AcceptanceMode
from sluice_protocol.journals import decode_journal, encode_journal, parse_journal_key
from sluice_protocol.units import UnixNs

UPLOADS_MAX = 2


def gateway_moves(world: SimWorld, index: int, rules: Rules) -> Moves:
    """Yield the moves of a process that is alive, and of its clients."""
    one = world.gateways[index]
    if one.asleep:
        yield "wake", f"{one.name} resumes", partial(world.with_gateway, index, asleep=False)
        yield "oversleep", f"{one.name} resumes much later", partial(_overslept, world, index)
        return
    yield from _process_moves(world, index, one, rules)
    yield from _upload_moves(world, index, one, rules)


def _overslept(world: SimWorld, index: int) -> SimWorld:
    after = ticked(world, JUMP_TICKS)
    return after.with_gateway(index, asleep=False)


def late_moves(world: SimWorld) -> Moves:
    """Yield the application of each late write."""
    for write in sorted(world.late, key=str):
        yield "late", f"a late write is applied: {_shown(write)}", partial(_apply, world, write)


def _shown(write: SimObject | str) -> str:
    return write if isinstance(write, str) else f"{write.process[-2:]}/{write.number}"


def _apply(world: SimWorld, write: SimObject | str) -> SimWorld:
    settled = replace(world, late=world.late - {write})
    return _stored(settled, write)


def _stored(world: SimWorld, write: SimObject | str) -> SimWorld:
    """Create an object, unless its key exists."""
    if isinstance(write, str):
        return replace(world, manifests=world.manifests | {write})
    if any((o.process, o.number) == (write.process, write.number) for o in world.objects):
        return world
    return replace(world, objects=(*world.objects, replace(write, written=world.now)))


# --- processes -----------------------------------------------------------------------------------


def _process_moves(world: SimWorld, index: int, one: SimGateway, rules: Rules) -> Moves:
    who = f"{one.name}{index}"
    yield "die", f"{who} is killed", partial(_killed, world, index)
    yield "sleep", f"{who} is suspended", partial(world.with_gateway, index, asleep=True)
    yield "answer", f"{who} gets a response", partial(world.with_gateway, index, answered=world.now)
    if not one.is_registered:
        yield "register", f"{who} registers", partial(_registered, world, index, rules)
    elif one.is_lapsed(world.now, rules) and not one.stopping:
        yield "renew", f"{who} registers again", partial(_registered, world, index, rules)
    if one.is_registered:
        yield from _journal_moves(world, index, one, rules)
        if not one.stopping and (not one.is_spool or _may_stop(world, one)):
            yield "stop", f"{who} stops", partial(_stopped, world, index)


def _killed(world: SimWorld, index: int) -> SimWorld:
    return world.with_gateway(index, alive=False, uploads=(), book=EMPTY_BOOK, superseded=())


def _may_stop(world: SimWorld, one: SimGateway) -> bool:
    return not world.spool.accepted and not one.uploads and not one.book.entries


def _stopped(world: SimWorld, index: int) -> SimWorld:
    if world.gateways[index].is_spool:
        world = replace(world, spool=replace(world.spool, open=False))
    return world.with_gateway(index, stopping=True)


def _registered(world: SimWorld, index: int, rules: Rules) -> SimWorld:
    one, spool = world.gateways[index], world.spool
    date_ns = ns(world.now)
    started_ns = date_ns
    if one.is_spool:
        last_ns = int(spool.process[:20] or 0)
        date_ns = max(date_ns, UnixNs(last_ns + 1))
        if spool.open or not spool.process:
            started_ns = spool.through
        if not rules.spool_starts_at_its_frontier:
            started_ns = date_ns
    old = thaw(one.book)
    if one.is_registered and not rules.new_name_after_lapse:
        old.durable_from = one.instant(world.now, rules)
        return world.with_gateway(index, book=freeze(old), answered=world.now)
    world, name = next_name(world, date_ns)
    record = SimRegistration(name, one.name, one.acceptance, started_ns, world.now)
    book = old.succeed(name, one.instant(world.now, rules), started_ns)
    superseded = (*one.superseded, one.book) if one.is_registered else one.superseded
    if one.is_spool:
        world = replace(world, spool=replace(spool, open=True, process=name, through=started_ns))
    return replace(world, registrations=(*world.registrations, record)).with_gateway(
        index, book=freeze(book), superseded=superseded, answered=world.now
    )


def _journal_moves(world: SimWorld, index: int, one: SimGateway, rules: Rules) -> Moves:
    who = f"{one.name}{index}"
    for old in one.superseded:
        yield "close", f"{who} closes {old.process[-2:]}", partial(_close_old, world, index, old)
    book = one.book
    if book.closed:
        return
    if book.pending is None:
        due = book.entries or book.begun is None or book.begun.wall_ns < ns(world.now + one.skew)
        if one.stopping or (due and not one.is_lapsed(world.now, rules)):
            yield "collect", f"{who} collects", partial(_collected, world, index, rules)
        return
    put = partial(_put, world, index, rules)
    yield "put", f"{who} writes object {book.number}", partial(put, "known")
    if world.faults:
        yield "lose", f"{who} writes object {book.number}, response lost", partial(put, "lost")
        yield "delay", f"{who} writes object {book.number} late", partial(put, "late")


def _close_old(world: SimWorld, index: int, old: Book) -> SimWorld:
    one = world.gateways[index]
    book = thaw(old)
    while not book.closed:
        now = one.instant(world.now, Rules())
        pending = book.next_object(ns(one.answered), now, closes=True)
        world = _stored(world, _object_of(pending))
        book.settle(pending)
    kept = tuple(each for each in one.superseded if each != old)
    return world.with_gateway(index, superseded=kept, answered=world.now)


def _object_of(pending: PendingObject) -> SimObject:
    key = parse_journal_key(pending.key)
    return SimObject(key.process, key.number, pending.body, 0)


def _collected(world: SimWorld, index: int, rules: Rules) -> SimWorld:
    one = world.gateways[index]
    book = thaw(one.book)
    time_ns = ns(one.answered) if rules.store_clock else ns(world.now + one.skew)
    if one.is_spool and world.spool.accepted - one.landed:
        time_ns = one.book.through_ns
    instant = one.instant(world.now, rules)
    book.next_object(max(time_ns, one.book.through_ns), instant, closes=one.stopping)
    return world.with_gateway(index, book=freeze(book))


def _put(world: SimWorld, index: int, rules: Rules, outcome: str) -> SimWorld:
    one = world.gateways[index]
    book = thaw(one.book)
    pending = book.pending
    assert pending is not None
    if not rules.time_before_collecting:
        pending = book.pending = _dated(world, book, pending)
    write = _object_of(pending)
    if outcome == "late":
        after = replace(world, late=world.late | {write}, faults=world.faults - 1)
        return after.with_gateway(index, book=freeze(book))
    after = _stored(world, write)
    if outcome == "lost":
        after = replace(after, faults=world.faults - 1)
        return after.with_gateway(index, book=freeze(book))
    book.settle(pending)
    if one.is_spool:
        after = _marked(after, index, book)
    ends = one.stopping and book.closed and not one.uploads
    return after.with_gateway(index, book=freeze(book), answered=world.now, alive=not ends)


def _dated(world: SimWorld, book: JournalBook, pending: PendingObject) -> PendingObject:
    """Return an object with the store's time when it is written; an omission."""
    write = _object_of(pending)
    tried = any(_object_of(pending) == replace(o, written=0) for o in world.objects)
    if tried or write in world.late:
        return pending
    header = decode_journal(pending.key, pending.body).header
    dated = type(header)(
        process=header.process,
        number=header.number,
        complete_through_unix_ns=ns(world.now),
        closed=header.closed,
        batches=header.batches,
    )
    return replace(pending, body=encode_journal(dated, pending.entries))


def _marked(world: SimWorld, index: int, book: JournalBook) -> SimWorld:
    """Mark landed batches of a spool whose entries are durable."""
    if book.waiting:
        return world
    one = world.gateways[index]
    spool = replace(
        world.spool, accepted=world.spool.accepted - one.landed, through=book._through_ns
    )
    return replace(world, spool=spool).with_gateway(index, landed=frozenset())


# --- uploads -------------------------------------------------------------------------------------


def _upload_moves(world: SimWorld, index: int, one: SimGateway, rules: Rules) -> Moves:
    who = f"{one.name}{index}"
    serves = one.is_registered or not rules.registers_first
    if one.is_spool:
        serves = world.spool.open
        for batch in sorted(world.spool.accepted - one.landed) if one.is_registered else ():
            yield "land", f"{who} transfers {batch}", partial(_landed, world, index, batch)
    if serves and not one.stopping and world.sends and len(one.uploads) < UPLOADS_MAX:
        for batch in BATCHES:
            upload = SimUpload(batch)
            if upload not in one.uploads:
                yield "send", f"{batch} arrives at {who}", partial(_sent, world, index, upload)
    for upload in one.uploads:
        yield from _one_upload(world, index, one, upload, rules)


def _sent(world: SimWorld, index: int, upload: SimUpload) -> SimWorld:
    sent = replace(world, sends=world.sends - 1)
    return sent.with_gateway(index, uploads=(*world.gateways[index].uploads, upload))


def _landed(world: SimWorld, index: int, batch: str) -> SimWorld:
    one = world.gateways[index]
    book = thaw(one.book)
    book.note(manifest_bytes(batch))
    return replace(world, manifests=world.manifests | {batch}).with_gateway(
        index, book=freeze(book), landed=one.landed | {batch}, answered=world.now
    )


def _moved(
    world: SimWorld, index: int, upload: SimUpload, after: SimUpload | None, **changes: object
) -> SimWorld:
    kept = tuple(each for each in world.gateways[index].uploads if each != upload)
    uploads = kept if after is None else (*kept, after)
    return world.with_gateway(index, uploads=uploads, **changes)


def _one_upload(
    world: SimWorld, index: int, one: SimGateway, upload: SimUpload, rules: Rules
) -> Moves:
    name = f"{one.name}{index}: {upload.batch}"
    moved: Callable[..., SimWorld] = partial(_moved, world, index, upload)
    match upload.stage:
        case "arrived" if one.is_spool:
            yield "create", f"{name} is spooled", partial(_spooled, world, index, upload)
        case "arrived" if upload.batch in one.known:
            yield "create", f"{name} is known", partial(moved, replace(upload, stage="noted"))
        case "arrived" if not rules.fence_after_manifest:
            if not one.is_lapsed(world.now, rules):
                after = replace(upload, stage="prechecked")
                yield "check", f"{name} is checked before", partial(moved, after)
        case "arrived" | "prechecked":
            yield from _creations(world, index, upload, name)
        case "exists":
            yield "note", f"{name} is noted", partial(_noted, world, index, upload, rules)
        case "noted":
            yield from _checks(world, index, one, upload, rules, name)
        case _:
            yield "tell", f"{name} gets its 200", partial(_answered, world, index, upload, rules)


def _spooled(world: SimWorld, index: int, upload: SimUpload) -> SimWorld:
    world = replace(
        world, spool=replace(world.spool, accepted=world.spool.accepted | {upload.batch})
    )
    return _moved(world, index, upload, replace(upload, stage="checked"))


def _creations(world: SimWorld, index: int, upload: SimUpload, name: str) -> Moves:
    own = upload.batch not in world.manifests
    create = partial(_created, world, index, upload)
    yield "create", f"{name} is {'created' if own else 'found'}", partial(create, "known")
    if own and world.faults:
        yield "lose", f"{name} is created, 503", partial(create, "lost")
        yield "delay", f"{name} is created late, 503", partial(create, "late")


def _created(world: SimWorld, index: int, upload: SimUpload, outcome: str) -> SimWorld:
    own = upload.batch not in world.manifests
    if outcome == "late":
        late = replace(world, late=world.late | {upload.batch}, faults=world.faults - 1)
        return _moved(late, index, upload, None)
    created = _stored(world, upload.batch)
    if outcome == "lost":
        return _moved(replace(created, faults=world.faults - 1), index, upload, None)
    after = replace(upload, stage="exists", own=own)
    return _moved(created, index, upload, after, answered=world.now)


def _noted(world: SimWorld, index: int, upload: SimUpload, rules: Rules) -> SimWorld:
    one = world.gateways[index]
    stage = "noted" if rules.fence_after_manifest else "checked"
    after = replace(upload, stage=stage)
    if not rules.noted_before_answer or not (upload.own or rules.duplicates_journaled):
        return _moved(world, index, upload, after)
    return _moved(world, index, upload, after, **_with_note(one, upload.batch))


def _with_note(one: SimGateway, batch: str) -> dict[str, object]:
    book = thaw(one.book)
    book.note(manifest_bytes(batch))
    return {"book": freeze(book), "known": one.known | {batch}}


def _checks(
    world: SimWorld, index: int, one: SimGateway, upload: SimUpload, rules: Rules, name: str
) -> Moves:
    refused = one.stopping and rules.closes_last
    unregistered = not one.is_registered and not rules.registers_first
    if refused:
        yield "check", f"{name} is refused", partial(_moved, world, index, upload, None)
    elif unregistered or not one.is_lapsed(world.now, rules):
        after = replace(upload, stage="checked")
        yield "check", f"{name} is checked", partial(_moved, world, index, upload, after)


def _answered(world: SimWorld, index: int, upload: SimUpload, rules: Rules) -> SimWorld:
    acked = world.acked
    if upload.batch not in dict(acked):
        acked = (*acked, (upload.batch, world.now))
    after = replace(world, acked=acked)
    one = world.gateways[index]
    if upload.stage == "checked" and not rules.noted_before_answer and not one.is_spool:
        return _moved(after, index, upload, replace(upload, stage="answered"))
    if upload.stage == "answered":
        return _moved(after, index, upload, None, **_with_note(one, upload.batch))
    return _moved(after, index, upload, None)


FREQUENCIES = (0.2, 1.0, 4.0)
RARE = frozenset({"die", "sleep", "stop", "restart", "lose", "delay", "fail", "jump", "oversleep"})
RARITY = 0.2


@dataclass(frozen=True, slots=True)
class Scene:
    """What a walk contains.

    Attributes:
        names: The gateways; `z` has a spool.
        lives: Number of processes that are started.
        steps: Number of moves.
        often: Frequencies of kinds of moves, instead of drawn ones.
    """

    names: str = "xyz"
    lives: int = 8
    steps: int = 300
    often: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk: the violation, its moves, and the state in which it ended."""

    broken: str
    trail: tuple[str, ...]
    world: SimWorld


def _started(world: SimWorld, name: str) -> SimWorld:
    skew = {"x": 0, "y": 3, "z": -3}[name]
    acceptance: AcceptanceMode = "local_spool" if name == "z" else "s3_manifest"
    one = SimGateway(name, acceptance, skew, answered=world.now)
    gateways = (*(each for each in world.gateways if each.alive), one)
    return replace(world, gateways=gateways, lives=world.lives + 1)


def _time_moves(world: SimWorld, scene: Scene) -> Moves:
    yield "tick", f"the time is {world.now + 1}", partial(ticked, world, 1)
    jumped = partial(ticked, world, JUMP_TICKS)
    yield "jump", f"the time is {world.now + JUMP_TICKS}", jumped
    yield from late_moves(world)
    running = {one.name for one in world.gateways if one.alive}
    for name in scene.names if world.lives < scene.lives else "":
        if name not in running:
            yield "start", f"{name} starts", partial(_started, world, name)


def _moves_of(actor: str, world: SimWorld, rules: Rules, scene: Scene) -> Moves:
    match actor:
        case "time":
            yield from _time_moves(world, scene)
        case "pass":
            yield from pass_moves(world, rules)
        case "keeper":
            yield from keeper_moves(world, rules)
        case "reconciler" | "query":
            yield from round_moves(world, actor, rules)
        case _:
            for index, one in enumerate(world.gateways):
                if one.alive and one.name == actor:
                    yield from gateway_moves(world, index, rules)


def walk(seed: int, rules: Rules, scene: Scene) -> Walk:
    """Walk until a claim is wrong or the steps are spent."""
    rng = Random(seed)
    actors = (*scene.names, "time", "pass", "keeper", "reconciler", "query")
    frequencies = [scene.often.get(actor, rng.choice(FREQUENCIES)) for actor in actors]
    weight_of: dict[str, float] = dict(scene.often)
    world, trail = SimWorld(), list[str]()
    while len(trail) < scene.steps and not world.broken:
        actor = rng.choices(actors, frequencies)[0]
        options = list(_moves_of(actor, world, rules, scene))
        for kind, _, _ in options:
            if kind not in weight_of:
                weight_of[kind] = rng.choice(FREQUENCIES) * (RARITY if kind in RARE else 1)
        weights = [weight_of[kind] for kind, _, _ in options]
        if not any(weights):
            continue
        _, name, perform = rng.choices(options, weights)[0]
        trail.append(name)
        world = perform()
    return Walk(world.broken, tuple(trail), world)
