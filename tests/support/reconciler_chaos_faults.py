"""The faults of a simulation of whole reconcilers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from support.reconciler_chaos_gateways import Gateway
from support.reconciler_chaos_world import World

from sluice_protocol.journals import JOURNAL_REPLACED_AFTER_S
from sluice_protocol.keys import GATEWAY_JOURNALS, GATEWAY_PROCESSES, RAW_BLOBS

Step = Callable[[World], Coroutine[Any, Any, None]]


def _any_gateway(world: World) -> Gateway | None:
    alive = [one for one in world.gateways if one.is_alive and one.connection.running.is_set()]
    return world.rng.choice(alive) if alive else None


async def kill_gateway(world: World) -> None:
    victim = _any_gateway(world)
    if victim is not None:
        victim.kill()
        slot = world.gateways.index(victim)
        world.gateways.remove(victim)
        await asyncio.sleep(world.rng.choice((1.0, 20.0)))
        world.start_gateway(slot)


async def stop_gateway(world: World) -> None:
    victim = _any_gateway(world)
    if victim is not None:
        victim.stopping = True
        slot = world.gateways.index(victim)
        world.gateways.remove(victim)
        await asyncio.sleep(world.rng.choice((0.0, 8.0)))
        world.start_gateway(slot)


async def suspend_gateway(world: World) -> None:
    """Suspend it for less than the fence, for more than it, or until it counts as dead."""
    victim = _any_gateway(world)
    if victim is not None:
        victim.connection.running.clear()
        await asyncio.sleep(world.rng.choice((10.0, 70.0, JOURNAL_REPLACED_AFTER_S + 60.0)))
        victim.connection.running.set()


async def kill_reconciler(world: World) -> None:
    victim = world.rng.choice(world.slots)
    victim.connection.left = world.rng.randrange(1, 60)
    await asyncio.sleep(world.rng.choice((2.0, 15.0)))
    victim.connection.dead = True
    victim.task.cancel()
    if victim in world.slots:
        world.slots.remove(victim)
        world.start_reconciler()


async def suspend_reconciler(world: World) -> None:
    victim = world.rng.choice(world.slots)
    if victim.connection.running.is_set():
        victim.connection.running.clear()
        await asyncio.sleep(world.rng.choice((8.0, 30.0)))
        victim.connection.running.set()


def _journal_with_entries(world: World) -> str | None:
    keys = [
        key
        for key, held in world.store.held.items()
        if key.startswith(GATEWAY_JOURNALS) and held.body.count(b"\n") > 1
    ]
    return world.rng.choice(keys[-6:]) if keys else None


async def drop_journal(world: World) -> None:
    """Remove an object that names batches."""
    key = _journal_with_entries(world)
    if key is not None:
        del world.store.held[key]


async def tear_journal(world: World) -> None:
    """Cut an object, in a line or behind one."""
    key = _journal_with_entries(world)
    if key is not None:
        body = world.store.held[key].body
        cut = world.rng.choice((0, 20, body.index(b"\n") + 1, len(body) - 9))
        world.store.held[key].body = body[:cut]


async def delay_journal(world: World) -> None:
    """Hide an object for a while: later ones appear before it."""
    key = _journal_with_entries(world)
    if key is not None:
        body = world.store.held.pop(key).body
        await asyncio.sleep(world.rng.choice((3.0, 40.0)))
        if key not in world.store.held:
            world.store._put(key, body)


async def jump_clock(world: World) -> None:
    """Move the wall clock of a gateway's machine."""
    victim = _any_gateway(world)
    if victim is not None:
        victim.clock.skew_s = world.rng.choice((3600.0, -3600.0, 61.0))


async def outage(world: World) -> None:
    world.store.reachable = False
    await asyncio.sleep(world.rng.choice((5.0, 70.0, JOURNAL_REPLACED_AFTER_S + 20.0)))
    world.store.reachable = True


async def long_outage(world: World) -> None:
    world.store.reachable = False
    await asyncio.sleep(3600.0)
    world.store.reachable = True


async def lose_blob(world: World) -> None:
    """Remove a blob, and restore it later: its batch is held in between."""
    blobs = [key for key in world.store.held if key.startswith(RAW_BLOBS)]
    if blobs:
        key = blobs[-1]
        body = world.store.held.pop(key).body
        await asyncio.sleep(30.0)
        if key not in world.store.held:
            world.store._put(key, body)


async def garble_registration(world: World) -> None:
    """Write a registration that cannot be read; no gateway belongs to it."""
    ulid = world.ulid()
    world.store._put(f"{GATEWAY_PROCESSES}{world.clock.at_ns:020d}-{ulid}.json", b"{")


async def lose_record(world: World) -> None:
    """Damage the discovery record, or remove the progress of the full pass."""
    world.store.held.pop("reconciler/v1/full-pass.json", None)


FAULTS: dict[str, Step] = {
    "kill gateway": kill_gateway,
    "stop gateway": stop_gateway,
    "suspend gateway": suspend_gateway,
    "kill reconciler": kill_reconciler,
    "suspend reconciler": suspend_reconciler,
    "drop journal": drop_journal,
    "tear journal": tear_journal,
    "delay journal": delay_journal,
    "jump clock": jump_clock,
    "outage": outage,
    "lose blob": lose_blob,
    "garble registration": garble_registration,
    "lose record": lose_record,
}
