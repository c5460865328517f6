"""`sluice gaps` over a store with agents and with senders that have no sequence numbers."""

import asyncio
import json
from pathlib import Path

import pytest
from support.commands import sluice
from support.reconciler_seed import accept

from sluice_protocol.identity import request_identity
from sluice_store import StoreMode, open_store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an agent that has a gap, and with two requests of one sender."""
    folder = tmp_path_factory.mktemp("gaps")
    assert sluice("init", folder=folder).returncode == 0
    asyncio.run(seed(f"file://{folder / '.sluice'}"))
    return folder


async def seed(url: str) -> None:
    async with open_store(url, StoreMode.WRITE) as store:
        await accept(store, 0)
        await accept(store, 20)
        for value in (b"one", b"two"):
            who = request_identity(
                principal="shop", door="json", kind="logs", source="", value=value
            ).batch(0, 10)
            await accept(store, agent=who.agent_id, boot=who.boot_id)


def test_requests_are_counted_and_agents_are_listed(folder: Path) -> None:
    done = sluice("gaps", folder=folder)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "host-1 boot b1: 2 batches, 0-9, 20-29"
    assert lines[1].startswith("  missing 10-19, for ")
    assert lines[2:] == [
        "2 requests of senders without sequence numbers: each is complete",
        "1 boots, 1 gaps",
    ]


def test_a_program_gets_every_boot(folder: Path) -> None:
    boots = json.loads(sluice("gaps", "--json", folder=folder).stdout)
    agents = [one["agent_id"].rpartition(":")[0] for one in boots]
    assert sorted(agents) == ["", "door:shop", "door:shop"]
