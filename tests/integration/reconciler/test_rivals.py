"""Two reconciler processes compete for the same lanes, on stores where one conditional write wins.

They do not share the lanes, so each takes a lane whenever it has a batch for it. Processes that
share lanes are tested daily in `test_shared_lanes`.

moto is not such a store (`support.store_conformance`), so no race is run on it.
"""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.constants import command_with_constants
from support.reconciler_seed import accept, queued
from support.sluice_process import SluiceProcess
from support.store_versitygw import CREDENTIALS, free_port, make_bucket, versitygw

from sluice_protocol.authority import Authority
from sluice_protocol.identity import Identity
from sluice_queue.lane import list_lanes
from sluice_reconciler.lanes.state import read_lane_state
from sluice_store import StoreMode, create_authority, open_store

ROUNDS = 25
AGENTS = ("a", "b", "c", "d")
SILENT: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
CONSTANTS = {
    "pass_interval_s": 0.01,
    "tail_interval_s": 0.02,
    "takeover_after_s": 0,
    "list_batches_max": 2,
    "share_lanes": False,
}


async def listens(port: int) -> None:
    """Wait until a process listens: only then do both compete."""
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


async def race(url: str) -> None:
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store, Authority(authority_id="A", lanes=2))
        kind = "sluice_reconciler.settings:ReconcilerSettings"
        changes = [f"{kind}.{name}={json.dumps(value)}" for name, value in CONSTANTS.items()]
        command = [*command_with_constants(*changes), "reconciler", "--store", url]
        ports = (free_port(), free_port())
        rivals = [
            SluiceProcess([*command, "--listen", f"127.0.0.1:{port}"], **SILENT) for port in ports
        ]
        sent: set[Identity] = set()
        try:
            for port in ports:
                await listens(port)
            for number in range(ROUNDS):
                batches = [accept(store, 10 * number, agent=agent) for agent in AGENTS]
                sent |= {one.identity for one in await asyncio.gather(*batches)}
                await asyncio.sleep(0.1)
            async with asyncio.timeout(120):
                while set(await queued(store)) != sent:
                    assert [one.poll() for one in rivals] == [None, None]
                    await asyncio.sleep(0.1)
        finally:
            for one in rivals:
                if one.poll() is None:
                    one.terminate()
            codes = [one.wait() for one in rivals]
        assert codes == [0, 0]
        assert set((await queued(store)).values()) == {1}
        for lane in await list_lanes(store, "spark"):
            stored = await read_lane_state(store, lane)
            assert stored is not None
            # They did compete: the lane changed hands at least this often.
            assert stored.record.owner_term > 3


@pytest.mark.long
def test_two_processes_enqueue_every_batch_once_on_a_directory(tmp_path: Path) -> None:
    asyncio.run(race(tmp_path.as_uri()))


@pytest.mark.s3
def test_two_processes_enqueue_every_batch_once_on_a_real_s3_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)

    async def run(url: str) -> None:
        await make_bucket(url)
        await race(url)

    with versitygw(tmp_path) as server:
        asyncio.run(run(server.url("rivals", "some/prefix")))
