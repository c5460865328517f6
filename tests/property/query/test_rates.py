"""The rates of counters equal those that plain Python computes from the same samples."""

import math
from collections import defaultdict
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.query_lake import DAY0_NS
from support.query_views import SOURCES, opened
from support.repetitions import examples

from sluice_lake.tables import METRICS
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.request import Aggregate, MetricList, Query, RecordField, Series
from sluice_query.series import SampleSource, SeriesSources, points_of, series_sql
from sluice_query.views import make_metrics, metrics_sql

EXAMPLES = settings(max_examples=examples(120), deadline=None)
GAUGE, DELTA, CUMULATIVE = 0, 1, 2
PATH, SERVICE = RecordField("attributes", "path"), RecordField("resource", "service.name")
SAMPLES = SeriesSources(samples=(SampleSource(name="lake"), SampleSource(name="pending")))


def random_sample(random: Random, seq: int) -> dict[str, Any]:
    """Return one sample of a few counters; a door has another agent for each of them."""
    keys = ["path", "code"]
    random.shuffle(keys)  # the order of attributes makes no series
    attributes = {key: random.choice("ab") for key in keys}
    agent = random.choice(("host-1", "door:shop:00", "door:shop:ff"))
    return {
        "agent_id": agent,
        "boot_id": "b1",
        "seq": seq,
        "ts_ns": DAY0_NS + random.randrange(0, 600) * NS_PER_S,
        "name": random.choice(("hits", "hits", "hits", "other")),
        "value": random.choice((math.nan, math.inf, *map(float, range(9)))),
        "type": random.choice((DELTA, CUMULATIVE, CUMULATIVE, GAUGE)),
        "attributes": None if random.random() < 0.1 else attributes,
        "resource": random.choice(({}, {"service.name": "web"}, {"service.name": "db"})),
        "accepted_at": DAY0_NS // 1000,
    }


def source_of(sample: dict[str, Any]) -> tuple[object, ...]:
    agent = None if sample["agent_id"].startswith("door:") else sample["agent_id"]
    attributes = sample["attributes"]
    labels = None if attributes is None else tuple(sorted(attributes.items()))
    return sample["type"], labels, tuple(sorted(sample["resource"].items())), agent


def rates(
    samples: list[dict[str, Any]], query: Query, from_ns: int, series: Series
) -> dict[tuple[int, object], float]:
    """Return the rate of each step and group in which a counter has two samples, or a delta."""
    counters: dict[object, list[dict[str, Any]]] = defaultdict(list)
    for one in samples:
        in_range = query.from_ns <= one["ts_ns"] < query.to_ns
        if in_range and one["name"] == "hits" and math.isfinite(one["value"]):
            counters[source_of(one)].append(one)
    found: dict[tuple[int, object], float] = defaultdict(float)
    for of_one in counters.values():
        of_one.sort(key=lambda one: (one["ts_ns"], one["value"]))
        for before, one in zip([None, *of_one], of_one, strict=False):
            rise = one["value"]
            if one["type"] != DELTA:
                if before is None:
                    continue
                reset = one["value"] < before["value"]
                rise = one["value"] if reset else one["value"] - before["value"]
            if one["ts_ns"] < from_ns:
                continue
            group: object = source_of(one)[1:]
            if not series.each:
                group = ((one["attributes"] or {}).get("path"),)
            found[one["ts_ns"] // series.step_ns * series.step_ns, group] += rise
    ends = {step: min(step + series.step_ns, query.to_ns) - max(step, from_ns) for step, _ in found}
    return {key: rise * NS_PER_S / ends[key[0]] for key, rise in found.items()}


@given(seed=st.integers(0, 2**32))
@EXAMPLES
def test_rates_are_those_of_plain_python(seed: int) -> None:
    random = Random(seed)
    samples = [random_sample(random, seq) for seq in range(random.choice((0, 1, 9, 80)))]
    each = random.random() < 0.5
    step_ns = random.choice((7, 60, 600)) * NS_PER_S
    by = () if each else (PATH,)
    series = Series(metric="hits", aggregate=Aggregate.RATE, step_ns=step_ns, each=each, by=by)
    read_from_ns = DAY0_NS + random.randrange(0, 300) * NS_PER_S
    from_ns = read_from_ns + random.choice((0, 100)) * NS_PER_S
    to_ns = from_ns + random.randrange(1, 300) * NS_PER_S
    query = Query(from_ns=UnixNs(read_from_ns), to_ns=UnixNs(to_ns), kind="metrics", series=series)
    engine = opened(samples, random.randint(0, len(samples)), METRICS)
    sources = SeriesSources(samples=SAMPLES.samples, from_ns=UnixNs(from_ns))
    points = points_of(series, engine.rows(series_sql(query, series, sources)))
    found = {(one.step_ns, group_of(one.by, each=each)): one.value for one in points}
    wanted = rates(samples, query, from_ns, series)
    if each:  # shown labels do not tell no attributes from an empty map
        wanted = {(step, group_of_source(group)): rate for (step, group), rate in wanted.items()}
    assert found.keys() == wanted.keys()
    for key, rate in wanted.items():
        assert math.isclose(found[key] or 0.0, rate, rel_tol=1e-9, abs_tol=1e-12), key


def group_of(by: Any, *, each: bool) -> object:
    return frozenset(by.items()) if each else (by[PATH.name],)


def group_of_source(group: Any) -> object:
    attributes, resource, agent = group
    labels = {f"attributes.{key}": value for key, value in attributes or ()}
    labels |= {f"resource.{key}": value for key, value in resource}
    return frozenset((labels | ({"agent_id": agent} if agent else {})).items())


def test_metrics_are_listed_without_the_points_that_describe_others() -> None:
    random = Random(1)
    samples = []
    for name, kind, attributes in (
        ("hits_total", CUMULATIVE, {"path": "a"}),
        ("hits_total", CUMULATIVE, {"path": "b"}),
        ("hits_created", GAUGE, {"path": "a"}),
        ("hits_metadata", GAUGE, {"type": "counter", "unit": "1", "description": "Hits."}),
        ("latency_bucket", CUMULATIVE, {"le": "5"}),
        ("latency_metadata", GAUGE, {"type": "histogram", "unit": "ms"}),
        ("accounts_created", GAUGE, {}),
        ("song_metadata", GAUGE, {}),
        ("sent", DELTA, {}),
    ):
        stated = {"name": name, "type": kind, "attributes": attributes, "resource": {}}
        samples.append(random_sample(random, len(samples)) | stated | {"agent_id": "door:a:00"})
    engine = opened(samples, 3, METRICS)
    query = Query(from_ns=UnixNs(0), to_ns=UnixNs(2 * DAY0_NS), kind="metrics")
    rows = engine.rows(metrics_sql(query, SOURCES, records_max=99))
    result = make_metrics(MetricList(), rows, records_max=99)
    listed = [(one.name, one.type, one.unit, one.series, one.samples) for one in result.metrics]
    assert listed == [
        ("accounts_created", "gauge", "", 1, 1),
        ("hits_total", "counter", "1", 2, 2),
        ("latency_bucket", "counter", "ms", 1, 1),
        ("sent", "delta", "", 1, 1),
        ("song_metadata", "gauge", "", 1, 1),
    ]
    assert result.metrics[1].description == "Hits."
    assert (result.records, result.sampled, result.more) == (9, False, False)
    assert make_metrics(MetricList(limit=2), rows, records_max=8).more
