"""A process that executes a plan slowly, so that a test can kill it.

Usage: python -m support.gc_slow_run STORE PLAN_ID
"""

import asyncio
import sys
from pathlib import Path

from support.constants import changed
from support.gc_world import KEYS, RUN

from sluice_gc.plan_runner import PlanRunner
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol.system_clock import SystemClock
from sluice_store.local import open_local_store


async def main(root: Path, plan_id: str) -> None:
    async with open_local_store(root) as store:
        settings = changed(RUN, batch=2, deletes_per_s_max=20.0)
        runner = PlanRunner(store, LocalTaskEngine(store), KEYS.trusted, SystemClock())
        await runner.run(plan_id, settings)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
