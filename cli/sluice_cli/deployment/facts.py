"""Reads the state of a deployment from its store; no service has to run."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_agent.file_report import FileReport, read_report
from sluice_agent.settings import SPOOL_DEFAULT
from sluice_cli.deployment.local_services import read_local_services
from sluice_cli.queue import read_lanes
from sluice_cli.settings_file import read_file
from sluice_cli.version import read_version
from sluice_console.attention import OverviewFacts, list_attention
from sluice_console.attention_items import AttentionItem
from sluice_console.store_counts import count_held, count_open_conflicts, find_missing_indexes
from sluice_maintain.lake_state import count_open_dead_letters, read_lake_problems
from sluice_maintain.stored_status import read_stored_status
from sluice_protocol.authority import Authority
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import FRAME_BYTES_MAX
from sluice_reconciler.audit_summaries import list_newest_audits, read_newest_plan
from sluice_reconciler.discovery_status import read_discovery_status
from sluice_reconciler.lanes.membership import read_live_members
from sluice_store.authority import read_authority
from sluice_store.conflicts import DecisionsReader, StoredConflicts
from sluice_store.doctor import read_doctor
from sluice_store.mode import StoreMode
from sluice_store.url import open_store, read_disk_problem

CONFLICTS_MAX: Final = 100
"""Conflicts that are read, in the order of their keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts:
    """What the store contains about the state of a deployment.

    `attention` has errors first; `agent` is the report of the agent whose spool is in this folder.
    """

    version: str
    authority: Authority
    overview: OverviewFacts
    attention: tuple[AttentionItem, ...]
    now_ns: int
    agent: FileReport | None = None


async def read_facts(url: str) -> DeploymentFacts:
    """Read the state of the deployment."""
    async with open_store(url, StoreMode.READ) as store:
        stored = StoredConflicts(
            store, DecisionsReader(store), clock=SystemClock(), ids=SystemIds()
        )
        authority = await read_authority(store)
        members = await read_live_members(store)
        doctor, discovery, lanes, maintenance, conflicts, held = await asyncio.gather(
            read_doctor(store),
            read_discovery_status(store),
            read_lanes(store, url, authority.lanes, members=members),
            read_stored_status(store),
            count_open_conflicts(stored, CONFLICTS_MAX),
            count_held(store),
        )
        audits = await list_newest_audits(store, 1)
        plan = await read_newest_plan(store)
        dead_letters = await count_open_dead_letters(url, store)
        local = await read_local_services(url)
        missing_indexes = await find_missing_indexes(store, discovery)
        lake_problems = await read_lake_problems(url, store)
    overview = OverviewFacts(
        lake_problems=lake_problems or (),
        missing_indexes=missing_indexes,
        acceptance=authority.acceptance,
        services=local.services,
        gateways=local.gateways,
        discovery=discovery,
        members=members,
        lanes=tuple(lanes),
        conflicts_open=conflicts.count,
        conflicts_more=conflicts.more,
        held=held.count,
        held_more=held.more,
        held_reasons=held.reasons,
        dead_letters=dead_letters,
        doctor=doctor,
        doctor_ran=doctor is not None,
        disk_problem=read_disk_problem(url, FRAME_BYTES_MAX),
        maintenance=maintenance,
        audit=audits[0] if audits else None,
        plan=plan,
    )
    return DeploymentFacts(
        version=read_version(),
        authority=authority,
        overview=overview,
        attention=list_attention(overview),
        now_ns=maintenance.checked_at_unix_ns,
        agent=read_report(_agent_spool()),
    )


def _agent_spool() -> Path:
    """Return the spool of this folder: that of the settings file, or the default."""
    values: object = read_file()[1]
    for key in ("agent", "run", "spool"):
        values = values.get(key) if isinstance(values, dict) else None
    return Path(values) if isinstance(values, str) else SPOOL_DEFAULT
