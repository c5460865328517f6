"""`sluice up` from an empty directory: send, search, restart, stop, and what can be wrong."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.commands import make_java_home, sluice
from support.documented_blocks import blocks_of
from support.local_deployment import (
    LocalDeployment,
    clean_environment,
    free_ports,
    is_ready,
    running,
    wait_gone,
)

SEARCHABLE_S = 15
STOPPED_S = 10


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDeployment]:
    """A deployment without Java, whose tests need no ingestion."""
    folder = tmp_path_factory.mktemp("up")
    with running(folder, *free_ports(), JAVA_HOME=make_java_home(folder, None)) as started:
        yield started


def test_without_java_it_runs_without_ingestion_and_reports_it(deployment: LocalDeployment) -> None:
    (note,) = deployment.state["notes"]
    assert "records stay searchable but do not reach the Delta tables: no Java" in note
    assert "maintain" not in deployment.state["services"]


def test_a_pasted_line_is_searchable(deployment: LocalDeployment) -> None:
    assert json.loads(deployment.paste("send a line"))["accepted"] == 1
    assert deployment.wait_found("hello", SEARCHABLE_S) < SEARCHABLE_S
    assert "hello sluice" in deployment.paste("search")


@pytest.mark.long
def test_a_pasted_metric_is_plotted(deployment: LocalDeployment) -> None:
    deployment.paste("send a metric")
    end_s = time.monotonic() + SEARCHABLE_S
    plot = deployment.state["first_steps"]["plot"]
    while " - 1\n" not in deployment.shell(f"{plot} || true"):  # 1: no metric has this name yet
        assert time.monotonic() < end_s


def test_the_pasted_otlp_settings_are_accepted(deployment: LocalDeployment) -> None:
    """The variables are those of the OpenTelemetry SDK; it sends all three signals."""
    program = (
        "import logging\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter\n"
        "from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter\n"
        "from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler\n"
        "from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor\n"
        "from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter\n"
        "provider = LoggerProvider()\n"
        "provider.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter()))\n"
        "logging.getLogger().addHandler(LoggingHandler(logger_provider=provider))\n"
        "logging.getLogger().warning('exported by the SDK')\n"
        "provider.shutdown()\n"
        "reader = PeriodicExportingMetricReader(OTLPMetricExporter())\n"
        "meters = MeterProvider(metric_readers=[reader])\n"
        "meters.get_meter('up').create_counter('exported').add(1)\n"
        "meters.shutdown()\n"
        "tracers = TracerProvider()\n"
        "tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))\n"
        "with tracers.get_tracer('up').start_as_current_span('exported span'): pass\n"
        "tracers.shutdown()\n"
    )
    (deployment.folder / "export.py").write_text(program)
    line = f"{deployment.state['first_steps']['send OTLP']}; exec {sys.executable} export.py"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=deployment.folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "Failed to export" in done.stderr) == (0, False), done.stderr
    deployment.wait_found("exported", SEARCHABLE_S)
    query = deployment.state["first_steps"]["search"].removesuffix(" -q hello")
    end_s = time.monotonic() + SEARCHABLE_S
    for kind in ("spans", "metrics"):
        while "exported" not in deployment.shell(f"{query} --kind {kind}"):
            assert time.monotonic() < end_s, kind


def test_a_live_tail_reads_the_reconciler(deployment: LocalDeployment) -> None:
    url = f"http://{deployment.state['addresses']['query']}/v1/tail"
    with urllib.request.urlopen(url, timeout=30) as stream:
        found = next(line for line in stream if line.startswith(b"id: "))
    assert found.startswith(b"id: r."), found


def test_the_commands_of_the_readme_run(deployment: LocalDeployment) -> None:
    (commands,) = (one for one in blocks_of("README.md") if one.language == "sh")
    shown = deployment.shell(on_this_machine(commands.text, deployment))
    assert '"accepted":1' in shown
    assert "hello sluice" in shown
    assert "nothing needs attention" in shown


def test_every_service_has_the_paths_that_others_request(deployment: LocalDeployment) -> None:
    """`sluice status` and the console request the readiness of each service."""
    deployment.shell("sluice status")
    with urllib.request.urlopen(f"http://{deployment.state['addresses']['console']}/readyz") as one:
        assert one.read() == b"ready\n"
    assert "http_path_unknown" not in (deployment.folder / ".sluice-up" / "up.log").read_text()


def on_this_machine(commands: str, deployment: LocalDeployment) -> str:
    return commands.replace("127.0.0.1:8080", deployment.state["addresses"]["gateway"])


@pytest.mark.long
def test_the_commands_of_the_quick_start_run_in_order(deployment: LocalDeployment) -> None:
    install, *blocks = blocks_of("docs/quick-start.md")
    assert install.text == "pip install '/path/to/checkout[up]'\nsluice up\n"
    line, files, metric, status = (on_this_machine(one.text, deployment) for one in blocks)
    assert repeated(deployment, line, "hello sluice").count('"accepted":1') == 1
    first = repeated(deployment, files, "GET /orders/3")
    assert "sealed_records" in first
    assert "0 gaps" in first
    assert repeated(deployment, metric, " - 7\n")
    assert "nothing needs attention" in deployment.shell(status)


def repeated(deployment: LocalDeployment, commands: str, text: str) -> str:
    """Run a block, and repeat its query until it shows a text, as the page describes."""
    shown = deployment.shell(f"{commands.rstrip()} || true")
    (query,) = (
        one for one in commands.splitlines() if one.startswith(("sluice query", "sluice metrics"))
    )
    end_s = time.monotonic() + SEARCHABLE_S
    while text not in shown:
        assert time.monotonic() < end_s, shown
        shown += deployment.shell(f"{query} || true")
    return shown


def test_secrets_are_private_and_not_printed(deployment: LocalDeployment) -> None:
    home = deployment.folder / ".sluice-up"
    for name in ("token", "agent.pem", "principals.toml", "up.json"):
        assert (home / name).stat().st_mode & 0o077 == 0, name
    token = (home / "token").read_text().strip()
    assert token not in json.dumps(deployment.state)
    assert token not in (home / "up.log").read_text()


def test_a_killed_service_is_started_again(deployment: LocalDeployment) -> None:
    killed = deployment.service("reconciler")
    assert killed is not None
    killed.kill()
    end_s = time.monotonic() + 60
    while (again := deployment.service("reconciler")) is None or again.pid == killed.pid:
        assert time.monotonic() < end_s
        time.sleep(0.1)
    while not is_ready(deployment.state["addresses"]["reconciler"]):
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert "reconciler ended, exit_code=-9" in (deployment.folder / "up.err").read_text()


def test_the_folder_has_one_deployment(deployment: LocalDeployment) -> None:
    assert "sluice is already running here" in refused(deployment.folder)


def test_ctrl_c_stops_everything(deployment: LocalDeployment) -> None:
    """It is the last test of this deployment."""
    everything = deployment.processes()
    assert len(everything) >= len(deployment.state["services"])
    deployment.process.send_signal(signal.SIGINT)
    assert deployment.process.wait(STOPPED_S) == 0
    assert wait_gone(everything, 2) == []
    assert not (deployment.folder / ".sluice-up" / "up.json").exists()


@pytest.mark.long
@pytest.mark.spark
def test_ctrl_c_stops_everything_with_spark(tmp_path: Path) -> None:
    with running(tmp_path, *free_ports("maintain")) as deployment:
        deployment.paste("send a line")
        wait_for_java(deployment)
        everything = deployment.processes()
        deployment.process.send_signal(signal.SIGINT)
        assert deployment.process.wait(STOPPED_S) == 0
        assert wait_gone(everything, 2) == []
    assert not (tmp_path / ".sluice-up" / "up.json").exists()


@pytest.mark.parametrize(
    "java", [False, pytest.param(True, marks=[pytest.mark.long, pytest.mark.spark])]
)
def test_services_end_when_the_supervisor_is_killed(tmp_path: Path, java: bool) -> None:
    env = {} if java else {"JAVA_HOME": make_java_home(tmp_path, None)}
    ports = free_ports("maintain") if java else free_ports()
    with running(tmp_path, *ports, **env) as deployment:
        if java:
            wait_for_java(deployment)
        everything = deployment.processes()
        deployment.process.kill()
        assert wait_gone(everything, STOPPED_S + 2) == []
        deployment.process.wait()


def wait_for_java(deployment: LocalDeployment) -> None:
    end_s = time.monotonic() + 120
    while not any(_is_java(one) for one in deployment.processes()):
        assert time.monotonic() < end_s, "no JVM was started"
        time.sleep(0.2)


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:
        return False


def refused(folder: Path, *options: str) -> str:
    """Run `sluice up`, which must end with one line on standard error; return the line."""
    done = sluice("up", *options, folder=folder)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("sluice: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(tmp_path, *free_ports("maintain"), "--port", f"query={port}")
    assert "Address already in use" in line
    assert "--port query=PORT" in line


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    line = refused(tmp_path, "--free-bytes-min", str(1 << 60))
    assert "disk nearly full: free some space" in line


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    line = refused(tmp_path, "--home", "/proc/sluice")
    assert "cannot write" in line
    assert "change to a folder that you own" in line


def test_a_store_of_a_newer_version_is_one_line(tmp_path: Path) -> None:
    assert sluice("init", folder=tmp_path).returncode == 0
    (settings,) = (tmp_path / ".sluice" / "authority").rglob("settings.json")
    settings.write_bytes(settings.read_bytes().replace(b"authority.v1", b"authority.v9"))
    line = refused(tmp_path, *free_ports(), "--without", "maintain")
    assert "update this one" in line


def test_a_mistyped_service_or_port_is_one_line(tmp_path: Path) -> None:
    assert "no such service: use one of gateway" in refused(tmp_path, "--without", "gatway")
    assert "no such port: use one of console, forward" in refused(tmp_path, "--port", "gatway=1")
    assert "write NAME=PORT" in refused(tmp_path, "--port", "gateway")
    assert "did you mean file:///srv/x?" in refused(tmp_path, "--store", "/srv/x")
    assert list(tmp_path.iterdir()) == []
