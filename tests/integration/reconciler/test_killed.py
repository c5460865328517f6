"""Reconciler processes that are killed with SIGKILL repeatedly."""

import asyncio
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from support.constants import command_with_constants
from support.reconciler_seed import accept, enqueued
from support.sluice_process import SluiceProcess, run_process

from sluice_store import StoreMode, create_authority, open_store

KILLS = 2
SILENT: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


async def test_killed_reconcilers_enqueue_every_batch_once(tmp_path: Path) -> None:
    """Whatever write a process is killed at, no batch is lost or enqueued twice."""
    name = "sluice_reconciler.settings:ReconcilerSettings.list_batches_max"
    command = [*command_with_constants(f"{name}=4"), "reconciler", "--once"]
    settings = ["--store", tmp_path.as_uri()]
    async with open_store(tmp_path.as_uri(), StoreMode.CREATE) as store:
        await create_authority(store)
        for seq in range(0, 600, 10):
            await accept(store, seq, agent=f"host-{seq % 3}")
        for _ in range(KILLS):
            before = len(await enqueued(store))
            process = SluiceProcess([*command, *settings], **SILENT)
            async with asyncio.timeout(60):
                while process.poll() is None:
                    if len(await enqueued(store)) > before + 8:
                        process.kill()
                        process.wait()
                    await asyncio.sleep(0.01)
        assert run_process([*command, *settings]).returncode == 0
        counts = Counter(one.identity for one in await enqueued(store))
        assert (len(counts), set(counts.values())) == (60, {1})
