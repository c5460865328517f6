"""Starts, watches and stops the demonstration's own processes, and runs single commands."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SLUICE = [sys.executable, "-m", "sluice_cli"]


class DemoFailed(Exception):
    """Something did not hold; the message says what and where to look."""


@dataclass(slots=True, kw_only=True)
class Processes:
    """Every process that the demonstration started; it ends only those.

    Attributes:
        folder: Where each process's log goes.
        env: The environment of every command.
    """

    folder: Path
    env: dict[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> None:
        """Starts `sluice <arguments>`; its output goes to `<name>.log`."""
        log = (self.folder / f"{name}.log").open("ab")
        self.running[name] = subprocess.Popen(  # noqa: S603 - our own command
            [*SLUICE, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env
        )

    def kill(self, name: str) -> None:
        """Ends a process as a power cut would."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self, name: str, limit_s: float = 60) -> None:
        """Ends a process as an operator would, and demands exit code 0."""
        process = self.running.pop(name)
        process.terminate()
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise DemoFailed(f"{name} did not stop within {limit_s} s: see {name}.log") from None
        if code != 0:
            raise DemoFailed(f"{name} ended with exit code {code}: see {self.folder / name}.log")

    def stop_all(self) -> None:
        """Ends whatever still runs."""
        for name in list(self.running):
            self.running.pop(name).kill()

    def check_alive(self) -> None:
        """Raises when a process has ended by itself."""
        for name, process in self.running.items():
            if process.poll() is not None:
                log = self.folder / f"{name}.log"
                raise DemoFailed(f"{name} ended by itself, code {process.returncode}: see {log}")

    def run(self, *arguments: str, expect: int = 0, stdin: bytes = b"") -> bytes:
        """Runs `sluice <arguments>` to its end and gives what it printed."""
        done = subprocess.run(  # noqa: S603 - our own command
            [*SLUICE, *arguments], input=stdin, capture_output=True, check=False, env=self.env
        )
        if done.returncode != expect:
            said = done.stderr.decode(errors="replace")[-2000:]
            command = " ".join(arguments)
            raise DemoFailed(f"`sluice {command}` ended with {done.returncode}: {said}")
        return done.stdout

    def run_json(self, *arguments: str, expect: int = 0) -> Any:  # noqa: ANN401 - any JSON
        """Runs `sluice <arguments> --json` and gives the document it printed."""
        return json.loads(self.run(*arguments, "--json", expect=expect))


def free_port() -> int:
    """Takes a free port from the system."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """Tells whether a service answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own URL
            status: int = answer.status
            return status == 200  # noqa: PLR2004 - RFC 9110
    except (urllib.error.URLError, OSError):
        return False


def wait_until(what: str, done: Callable[[], bool], processes: Processes, limit_s: float) -> None:
    """Waits for something to hold, while every process stays alive.

    Raises:
        DemoFailed: It did not hold in time, or a process ended.
    """
    end_s = time.monotonic() + limit_s  # noqa: TID251 - a person's own clock, nothing is decided
    while not done():
        processes.check_alive()
        if time.monotonic() > end_s:  # noqa: TID251
            raise DemoFailed(f"waited {limit_s:.0f} s in vain: {what}; logs: {processes.folder}")
        time.sleep(0.1)


def environment(folder: Path) -> dict[str, str]:
    """Gives the environment of every command: this interpreter, and settings of nobody else."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLUICE_")}
    own = {
        "PYSPARK_PYTHON": sys.executable,
        "SLUICE_CONFIG": str(folder / "sluice.toml"),
        "XDG_STATE_HOME": str(folder / "state"),  # the auditor's key stays with the demonstration
    }
    return {**kept, **own}
