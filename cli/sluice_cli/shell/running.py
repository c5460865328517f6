"""Deployments of `sluice up` that run on this machine, so that commands find their store.

Each writes one small file into a folder of its user. The file of a process that no longer exists,
or whose number another process has now, counts as absent.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STATE_DIR: Final = Path("~/.local/state")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDeployment:
    """One deployment: its process, its store, and the `HOST:PORT` of each of its services."""

    pid: int
    store: str
    addresses: Mapping[str, str]


def announce(deployment: RunningDeployment) -> Path:
    """Write the file of a deployment, readable by its user only; return its path."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{deployment.pid}.json"
    state = {
        "pid": deployment.pid,
        "started": _started(deployment.pid),
        "store": deployment.store,
        "addresses": dict(deployment.addresses),
    }
    part = path.with_suffix(".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(state, file)
    part.replace(path)
    return path


def find_running() -> list[RunningDeployment]:
    """Return the deployments of this user that run, the latest first; remove files of others."""
    found: list[RunningDeployment] = []
    paths = [(path.stat().st_mtime_ns, path) for path in _folder().glob("*.json")]
    for _, path in sorted(paths):
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            one = RunningDeployment(
                pid=int(state["pid"]),
                store=str(state["store"]),
                addresses={str(name): str(at) for name, at in state["addresses"].items()},
            )
            started = _started(one.pid)
            runs = path.stat().st_uid == os.getuid() and started == state["started"] != ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            runs = False
        if runs:
            found.insert(0, one)
        else:
            with suppress(OSError):
                path.unlink()
    return found


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime or os.environ.get("XDG_STATE_HOME") or _STATE_DIR.expanduser())
    return base / "sluice" / "running"


def _started(pid: int) -> str:
    """Return what distinguishes a process from a later one with its number; empty without one."""
    try:
        # The name in parentheses may contain spaces; the start is the 20th word after it.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return ""
    try:  # a system without /proc
        os.kill(pid, 0)
    except OSError:
        return ""
    return "exists"
