"""Stories over a deployment with an orphan past its retry horizon, and refusals in them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.gc_store import VersionedStore
from support.gc_world import HORIZON_S, GcWorld, memory_world

from sluice_gc.errors import GcRefused, RefusalRule
from sluice_protocol.units import Digest

Story = Callable[[GcWorld, VersionedStore], Awaitable[None]]


def run_story(story: Story) -> VersionedStore:
    async def run() -> VersionedStore:
        async with memory_world() as (world, store):
            await story(world, store)
            return store

    return asyncio.run(run())


async def aged(world: GcWorld) -> Digest:
    """Create an accepted batch and an orphan past its retry horizon."""
    await world.accept(0)
    orphan = await world.orphan(10)
    world.clock.pass_s(HORIZON_S + 2)
    return orphan


async def refused(world: GcWorld, work: Awaitable[object], rule: RefusalRule) -> None:
    with pytest.raises(GcRefused) as error:
        await work
    assert error.value.rule is rule
    assert not world.store.deleted  # type: ignore[attr-defined]
