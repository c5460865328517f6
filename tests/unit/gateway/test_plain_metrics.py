"""Plain counters and histograms are scraped as those of prometheus_client."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from sluice_gateway.plain_metrics import PlainCounter, PlainHistogram

BOUNDS_S = (0.001, 0.25, 1.0, 30.0)
TIMES_S = (0.0, 0.001, 0.0011, 0.25, 5.0, 30.0, 31.0, 0.2)


def scraped(registry: CollectorRegistry) -> list[str]:
    """Return the lines of a scrape without the times at which series were created."""
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


def test_the_output_is_that_of_the_library() -> None:
    plain, library = CollectorRegistry(), CollectorRegistry()
    counters = (
        PlainCounter("a", "About a.", ["op", "result"], registry=plain),
        Counter("a", "About a.", ["op", "result"], registry=library),
    )
    for op, amount in (("get", 1), ("put", 3), ("get", 2)):
        counters[0].inc(op, "ok", amount=amount)
        counters[1].labels(op, "ok").inc(amount)
    totals = (
        PlainCounter("b", "About b.", registry=plain),
        Counter("b", "About b.", registry=library),
    )
    totals[0].inc(amount=4096)
    totals[1].inc(4096)
    times = (
        PlainHistogram("c", "About c.", ["phase"], bounds_s=BOUNDS_S, registry=plain),
        Histogram("c", "About c.", ["phase"], buckets=BOUNDS_S, registry=library),
    )
    alone = (
        PlainHistogram("d", "About d.", bounds_s=BOUNDS_S, registry=plain),
        Histogram("d", "About d.", buckets=BOUNDS_S, registry=library),
    )
    for time_s in TIMES_S:
        times[0].observe(time_s, "blob")
        times[1].labels("blob").observe(time_s)
        alone[0].observe(time_s)
        alone[1].observe(time_s)
    assert scraped(plain) == scraped(library)
    assert len(scraped(plain)) > 20


def test_metrics_without_changes_are_scraped_as_those_of_the_library() -> None:
    plain, library = CollectorRegistry(), CollectorRegistry()
    PlainCounter("a", "About a.", ["op"], registry=plain)
    Counter("a", "About a.", ["op"], registry=library)
    PlainCounter("b", "About b.", registry=plain)
    Counter("b", "About b.", registry=library)
    PlainHistogram("c", "About c.", bounds_s=BOUNDS_S, registry=plain)
    Histogram("c", "About c.", buckets=BOUNDS_S, registry=library)
    assert scraped(plain) == scraped(library)


def test_a_scrape_can_select_a_metric() -> None:
    registry = CollectorRegistry()
    PlainCounter("a", "About a.", registry=registry).inc()
    PlainHistogram("c", "About c.", bounds_s=BOUNDS_S, registry=registry)
    one = registry.restricted_registry(["a_total"])
    assert [sample.name for metric in one.collect() for sample in metric.samples] == ["a_total"]
