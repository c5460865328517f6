"""The wheel without the checkout: size and start of the agent, completion, and `sluice up`."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.completion_shells import complete_in_bash, complete_in_fish, complete_in_zsh
from support.local_deployment import clean_environment, free_ports

from sluice_protocol.distribution import DISTRIBUTION, install_command

pytestmark = pytest.mark.package

AGENT_MB_MAX = 110
"""The install of the agent alone: numpy has 59 MB of it, cryptography 15, aiohttp 7."""
AGENT_RATIO_MAX = 2.1
"""CPU time of the agent's start, as a ratio to the imports that it cannot do without."""
HELP_RATIO_MAX = 0.15
IDLE_MB_MAX = 64
"""Resident memory of an agent that waits for lines: numpy has 11 MB of it, aiohttp 9."""
IDLE_S = 3
CONTROL = ("-c", "import aiohttp, cryptography, backports.zstd")
ROUNDS = 5


def run(*words: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(wheel: Path, folder: Path, extras: str = "") -> Path:
    """Install the wheel into an empty environment; return its folder of programs."""
    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--python", sys.executable, folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    # Compiled, as pip installs it.
    options = ("--compile-bytecode", "--python", python)
    run(uv, "pip", "install", *options, f"{DISTRIBUTION}{extras} @ file://{wheel}", cwd=folder)
    return python.parent


@pytest.fixture(scope="session")
def agent(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("agent"))


def test_the_agent_alone_is_small(agent: Path) -> None:
    (packages,) = (agent.parent / "lib").glob("python*/site-packages")
    size = sum(
        one.stat().st_size
        for one in packages.rglob("*")
        if one.is_file() and "__pycache__" not in one.parts
    )
    print(f"agent-only install: {size / 1e6:.0f} MB")
    assert size / 1e6 <= AGENT_MB_MAX


def cpu_seconds(*words: str | Path, cwd: Path, until: bytes = b"") -> float:
    """Return the CPU time of a program, until it ends or prints a line with these bytes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(
        [str(word) for word in words],
        cwd=cwd,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if until and until in line:
                process.kill()
                break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_agent_and_the_help_start_quickly(agent: Path, tmp_path: Path) -> None:
    run(agent / "sluice", "agent", "init", "--key", "k.pem", "--agent-id", "a", cwd=tmp_path)
    start = (
        *("agent", "run", "--gateway", "http://127.0.0.1:1", "--agent-id", "a"),
        *("--key", "k.pem", "--paths", "in/*", "--spool", "spool"),
    )
    control, ready, shown = [], [], []
    for _ in range(ROUNDS):  # interleaved, so that the load of the machine is the same for all
        control.append(cpu_seconds(agent / "python", *CONTROL, cwd=tmp_path))
        ready.append(cpu_seconds(agent / "sluice", *start, cwd=tmp_path, until=b"agent_started"))
        shown.append(cpu_seconds(agent / "sluice", "--help", cwd=tmp_path))
    agent_s, help_s, control_s = min(ready), min(shown), min(control)
    print(
        f"control {control_s:.3f} s, agent {agent_s:.3f} s ({agent_s / control_s:.2f}),"
        f" help {help_s:.3f} s ({help_s / control_s:.2f})"
    )
    assert agent_s / control_s <= AGENT_RATIO_MAX
    assert help_s / control_s <= HELP_RATIO_MAX


def resident_mb(pid: int | str) -> float:
    """Return the resident memory of a process."""
    (line,) = (
        one
        for one in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        if one.startswith("VmRSS:")
    )
    return int(line.split()[1]) * 1024 / 1e6


def test_an_idle_agent_is_small(agent: Path, tmp_path: Path) -> None:
    run(agent / "sluice", "agent", "init", "--key", "k.pem", "--agent-id", "a", cwd=tmp_path)
    (tmp_path / "one.log").write_text("a line\n")
    words = (
        *("agent", "run", "--gateway", "http://127.0.0.1:1", "--agent-id", "a"),
        *("--key", "k.pem", "--paths", "*.log", "--spool", "spool"),
    )
    script = f"{CONTROL[1]}; print(open('/proc/self/status').read())"
    shown = run(agent / "python", "-c", script, cwd=tmp_path)
    (control,) = (one.split()[1] for one in shown.splitlines() if one.startswith("VmRSS:"))
    with subprocess.Popen(
        [agent / "sluice", *words],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stderr is not None
            while b"agent_started" not in process.stderr.readline():
                assert process.poll() is None
            time.sleep(IDLE_S)  # it has read the line, and a gateway has refused the batch
            mb = resident_mb(process.pid)
        finally:
            process.kill()
    print(f"idle agent {mb:.1f} MB, {mb / (int(control) * 1024 / 1e6):.2f} of the control")
    assert mb <= IDLE_MB_MAX


COMPLETIONS = {"bash": complete_in_bash, "zsh": complete_in_zsh, "fish": complete_in_fish}


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_each_shell_completes_commands_and_options(agent: Path, shell: str, tmp_path: Path) -> None:
    """With the script of the agent's install, whose commands are those without an extra."""
    script = tmp_path / "sluice"
    script.write_text(run(agent / "sluice", "completion", shell, cwd=tmp_path))
    complete = COMPLETIONS[shell]
    assert complete(script, "sluice", "quer") == ["query"]
    assert complete(script, "sluice", "gc", "cyc") == ["cycle"]
    assert complete(script, "sluice", "agent", "run", "--spool-b") == ["--spool-bytes"]


def test_up_without_its_packages_is_one_line(agent: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [agent / "sluice", "up"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert install_command("up") in done.stderr
    assert done.stderr.count("\n") == 1


def test_up_from_the_wheel_finds_a_line(wheel: Path, tmp_path: Path) -> None:
    """The whole product except Spark, whose package is 400 MB: it is off, with a note."""
    programs = install(wheel, tmp_path, "[doors,gateway,query]")
    folder = tmp_path / "empty"
    folder.mkdir()
    path = f"{programs}:{os.environ['PATH']}"
    with subprocess.Popen(
        [programs / "sluice", "up", "--json", *free_ports()],
        cwd=folder,
        env=clean_environment(PATH=path),
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            state = json.loads(process.stdout.readline())
            assert "maintain is off" in state["notes"][0]
            steps = state["first_steps"]
            run("bash", "-c", steps["send a line"], cwd=folder, PATH=path)
            started_s = time.monotonic()
            while "hello sluice" not in run("bash", "-c", steps["search"], cwd=folder, PATH=path):
                assert time.monotonic() - started_s < 15
        finally:
            process.terminate()
        assert process.wait(10) == 0
