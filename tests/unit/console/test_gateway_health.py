"""The health of a gateway from two readings of its real metrics."""

from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from sluice_console import gateway_health
from sluice_console.attention import OverviewFacts, list_attention
from sluice_console.gateway_health import (
    GatewayHealth,
    GatewayReading,
    health_between,
    is_successor,
    parse_reading,
)
from sluice_gateway.metrics import GatewayMetrics
from sluice_protocol.units import NS_PER_S

URL = "http://gateway-a:8080"
ALERTS = Path(__file__).parents[3] / "deploy" / "monitoring" / "alerts.yaml"


def reading(metrics: GatewayMetrics, at_s: int = 0) -> GatewayReading:
    return parse_reading(generate_latest(metrics.registry).decode(), at_s * NS_PER_S)


def health(metrics: GatewayMetrics) -> GatewayHealth:
    return health_between(URL, reading(GatewayMetrics()), reading(metrics, 10))


def test_a_healthy_gateway_has_nothing_to_report() -> None:
    metrics = GatewayMetrics()
    metrics.accepts.labels("new").inc(990)
    metrics.accepts.labels("identity_conflict").inc(10)
    for _ in range(200):
        metrics.store_requests.labels("create", "applied").inc()
        metrics.store_seconds.observe(0.02, "create")
    metrics.journal_age.set(1)
    found = health(metrics)
    assert found.refused == pytest.approx(0.01)
    assert found.errors_per_s == 0
    assert list_attention(OverviewFacts(gateways=(found,))) == ()


def test_failed_store_calls_are_counted_per_second() -> None:
    metrics = GatewayMetrics()
    metrics.store_requests.labels("create", "error").inc(5)
    assert health(metrics).errors_per_s == 0.5


def test_one_reading_has_no_rate() -> None:
    once = reading(GatewayMetrics())
    assert health_between(URL, once, once).errors_per_s is None


def test_few_uploads_are_no_share() -> None:
    metrics = GatewayMetrics()
    metrics.accepts.labels("identity_conflict").inc(19)
    assert health(metrics).refused == 0


def test_a_gateway_that_was_restarted_is_no_successor() -> None:
    before, after = GatewayMetrics(), GatewayMetrics()
    before.accepts.labels("new").inc(2)
    after.accepts.labels("new").inc(1)
    assert not is_successor(reading(before), reading(after))
    after.accepts.labels("new").inc(1)
    assert is_successor(reading(before), reading(after))


@pytest.mark.parametrize(
    ("trouble", "severity", "page", "words"),
    [
        ({"journal_age_s": 31.0}, "error", "queue", ("cannot write its journal", "31 s old")),
        ({"spool_full": "its disk has 5 MB free"}, "error", "queue", ("spool", "5 MB free")),
        ({"principals_stale": True}, "warning", "queue", ("principals file", "without a restart")),
        (
            {"refused": 0.5, "refused_as": "identity_conflict"},
            "warning",
            "conflicts",
            ("refuses 50%", "compare both sides"),
        ),
        (
            {"refused": 0.5, "refused_as": "store_unavailable"},
            "warning",
            "queue",
            ("refuses 50%", "Check the store"),
        ),
        ({"slow": 0.02}, "warning", "store", ("slow", "2% of its calls")),
        ({"problem": "unreachable"}, "error", "queue", ("No gateway responds", "unreachable")),
    ],
)
def test_each_trouble_is_one_item_with_its_remedy(
    trouble: dict[str, object], severity: str, page: str, words: tuple[str, ...]
) -> None:
    one = GatewayHealth(url=URL, **trouble)
    (item,) = list_attention(OverviewFacts(gateways=(one,)))
    assert (item.severity, item.page) == (severity, page)
    for word in words:
        assert word in f"{item.title} {item.detail}"
    assert URL in item.detail


def test_one_of_two_gateways_that_is_silent_is_a_warning() -> None:
    both = (GatewayHealth(url=URL, problem="gone"), GatewayHealth(url="http://b"))
    (item,) = list_attention(OverviewFacts(gateways=both))
    assert (item.severity, item.title) == ("warning", "A gateway does not respond")


def test_a_nearly_full_spool_is_found_by_share_and_by_free_space() -> None:
    metrics = GatewayMetrics()
    metrics.spool_capacity.set(100)
    metrics.spool_bytes.set(81)
    assert health(metrics).spool_full == "81% of its capacity is used"
    metrics.spool_bytes.set(80)
    assert health(metrics).spool_full == ""
    metrics.spool_pending.set(1)
    metrics.spool_free.set(5e8)
    assert health(metrics).spool_full == "its disk has 500 MB free"


def test_slow_calls_are_those_above_five_seconds() -> None:
    metrics = GatewayMetrics()
    for seconds in (4.9, 5.1, 31.0, *([0.01] * 97)):
        metrics.store_requests.labels("get", "found").inc()
        metrics.store_seconds.labels("get").observe(seconds)
    assert health(metrics).slow == pytest.approx(0.02)


def test_the_limits_are_those_of_the_alerts() -> None:
    rules = {
        one["alert"]: one["expr"]
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for one in group["rules"]
    }
    for name, limit in {
        "SluiceUploadsRefused": gateway_health.REFUSED_SHARE_MAX,
        "SluiceStoreSlow": gateway_health.SLOW_S,
        "SluiceJournalOld": gateway_health.JOURNAL_AGE_S_MAX,
        "SluiceSpoolNearlyFull": gateway_health.SPOOL_SHARE_MAX,
    }.items():
        assert f"> {limit:g}" in rules[name], name


@pytest.mark.parametrize("text", ["", "<html>Sign in</html>", "up 1.0\n"])
def test_a_text_without_a_metric_of_a_gateway_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no metric of a gateway"):
        parse_reading(text, 0)


def test_only_the_lines_that_are_used_are_parsed() -> None:
    """A gateway serves many more: of 100 gateways, all of them would cost a second a sample."""
    metrics = GatewayMetrics()
    metrics.store_requests.labels("get", "found").inc(100)
    metrics.store_seconds.labels("get").observe(6.0)
    text = generate_latest(metrics.registry).decode()
    assert parse_reading(f"{text}broken{{ line\n", 0) == parse_reading(text, 0)
    with pytest.raises(ValueError, match=r".+"):
        parse_reading(f"{text}sluice_store_requests_total{{ line\n", 0)


@pytest.mark.parametrize("bound", ["5.0", "5", "5e0"])
def test_a_bucket_is_known_by_its_bound(bound: str) -> None:
    text = (
        f'sluice_store_request_seconds_bucket{{op="get",le="{bound}"}} 90\n'
        'sluice_store_request_seconds_bucket{op="get",le="50.0"} 100\n'
        'sluice_store_request_seconds_count{op="get"} 100\n'
    )
    assert parse_reading(text, 0).slow == 10
