"""The time that a query derives from journals, while gateways and a reconciler continue to work."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance_world import AcceptanceWorld
from support.query_lake import make_query
from support.queue_store import OneByOne
from support.repetitions import examples

from sluice_protocol.authority import Authority
from sluice_protocol.units import UnixNs
from sluice_query.coverage import Coverage, decide_completeness, read_coverage
from sluice_query.settings import QuerySettings
from sluice_store import create_authority

SETTINGS = QuerySettings()
Step = tuple[str, int]
STEPS = st.tuples(
    st.sampled_from(
        ["register", "accept", "accept", "flush", "flush", "close", "reconcile", "pass", "wait"]
    ),
    st.integers(0, 200),
)


def take(world: AcceptanceWorld, step: Step) -> None:
    name, number = step
    if name == "register" or not world.gateways:
        world.register()
        return
    gateway = world.gateways[number % len(world.gateways)]
    actions: dict[str, Callable[[], None]] = {
        "accept": lambda: world.accept(gateway),
        "flush": lambda: world.flush(gateway),
        "close": lambda: world.flush(gateway, closed=True),
        "reconcile": world.reconcile,
        "pass": lambda: world.reconcile(full=True),
        "wait": lambda: world.wait(number),
    }
    actions[name]()


class Interleaved(OneByOne):
    """The world's store; before each read the world takes some steps."""

    def __init__(self, world: AcceptanceWorld, between: Iterator[list[Step]]) -> None:
        self._world = world
        self._between = between

    def __getattr__(self, name: str) -> Any:
        for step in next(self._between, []):
            take(self._world, step)
        return getattr(self._world.store, name)


def read(world: AcceptanceWorld, between: list[list[Step]]) -> Coverage:
    query = make_query(from_ns=UnixNs(0), to_ns=UnixNs(2**62))
    store: Any = Interleaved(world, iter(between))

    async def run() -> Coverage:
        await create_authority(world.store, Authority(authority_id="A" * 26, lanes=2))
        return await read_coverage(store, query, SETTINGS, with_spool=False)

    coverage = asyncio.run(run())
    assert not coverage.problems
    shown = world.enqueued | {one.identity for one in coverage.named}
    complete = decide_completeness(coverage, query, SETTINGS, shown)
    if complete.accepted_until_ns is not None:
        missing = [
            one
            for one, at_ns in world.acknowledged
            if at_ns < complete.accepted_until_ns and one.identity not in shown
        ]
        assert missing == []
    return coverage


@given(st.lists(STEPS, max_size=40), st.lists(st.lists(STEPS, max_size=4), max_size=20))
def test_an_answer_never_claims_more_than_is_true(
    before: list[Step], between: list[list[Step]]
) -> None:
    """Every batch that was acknowledged before `accepted_until` is named, queued or ingested."""
    world = AcceptanceWorld()
    # A record that is too old to be the frontier, so that journals are read.
    for step in [("register", 0), ("pass", 0), ("wait", 10), *before]:
        take(world, step)
    read(world, between)


@settings(max_examples=examples(50))
@given(st.lists(STEPS, max_size=30))
def test_with_current_journals_an_answer_is_complete_up_to_the_slowest_gateway(
    before: list[Step],
) -> None:
    """A reconciler that stopped long ago does not hold the time back."""
    world = AcceptanceWorld()
    for step in [("register", 0), *before, ("pass", 0), ("wait", 3600)]:
        take(world, step)
    world.register()
    began_ns = world.clock.at_ns
    for gateway in world.gateways:
        world.flush(gateway)
    found = read(world, [])
    assert found.discovered_ns is not None
    assert found.discovered_ns >= began_ns
    assert {one.identity for one in found.named} | world.enqueued == {
        one.identity for one, _ in world.acknowledged
    }
