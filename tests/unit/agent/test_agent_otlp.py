"""OTLP in JSON to records."""

import json
import math

import pytest

from sluice_agent.otlp import logs_from_otlp, metrics_from_otlp
from sluice_protocol.errors import BadUsage
from sluice_protocol.units import UnixNs

NOW = UnixNs(7)
RESOURCE = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}


def logs(*records: dict) -> bytes:
    scope = {"scope": {"name": "lib"}, "logRecords": records}
    return json.dumps({"resourceLogs": [{"resource": RESOURCE, "scopeLogs": [scope]}]}).encode()


def metrics(*listed: dict) -> bytes:
    scope = {"metrics": listed}
    return json.dumps(
        {"resourceMetrics": [{"resource": RESOURCE, "scopeMetrics": [scope]}]}
    ).encode()


def test_a_log_record_keeps_what_it_says() -> None:
    """Time, severity, body, trace and all attributes; unknown fields are passed over."""
    body = logs(
        {
            "timeUnixNano": "1700000000000000001",
            "severityNumber": 17,
            "severityText": "ERROR",
            "body": {"stringValue": "it broke"},
            "attributes": [
                {"key": "n", "value": {"intValue": "5"}},
                {"key": "ok", "value": {"boolValue": False}},
                {"key": "list", "value": {"arrayValue": {"values": [{"doubleValue": 1.5}]}}},
                {"key": "map", "value": {"kvlistValue": {"values": [
                    {"key": "a", "value": {"stringValue": "b"}}]}}},
                {"key": "none", "value": {}},
            ],
            "traceId": "aa", "spanId": "bb", "flags": 1, "fromTheFuture": {},
        }
    )  # fmt: skip
    (record,) = logs_from_otlp(body, arrived_ns=NOW)
    assert (record.ts_ns, record.severity, record.body) == (1700000000000000001, 17, "it broke")
    assert dict(record.attributes) == {
        "service.name": "shop", "otel.scope.name": "lib", "trace_id": "aa", "span_id": "bb",
        "severity_text": "ERROR", "n": "5", "ok": "false", "list": "[1.5]", "map": '{"a":"b"}',
        "none": "",
    }  # fmt: skip


def test_times_fall_back() -> None:
    """Without a time: the observed time, then the arrival; a body may be any value."""
    records = logs_from_otlp(
        logs({"observedTimeUnixNano": "3"}, {"body": {"kvlistValue": {"values": []}}}),
        arrived_ns=NOW,
    )
    assert [(r.ts_ns, r.body) for r in records] == [(3, ""), (7, "{}")]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"resourceLogs":1}', logs({"timeUnixNano": "x"}),
     logs({"timeUnixNano": str(2**63)}), logs({"timeUnixNano": "-1"}),
     logs({"body": {"intValue": "1.5"}})],
)  # fmt: skip
def test_what_is_not_otlp_is_refused(body: bytes) -> None:
    """With one clear error."""
    with pytest.raises(BadUsage, match="not OTLP"):
        logs_from_otlp(body, arrived_ns=NOW)


def test_an_empty_request_is_fine() -> None:
    """Exporters send one to test a connection."""
    assert logs_from_otlp(b"{}", arrived_ns=NOW) == []


def test_gauges_and_sums() -> None:
    """Their types follow the temporality; NaN comes as a text."""
    read = metrics_from_otlp(
        metrics(
            {"name": "g", "gauge": {"dataPoints": [{"asDouble": "NaN", "timeUnixNano": "1"}]}},
            {"name": "d", "sum": {"aggregationTemporality": 1, "dataPoints": [{"asInt": "4"}]}},
            {"name": "c", "sum": {"aggregationTemporality": 2, "dataPoints": [{"asDouble": 2}]}},
        ),
        arrived_ns=NOW,
    )
    assert math.isnan(read.points[0].value)
    assert [(p.name, p.type, p.ts_ns) for p in read.points] == [
        ("g", 0, 1),
        ("d", 1, 7),
        ("c", 2, 7),
    ]
    assert [p.value for p in read.points[1:]] == [4.0, 2.0]
    assert all(dict(p.attributes) == {"service.name": "shop"} for p in read.points)


def test_histograms_and_summaries() -> None:
    """Count, sum and cumulative buckets; exponential ones are refused and counted."""
    read = metrics_from_otlp(
        metrics(
            {"name": "h", "histogram": {"aggregationTemporality": 2, "dataPoints": [
                {"count": "6", "sum": 9.5, "bucketCounts": ["1", "2", "3"],
                 "explicitBounds": [0.5, 1]}]}},
            {"name": "s", "summary": {"dataPoints": [
                {"count": 2, "sum": 3, "quantileValues": [{"quantile": 0.5, "value": 1}]}]}},
            {"name": "e", "exponentialHistogram": {"dataPoints": [{}, {}]}},
        ),
        arrived_ns=NOW,
    )  # fmt: skip
    reported = [(p.name, p.value, p.attributes.get("le") or p.attributes.get("quantile"))
            for p in read.points]  # fmt: skip
    assert reported == [
        ("h.count", 6.0, None), ("h.sum", 9.5, None), ("h.bucket", 1.0, "0.5"),
        ("h.bucket", 3.0, "1"), ("h.bucket", 6.0, "+Inf"),
        ("s.count", 2.0, None), ("s.sum", 3.0, None), ("s", 1.0, "0.5"),
    ]  # fmt: skip
    assert read.refused == 2


def test_a_metric_without_a_name_is_refused() -> None:
    """It could not be a frame."""
    with pytest.raises(BadUsage, match="no name"):
        metrics_from_otlp(metrics({"gauge": {"dataPoints": [{}]}}), arrived_ns=NOW)
