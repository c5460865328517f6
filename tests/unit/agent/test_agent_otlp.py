"""OTLP in JSON to records, and the types compared with opentelemetry-proto."""

import json
import math

import msgspec
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

from sluice_agent import otlp_messages
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


def test_a_log_record_keeps_all_values() -> None:
    """Time, severity, body, trace and all attributes; unknown fields are ignored."""
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


def test_missing_times_are_replaced() -> None:
    """Without a time, the observed time or the time of arrival is used; a body may be any value."""
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
def test_other_bodies_are_rejected(body: bytes) -> None:
    """The error is always the same."""
    with pytest.raises(BadUsage, match="not OTLP"):
        logs_from_otlp(body, arrived_ns=NOW)


def test_an_empty_request_is_accepted() -> None:
    """Exporters send one to test a connection."""
    assert logs_from_otlp(b"{}", arrived_ns=NOW) == []


def test_gauges_and_sums() -> None:
    """Their types follow the temporality; NaN is a string."""
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
    """Count, sum and cumulative buckets; exponential histograms are rejected and counted."""
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
    found = [(p.name, p.value, p.attributes.get("le") or p.attributes.get("quantile"))
            for p in read.points]  # fmt: skip
    assert found == [
        ("h.count", 6.0, None), ("h.sum", 9.5, None), ("h.bucket", 1.0, "0.5"),
        ("h.bucket", 3.0, "1"), ("h.bucket", 6.0, "+Inf"),
        ("s.count", 2.0, None), ("s.sum", 3.0, None), ("s", 1.0, "0.5"),
    ]  # fmt: skip
    assert read.refused == 2


def test_a_metric_without_a_name_is_rejected() -> None:
    """It cannot be encoded in a frame."""
    with pytest.raises(BadUsage, match="no name"):
        metrics_from_otlp(metrics({"gauge": {"dataPoints": [{}]}}), arrived_ns=NOW)


MESSAGES: dict[type, tuple[Message, ...]] = {
    otlp_messages.AnyValue: (common_pb2.AnyValue(),),
    otlp_messages.ArrayValue: (common_pb2.ArrayValue(),),
    otlp_messages.KeyValue: (common_pb2.KeyValue(),),
    otlp_messages.KeyValues: (common_pb2.KeyValueList(),),
    otlp_messages.Resource: (resource_pb2.Resource(),),
    otlp_messages.Scope: (common_pb2.InstrumentationScope(),),
    otlp_messages.OtlpLog: (logs_pb2.LogRecord(),),
    otlp_messages.ScopeLogs: (logs_pb2.ScopeLogs(),),
    otlp_messages.ResourceLogs: (logs_pb2.ResourceLogs(),),
    otlp_messages.LogsRequest: (logs_service_pb2.ExportLogsServiceRequest(),),
    otlp_messages.Quantile: (metrics_pb2.SummaryDataPoint.ValueAtQuantile(),),
    otlp_messages.DataPoint: (
        metrics_pb2.NumberDataPoint(),
        metrics_pb2.HistogramDataPoint(),
        metrics_pb2.SummaryDataPoint(),
    ),
    otlp_messages.Points: (metrics_pb2.Sum(), metrics_pb2.Histogram()),
    otlp_messages.Metric: (metrics_pb2.Metric(),),
    otlp_messages.ScopeMetrics: (metrics_pb2.ScopeMetrics(),),
    otlp_messages.ResourceMetrics: (metrics_pb2.ResourceMetrics(),),
    otlp_messages.MetricsRequest: (metrics_service_pb2.ExportMetricsServiceRequest(),),
}


def test_every_struct_is_compared_with_the_official_messages() -> None:
    """The table above lists each struct of the module."""
    declared = {each for each in vars(otlp_messages).values() if isinstance(each, type)}
    structs = {each for each in declared if issubclass(each, msgspec.Struct)}
    assert structs - {otlp_messages._Struct} == set(MESSAGES)


@pytest.mark.parametrize("struct", list(MESSAGES))
def test_field_names_are_those_of_the_official_messages(struct: type) -> None:
    """A misspelled field would be ignored in silence."""
    official = {
        field.json_name for message in MESSAGES[struct] for field in message.DESCRIPTOR.fields
    }
    assert {field.encode_name for field in msgspec.structs.fields(struct)} <= official


def test_official_log_requests_are_decoded() -> None:
    """A request that the official library encoded has the same values."""
    request = logs_service_pb2.ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    scope.scope.name = "lib"
    record = scope.log_records.add(time_unix_nano=2**62, severity_number=17, severity_text="ERROR")
    record.body.string_value = "it broke"
    record.attributes.add(key="n").value.int_value = -5
    record.attributes.add(key="ratio").value.double_value = math.inf
    record.attributes.add(key="bytes").value.bytes_value = b"\xff"
    body = json_format.MessageToJson(request, use_integers_for_enums=True)
    (read,) = logs_from_otlp(body.encode(), arrived_ns=NOW)
    assert (read.ts_ns, read.severity, read.body) == (2**62, 17, "it broke")
    assert dict(read.attributes) == {
        "otel.scope.name": "lib", "severity_text": "ERROR", "n": "-5", "ratio": '"Infinity"',
        "bytes": '"/w=="',
    }  # fmt: skip


def test_official_metric_requests_are_decoded() -> None:
    """Enum values are accepted as names and as numbers."""
    request = metrics_service_pb2.ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="requests")
    metric.sum.aggregation_temporality = metrics_pb2.AGGREGATION_TEMPORALITY_DELTA
    metric.sum.data_points.add(time_unix_nano=3, as_int=2**53)
    for by_number in (False, True):
        body = json_format.MessageToJson(request, use_integers_for_enums=by_number).encode()
        (point,) = metrics_from_otlp(body, arrived_ns=NOW).points
        assert (point.name, point.ts_ns, point.value, point.type) == ("requests", 3, 2.0**53, 1)
