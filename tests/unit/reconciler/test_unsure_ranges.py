"""A range whose new batches its seal does not identify is enqueued again, and nothing is lost.

Three or more batches inside a range that were accepted before its last batch, and that no route
found, look like those that the range contains.
"""

import asyncio
from functools import partial

import pytest
from structlog.testing import capture_logs
from support import reconciler_world
from support.dying_store import Died, DyingStore
from support.queue_store import SimStore
from support.reconciler_seed import accept, enqueued
from support.reconciler_world import ONE_LANE

from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key
from sluice_protocol.units import ObjectKey
from sluice_reconciler.service import Reconciler

INSIDE = ((5, 3), (15, 3), (25, 3))
"""First number and count of each batch that no route found."""


make = partial(reconciler_world.make, authority=ONE_LANE)


async def seed_range(store: SimStore) -> tuple[list[Identity], list[ObjectKey]]:
    """Accept batches inside a range, then the range; return all, and the keys of the range."""
    unknown = [await accept(store, seq, count=count) for seq, count in INSIDE]
    named = [await accept(store, seq) for seq in range(0, 100, 10)]
    every = [one.identity for one in (*unknown, *named)]
    return every, [accepted_key(one.identity) for one in named]


async def identities(store: SimStore) -> set[Identity]:
    return {one.identity for one in await enqueued(store)}


async def settled(store: SimStore, subject: Reconciler, every: list[Identity]) -> None:
    """Check that nothing is left, nothing is reported, and a later batch is found too."""
    with capture_logs() as logs:
        assert await identities(store) == set(every)
        await subject.once()  # it enqueues again what the first pass did not
        count = len(await enqueued(store))
        await subject.once()
        assert len(await enqueued(store)) == count, "nothing is enqueued again"
        later = await accept(store, 35, count=3)
        await subject.once()
        assert later.identity in await identities(store)
        assert len(await enqueued(store)) == count + 1
    assert not [one for one in logs if one["log_level"] == "error"]


@pytest.mark.parametrize("route", ["full pass", "hints", "restart"])
@pytest.mark.parametrize("chunk", [4, 512])
async def test_batches_that_the_seal_does_not_identify_are_enqueued(route: str, chunk: int) -> None:
    store = SimStore()
    every, named = await seed_range(store)
    subject = make(store, list_batches_max=chunk)
    await subject.pipeline.process(named)
    assert len(await identities(store)) == 10
    if route == "hints":
        await subject.pipeline.process_new_in_steps([accepted_key(one) for one in every])
    if route == "restart":
        await subject._workers.close()
        subject = make(store, 2, list_batches_max=chunk)
    await subject.once()
    await settled(store, subject, every)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_crash_at_any_write_of_it_loses_nothing(step: int) -> None:
    async def run() -> int:
        died = 0
        for left in range(0, 200, step):
            for after in (False, True):
                store = SimStore()
                every, named = await seed_range(store)
                first = make(store)
                await first.pipeline.process(named)
                await first._workers.close()
                dying = DyingStore(inner=store, left=left, after=after)
                victim = make(dying, 2)
                try:
                    await victim.once()
                except (Died, BaseExceptionGroup):
                    died += 1
                subject = make(store, 3)
                await subject.once()
                await settled(store, subject, every)
            if not dying.died:
                return died
        raise AssertionError("it never ended")

    assert asyncio.run(run()) > 10 // step
