"""The agent's doors, killed with SIGKILL at random points: a client repeats what had no answer."""

import json
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from http.client import HTTPException
from pathlib import Path

import pytest
from support.agent_gateway import GatewayDouble
from support.store_versitygw import free_port

TIME_NS = 1_790_000_000_000_000_000
LINES = 20
REPEATED_S = 60


class Sender(threading.Thread):
    """Sends requests in order, each until it is answered with a success."""

    def __init__(self, port: int, requests: int) -> None:
        super().__init__(daemon=True)
        self.url = f"http://127.0.0.1:{port}/v1/ingest"
        self.requests = requests
        self.accepted: list[bytes] = []
        self.repeated = 0

    def run(self) -> None:
        for number in range(self.requests):
            lines = [f"request {number} line {line}" for line in range(LINES)]
            records = ({"time": TIME_NS + number, "message": line} for line in lines)
            body = "\n".join(map(json.dumps, records)).encode()
            until = time.monotonic() + REPEATED_S
            while not self._sent(body) and time.monotonic() < until:
                self.repeated += 1
                time.sleep(0.02)
            self.accepted += [line.encode() for line in lines]

    def _sent(self, body: bytes) -> bool:
        request = urllib.request.Request(
            self.url, body, headers={"Content-Type": "application/x-ndjson"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException):
            return False


def run(seed: int, kills: int, folder: Path) -> None:
    rng = random.Random(seed)
    print(f"seed={seed}")
    port = free_port()
    with GatewayDouble() as gateway:
        command = [
            sys.executable, "-m", "sluice_cli", "agent", "run", "--spool", str(folder / "s"),
            "--gateway", gateway.url, "--doors", "json", "--doors-listen", f"127.0.0.1:{port}",
            "--host-metrics-s", "0", "--batch-age-s", "0.02",
        ]  # fmt: skip
        sender = Sender(port, requests=30 * kills)
        sender.start()
        for _ in range(kills):
            before = len(sender.accepted)
            agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until = time.monotonic() + 30
            while len(sender.accepted) == before and sender.is_alive() and time.monotonic() < until:
                assert agent.poll() is None
                time.sleep(0.01)
            time.sleep(rng.random() * 0.3)
            agent.kill()
            agent.wait()
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as agent:
            sender.join(REPEATED_S)
            assert not sender.is_alive()
            until = time.monotonic() + 30
            while len(gateway.bodies()) < len(sender.accepted) and time.monotonic() < until:
                time.sleep(0.05)
            agent.terminate()
        assert sender.repeated > 0
        assert gateway.problems == []
        assert Counter(gateway.bodies()) == Counter(sender.accepted)


def test_killed_agents_lose_and_double_no_request(tmp_path: Path) -> None:
    run(seed=1, kills=3, folder=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 7))
def test_killed_agents_lose_and_double_no_request_over_many_runs(tmp_path: Path, seed: int) -> None:
    run(seed=seed, kills=12, folder=tmp_path)
