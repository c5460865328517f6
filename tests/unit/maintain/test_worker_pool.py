"""Results of worker processes."""

import asyncio
import sys

import pytest

from sluice_maintain.messages import LINE_BYTES_MAX
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.tasks import TaskName
from sluice_maintain.worker_pool import WorkerPool
from sluice_protocol.maintenance import RunOutcome
from sluice_protocol.system_clock import SystemClock


@pytest.mark.parametrize("line", ["'what'", f"'7' * {3 * LINE_BYTES_MAX}"])
async def test_a_worker_that_writes_something_else_is_ended_and_its_job_fails(line: str) -> None:
    """An example is a worker of another version. Its job would never end."""
    script = f"print({line}, flush=True); input(); input()"
    command = [sys.executable, "-c", script]
    pool = WorkerPool(command, "memory:", MaintainSettings(), SystemClock())
    job = await pool.start_job(TaskName.QUEUE, once=True)
    async with asyncio.timeout(20):
        result = await job.result
        await pool.close()
    assert result.outcome is RunOutcome.FAILED
    assert "its result is unreadable" in result.reason
    assert not pool.processes
