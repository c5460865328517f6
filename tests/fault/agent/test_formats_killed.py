"""An agent, killed with SIGKILL while programs write: each record once, and whole."""

import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from support.agent_formats import cri
from support.agent_gateway import GatewayDouble
from support.constants import command_with_constants
from support.journalctl import entry, write_journalctl
from support.repetitions import times
from support.sluice_process import SluiceProcess

CONSTANTS = (
    "sluice_agent.settings:AgentSettings.batch_age_s=0.02",
    "sluice_agent.settings:AgentSettings.batch_bytes=20000",
    # A busy machine may take this long between the two writes of a record.
    "sluice_agent.inputs.files:LINE_WAIT_S=10",
    "sluice_agent.inputs.files:GROUP_WAIT_S=20",
)


class Programs:
    """Write traces to a file, parts and traces to the file of a container, and to the journal."""

    def __init__(self, folder: Path, journal: Path, rng: random.Random) -> None:
        self.text = folder / "app.log"
        self.container = folder / "0.log"
        self.journal = journal
        self.rng = rng
        self.records: list[bytes] = []
        for path in (self.text, self.container, self.journal):
            path.write_bytes(b"")

    def write(self) -> None:
        """Append some records to each, in two writes that split a record."""
        count = self.rng.randrange(1, 30)
        self._append(self.text, b"".join(self._trace() + b"\n" for _ in range(count)))
        self._append(self.container, b"".join(self._wrapped() for _ in range(count)))
        number = len(self.records)
        self.records.append(f"message {number}".encode())
        with self.journal.open("ab") as file:
            file.write(entry(number))

    def _append(self, path: Path, data: bytes) -> None:
        cut = self.rng.randrange(len(data))
        for piece in (data[:cut], data[cut:]):
            with path.open("ab") as file:
                file.write(piece)

    def _trace(self) -> bytes:
        number = len(self.records)
        frames = [
            f"\tat A.b(A.java:{self.rng.randrange(99)})" for _ in range(self.rng.randrange(5))
        ]
        lines = [f"2026-11-28 10:00:00 ERROR {number}"]
        lines += [f"java.lang.Error: {number}", *frames] if frames else []
        self.records.append("\n".join(lines).encode())
        return self.records[-1]

    def _wrapped(self) -> bytes:
        trace = self._trace().decode().split("\n")
        stream = self.rng.choice(["stdout", "stderr"])
        other = "stderr" if stream == "stdout" else "stdout"
        lines = []
        for text in trace:
            cut = self.rng.randrange(len(text))
            lines += [cri(stream, "P", text[:cut]), cri(stream, "F", text[cut:])]
        self.records.append(f"between {len(self.records)}".encode())
        lines.insert(self.rng.randrange(len(lines)), cri(other, "F", self.records[-1].decode()))
        return b"".join(lines)


def run(seed: int, runs: int, folder: Path) -> None:
    rng = random.Random(seed)
    print(f"seed={seed}")
    programs, journal = write_journalctl(folder)
    writer = Programs(folder, journal, rng)
    with GatewayDouble() as gateway:
        command = [
            *command_with_constants(*CONSTANTS), "agent", "run", "--spool", str(folder / "s"),
            "--gateway", gateway.url, "--paths", str(folder / "*.log"), "--journal",
            "--host-metrics-s", "0",
        ]  # fmt: skip
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        for _ in range(runs):
            _one_run(command, environment, writer, gateway)
        subprocess.run(
            [*command, "--once"], env=environment, check=True, capture_output=True, timeout=180
        )
        assert gateway.problems == []
        assert Counter(gateway.bodies()) == Counter(writer.records)


def _one_run(
    command: list[str], environment: dict[str, str], writer: Programs, gateway: GatewayDouble
) -> None:
    """Start an agent, give it input, and kill it at a random time."""
    writer.write()
    seen = len(gateway.seen)
    agent = SluiceProcess(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 20
        while len(gateway.seen) == seen and time.monotonic() < until:
            assert agent.poll() is None
            time.sleep(0.01)
        for _ in range(writer.rng.randrange(1, 12)):
            writer.write()
            time.sleep(writer.rng.random() * 0.08)
    finally:
        agent.kill()
        agent.wait()


@pytest.mark.long
def test_killed_agents_send_each_record_once_and_whole(tmp_path: Path) -> None:
    run(seed=1, runs=3, folder=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 2 + times(1)))
def test_killed_agents_send_each_record_once_and_whole_over_many_runs(
    tmp_path: Path, seed: int
) -> None:
    run(seed=seed, runs=12, folder=tmp_path)
