"""The OpenTelemetry SDK of Python, unmodified, through gateways that die and lose responses."""

import json
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from support.door_fleet import Fleet, fleet
from support.otel_logging import logger_of

from sluice_protocol.columns import MetricColumns
from sluice_protocol.ndjson import ndjson_from_columns

LINES = 2_000
RESOURCE = Resource.create({"service.name": "shop"})
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:opentelemetry.*")


def log_lines(exporter: OTLPLogExporter | GrpcExporter, served: Fleet) -> None:
    """Log lines, while responses are lost and one of two gateways is killed."""
    provider = LoggerProvider(resource=RESOURCE)
    provider.add_log_record_processor(
        BatchLogRecordProcessor(exporter, schedule_delay_millis=50, max_export_batch_size=100)
    )
    logger = logger_of(provider)
    for number in range(LINES):
        logger.info("line %05d", number)
        if number % 500 == 250:
            assert provider.force_flush()
            served.balancer.lost_responses = 1
        if number == LINES // 2:
            served.kill()
    assert provider.force_flush()
    provider.shutdown()


def test_logs_over_http_arrive_once(tmp_path: Path) -> None:
    """Each line is accepted exactly once, although the SDK sent some requests again."""
    with fleet(tmp_path, "otlp") as served:
        exporter = OTLPLogExporter(
            f"http://{served.address}/v1/logs",
            headers={"Authorization": f"Bearer {served.token}"},
            compression=Compression.Gzip,
        )
        log_lines(exporter, served)
        assert served.bodies() == [f"line {number:05d}" for number in range(LINES)]
        assert served.balancer.lost_responses == 0
        frames = served.frames()
        assert all(frame.identity.agent_id.startswith("door:shop:") for frame in frames)
        assert all(("service.name", "shop") in frame.envelope.resource for frame in frames)


def test_metrics_over_http(tmp_path: Path) -> None:
    """Counter, gauge and histogram have the names, types and labels that `docs/doors.md` lists."""
    with fleet(tmp_path, "otlp", count=1) as served:
        exporter = OTLPMetricExporter(
            f"http://{served.address}/v1/metrics",
            headers={"Authorization": f"Bearer {served.token}"},
        )
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)
        provider = MeterProvider(metric_readers=[reader], resource=RESOURCE)
        meter = provider.get_meter("tests")
        meter.create_counter("orders").add(3, {"shop": "a"})
        meter.create_gauge("depth").set(1.5)
        meter.create_histogram("wait", explicit_bucket_boundaries_advisory=[1, 5]).record(2)
        provider.shutdown()
        points: Counter[str] = Counter()
        for frame in served.frames():
            columns = frame.columns
            assert isinstance(columns, MetricColumns)
            points.update(columns.name.names[index] for index in columns.name.indexes.tolist())
        assert points["orders"] == 1
        assert points["depth"] == 1
        assert points["wait_bucket"] == 3
        assert points["wait_sum"] == points["wait_count"] == 1


def traced(exporter: OTLPSpanExporter | GrpcSpans, served: Fleet, *, traces: int) -> None:
    """Make traces of two spans, while responses are lost."""
    provider = TracerProvider(resource=RESOURCE)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=100))
    tracer = provider.get_tracer("tests")
    for number in range(traces):
        with tracer.start_as_current_span("GET /cart", kind=SpanKind.SERVER) as root:
            root.set_attribute("http.response.status_code", 500)
            with tracer.start_as_current_span("sql", kind=SpanKind.CLIENT) as inner:
                inner.record_exception(ValueError("it broke"))
                inner.set_status(Status(StatusCode.ERROR, "it broke"))
        if number % 100 == 50:
            assert provider.force_flush()
            served.balancer.lost_responses = 1
    assert provider.force_flush()
    provider.shutdown()


def check_traces(served: Fleet, traces: int) -> None:
    """Check that each span is there once, and that the fields are those of the SDK."""
    lines = [
        json.loads(line) for frame in served.frames() for line in ndjson_from_columns(frame.columns)
    ]
    assert len({line["span_id"] for line in lines}) == len(lines) == 2 * traces
    roots = {line["span_id"]: line for line in lines if "parent_id" not in line}
    assert len(roots) == traces
    for line in lines:
        if "parent_id" in line:
            root = roots[line["parent_id"]]
            assert line["trace_id"] == root["trace_id"]
            assert 0 <= line["duration_ns"] <= root["duration_ns"]
            assert (line["name"], line["span_kind"], line["status"]) == ("sql", "client", "error")
            [event] = json.loads(line["events"])
            assert (event["name"], event["attributes"]["exception.message"]) == (
                "exception", "it broke",
            )  # fmt: skip


@pytest.mark.long
def test_traces_over_http_arrive_once(tmp_path: Path) -> None:
    with fleet(tmp_path, "otlp") as served:
        exporter = OTLPSpanExporter(
            f"http://{served.address}/v1/traces",
            headers={"Authorization": f"Bearer {served.token}"},
            compression=Compression.Gzip,
        )
        traced(exporter, served, traces=300)
        check_traces(served, 300)
        assert served.balancer.lost_responses == 0


def test_traces_over_grpc_arrive_once(tmp_path: Path) -> None:
    flags = ("--otlp-grpc-listen", "127.0.0.1:0")
    with fleet(tmp_path, "otlp", count=1, flags=flags) as served:
        exporter = GrpcSpans(
            f"127.0.0.1:{grpc_port(served)}",
            insecure=True,
            headers={"authorization": f"Bearer {served.token}"},
        )
        traced(exporter, served, traces=40)
        check_traces(served, 40)


@pytest.mark.long
def test_logs_over_grpc_arrive_once(tmp_path: Path) -> None:
    """The SDK's gRPC exporter, with one gateway: gRPC keeps one connection."""
    flags = ("--otlp-grpc-listen", "127.0.0.1:0")
    with fleet(tmp_path, "otlp", count=1, flags=flags) as served:
        exporter = GrpcExporter(
            f"127.0.0.1:{grpc_port(served)}",
            insecure=True,
            headers={"authorization": f"Bearer {served.token}"},
        )
        provider = LoggerProvider(resource=RESOURCE)
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        logger = logger_of(provider)
        for number in range(200):
            logger.info("line %05d", number)
        provider.shutdown()
        assert served.bodies() == [f"line {number:05d}" for number in range(200)]


def grpc_port(served: Fleet) -> int:
    lines = served.gateways[0].log.read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if '"otlp_grpc_listening"' in line]
    return int(json.loads(line)["port"])
