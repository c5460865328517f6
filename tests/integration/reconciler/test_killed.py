"""Reconciler processes that are killed with SIGKILL repeatedly."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from support.constants import command_with_constants
from support.reconciler_seed import accept, enqueued

from sluice_store import StoreMode, create_authority, open_store

KILLS = 2
SILENT: Any = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}


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
            process = await asyncio.create_subprocess_exec(*command, *settings, **SILENT)
            async with asyncio.timeout(60):
                while process.returncode is None:
                    if len(await enqueued(store)) > before + 8:
                        process.kill()
                        await process.wait()
                    await asyncio.sleep(0.01)
        last = await asyncio.create_subprocess_exec(*command, *settings, **SILENT)
        assert await last.wait() == 0
        counts = Counter(one.identity for one in await enqueued(store))
        assert (len(counts), set(counts.values())) == (60, {1})
