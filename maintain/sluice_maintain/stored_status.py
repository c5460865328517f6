"""The state of every task from the records in the store, without the service that writes them."""

import asyncio

from sluice_maintain.status import MaintenanceStatus, show_records
from sluice_maintain.task_store import TaskStore
from sluice_maintain.tasks import TaskName
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.authority import read_authority
from sluice_store.mode import StoreMode
from sluice_store.port import ObjectStore
from sluice_store.url import open_store


async def read_status(url: str) -> MaintenanceStatus:
    """Return the state of every task from the records in the store."""
    async with open_store(url, StoreMode.READ) as store:
        await read_authority(store)
        return await read_stored_status(store)


async def read_stored_status(store: ObjectStore) -> MaintenanceStatus:
    """Return the state of every task from the records in an open store."""
    tasks = TaskStore(store, SystemClock(), SystemIds(), "")
    stored = await asyncio.gather(*(tasks.read(task) for task in TaskName))
    records = {task: one.record for task, one in zip(TaskName, stored, strict=True)}
    return show_records(records, max(one.date_ns for one in stored))
