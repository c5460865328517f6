"""Fluent Bit with its queue on disk: killed and started again, it sends no line twice."""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.client_followers import fluent_bit
from support.client_programs import line_of
from support.door_fleet import Fleet, balancing, fleet

from sluice_protocol.request_identity import DoorName

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]
COUNT = 1_000
ON_DISK_S = 4.0
"""Lines are in a chunk on disk, and their offset in its database, after this time."""
ARRIVED_S = 120.0
OUTPUTS: dict[str, tuple[str, DoorName, tuple[str, ...]]] = {
    "http": ("fluent-bit.conf", "json", ()),
    "forward": ("fluent-bit-forward.conf", "forward", ("--forward-listen", "127.0.0.1:0")),
}


def wait_for(served: Fleet, wanted: int) -> None:
    until = time.monotonic() + ARRIVED_S
    while len(set(served.bodies())) < wanted:
        assert time.monotonic() < until, len(set(served.bodies()))
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
            wait_for(served, 2 * COUNT)
            client.stop()
            assert client.errors() == []
        assert Counter(served.bodies()) == Counter(map(line_of, range(2 * COUNT)))
