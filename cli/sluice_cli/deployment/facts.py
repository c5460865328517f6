"""Reads the state of a deployment from its store; no service has to run."""

import asyncio
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from sluice_cli.queue import read_lanes
from sluice_maintain.status import MaintenanceStatus, show_records
from sluice_maintain.task_store import TaskStore
from sluice_maintain.tasks import TaskName
from sluice_protocol.authority import Authority
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_queue.inspection import LaneStatus
from sluice_reconciler.discovery_status import DiscoveryStatus, read_discovery_status
from sluice_store.authority import read_authority
from sluice_store.conflicts import DecisionsReader
from sluice_store.doctor_result import DoctorResult, read_doctor
from sluice_store.port import ObjectStore
from sluice_store.stored_conflicts import StoredConflicts
from sluice_store.url import open_store

CONFLICTS_MAX = 100
"""Conflicts that are read; the oldest of them, in the order of their keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts:
    """What the store contains about the state of a deployment.

    Attributes:
        version: The version of this program.
        authority: The settings.
        doctor: The newest examination of the store; None if there is none.
        discovery: How far discovery is, and every gateway process.
        lanes: Every lane of every queue.
        maintenance: Every task.
        conflicts_open: Conflicts without a decision, among the first `CONFLICTS_MAX`.
        conflicts_more: Whether there are further conflicts.
        now_ns: The store's clock.
    """

    version: str
    authority: Authority
    doctor: DoctorResult | None
    discovery: DiscoveryStatus
    lanes: tuple[LaneStatus, ...]
    maintenance: MaintenanceStatus
    conflicts_open: int
    conflicts_more: bool
    now_ns: int


def read_version() -> str:
    """Return the installed version, or `unknown` in a checkout that is not installed."""
    try:
        return version("sluice")
    except PackageNotFoundError:
        return "unknown"


async def read_facts(url: str) -> DeploymentFacts:
    """Read the state of the deployment.

    Raises:
        SluiceError: The store is unreachable, denied a request, or has no authority.
    """
    async with open_store(url) as store:
        authority = await read_authority(store)
        doctor, discovery, lanes, maintenance, (conflicts_open, more) = await asyncio.gather(
            read_doctor(store),
            read_discovery_status(store),
            read_lanes(store, url, authority.lanes),
            _read_maintenance(store),
            _count_conflicts(store),
        )
    return DeploymentFacts(
        version=read_version(),
        authority=authority,
        doctor=doctor,
        discovery=discovery,
        lanes=tuple(lanes),
        maintenance=maintenance,
        conflicts_open=conflicts_open,
        conflicts_more=more,
        now_ns=maintenance.checked_at_unix_ns,
    )


async def _read_maintenance(store: ObjectStore) -> MaintenanceStatus:
    tasks = TaskStore(store, SystemClock(), SystemIds(), "")
    stored = await asyncio.gather(*(tasks.read(task) for task in TaskName))
    records = {task: one.record for task, one in zip(TaskName, stored, strict=True)}
    return show_records(records, max(one.date_ns for one in stored))


async def _count_conflicts(store: ObjectStore) -> tuple[int, bool]:
    stored = StoredConflicts(store, DecisionsReader(store), clock=SystemClock(), ids=SystemIds())
    page = await stored.list_page(agents=None, after=None, limit=CONFLICTS_MAX)
    undecided = sum(one.state == "open" for one in page.conflicts)
    return undecided, page.next_after is not None
