"""`sluice metrics` and `sluice fields` over a lake and pending batches, here and by a service."""

import json

import pytest
from support.commands import CommandResult, sluice
from support.query_lake import DAY0_NS, deployment, log_batch, sent
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.records import MetricPoint, metrics_from_records
from sluice_protocol.units import NS_PER_S

MINUTE_NS = 60 * NS_PER_S
SPAN = ("--from", str(DAY0_NS), "--to", str(DAY0_NS + 10 * MINUTE_NS), "--zone", "UTC")
GAUGE, CUMULATIVE = 0, 2


def _counter(path: str, values: list[float], minute: int) -> list[MetricPoint]:
    return [
        MetricPoint(
            ts_ns=DAY0_NS + (minute + place) * MINUTE_NS,
            name="hits_total",
            value=value,
            type=CUMULATIVE,
            attributes={"http.path": path},
        )
        for place, value in enumerate(values)
    ]


def _point(name: str, value: float, **attributes: str) -> MetricPoint:
    return MetricPoint(ts_ns=DAY0_NS, name=name, value=value, type=GAUGE, attributes=attributes)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A counter whose samples are in the lake, then pending, with a reset between."""
    made = deployment(tmp_path_factory.mktemp("metrics"))
    # The last minute before the range shows where the first increase starts.
    early = [*_counter("/a", [60, 120, 180], -1), *_counter("/b", [0, 600], 0)]
    more = [
        _point("hits_created", 1.0),
        _point("hits_metadata", 1.0, type="counter", unit="1"),
        _point("queue_length", 7.0),
    ]
    made.deliver([sent(metrics_from_records([*early, *more]))])
    made.deliver([log_batch(["x", "y"], start=90, attributes={"http.status": "200"})])
    ingest_locally(made.url)
    made.deliver([sent(metrics_from_records(_counter("/a", [30, 90], 2)), start=50)])
    return made


def _run(place: Deployment, *words: str) -> CommandResult:
    return sluice(words[0], *words[1:], *SPAN, "--store", place.url)


def test_metrics_are_listed_with_type_and_unit(place: Deployment) -> None:
    done = _run(place, "metrics")
    assert done.stdout.splitlines() == [
        "name          type     unit  series  samples",
        "hits_total    counter  1          2        6",
        "queue_length  gauge               1        1",
    ]
    assert done.stderr.startswith("2 metrics; read 1 segments")


def test_a_counter_is_its_rate_for_each_label_set(place: Deployment) -> None:
    """Resets and the sample before the range count; the sum by a label adds the rates."""
    lines = _run(place, "metrics", "hits_total", "--step", "1m", "--json").stdout.splitlines()
    *points, last = map(json.loads, lines)
    found: dict[str, list[float]] = {}
    for one in points:
        found.setdefault(one["by"]["attributes.http.path"], []).append(one["value"])
    start = DAY0_NS % MINUTE_NS / MINUTE_NS  # steps begin at whole minutes, the range does not
    assert found["/a"] == pytest.approx([1 / (1 - start), 1.0, 0.5, 1.0])
    assert found["/b"] == pytest.approx([10.0])
    assert last["summary"]["waiting_batches"] == 1
    done = _run(place, "metrics", "hits_total", "--step", "10m", "--by", "service")
    # 60 + 60 + 30 + 60 + 600 in the 400 s of the step that the range covers.
    assert done.stdout == "2026-09-21T14:10:00.000000000Z web 2.025\n"
    shown = _run(place, "metrics", "hits_total", "--step", "1m").stdout.splitlines()
    assert {line.split()[1] for line in shown} == {"http.path=/a", "http.path=/b"}
    drawn = _run(place, "metrics", "hits_total", "--step", "1m", "--plot").stdout
    assert "rate of hits_total" in drawn
    assert "http.path=/a" in drawn


def test_a_gauge_is_its_average_and_a_wrong_name_has_a_near_one(place: Deployment) -> None:
    done = _run(place, "metrics", "queue_length")
    assert done.stdout.endswith("Z - 7\n")
    done = _run(place, "metrics", "queue_lenght")
    assert (done.returncode, done.stdout) == (1, "")
    assert "similar: queue_length, name=`queue_lenght`" in done.stderr
    done = _run(place, "metrics", "hits_total", "--by", "pth")
    assert (done.returncode, "similar: " in done.stderr) == (2, True)
    assert "need the name of a metric" in _run(place, "metrics", "--agg", "max").stderr


def test_fields_and_their_values_are_counted(place: Deployment) -> None:
    lines = _run(place, "fields").stdout.splitlines()
    assert lines[0].split() == ["field", "records", "values"]
    assert ["attributes.http.status", "2", "1"] in [line.split() for line in lines]
    for name in ("http.status", "http_status", "attributes.http.status"):
        assert _run(place, "fields", name).stdout == "2\t200\n"
    assert _run(place, "fields", "agent").stdout == "2\thost-1\n"
    done = _run(place, "fields", "http_stats")
    assert (done.returncode, "similar: http" in done.stderr) == (2, True)
