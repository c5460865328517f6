"""The OpenTelemetry SDK of Python, unmodified, through gateways that die and lose responses."""

import json
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from support.door_fleet import Fleet, fleet
from support.otel_logging import logger_of

from sluice_protocol.columns import MetricColumns

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
