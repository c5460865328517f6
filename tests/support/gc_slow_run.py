"""A process that executes a plan slowly, so that a test can kill it.

Usage: gc_slow_run.py STORE PLAN_ID TESTS
"""

import asyncio
import sys
from pathlib import Path

from sluice_gc.run.plan_runner import PlanRunner
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol.system_clock import SystemClock
from sluice_store.local import open_local_store


async def main(root: Path, plan_id: str) -> None:
    from support.constants import changed  # noqa: PLC0415 - after the search path is set
    from support.gc_world import KEYS, RUN  # noqa: PLC0415

    async with open_local_store(root) as store:
        settings = changed(RUN, batch=2, deletes_per_s_max=20.0)
        runner = PlanRunner(store, LocalTaskEngine(store), KEYS.trusted, SystemClock())
        await runner.run(plan_id, settings)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[3])
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
