"""The OpenTelemetry Collector with the configuration of `docs/send`, through gateways that die."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from support.door_fleet import Fleet, fleet
from support.otel_logging import logger_of
from support.store_versitygw import free_port

BINARY = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sluice/bin/otelcol"
CONFIG = Path(__file__).parents[3] / "docs/send/opentelemetry-collector.yaml"
LINES = 3_000
RETRIED_S = 4.0
"""By then the Collector has repeated each request whose response was lost: after 0.5 to 1.5 s."""
pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:opentelemetry.*"),
]


@contextmanager
def collector(served: Fleet, folder: Path) -> Iterator[str]:
    """Run the Collector; yield the URL that it receives OTLP on."""
    address = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "OTLP_LISTEN": address,
        "SLUICE_URL": f"http://{served.address}",
        "SLUICE_TOKEN": served.token,
    }
    with (folder / "collector.log").open("wb") as log:
        process = subprocess.Popen(
            [str(BINARY), "--config", str(CONFIG)], env=environment, stdout=log, stderr=log
        )
    try:
        yield f"http://{address}"
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_logs_arrive_once(tmp_path: Path) -> None:
    """Each line is accepted exactly once, through lost responses and a killed gateway."""
    with fleet(tmp_path, "otlp") as served, collector(served, tmp_path) as url:
        provider = LoggerProvider()
        exporter = OTLPLogExporter(f"{url}/v1/logs")
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
        expected = [f"line {number:05d}" for number in range(LINES)]
        until = time.monotonic() + 60
        while len(served.bodies()) < LINES and time.monotonic() < until:
            time.sleep(0.5)
        time.sleep(RETRIED_S)
        assert served.bodies() == expected
        assert served.balancer.lost_responses == 0
    log = (tmp_path / "collector.log").read_text(encoding="utf-8")
    assert "Dropping data" not in log
    assert "Will retry the request" in log  # so a request was really repeated
