"""Fluent Bit with its queue on disk: killed and started again, it sends no line twice."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.agent_gateway import GatewayDouble
from support.client_programs import fluent_bit, line_of
from support.door_fleet import balancing, fleet
from support.store_versitygw import free_port

from sluice_doors.table import DoorName

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]
COUNT = 1_000
ON_DISK_S = 4.0
"""Lines are in a chunk on disk, and their offset in its database, after this time."""
ARRIVED_S = 120.0
OUTPUTS: dict[str, tuple[str, DoorName, tuple[str, ...]]] = {
    "http": ("fluent-bit.conf", "json", ()),
    "forward": ("fluent-bit-forward.conf", "forward", ("--forward-listen", "127.0.0.1:0")),
}


def wait_for(bodies: Callable[[], list[str]], wanted: int) -> None:
    until = time.monotonic() + ARRIVED_S
    while len(set(bodies())) < wanted:
        assert time.monotonic() < until, len(set(bodies()))
        time.sleep(1)


@pytest.mark.parametrize("output", OUTPUTS)
def test_each_line_is_accepted_once(tmp_path: Path, output: str) -> None:
    """Killed with unsent chunks, killed after a response was lost, and stopped cleanly."""
    config, door, flags = OUTPUTS[output]
    folder = tmp_path / "client"
    folder.mkdir()
    with (
        fleet(tmp_path / "fleet", door, flags=flags) as served,
        balancing(served.ports(door)) as balancer,
    ):
        client_side = replace(served, balancer=balancer)
        balancer.reachable = False
        with fluent_bit(client_side, folder, config) as client:
            client.feed(range(COUNT))
            time.sleep(ON_DISK_S)
            client.program.process.kill()
        assert served.bodies() == []
        balancer.reachable, balancer.lost_responses = True, 1
        with fluent_bit(client_side, folder, config) as client:
            until = time.monotonic() + ARRIVED_S
            while balancer.lost_responses:
                assert time.monotonic() < until, client.program.log.read_text(encoding="utf-8")
                time.sleep(0.01)
            client.program.process.kill()
        served.kill()
        with fluent_bit(client_side, folder, config) as client:
            client.feed(range(COUNT, 2 * COUNT))
            wait_for(served.bodies, 2 * COUNT)
            client.stop()
            assert client.errors() == []
        assert Counter(served.bodies()) == Counter(map(line_of, range(2 * COUNT)))


@contextmanager
def killed_agent(*command: object) -> Iterator[None]:
    """Run an agent, and kill it at the end of the block."""
    agent = subprocess.Popen(
        [sys.executable, "-m", "sluice_cli", "agent", "run", *map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
        assert agent.poll() is None
    finally:
        agent.kill()
        agent.wait()


def test_each_line_is_accepted_once_by_an_agent_that_is_killed(tmp_path: Path) -> None:
    """The agent is killed while chunks arrive and while they wait for their batch."""
    folder, keys, port = tmp_path / "client", tmp_path / "keys", free_port()
    folder.mkdir()
    shared_key = "a-shared-key-of-32-characters-00"
    keys.write_text(f"fluent={shared_key}\n")
    served = SimpleNamespace(address=f"127.0.0.1:{port}", url="", token="", shared_key=shared_key)
    with GatewayDouble() as gateway:

        def bodies() -> list[str]:
            return [body.decode() for body in gateway.bodies()]

        command = (
            "--gateway", gateway.url, "--spool", tmp_path / "spool", "--host-metrics-s", "0",
            "--doors", "forward", "--forward-listen", served.address, "--forward-keys", keys,
        )  # fmt: skip
        with fluent_bit(served, folder, "fluent-bit-forward.conf") as client:
            for number in range(4):
                with killed_agent(*command):
                    client.feed(range(number * COUNT, (number + 1) * COUNT))
                    # Once as soon as its records are collected, then after something was accepted.
                    wait_for(bodies, number * COUNT // 2)
                    time.sleep(2.0 + number / 4)
            with killed_agent(*command):
                wait_for(bodies, 4 * COUNT)
                client.stop()
                assert client.errors() == []
                time.sleep(2.0)
        assert gateway.problems == []
        assert Counter(bodies()) == Counter(map(line_of, range(4 * COUNT)))
