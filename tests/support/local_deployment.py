"""`sluice up` in a folder, as a process that a test starts, uses and stops."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
from support.sluice_process import run_process

PORTS = ("gateway", "otlp_grpc", "forward", "reconciler", "query", "console")
START_S = 120.0


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without settings of sluice."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SLUICE_")}
    return {**kept, **more}


def run_sluice(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate process, with no settings in the environment but these."""
    command = [sys.executable, "-m", "sluice_cli", *words]
    return run_process(command, cwd=folder, env=clean_environment(**env), text=True)


def free_ports(*more: str) -> list[str]:
    """Return the options that select free ports."""
    return [word for name in (*PORTS, *more) for word in ("--port", f"{name}=0")]


@dataclass(slots=True)
class LocalDeployment:
    """A running deployment.

    Attributes:
        folder: The working directory.
        process: The supervisor.
        state: What it printed when it was ready.
        programs: Folder of the program `sluice`.
    """

    folder: Path
    process: subprocess.Popen[bytes]
    state: dict[str, Any]
    programs: Path = Path(sys.executable).parent

    def paste(self, purpose: str) -> str:
        """Run one of the printed commands in a shell and return its output."""
        return self.shell(self.state["first_steps"][purpose])

    def shell(self, commands: str) -> str:
        """Run commands in the folder of the deployment and return their output."""
        done = subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env=clean_environment(PATH=f"{self.programs}:{os.environ['PATH']}"),
        )
        return done.stdout

    def search(self, text: str) -> list[dict[str, Any]]:
        """Search a text over HTTP and return the records."""
        url = f"http://{self.state['addresses']['query']}/v1/query?" + urlencode(
            {"query": f"{{}} |= {json.dumps(text)}"}
        )
        with urllib.request.urlopen(url, timeout=30) as response:
            lines = [json.loads(line) for line in response.read().splitlines()]
        return lines[:-1]

    def wait_found(self, text: str, limit_s: float) -> float:
        """Search until a record is found; return the seconds."""
        started_s = time.monotonic()
        while not self.search(text):
            assert time.monotonic() - started_s < limit_s, f"`{text}` was not found"
            time.sleep(0.1)
        return time.monotonic() - started_s

    def processes(self) -> list[psutil.Process]:
        """Return every process that the supervisor started, and those that they started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def service(self, name: str) -> psutil.Process | None:
        for one in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # it has ended, or is not waited for yet
                words = one.cmdline()
                if "sluice_cli.up.child" in words and words[4] == name:
                    return one
        return None


def is_ready(address: str) -> bool:
    """Return True if a service is ready."""
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_gone(processes: list[psutil.Process], limit_s: float) -> list[psutil.Process]:
    """Wait until the processes have ended; return those that are left."""
    _, left = psutil.wait_procs(processes, timeout=limit_s)
    return [one for one in left if one.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def running(folder: Path, *options: str, **env: str) -> Iterator[LocalDeployment]:
    """Start `sluice up`, wait until it is ready, and stop it at the end of the block."""
    with (folder / "up.err").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluice_cli", "up", "--json", *options],
            cwd=folder,
            env=clean_environment(**env),
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (folder / "up.err").read_text()
        yield LocalDeployment(folder, process, json.loads(line))
    finally:
        stop_deployment(process)
        process.stdout.close()


def stop_deployment(process: subprocess.Popen[bytes]) -> None:
    """Stop a deployment, and kill what is left of it."""
    left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
    for one in wait_gone(left, 20):
        one.kill()
