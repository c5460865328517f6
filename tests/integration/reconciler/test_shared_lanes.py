"""Reconciler processes that share lanes: each owns some, and another takes over when one dies."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

from support.constants import command_with_constants
from support.reconciler_seed import accept, queued
from support.sluice_process import SluiceProcess
from support.store_versitygw import free_port

from sluice_protocol.authority import Authority
from sluice_protocol.identity import Identity
from sluice_protocol.keys import lane_of
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_reconciler.lanes.membership import MEMBERS, MemberRecord
from sluice_store import StoreMode, create_authority, open_store
from sluice_store.port import ObjectStore

LANES = 4
AGENTS = tuple(f"host-{number}" for number in range(16))
SILENT: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
CONSTANTS = (
    "sluice_reconciler.settings:ReconcilerSettings.pass_interval_s=0.5",
    "sluice_reconciler.settings:ReconcilerSettings.tail_interval_s=0.25",
)


async def members(store: ObjectStore) -> dict[str, frozenset[int]]:
    """Return the lanes that each member names, by its URL."""
    found: dict[str, frozenset[int]] = {}
    async for page in store.list(MEMBERS):
        for one in page.objects:
            read = await store.get(one.key)
            assert isinstance(read, Found)
            record = decode_record(one.key, read.body, MemberRecord)
            found[record.url] = frozenset(record.lanes)
    return found


def start(url: str, port: int) -> SluiceProcess:
    words = ("reconciler", "--store", url, "--listen", f"127.0.0.1:{port}")
    return SluiceProcess([*command_with_constants(*CONSTANTS), *words], **SILENT)


async def shares_of(store: ObjectStore, ports: list[int], sizes: list[int]) -> None:
    """Wait until the processes with these ports work on every lane in shares of these sizes."""
    async with asyncio.timeout(90):
        while True:
            found = await members(store)
            shares = [found.get(f"http://127.0.0.1:{port}", frozenset()) for port in ports]
            if sorted(map(len, shares)) == sizes and len(frozenset().union(*shares)) == LANES:
                return
            await asyncio.sleep(0.2)


async def accepted(store: ObjectStore, first: int, sent: set[Identity]) -> None:
    for number in range(first, first + 3):
        batches = [accept(store, 10 * number, agent=agent) for agent in AGENTS]
        sent |= {one.identity for one in await asyncio.gather(*batches)}
        await asyncio.sleep(0.1)


async def all_queued(store: ObjectStore, sent: set[Identity]) -> None:
    async with asyncio.timeout(90):
        while True:
            if set(await queued(store)) == sent:
                return
            await asyncio.sleep(0.2)


async def run(url: str) -> None:
    assert {lane_of(agent, LANES) for agent in AGENTS} == set(range(LANES))
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store, Authority(authority_id="A", lanes=LANES))
        ports = [free_port() for _ in range(3)]
        running: list[SluiceProcess] = []
        sent: set[Identity] = set()
        try:
            running += [start(url, port) for port in ports[:2]]
            await shares_of(store, ports[:2], [2, 2])
            await accepted(store, 0, sent)
            await all_queued(store, sent)

            running.append(start(url, ports[2]))
            await accepted(store, 3, sent)
            await shares_of(store, ports, [1, 1, 2])
            running[0].kill()
            running[0].wait()
            await accepted(store, 6, sent)
            await shares_of(store, ports[1:], [2, 2])
            await all_queued(store, sent)
        finally:
            for one in running:
                if one.poll() is None:
                    one.terminate()
            codes = [one.wait() for one in running]
        assert codes[1:] == [0, 0]
        assert set((await queued(store)).values()) == {1}


def test_two_processes_share_a_third_joins_and_one_is_killed(tmp_path: Path) -> None:
    """Nothing is lost or enqueued twice, and the lanes of the killed one are taken over."""
    asyncio.run(run(tmp_path.as_uri()))
