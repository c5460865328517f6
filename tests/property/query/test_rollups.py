"""A series from rollups equals the same series from samples, where both exist."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.query_rollups import Figures, RollupWorld, Sample
from support.repetitions import examples

from sluice_protocol.record_deletes import retention_cut_ns
from sluice_protocol.units import UnixNs
from sluice_query.request import Aggregate, Query, RecordField, Series
from sluice_query.rollups import HOUR_NS, MINUTE_NS, RollupPlan
from sluice_query.series import SeriesSources

T0_NS = 1_790_000_000_000_000_000 // HOUR_NS * HOUR_NS
END_NS = 4 * HOUR_NS
AGENTS = ("web-1", "web-2", "db-1")
SPECIAL = (math.nan, math.inf, -math.inf, -0.0)
AGENT, HOST = RecordField("agent_id"), RecordField("attributes", "host")
DIVISIONS = ((), (AGENT,), (HOST,), (HOST, AGENT))
STEPS = (MINUTE_NS, 2 * MINUTE_NS, 7 * MINUTE_NS, HOUR_NS, 2 * HOUR_NS, 90 * 10**9)


def some_time(random: Random) -> int:
    """Return a time of the world, often at a boundary of windows."""
    at_ns = random.randrange(END_NS)
    width = random.choice([1, MINUTE_NS, HOUR_NS])
    return T0_NS + at_ns // width * width + (random.choice([-1, 0, 1]) if width > 1 else 0)


def some_batch(random: Random) -> list[Sample]:
    agent = random.choice(AGENTS)
    return [
        Sample(
            agent=agent,
            seq=0,
            ts_ns=some_time(random),
            value=random.choice(SPECIAL) if random.random() < 0.1 else random.randint(-9, 9),
            sequence=0,
            accepted_ns=0,
            name=random.choice(["cpu", "cpu", "cpu", "mem"]),
            attributes=random.choice([(), (("host", "a"),), (("host", "b"),)]),
            resource=(("rack", "r1"),) if agent == "db-1" else (),
        )
        for _ in range(random.randint(1, 20))
    ]


def some_delete(random: Random) -> dict[str, object]:
    conditions: dict[str, object] = {}
    if random.random() < 0.7:
        start, end = sorted((some_time(random), some_time(random)))
        conditions["from_unix_ns"] = start
        if random.random() < 0.8:
            conditions["to_unix_ns"] = end + 1
    if random.random() < 0.5:
        conditions["agent_id"] = random.choice(AGENTS)
    if random.random() < 0.3:
        conditions["contains"] = random.choice(["cpu", "mem"])
    if random.random() < 0.3 or not conditions:
        conditions["attributes"] = random.choice([{"host": "a"}, {"rack": "r1"}])
    return conditions


def merge_some(world: RollupWorld, random: Random) -> None:
    """Merge the rows of some source ranges, as if their files were the small ones."""
    covers = {row["cover"] for row in world.job.rows if random.random() < 0.7}
    world.job.merge(lambda row: row["cover"] in covers)


def some_world(random: Random) -> RollupWorld:
    """Return a world after a random history that contains at least one rollup of samples."""
    world = RollupWorld(now_ns=T0_NS + 10 * HOUR_NS)
    actions: list[Callable[[], None]] = [
        lambda: world.accept(some_batch(random)),
        world.ingest,
        world.roll_up,
        lambda: world.delete(**some_delete(random)),
        world.compact,
        lambda: world.delete(to_unix_ns=some_time(random)),
        lambda: merge_some(world, random),
    ]
    for _ in range(3):
        world.accept(some_batch(random))
    world.ingest()
    world.roll_up()
    for action in random.choices(actions, weights=[6, 4, 4, 2, 1, 1, 3], k=random.randint(0, 14)):
        action()
    return world


@dataclass(frozen=True, kw_only=True)
class Case:
    """A world and a query over it."""

    world: RollupWorld
    query: Query
    series: Series
    plan: RollupPlan | None

    def from_samples(self) -> Figures:
        return self.comparable(self.world.answer(self.query, self.series, None))

    def from_rollups(
        self, spoil: Callable[[SeriesSources], SeriesSources] = lambda sources: sources
    ) -> Figures:
        return self.comparable(self.world.answer(self.query, self.series, self.plan, spoil))

    def comparable(self, points: Figures) -> Figures:
        """Return the points of the steps of which all samples remain; NaN as None."""
        cut_ns = retention_cut_ns(self.world.deletes) or 0
        first_ns = -(-cut_ns // MINUTE_NS) * MINUTE_NS if cut_ns > self.query.from_ns else 0
        return [
            (*step_and_groups, math.pi if math.isnan(value) else value)
            for *step_and_groups, value in points
            if step_and_groups[0] >= first_ns
        ]


def some_case(seed: int, aggregate: Aggregate) -> Case:
    random = Random(seed)
    world = some_world(random)
    start, end = sorted((some_time(random), some_time(random)))
    wide = random.random() < 0.5
    series = Series(
        metric="cpu",
        step_ns=random.choice(STEPS),
        aggregate=aggregate,
        by=random.choice(DIVISIONS),
    )
    query = Query(
        from_ns=UnixNs(T0_NS + 30 * 10**9 if wide else start),
        to_ns=UnixNs(T0_NS + END_NS - 1 if wide else end + 1),
        kind="metrics",
        series=series,
        agents=random.choice([(), (), ("web-1",), ("web-2", "db-1")]),
    )
    return Case(world=world, query=query, series=series, plan=world.plan(query, series))


@settings(max_examples=examples(80))
@given(seed=st.integers(0, 2**32), aggregate=st.sampled_from(Aggregate))
def test_a_series_from_rollups_equals_that_from_samples(seed: int, aggregate: Aggregate) -> None:
    """With late samples, deletes before and after the rollup, compaction and retention.

    Quantiles never use rollups.
    """
    case = some_case(seed, aggregate)
    if case.plan is None:
        event("no rollups")
        return
    expected = case.from_samples()
    event("points" if expected else "no points")
    assert case.from_rollups() == expected


def test_the_hour_in_which_retention_ended_is_computed_from_samples() -> None:
    """The job does not aggregate it again, so its rows still contain deleted samples."""
    world = RollupWorld(now_ns=T0_NS + 10 * HOUR_NS)
    world.accept(
        [
            Sample(
                agent="web-1",
                seq=0,
                ts_ns=T0_NS + minute * MINUTE_NS,
                value=1.0,
                sequence=0,
                accepted_ns=0,
                resource=(("rack", "r1"),) if minute % 2 else (),
            )
            for minute in range(180)
        ]
    )
    world.ingest()
    world.roll_up()
    world.delete(to_unix_ns=T0_NS + 75 * MINUTE_NS)
    world.delete(attributes={"rack": "r1"}, to_unix_ns=T0_NS + 170 * MINUTE_NS)
    world.roll_up()
    series = Series(metric="cpu", step_ns=MINUTE_NS, aggregate=Aggregate.COUNT)
    query = Query(
        from_ns=UnixNs(T0_NS + 75 * MINUTE_NS),
        to_ns=UnixNs(T0_NS + 180 * MINUTE_NS),
        kind="metrics",
        series=series,
    )
    case = Case(world=world, query=query, series=series, plan=world.plan(query, series))
    assert case.plan is not None
    assert case.from_rollups() == case.from_samples()
    faulty = replace(case.plan, minutes=(case.plan.span,), samples=())
    assert replace(case, plan=faulty).from_rollups() != case.from_samples()


def _without_pending(sources: SeriesSources) -> SeriesSources:
    return replace(sources, samples=tuple(one for one in sources.samples if one.name == "lake"))


def _without_edges(sources: SeriesSources) -> SeriesSources:
    return replace(
        sources, samples=tuple(one for one in sources.samples if one.later_than or not one.spans)
    )


def _edges_twice(sources: SeriesSources) -> SeriesSources:
    samples = [
        replace(one, spans=None) if one.spans and not one.later_than else one
        for one in sources.samples
    ]
    return replace(sources, samples=tuple(samples))


def _coverage_ahead(sources: SeriesSources) -> SeriesSources:
    samples = [
        replace(one, later_than=tuple(end + 1 for end in one.later_than)) if one.later_than else one
        for one in sources.samples
    ]
    return replace(sources, samples=tuple(samples))


@pytest.mark.daily(2)
@pytest.mark.parametrize("fault", [_without_pending, _without_edges, _edges_twice, _coverage_ahead])
def test_the_comparison_finds_a_fault_in_the_sources(
    fault: Callable[[SeriesSources], SeriesSources],
) -> None:
    cases = (some_case(seed, Aggregate.COUNT) for seed in range(20))
    used = (case for case in cases if case.plan is not None)
    assert any(case.from_rollups(fault) != case.from_samples() for case in used)
