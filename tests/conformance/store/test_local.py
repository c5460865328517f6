"""The conformance suite over the local store, and its races between processes."""

import asyncio
from pathlib import Path

import pytest
from support.store_conformance import CHECKS, assert_conforms, read_counter
from support.store_groups import ALWAYS_GROUPS, CountedSync
from support.store_worker import race_processes

from sluice_protocol.units import ObjectKey
from sluice_store import StoreMode, open_store
from sluice_store.conformance import Check
from sluice_store.local import open_local_store

PROCESSES = 4
KEY = ObjectKey("race/key")


@pytest.mark.daily(13)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_local_conforms_when_every_create_is_in_a_group(check: Check, tmp_path: Path) -> None:
    syncs = CountedSync(tmp_path)
    async with open_local_store(tmp_path, filesystem=syncs, limits=ALWAYS_GROUPS) as store:
        await assert_conforms("local", check, store, "place/")


def test_local_race_between_processes_has_one_winner(tmp_path: Path) -> None:
    """64 creates of one key from 4 processes: exactly one is applied."""
    won = race_processes("create", f"file://{tmp_path}", KEY, 64 // PROCESSES, PROCESSES)
    assert sum(won) == 1


def test_local_counter_between_processes_is_exact(tmp_path: Path) -> None:
    """A counter to which 4 processes add 25 each by compare-and-swap ends at exactly 100."""
    url = f"file://{tmp_path}"

    async def start() -> None:
        async with open_store(url, StoreMode.CREATE) as store:
            await store.create(KEY, b"0")

    async def end() -> int:
        async with open_store(url, StoreMode.CREATE) as store:
            return await read_counter(store, KEY)

    asyncio.run(start())
    race_processes("add", url, KEY, 25, PROCESSES)
    assert asyncio.run(end()) == PROCESSES * 25
