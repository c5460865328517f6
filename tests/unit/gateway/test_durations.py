"""A scrape shows the same histogram of times as one of the metrics library."""

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from sluice_gateway.metrics import Durations

BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0)
TIMES = (0.0, 0.001, 0.0011, 0.02, 0.5, 30.0, 30.1, 1e6)


def scraped(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().split("\n")
    return [line for line in lines if "_created" not in line]


def test_times_by_label_are_those_of_the_library() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = Durations("call_seconds", "Time of a call.", "op", registry=ours)
    other = Histogram("call_seconds", "Time of a call.", ["op"], buckets=BOUNDS, registry=theirs)
    assert scraped(ours) == scraped(theirs)
    for op, times in (("get", TIMES), ("create", TIMES[2:4])):
        for spent_s in times:
            own.observe(spent_s, op)
            other.labels(op).observe(spent_s)
    assert scraped(ours) == scraped(theirs)


def test_times_without_a_label_are_those_of_the_library() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = Durations("seconds", "Time.", registry=ours)
    other = Histogram("seconds", "Time.", buckets=BOUNDS, registry=theirs)
    assert scraped(ours) == scraped(theirs)
    for spent_s in TIMES:
        own.observe(spent_s)
        other.observe(spent_s)
    assert scraped(ours) == scraped(theirs)
    restricted = ours.restricted_registry(["seconds_count"])
    assert b"seconds_count 8.0" in generate_latest(restricted)
