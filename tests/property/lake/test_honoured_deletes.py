"""The deletes that source ranges honour: random deletes, owners and crashes, against a model."""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dying_store import Died, DyingStore
from support.gc_store import VersionedStore
from support.gc_world import MovedClock
from support.repetitions import examples

from sluice_lake import source_ranges
from sluice_lake.source_ranges import DeleteIdsReader, read_source_range
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S
from sluice_spark.rollups import objects as rollup_objects
from sluice_spark.rollups.objects import (
    next_source_range,
    remove_old_honoured,
    remove_old_source_ranges,
)

AGE_S = 10_000


@dataclass
class World:
    """One store, the last source range of the table, and what a list of all ids would contain.

    Attributes:
        rng: Decides everything.
        clock: The clock of the store.
        deletes: The ids that exist.
        end: The last sequence of the queue.
        done: The last source range of the table.
        honoured: What each range honoured when it was created.
    """

    rng: random.Random
    clock: MovedClock = field(default_factory=MovedClock)
    deletes: list[str] = field(default_factory=list)
    end: int = 0
    done: int = 0
    honoured: dict[int, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = VersionedStore(clock=self.clock)

    def delete(self) -> None:
        """Add deletes; some have an id that is much older than the others."""
        for _ in range(self.rng.randint(1, 8)):
            at = self.rng.choice([len(self.deletes) * 1000, 0]) + self.rng.randint(0, 10**6)
            self.deletes.append(f"01{at:012d}{len(self.deletes):012d}")

    async def own(self, store: Any) -> None:
        """Find or create the next range, and commit it unless the owner stops before."""
        previous = await read_source_range(self.store, self.done) if self.done else None
        known = list(self.deletes)
        if self.rng.random() < 0.3:  # another owner has read the deletes earlier
            known = known[: self.rng.randint(0, len(known))]
        source = await next_source_range(
            DeleteIdsReader(store=store), previous, {0: self.end}, known
        )
        if source is None:
            return
        reader = DeleteIdsReader(store=self.store)
        found = await reader.read(source.deletes)
        before = self.honoured.get(self.done, frozenset())
        assert before <= found <= set(self.deletes)
        if self.done:
            assert len(found - before) <= rollup_objects.NEW_DELETES_MAX
        assert self.honoured.setdefault(source.number, found) == found
        self.done = self.rng.choice([self.done, source.number])

    async def crash(self) -> None:
        dying = DyingStore(self.store, self.rng.randint(0, 2), self.rng.random() < 0.5)
        with contextlib.suppress(Died):
            await self.own(dying)

    async def vacuum(self) -> None:
        self.clock.pass_s(self.rng.choice([0, AGE_S / 3, 2 * AGE_S]))
        before_ns = self.clock.now_ns() - AGE_S * NS_PER_S
        await remove_old_source_ranges(self.store, self.done, before_ns)
        if self.done:
            await remove_old_honoured(self.store, self.done, before_ns)

    async def check(self) -> None:
        """Every range that exists can be read and honours exactly what the model contains."""
        for number, wanted in self.honoured.items():
            source = await read_source_range(self.store, number)
            if source is None:
                assert number < self.done - 1
                continue
            reader = DeleteIdsReader(store=self.store)
            assert await reader.read(source.deletes) == wanted
            some = set(self.rng.sample(self.deletes, min(5, len(self.deletes))))
            assert await reader.read(source.deletes, some) == wanted & some


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_ranges, "LISTED_MAX", 6)
    monkeypatch.setattr(rollup_objects, "NEW_DELETES_MAX", 10)


async def play(seed: int) -> None:
    world = World(rng=random.Random(seed))
    for _ in range(40):
        step = world.rng.choice(["delete", "point", "own", "own", "crash", "vacuum"])
        if step == "delete":
            world.delete()
        elif step == "point":
            world.end += 1
        elif step == "own":
            await world.own(world.store)
        elif step == "crash":
            await world.crash()
        else:
            await world.vacuum()
        await world.check()
    world.end += 1
    for _ in range(60):
        await world.own(world.store)
    await world.check()
    assert world.honoured[world.done] == set(world.deletes)


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 2**32))
def test_source_ranges_honour_what_a_list_of_all_ids_would_contain(seed: int) -> None:
    asyncio.run(play(seed))


def test_the_size_of_a_range_does_not_grow_with_the_deletes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_ranges, "LISTED_MAX", 100)
    monkeypatch.setattr(rollup_objects, "NEW_DELETES_MAX", 1_000)

    async def story() -> list[int]:
        store = VersionedStore(clock=MovedClock())
        sizes, source, deletes = [], None, list[str]()
        for number in range(1, 41):
            deletes += [f"01{number:012d}{one:012d}" for one in range(60)]
            source = await next_source_range(
                DeleteIdsReader(store=store), source, {0: number}, deletes
            )
            assert source is not None
            sizes.append(len(encode_record(source)))
        return sizes

    sizes = asyncio.run(story())
    assert max(sizes) <= 100 * 29 + 5 * 250 + 150
