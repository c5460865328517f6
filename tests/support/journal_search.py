"""Random walks over the simulation of acceptance journals: a seed replays its walk.

Each walk draws how often every actor acts and how often each kind of move is made. Walks therefore
differ in character: one has many deaths, another a slow reconciler.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from support.journal_gateways import gateway_moves, late_moves
from support.journal_readers import keeper_moves, pass_moves, round_moves
from support.journal_types import JUMP_TICKS, Moves, Rules, SimGateway, SimWorld, ticked

from sluice_protocol.authority import AcceptanceMode

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
