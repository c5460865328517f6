"""Two versions of the product: this checkout, and the previous release out of its history."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.local_deployment import clean_environment, is_ready
from support.store_versitygw import free_port
from support.watched_process import run_watched

ROOT = Path(__file__).parents[2]
PREVIOUS = "0a32873"
"""The commit of the previous release; a tag from the first release on."""
UNCHANGED_S = 180.0
"""Time without a change after which a test stops to wait."""


@dataclass(frozen=True)
class Version:
    """One version of the product.

    Attributes:
        name: `old` or `new`.
        path: Its checkout.
    """

    name: str
    path: Path

    def environment(self) -> dict[str, str]:
        """Return an environment in which Python imports this version only."""
        components = sorted(one.parent.parent for one in self.path.glob("*/sluice_*/__init__.py"))
        return clean_environment(PYTHONPATH=os.pathsep.join(map(str, dict.fromkeys(components))))

    def start(self, folder: Path, *words: str) -> subprocess.Popen[bytes]:
        """Start a service; its log is in the folder."""
        with (folder / f"{self.name}-{words[0]}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sluice_cli", *words],
                cwd=folder,
                env=self.environment(),
                stdout=log,
                stderr=log,
            )

    def call(self, folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return run_watched(
            [sys.executable, "-m", "sluice_cli", *words],
            cwd=folder,
            env=self.environment(),
            stdin=stdin,
        )

    def run(self, folder: Path, *words: str, stdin: str = "") -> str:
        """Run a command to its end, which must succeed, and return its output."""
        done = self.call(folder, *words, stdin=stdin)
        assert done.returncode == 0, f"{self.name} {words}: {done.stdout}{done.stderr}"
        return done.stdout


NEW = Version("new", ROOT)


def check_out_previous(folder: Path) -> Version:
    """Return the previous release, or skip the test where the history does not contain it."""
    git = shutil.which("git")
    known = git and subprocess.run(
        [git, "cat-file", "-e", f"{PREVIOUS}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if not known or known.returncode != 0:
        pytest.skip(f"the history of this checkout does not contain {PREVIOUS}")
    archive = folder / "old.tar"
    subprocess.run(
        [str(git), "archive", f"--output={archive}", PREVIOUS], cwd=ROOT, check=True, timeout=60
    )
    with tarfile.open(archive) as files:
        files.extractall(folder / "checkout", filter="data")
    return Version("old", folder / "checkout")


def init_store(version: Version, folder: Path) -> None:
    """Create a store in the folder, with the key of a sender."""
    version.run(folder, "init", "--lanes", "2")
    entry = version.run(folder, "agent", "init", "--agent-id", "sender", "--key", "k.pem")
    (folder / "principals.toml").write_text(entry)


def start_services(
    version: Version, folder: Path
) -> tuple[str, str, list[subprocess.Popen[bytes]]]:
    """Start a gateway and a reconciler; return their addresses and processes."""
    gateway, reconciler = (f"127.0.0.1:{free_port()}" for _ in range(2))
    processes = [
        version.start(folder, "gateway", "--listen", gateway, "--collector-id", version.name),
        version.start(folder, "reconciler", "--listen", reconciler),
    ]
    return gateway, reconciler, processes


def stop_services(processes: list[subprocess.Popen[bytes]]) -> None:
    """Stop services in order."""
    for process in processes:
        process.terminate()
        assert process.wait(UNCHANGED_S) == 0


def wait_for_value(read: Callable[[], object], wanted: object, what: str) -> None:
    """Wait until a value is the wanted one; the limit starts again with each change."""
    seen, changed_at_s = read(), time.monotonic()
    while seen != wanted:
        assert time.monotonic() - changed_at_s < UNCHANGED_S, f"{what} is {seen}, not {wanted}"
        time.sleep(0.5)
        before, seen = seen, read()
        if seen != before:
            changed_at_s = time.monotonic()


def wait_ready(
    addresses: list[str], processes: list[subprocess.Popen[bytes]], folder: Path
) -> None:
    """Wait until every service is ready."""

    def ready() -> set[str]:
        logs = "".join(one.read_text()[-2000:] for one in folder.glob("*.log"))
        assert all(one.poll() is None for one in processes), f"a service has ended\n{logs}"
        return {one for one in addresses if is_ready(one)}

    wait_for_value(ready, set(addresses), "the list of ready services")


def send_line(version: Version, folder: Path, gateway: str, line: str, *options: str) -> None:
    """Send one line with the agent of a version until a gateway has accepted it."""
    version.run(folder, *forward_words(gateway), *options, stdin=line + "\n")


def forward_words(*gateways: str) -> tuple[str, ...]:
    """Return the command that sends standard input until gateways have accepted it."""
    urls = ",".join(f"http://{one}" for one in gateways)
    sender = ("--agent-id", "sender", "--key", "k.pem")
    return ("forward", *sender, "--durability", "accepted", "--gateway", urls)


def found_lines(version: Version, folder: Path) -> list[str]:
    """Return each line that a query finds, as often as it finds it."""
    shown = version.run(folder, "query", "--from", "1h", "-q", "line-", "--json")
    return sorted(re.findall(r"line-[a-z-]+end", shown))


def wait_found(version: Version, folder: Path, lines: set[str]) -> None:
    """Wait until a query finds each line, exactly once."""
    wait_for_value(
        lambda: found_lines(version, folder), sorted(lines), f"what {version.name} finds"
    )
