"""The whole agent as a process, with a double of the gateway on real sockets."""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from support.agent_gateway import GatewayDouble, Scripted, answers, same_bytes
from support.constants import command_with_constants
from support.gateway import OpensslKey
from support.sluice_process import SluiceProcess

from sluice_agent.sending.signing_key import make_key
from sluice_agent.settings import AgentSettings
from sluice_cli.main import run

ARGS = ("--host-metrics-s", "0")
QUICK_END = "sluice_agent.settings:AgentSettings.drain_s=0.2"
QUICK_PIPE_END = "sluice_agent.settings:AgentSettings.pipe_drain_s=0.2"


Key = tuple[Path, dict[str, OpensslKey]]


def sluice(*args: str, stdin: bytes | None = None) -> tuple[int, Any, str]:
    """Run one command line in this process; return its exit code, its output and its log."""
    out, log = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile("w+b") as given:
        given.write(stdin or b"")
        given.seek(0)
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(log),
        ):
            patch.setattr(sys, "stdin", given)
            patch.chdir(empty)  # without the settings file of the working directory
            code = run([*args, "--json"])
    structlog.reset_defaults()
    return code, json.loads(out.getvalue() or "{}"), log.getvalue()


@pytest.fixture
def key(tmp_path: Path) -> Key:
    made = make_key(tmp_path / "key.pem")
    public = Ed25519PublicKey.from_public_bytes(bytes(made.key.verify_key))
    return tmp_path / "key.pem", {made.key_id: OpensslKey(public)}


def test_forward_ships_every_line_signed(
    tmp_path: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe's lines are accepted byte for byte, in order, with valid signatures."""
    monkeypatch.setattr(AgentSettings, "batch_bytes", 50_000)
    path, keys = key
    lines = [f"2026-11-21T02:00:00Z line {n}".encode() for n in range(5000)]
    with GatewayDouble(keys=keys) as gateway:
        code, printed, log = sluice(
            "forward", "--gateway", gateway.url, "--key", str(path), "--spool", str(tmp_path / "s"),
            "--durability", "accepted", "--agent-id", "host-1",
            stdin=b"\n".join(lines),
        )  # fmt: skip
        assert (code, printed["sealed_records"], printed["waiting"]) == (0, 5000, 0), log
        assert gateway.bodies() == lines
        assert gateway.problems == []
        assert all(f.envelope.agent_id == "host-1" for f in gateway.frames())


def test_once_ships_files_and_continues_where_it_stopped(tmp_path: Path, key: Key) -> None:
    """A second run sends what was appended since, and nothing twice."""
    path, keys = key
    log = tmp_path / "app.log"
    log.write_bytes(b"one\ntwo\n")
    with GatewayDouble(keys=keys) as gateway:
        args = (
            "agent", "run", "--once", "--gateway", gateway.url, "--key", str(path),
            "--spool", str(tmp_path / "s"), "--paths", str(tmp_path / "*.log"), *ARGS,
        )  # fmt: skip
        assert sluice(*args)[0] == 0
        with log.open("ab") as file:
            file.write(b"three\n")
        assert sluice(*args)[0] == 0
        assert sorted(gateway.bodies()) == sorted([b"one", b"two", b"three"])


def test_fails_over_when_one_gateway_is_unreachable(tmp_path: Path, key: Key) -> None:
    """With one of two gateways unreachable everything is accepted."""
    path, keys = key
    with GatewayDouble(keys=keys) as gateway:
        code, printed, log = sluice(
            "forward", "--gateway", f"http://127.0.0.1:9,{gateway.url}", "--key", str(path),
            "--spool", str(tmp_path / "s"), "--durability", "accepted", stdin=b"a\nb\n",
        )  # fmt: skip
        assert (code, printed["waiting"]) == (0, 0), log
        assert gateway.bodies() == [b"a", b"b"]


def test_conflict_is_parked_listed_and_sent_again(tmp_path: Path) -> None:
    """409 parks the batch with its reason; `parked retry` sends the same bytes again."""
    spool = str(tmp_path / "s")
    args = ("forward", "--spool", spool, "--durability", "accepted")
    with GatewayDouble(script=answers((409, "identity_conflict"))) as gateway:
        code, printed, _ = sluice(*args, "--gateway", gateway.url, stdin=b"a\n")
        assert (code, printed["parked"], printed["waiting"]) == (1, 1, 0)
        code, parked, _ = sluice("agent", "parked", "list", "--spool", spool)
        assert code == 1
        assert [(p["reason"], p["status"]) for p in parked] == [("identity_conflict", 409)]
        assert sluice("agent", "parked", "retry", parked[0]["name"], "--spool", spool)[0] == 0
        assert sluice(*args, "--gateway", gateway.url, stdin=b"")[0] == 0
        assert gateway.bodies() == [b"a"]
        assert same_bytes(gateway.seen)
        assert gateway.seen[-1].headers["sluice-retry"] == "1"


def test_a_refusal_stops_uploads_and_keeps_the_batch(tmp_path: Path) -> None:
    """401 ends `forward --durability accepted` with an error; the batch remains."""
    spool = str(tmp_path / "s")
    args = ("forward", "--spool", spool, "--durability", "accepted")
    with GatewayDouble(script=answers((401, "unauthenticated"))) as gateway:
        code, _, log = sluice(*args, "--gateway", gateway.url, stdin=b"a\n")
        assert code == 1
        assert "gateway refuses this agent" in log
        assert sluice(*args, "--gateway", gateway.url, stdin=b"")[0] == 0
        assert gateway.bodies() == [b"a"]


def test_a_lost_response_sends_the_same_bytes(tmp_path: Path) -> None:
    """A reset after the batch was accepted sends the same bytes again, marked as a retry."""
    script = [Scripted(drop=True, apply=True), Scripted(503, "outcome_unknown"), None]
    with GatewayDouble(script=lambda n, _: script[min(n, 2)]) as gateway:
        code, _, log = sluice(
            "forward", "--gateway", gateway.url, "--spool", str(tmp_path / "s"),
            "--durability", "accepted", stdin=b"a\n",
        )  # fmt: skip
        assert code == 0, log
        assert same_bytes(gateway.seen)
        assert [s.headers.get("sluice-retry") for s in gateway.seen] == [None, "1", "1"]
        assert all(s.headers["sluice-high-water"] == "0" for s in gateway.seen)


def test_batches_of_a_killed_forward_are_sent_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it ran concurrently with another one, in a slot other than the first."""
    monkeypatch.setattr(AgentSettings, "pipe_drain_s", 0.2)
    spool = tmp_path / "s"
    args = ("forward", "--spool", str(spool), "--gateway")
    assert sluice(*args, "http://127.0.0.1:9", stdin=b"left\n")[1]["waiting"] == 1
    (spool / "00").rename(spool / "07")
    with GatewayDouble() as gateway:
        assert sluice(*args, gateway.url, stdin=b"new\n")[1]["waiting"] == 0
        assert sorted(gateway.bodies()) == [b"left", b"new"]


def test_settings_are_read_from_a_file_and_unknown_keys_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table `agent.run` of the settings file contains the options of `sluice agent run`."""
    (tmp_path / "app.log").write_bytes(b"one\n")
    config = tmp_path / "sluice.toml"
    monkeypatch.setenv("SLUICE_CONFIG", str(config))
    with GatewayDouble() as gateway:
        table = (
            f'[agent.run]\ngateway = "{gateway.url}"\npaths = ["{tmp_path}/*.log"]\n'
            f'spool = "{tmp_path}/s"\nhost_metrics_s = 0\nonce = true\n'
            'resource = ["service.name=shop"]\n'
        )
        config.write_text(table)
        code, printed, log = sluice("agent", "run")
        assert (code, printed["sealed_records"]) == (0, 1), log
        assert ("service.name", "shop") in gateway.frames()[0].envelope.resource
        config.write_text(table + "no_such_key = 1\n")
        assert sluice("agent", "run")[0] == 2


def test_an_unwritable_spool_is_reported(tmp_path: Path) -> None:
    """A spool that cannot be created is reported before any input is read."""
    (tmp_path / "file").write_bytes(b"")
    code, _, log = sluice(
        "forward", "--gateway", "http://127.0.0.1:9", "--spool", str(tmp_path / "file" / "s"),
        stdin=b"a\n",
    )  # fmt: skip
    assert code == 1
    assert "cannot write spool" in log


def test_sigterm_ends_within_the_drain_time(tmp_path: Path) -> None:
    """With all gateways unreachable the agent stops in time; its batches remain in the spool."""
    (tmp_path / "app.log").write_bytes(b"one\ntwo\n")
    args = (
        *command_with_constants(QUICK_END), "agent", "run", "--gateway", "http://127.0.0.1:9",
        "--spool", str(tmp_path / "s"), "--paths", str(tmp_path / "app.log"),
        "--json", *ARGS,
    )  # fmt: skip
    agent = SluiceProcess(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 20
    while not list((tmp_path / "s").glob("ready/*.batch")) and time.monotonic() < until:
        time.sleep(0.02)
    agent.terminate()
    out, _ = agent.communicate(timeout=20)
    assert agent.returncode == 0
    assert json.loads(out)["waiting"] == 1


@pytest.mark.long
def test_a_full_spool_blocks_the_pipe_until_sigterm(tmp_path: Path) -> None:
    """`forward` reads no more than the spool has room for, and still stops on SIGTERM."""
    args = (
        *command_with_constants(QUICK_PIPE_END), "forward", "--gateway", "http://127.0.0.1:9",
        "--spool", str(tmp_path / "s"), "--spool-bytes", str(20 << 20),
        "--json",
    )  # fmt: skip
    agent = SluiceProcess(
        args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert agent.stdin is not None
    os.set_blocking(agent.stdin.fileno(), False)
    taken, quiet_s = 0, 0.0
    while quiet_s < 5:
        line = random.Random(taken).randbytes(5_000).hex().encode() + b"\n"
        try:
            taken += os.write(agent.stdin.fileno(), line)
            quiet_s = 0
        except BlockingIOError:
            time.sleep(0.05)
            quiet_s += 0.05 if list(tmp_path.glob("s/00/ready/*.batch")) else 0
    agent.terminate()
    out, _ = agent.communicate(timeout=30)
    printed = json.loads(out)
    held = sum(path.stat().st_size for path in (tmp_path / "s" / "00" / "ready").iterdir())
    assert held <= 20 << 20
    assert taken > 1000 * printed["sealed_records"] > 0
    assert agent.returncode == 0
