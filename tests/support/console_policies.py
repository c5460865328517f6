"""A bucket with the policies of a deployment, whose denials the console proves."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from support.policies_live import ADMIN_PROFILE, settings_file

from sluice_cli.main import run
from sluice_console.settings import PolicySettings

PROOF_MS = 180_000
"""Time of two proofs on a machine that other tests use."""

_Result = TypeVar("_Result")


def in_thread(act: Callable[[], _Result]) -> _Result:
    """Call a function in a thread: the driver of the browser runs a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(act).result()


def applied(folder: Path, endpoint: str) -> PolicySettings:
    """Apply the rendered policies to the bucket."""
    file = settings_file(folder, "aws", tls=True, profiles=False)
    where = ["--settings", str(file), "--endpoint", endpoint, "--profile", ADMIN_PROFILE]
    assert in_thread(lambda: run(["policies", "apply", *where, "--yes", "--json"])) == 0
    return PolicySettings(
        file=str(file), live=True, endpoint=endpoint, profile=ADMIN_PROFILE, prove_s=3.0
    )
