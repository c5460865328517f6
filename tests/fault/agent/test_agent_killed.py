"""The agent, killed with SIGKILL at random points: accepted lines are compared byte for byte."""

import random
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from support.agent_gateway import GatewayDouble, Scripted, Seen, same_bytes
from support.constants import command_with_constants
from support.repetitions import times
from support.sluice_process import SluiceProcess, run_process


class Writer:
    """Writes unique lines into a log and rotates it occasionally."""

    def __init__(self, log: Path, rng: random.Random) -> None:
        self.log = log
        self.rng = rng
        self.lines: list[bytes] = []
        self.rotations = 0
        log.write_bytes(b"")

    def write(self) -> None:
        """Append lines, sometimes in two writes that split a line."""
        count = self.rng.randrange(1, 200)
        new = [
            f"{len(self.lines) + n} {'x' * self.rng.randrange(80)}".encode() for n in range(count)
        ]
        self.lines += new
        data = b"\n".join(new) + b"\n"
        cut = self.rng.randrange(len(data))
        for piece in (data[:cut], data[cut:]):
            with self.log.open("ab") as file:
                file.write(piece)

    def rotate(self) -> None:
        self.rotations += 1
        self.log.rename(self.log.with_name(f"app.log.{self.rotations}"))
        self.log.write_bytes(b"")


SMALL_BATCHES = (
    "sluice_agent.settings:AgentSettings.batch_age_s=0.02",
    "sluice_agent.settings:AgentSettings.batch_bytes=20000",
)


def run(seed: int, runs: int, folder: Path) -> None:
    rng = random.Random(seed)
    print(f"seed={seed}")
    writer = Writer(folder / "app.log", rng)

    def flaky(_: int, __: Seen) -> Scripted | None:
        luck = rng.random()
        if luck < 0.1:
            return Scripted(drop=True, apply=luck < 0.05)
        return Scripted(503, "overloaded") if luck < 0.2 else None

    with GatewayDouble(script=flaky) as first, GatewayDouble(accepted=first.accepted) as second:
        command = [
            *command_with_constants(*SMALL_BATCHES), "agent", "run", "--spool", str(folder / "s"),
            "--gateway", f"{first.url},{second.url}", "--paths", str(folder / "app.log*"),
            "--host-metrics-s", "0",
        ]  # fmt: skip
        for _ in range(runs):
            _one_run(command, writer, (first, second), rng)
        assert run_process([*command, "--once"]).returncode == 0
        assert same_bytes(first.seen + second.seen)
        assert first.problems == second.problems == []
        assert Counter(first.bodies()) == Counter(writer.lines)


def _one_run(
    command: list[str], writer: Writer, gateways: tuple[GatewayDouble, ...], rng: random.Random
) -> None:
    """Start an agent, give it input, and kill it at a random time."""
    writer.write()
    seen = sum(len(gateway.seen) for gateway in gateways)
    agent = SluiceProcess(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while sum(len(g.seen) for g in gateways) == seen and time.monotonic() < until:
            assert agent.poll() is None
            time.sleep(0.01)
        for _ in range(rng.randrange(1, 12)):
            writer.write()
            if rng.random() < 0.2:
                writer.rotate()
            time.sleep(rng.random() * 0.08)
    finally:
        agent.kill()
        agent.wait()


def test_killed_agents_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    """Each line of growing and rotating files is accepted exactly once."""
    run(seed=1, runs=3, folder=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 2 + times(1)))
def test_killed_agents_lose_and_duplicate_nothing_over_many_runs(tmp_path: Path, seed: int) -> None:
    """The same over many runs."""
    run(seed=seed, runs=12, folder=tmp_path)
