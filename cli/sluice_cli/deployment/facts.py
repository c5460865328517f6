"""Reads the state of a deployment from its store; no service has to run."""

import asyncio
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from sluice_cli.queue import read_lanes
from sluice_console.attention import AttentionItem, OverviewFacts, list_attention
from sluice_maintain.app import read_stored_status
from sluice_protocol.authority import Authority
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_reconciler.discovery_status import read_discovery_status
from sluice_reconciler.verify import list_hold_records
from sluice_store.authority import read_authority
from sluice_store.conflicts import DecisionsReader
from sluice_store.doctor_result import read_doctor
from sluice_store.port import ObjectStore
from sluice_store.stored_conflicts import StoredConflicts
from sluice_store.url import open_store

CONFLICTS_MAX: Final = 100
"""Conflicts that are read, in the order of their keys."""
HOLDS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts:
    """What the store contains about the state of a deployment.

    Attributes:
        version: The version of this program.
        authority: The settings.
        overview: What the console shows too.
        attention: What needs attention, errors first.
        now_ns: The store's clock.
    """

    version: str
    authority: Authority
    overview: OverviewFacts
    attention: tuple[AttentionItem, ...]
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
        doctor, discovery, lanes, maintenance, conflicts, held = await asyncio.gather(
            read_doctor(store),
            read_discovery_status(store),
            read_lanes(store, url, authority.lanes),
            read_stored_status(store),
            _count_conflicts(store),
            _read_held(store),
        )
    overview = OverviewFacts(
        discovery=discovery,
        lanes=tuple(lanes),
        conflicts_open=conflicts[0],
        conflicts_more=conflicts[1],
        held=len(held),
        held_more=len(held) == HOLDS_MAX,
        held_reasons=tuple(sorted(set(held))),
        doctor=doctor,
        doctor_ran=doctor is not None,
        maintenance=maintenance,
    )
    return DeploymentFacts(
        version=read_version(),
        authority=authority,
        overview=overview,
        attention=list_attention(overview),
        now_ns=maintenance.checked_at_unix_ns,
    )


async def _count_conflicts(store: ObjectStore) -> tuple[int, bool]:
    stored = StoredConflicts(store, DecisionsReader(store), clock=SystemClock(), ids=SystemIds())
    page = await stored.list_page(agents=None, after=None, limit=CONFLICTS_MAX)
    undecided = sum(one.state == "open" for one in page.conflicts)
    return undecided, page.next_after is not None


async def _read_held(store: ObjectStore) -> list[str]:
    """Return the reason of each held batch, of at most `HOLDS_MAX`."""
    reasons: list[str] = []
    async for record in list_hold_records(store):
        reasons.append(record.reason.value)
        if len(reasons) == HOLDS_MAX:
            break
    return reasons
