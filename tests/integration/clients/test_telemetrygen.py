"""telemetrygen of the OpenTelemetry Collector contrib, as it is, through real gateways."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.client_programs import BIN, Program, program
from support.door_fleet import Fleet, fleet

from sluice_protocol.columns import MetricColumns

RECORDS = 2_000
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


@contextmanager
def telemetrygen(
    served: Fleet, kind: str, folder: Path, address: str, *options: str
) -> Iterator[Program]:
    """Generate records until the block ends."""
    command = [
        *(BIN / "telemetrygen", kind, "--otlp-insecure", "--otlp-endpoint", address),
        *("--otlp-header", f'authorization="Bearer {served.token}"'),
        *("--workers", "1", "--rate", "0", f"--{kind}", str(RECORDS), *options),
    ]
    with program(command, folder / "client.log", {}, faults=r"\t(WARN|ERROR|FATAL)\t") as started:
        yield started


def finish(started: Program) -> None:
    """Wait until the client has sent everything, and check what it reports."""
    assert started.process.wait(300) == 0, started.log.read_text(encoding="utf-8")
    assert started.errors() == []


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_each_log_record_is_accepted(tmp_path: Path, transport: str) -> None:
    with fleet(tmp_path, "otlp", flags=("--otlp-grpc-listen", "127.0.0.1:0")) as served:
        address, options = served.address, ("--otlp-http",)
        if transport == "grpc":
            log = served.gateways[0].log.read_text(encoding="utf-8").splitlines()
            line = next(one for one in log if '"otlp_grpc_listening"' in one)
            address, options = f"127.0.0.1:{json.loads(line)['port']}", ()
        with telemetrygen(served, "logs", tmp_path, address, *options) as started:
            finish(started)
        assert served.bodies() == ["the message"] * RECORDS


def test_each_point_is_accepted(tmp_path: Path) -> None:
    with fleet(tmp_path, "otlp", count=1) as served:
        with telemetrygen(served, "metrics", tmp_path, served.address, "--otlp-http") as started:
            finish(started)
        points = sum(
            sum(frame.columns.name.names[one] == "gen" for one in frame.columns.name.indexes)
            for frame in served.frames()
            if isinstance(frame.columns, MetricColumns)
        )
        assert points == RECORDS
