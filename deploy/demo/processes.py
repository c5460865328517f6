"""Start, monitor and stop the processes of the demonstration, and run single commands."""

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
    """A check of the demonstration failed; the message contains the reason."""


@dataclass(slots=True, kw_only=True)
class Processes:
    """The processes that the demonstration started; it ends no others."""

    folder: Path
    env: dict[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> None:
        """Start `sluice <arguments>` with its output in `<name>.log`."""
        log = (self.folder / f"{name}.log").open("ab")
        self.running[name] = subprocess.Popen(  # noqa: S603 - a fixed command
            [*SLUICE, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env
        )

    def kill(self, name: str) -> None:
        """End a process immediately with SIGKILL."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self, name: str, limit_s: float = 60) -> None:
        """End a process with SIGTERM and require exit code 0."""
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
        """Kill all remaining processes."""
        for name in list(self.running):
            self.running.pop(name).kill()

    def check_alive(self) -> None:
        """Raise an error if a process exited unexpectedly."""
        for name, process in self.running.items():
            if process.poll() is not None:
                log = self.folder / f"{name}.log"
                raise DemoFailed(
                    f"{name} exited unexpectedly, code={process.returncode}: see {log}"
                )

    def run(self, *arguments: str, expect: int = 0, stdin: bytes = b"") -> bytes:
        """Run `sluice <arguments>` until it exits and return its output."""
        done = subprocess.run(  # noqa: S603 - a fixed command
            [*SLUICE, *arguments], input=stdin, capture_output=True, check=False, env=self.env
        )
        if done.returncode != expect:
            stderr = done.stderr.decode(errors="replace")[-2000:]
            command = " ".join(arguments)
            raise DemoFailed(f"`sluice {command}` exited with code {done.returncode}: {stderr}")
        return done.stdout

    def run_json(self, *arguments: str, expect: int = 0) -> Any:  # noqa: ANN401 - any JSON
        """Run `sluice <arguments> --json` and return the printed document."""
        return json.loads(self.run(*arguments, "--json", expect=expect))


def free_port() -> int:
    """Return a free port of the system."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_ready(url: str) -> bool:
    """Return True if the service responds with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - a local URL
            status: int = response.status
            return status == 200  # noqa: PLR2004 - RFC 9110
    except (urllib.error.URLError, OSError):
        return False


def wait_until(what: str, done: Callable[[], bool], processes: Processes, limit_s: float) -> None:
    """Wait until a condition is true, while every process stays alive.

    A process that exits, or the limit, raises `DemoFailed`.
    """
    end_s = time.monotonic() + limit_s  # noqa: TID251 - a timeout of the demonstration only
    while not done():
        processes.check_alive()
        if time.monotonic() > end_s:  # noqa: TID251
            raise DemoFailed(f"timeout after {limit_s:.0f} s: {what}; logs: {processes.folder}")
        time.sleep(0.1)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of every command, without the user's `SLUICE_` settings."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLUICE_")}
    own = {
        "PYSPARK_PYTHON": sys.executable,
        "SLUICE_CONFIG": str(folder / "sluice.toml"),
        "XDG_STATE_HOME": str(
            folder / "state"
        ),  # the auditor's key is stored with the demonstration
    }
    return {**kept, **own}
