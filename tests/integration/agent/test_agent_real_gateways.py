"""The agent with real gateways on one store: the store contains exactly the lines of the files."""

import asyncio
import json
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import commands
from support.constants import command_with_constants
from support.gateway import bodies_under, start_gateway
from support.local_deployment import clean_environment
from support.sluice_process import SluiceProcess, run_process

from sluice_agent.sending.signing_key import make_key, principal_entry
from sluice_protocol.frame import FRAME_VERSION, decode_frame

SLUICE = command_with_constants(
    "sluice_agent.settings:AgentSettings.batch_bytes=20000",
    "sluice_agent.settings:AgentSettings.batch_age_s=0.05",
)
SLUICE_OF_LINES = command_with_constants("sluice_agent.settings:AgentSettings.batch_bytes=100")


def sluice(*args: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    return run_process(args, cwd=cwd, env=clean_environment())


def accepted_lines(store: str) -> list[bytes]:
    """Read the lines of every accepted manifest's blob."""
    manifests = asyncio.run(bodies_under(store, "accepted/"))
    blobs = asyncio.run(bodies_under(store, "raw-blobs/v1/"))
    frames = [decode_frame(blobs[json.loads(m)["raw_blob_key"]]) for m in manifests.values()]
    return [body for frame in frames for body in frame.columns.body.slices()]


def test_the_manifest_names_the_version_of_the_frame(tmp_path: Path) -> None:
    """The lines of the accepted frame are those of the file."""
    store = f"file://{tmp_path}/store"
    assert commands.sluice("init", "--store", store).returncode == 0
    principals = tmp_path / "principals.toml"
    principals.write_text(principal_entry("host-1", "host-1", make_key(tmp_path / "key.pem")))
    server = start_gateway(tmp_path, store, principals)
    lines = [b"line %d" % at * (at % 7) for at in range(1, 500)]
    (tmp_path / "app.log").write_bytes(b"\n".join(lines) + b"\n")
    try:
        done = sluice(
            *command_with_constants(), "agent", "run", "--gateway", f"http://127.0.0.1:{server.port}",
            "--key", "key.pem", "--agent-id", "host-1", "--paths", str(tmp_path / "app.log"),
            "--host-metrics-s", "0", "--once", cwd=tmp_path,
        )  # fmt: skip
    finally:
        server.kill()
    assert done.returncode == 0, done.stderr
    manifests = asyncio.run(bodies_under(store, "accepted/"))
    assert [json.loads(one)["frame_version"] for one in manifests.values()] == [FRAME_VERSION]
    assert accepted_lines(store) == lines


@pytest.mark.parametrize("runs", [1, pytest.param(6, marks=pytest.mark.long)])
def test_gateways_and_agents_killed_in_turn(tmp_path: Path, runs: int) -> None:
    """Two gateways share a store. One of them and the agent are killed; no line is lost."""
    store = f"file://{tmp_path}/store"
    assert commands.sluice("init", "--store", store).returncode == 0
    principals = tmp_path / "principals.toml"
    principals.write_text(principal_entry("host-1", "host-1", make_key(tmp_path / "key.pem")))
    servers = [start_gateway(tmp_path, store, principals) for _ in range(2)]
    log, written = tmp_path / "app.log", []

    def command() -> list[str]:
        urls = ",".join(f"http://127.0.0.1:{server.port}" for server in servers)
        return [
            *SLUICE, "agent", "run", "--gateway", urls, "--key", "key.pem", "--agent-id", "host-1",
            "--spool", "spool", "--paths", str(tmp_path / "app.log*"), "--host-metrics-s", "0",
        ]  # fmt: skip

    def write(run: int) -> None:
        for _ in range(10):
            lines = [b"%d %d" % (run, len(written) + n) for n in range(300)]
            with log.open("ab") as file:
                file.write(b"\n".join(lines) + b"\n")
            written.extend(lines)
            time.sleep(0.03)

    try:
        for run in range(runs):
            write(run)
            agent = SluiceProcess(
                command(),
                cwd=tmp_path, env=clean_environment(),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                until = time.monotonic() + 20
                while not (tmp_path / "store" / "accepted").exists() and time.monotonic() < until:
                    time.sleep(0.02)
                write(run)
                servers[run % 2].kill()
                write(run)
                log.rename(tmp_path / f"app.log.{run}")
            finally:
                agent.send_signal(signal.SIGKILL if run % 2 == 0 else signal.SIGTERM)
                agent.wait(20)
            if run + 1 < runs:
                servers[run % 2] = start_gateway(tmp_path, store, principals)
        done = sluice(*command(), "--once", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    finally:
        for server in servers:
            server.kill()
    assert Counter(accepted_lines(store)) == Counter(written)
    assert asyncio.run(bodies_under(store, "quarantine/")) == {}


@pytest.mark.long
def test_a_backlog_shares_requests_and_every_line_is_accepted_once(tmp_path: Path) -> None:
    """An agent is killed while it sends a backlog of small batches in lists, and starts again."""
    store = f"file://{tmp_path}/store"
    assert commands.sluice("init", "--store", store).returncode == 0
    principals = tmp_path / "principals.toml"
    principals.write_text(principal_entry("host-1", "host-1", make_key(tmp_path / "key.pem")))
    lines = [b"line %d of a backlog" % n for n in range(300)]  # a batch for each line
    for n in range(75):
        (tmp_path / f"app-{n}.log").write_bytes(b"\n".join(lines[n::75]) + b"\n")
    command = [
        *SLUICE_OF_LINES, "agent", "run", "--key", "key.pem", "--agent-id", "host-1",
        "--spool", "spool", "--paths", str(tmp_path / "app-*.log"), "--host-metrics-s", "0",
    ]  # fmt: skip
    ready, accepted_folder = tmp_path / "spool" / "ready", tmp_path / "store" / "accepted"
    _run_until(
        [*command, "--gateway", "http://127.0.0.1:9"],
        lambda: ready.exists() and len(list(ready.iterdir())) >= 250,
        cwd=tmp_path,
    )
    server = start_gateway(tmp_path, store, principals)
    command += ["--gateway", f"http://127.0.0.1:{server.port}"]
    try:
        _run_until(command, accepted_folder.exists, cwd=tmp_path)
        done = sluice(*command, "--once", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        accepted, requests = _uploads_of(server.port)
    finally:
        server.kill()
    assert Counter(accepted_lines(store)) == Counter(lines)
    assert requests < accepted / 3


def _run_until(command: list[str], is_met: Callable[[], bool], *, cwd: Path) -> None:
    """Run an agent until a condition is met, then kill it."""
    agent = SluiceProcess(
        command,
        cwd=cwd, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not is_met():
            assert time.monotonic() < until
            assert agent.poll() is None
            time.sleep(0.02)
    finally:
        agent.kill()
        agent.wait(20)


def _uploads_of(port: int) -> tuple[float, float]:
    """Return the number of uploads that got a response, and of requests that had them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    accepted = sum(one.value for one in samples if one.name == "sluice_accepts_total")
    requests = sum(
        one.value
        for one in samples
        if one.name == "sluice_accept_phase_seconds_count" and one.labels["phase"] == "receive"
    )
    return accepted, requests
