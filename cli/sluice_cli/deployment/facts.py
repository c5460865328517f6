"""Read the state of a deployment from its store; no service has to run.

The store does not show whether a gateway or a query service works, so `sluice status` sends a
request to those whose addresses it knows: the ones that `sluice up` runs here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sluice_agent.inputs.file_report import FileReport, read_report
from sluice_agent.settings import SPOOL_DEFAULT
from sluice_cli.queue import read_compared_lanes
from sluice_cli.shell.settings import read_file
from sluice_console.attention import OverviewFacts, list_attention
from sluice_console.attention_items import AttentionItem, ServiceState
from sluice_console.gateway_health import GatewayHealth
from sluice_console.store_counts import count_held, count_open_conflicts, find_missing_indexes
from sluice_maintain.lake_state import count_open_dead_letters, read_lake_problems
from sluice_maintain.status import read_stored_status
from sluice_protocol.authority import Authority
from sluice_protocol.distribution import read_version
from sluice_protocol.errors import UNREADABLE_JSON
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import FRAME_BYTES_MAX
from sluice_reconciler.audit_summaries import list_newest_audits, read_newest_plan
from sluice_reconciler.discovery import read_discovery_status
from sluice_reconciler.lanes.membership import read_live_members
from sluice_store.authority import read_authority
from sluice_store.conflicts import DecisionsReader, StoredConflicts
from sluice_store.doctor import read_doctor
from sluice_store.port import run_together
from sluice_store.stored_erasures import count_late_erasures
from sluice_store.stored_expiry import read_retention_state
from sluice_store.url import StoreMode, open_store, read_disk_problem

UP_STATE: Final = Path(".sluice-up") / "up.json"
_REQUESTED: Final = ("reconciler", "query", "console", "maintain")
"""Services that get a request, in addition to the gateway."""

TIMEOUT_S: Final = 3.0
"""Time for one response: these services are on the same machine."""


class _UpState(msgspec.Struct, frozen=True):
    store: str
    addresses: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServices:
    """What the services responded; both are empty if none runs here."""

    services: tuple[ServiceState, ...] = ()
    gateways: tuple[GatewayHealth, ...] = ()


def read_addresses(url: str, path: Path = UP_STATE) -> dict[str, str]:
    """Return the addresses of the services over this store by name; empty if none runs here."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_UpState)
    except (OSError, *UNREADABLE_JSON):
        return {}
    return state.addresses if state.store == url else {}


async def read_local_services(url: str) -> LocalServices:
    """Request the readiness of each service of `sluice up` over this store."""
    addresses = read_addresses(url)
    if not addresses:
        return LocalServices()
    import aiohttp  # noqa: PLC0415 - a status without local services starts quickly

    from sluice_console.reconcilers import ServiceClient, ServiceFailed  # noqa: PLC0415 - as above

    async with aiohttp.ClientSession() as session:

        def client(service: str) -> ServiceClient:
            return ServiceClient(
                service=service,
                url=f"http://{addresses[service]}",
                token="",
                session=session,
                timeout_s=TIMEOUT_S,
            )

        async def read_gateway() -> GatewayHealth:
            gateway = client("gateway")
            try:
                return GatewayHealth(
                    url=gateway.url,
                    not_ready=await gateway.why_not_ready(),
                    refused_doors=await gateway.refused_doors(),
                )
            except ServiceFailed as error:
                return GatewayHealth(url=gateway.url, problem=str(error))

        services = [client(name).check() for name in _REQUESTED if name in addresses]
        gateways = [read_gateway()] if "gateway" in addresses else []
        return LocalServices(
            services=await run_together(*services),
            gateways=await run_together(*gateways),
        )


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
        doctor, discovery, lanes, maintenance, conflicts, held = await run_together(
            read_doctor(store),
            read_discovery_status(store),
            read_compared_lanes(store, url, authority, members=members),
            read_stored_status(store),
            count_open_conflicts(stored, CONFLICTS_MAX),
            count_held(store),
        )
        audits = await list_newest_audits(store, 1)
        plan = await read_newest_plan(store)
        retention = await read_retention_state(store)
        late = await count_late_erasures(store)
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
        erasures_late=late,
        doctor=doctor,
        doctor_ran=doctor is not None,
        disk_problem=read_disk_problem(url, FRAME_BYTES_MAX),
        maintenance=maintenance,
        audit=audits[0] if audits else None,
        plan=plan,
        retention=retention,
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
