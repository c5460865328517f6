"""Old and new processes on one store at the same time, in both directions of an upgrade."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.local_deployment import clean_environment, is_ready
from support.store_versitygw import free_port

ROOT = Path(__file__).parents[3]
PREVIOUS = "0a32873"
"""The commit of the previous release; a tag from the first release on."""
START_S = 90.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


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
        components = sorted(one.parent.parent for one in self.path.glob("*/sluice_*/__init__.py"))
        return clean_environment(PYTHONPATH=os.pathsep.join(map(str, dict.fromkeys(components))))

    def start(self, folder: Path, *words: str) -> subprocess.Popen[bytes]:
        with (folder / f"{self.name}-{words[0]}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sluice_cli", *words],
                cwd=folder,
                env=self.environment(),
                stdout=log,
                stderr=log,
            )

    def run(self, folder: Path, *words: str, stdin: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "sluice_cli", *words],
            cwd=folder,
            env=self.environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{self.name} {words}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Version:
    folder = tmp_path_factory.mktemp("old")
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


NEW = Version("new", ROOT)


@pytest.fixture
def folder(tmp_path: Path, old: Version) -> Path:
    """A store that the old version created, with the key of a sender."""
    old.run(tmp_path, "init", "--lanes", "2")
    entry = old.run(tmp_path, "agent", "init", "--agent-id", "sender", "--key", "k.pem")
    (tmp_path / "principals.toml").write_text(entry)
    return tmp_path


def start_services(
    version: Version, folder: Path
) -> tuple[str, str, list[subprocess.Popen[bytes]]]:
    gateway, reconciler = (f"127.0.0.1:{free_port()}" for _ in range(2))
    processes = [
        version.start(folder, "gateway", "--listen", gateway, "--collector-id", version.name),
        version.start(folder, "reconciler", "--listen", reconciler),
    ]
    return gateway, reconciler, processes


def wait_ready(addresses: list[str], folder: Path) -> None:
    end_s = time.monotonic() + START_S
    while not all(is_ready(one) for one in addresses):
        logs = "".join(one.read_text()[-2000:] for one in folder.glob("*.log"))
        assert time.monotonic() < end_s, logs
        time.sleep(0.2)


def send(version: Version, folder: Path, gateway: str, line: str) -> None:
    version.run(
        folder,
        *("forward", "--agent-id", "sender", "--key", "k.pem", "--durability", "accepted"),
        *("--gateway", f"http://{gateway}"),
        stdin=line + "\n",
    )


def wait_found(version: Version, folder: Path, lines: set[str]) -> None:
    end_s = time.monotonic() + 60
    found: set[str] = set()
    while found != lines:
        assert time.monotonic() < end_s, f"{version.name} does not find {lines - found}"
        shown = version.run(folder, "query", "--from", "1h", "-q", "line-", "--json")
        found = set(re.findall(r"line-[a-z-]+end", shown))


def test_old_and_new_processes_work_on_one_store(folder: Path, old: Version) -> None:
    running: list[subprocess.Popen[bytes]] = []
    try:
        old_gateway, old_reconciler, started = start_services(old, folder)
        running += started
        new_gateway, new_reconciler, started = start_services(NEW, folder)
        running += started
        wait_ready([old_gateway, old_reconciler, new_gateway, new_reconciler], folder)
        lines = set()
        for sender in (old, NEW):
            for name, gateway in (("old", old_gateway), ("new", new_gateway)):
                line = f"line-{sender.name}-to-{name}-end"
                send(sender, folder, gateway, line)
                lines.add(line)
        for reader in (old, NEW):
            wait_found(reader, folder, lines)
        # Roll back: the new processes stop, and the old ones continue with what they left.
        for process in running[2:]:
            process.terminate()
            assert process.wait(60) == 0
        send(NEW, folder, old_gateway, "line-after-rollback-end")
        wait_found(old, folder, lines | {"line-after-rollback-end"})
    finally:
        for process in running:
            process.kill()
            process.wait()
    for version in (old, NEW):
        assert "0 differences" in version.run(folder, "rebuild", "--verify")
