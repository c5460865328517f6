"""`sluice status` names the doors of a local gateway whose clients have no valid key."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fluent.sender import FluentSender
from support.commands import CommandResult, sluice
from support.forward_door import HOST, SHOP
from support.gateway import GatewayProcess, gateways

from sluice_console.attention import OverviewFacts, list_attention
from sluice_console.gateways import GatewayAddresses, GatewayCounters
from sluice_protocol.system_clock import SystemClock

FLAGS = ("--doors", "forward", "--forward-listen", "127.0.0.1:0", "--head-timeout-s", "1")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with gateways(tmp_path, HOST, SHOP, flags=FLAGS) as (server,):
        state = {
            "store": f"file://{tmp_path}/store",
            "addresses": {"gateway": f"127.0.0.1:{server.port}"},
        }
        (tmp_path / ".sluice-up").mkdir()
        (tmp_path / ".sluice-up/up.json").write_text(json.dumps(state))
        assert sluice("reconciler", "--once", *_store(tmp_path), folder=tmp_path).returncode == 0
        yield server


def _store(folder: Path) -> tuple[str, str]:
    return "--store", f"file://{folder}/store"


def _forward_port(server: GatewayProcess) -> int:
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    return int(next(line["port"] for line in lines if line["event"] == "forward_listening"))


def _status(folder: Path) -> tuple[CommandResult, list[dict[str, Any]]]:
    done = sluice("status", "--json", *_store(folder), folder=folder)
    return done, json.loads(done.stdout)["attention"]


def _notices(folder: Path, wanted: str) -> list[dict[str, Any]]:
    """Return the items once one of them contains a text."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        _, items = _status(folder)
        if any(wanted in one["detail"] for one in items):
            return items
    raise AssertionError(f"{wanted} is not in {items}")


async def _console_items(server: GatewayProcess) -> list[str]:
    """Return the titles of what the overview of a console shows about a gateway."""
    async with aiohttp.ClientSession() as session:
        addresses = GatewayAddresses((f"http://127.0.0.1:{server.port}",), session)
        report = await GatewayCounters(addresses, SystemClock()).read()
    return [one.title for one in list_attention(OverviewFacts(gateways=report.health))]


def test_a_client_that_believes_that_all_is_well_is_named(
    tmp_path: Path, gateway: GatewayProcess
) -> None:
    done, items = _status(tmp_path)
    assert (done.returncode, items) == (0, []), done.stdout
    sender = FluentSender("app", port=_forward_port(gateway))
    for number in range(3):
        sender.emit("lost", {"message": f"line {number}"})  # it seldom notices the refusal
    (item,) = _notices(tmp_path, "it sent no key")
    assert item["severity"] == "notice"
    assert item["title"] == "Clients without a valid key are refused, door=forward"
    assert "from 127.0.0.1" in item["detail"]
    assert asyncio.run(_console_items(gateway)) == [item["title"]]
    sender.close()
    done, items = _status(tmp_path)
    assert done.returncode == 0  # anyone who reaches the port can cause it
    shown = sluice("status", *_store(tmp_path), folder=tmp_path).stdout
    assert "  notice: Clients without a valid key are refused, door=forward." in shown
