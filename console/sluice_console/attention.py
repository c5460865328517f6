"""What needs the attention of an operator, from the facts of one sample. Pure.

Each rule returns at most a few items. An item names what is wrong, what to do, the page that
explains it and the command with the same content. The order is the order of the overview: errors
first, then warnings, each in the order in which a batch passes the components.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from sluice_console.gateway_health import (
    JOURNAL_AGE_S_MAX,
    REFUSED_SHARE_MAX,
    SLOW_SHARE_MAX,
    GatewayHealth,
)
from sluice_console.reconcilers import ServiceState
from sluice_maintain.status import MaintenanceStatus
from sluice_queue.inspection import LaneCondition, LaneStatus
from sluice_reconciler.audit_summaries import AuditOverview, UnreadableRecord
from sluice_reconciler.discovery_status import DiscoveryStatus, ProcessState
from sluice_store.doctor_result import DoctorResult, Need

BEHIND_S_MAX: Final = 60.0
"""Age of the time through which everything is enqueued, from which discovery is late."""
LAKE_BEHIND_S_MAX: Final = 600.0
"""Age of the oldest entry that is not in the lake, from which ingestion is late."""
_NAMED_MAX: Final = 3
_ENDED: Final = (ProcessState.CLOSED, ProcessState.REPLACED)

Severity = Literal["error", "warning"]


class AttentionItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an operator should look into.

    Attributes:
        severity: `error`: an operator must act; `warning`: it may become one.
        title: What is wrong.
        detail: Why, and what to do.
        page: The page of the console that explains it.
        command: The command that shows the same; empty if there is none.
    """

    severity: Severity
    title: str
    detail: str
    page: str
    command: str = ""


class SourceProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the overview that could not be read, and why."""

    source: str
    reason: str


class GapTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps of all agents, without records in transit."""

    agents: int
    oldest_s: float


class OverviewFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was read for one sample; None for what could not be read.

    Attributes:
        problems: What could not be read.
        acceptance: The acceptance mode of the authority.
        services: The other services.
        discovery: How far discovery is.
        lanes: Every lane of every queue.
        conflicts_open: Number of conflicts without a decision.
        conflicts_more: Whether there are more than were read.
        held: Number of held batches.
        held_more: Whether there are more than were read.
        held_reasons: Their reasons, each once.
        gaps: The gaps of all agents.
        doctor: The newest result of the doctor.
        doctor_ran: Whether there is a result; None if that could not be read.
        maintenance: Every task of maintenance.
        audit: The newest audit; None if there is none.
        gateways: The health of each gateway whose URL is known.
    """

    problems: tuple[SourceProblem, ...] = ()
    acceptance: str | None = None
    services: tuple[ServiceState, ...] = ()
    discovery: DiscoveryStatus | None = None
    lanes: tuple[LaneStatus, ...] | None = None
    conflicts_open: int | None = None
    conflicts_more: bool = False
    held: int | None = None
    held_more: bool = False
    held_reasons: tuple[str, ...] = ()
    gaps: GapTotals | None = None
    doctor: DoctorResult | None = None
    doctor_ran: bool | None = None
    maintenance: MaintenanceStatus | None = None
    audit: AuditOverview | UnreadableRecord | None = None
    gateways: tuple[GatewayHealth, ...] = ()


def list_attention(facts: OverviewFacts) -> tuple[AttentionItem, ...]:
    """Return what needs attention, errors first."""
    found = [
        *_of_problems(facts.problems),
        *_of_services(facts.services),
        *_of_gateways(facts.gateways),
        *_of_no_gateway(facts),
        *_of_discovery(facts.discovery),
        *_of_batches(facts),
        *_of_lanes(facts.lanes or ()),
        *_of_doctor(facts),
        *_of_maintenance(facts.maintenance),
        *_of_audit(facts.audit),
    ]
    return tuple(sorted(found, key=lambda item: item.severity != "error"))


def _of_problems(problems: Sequence[SourceProblem]) -> Iterator[AttentionItem]:
    by_reason: dict[str, list[str]] = {}
    for problem in problems:
        by_reason.setdefault(problem.reason, []).append(problem.source)
    for reason, sources in by_reason.items():
        yield AttentionItem(
            severity="error",
            title=f"Cannot read {', '.join(sources)}",
            detail=reason,
            page="store",
            command="sluice doctor --dry-run",
        )


def _of_services(services: Sequence[ServiceState]) -> Iterator[AttentionItem]:
    for one in services:
        if one.problem:
            yield AttentionItem(
                severity="error" if one.service == "reconciler" else "warning",
                title=f"The {one.service} service does not respond",
                detail=f"{one.problem}, url={one.url}",
                page="store",
            )


_REMEDIES: Final = {
    "identity_conflict": "Other bytes own their identities: compare both sides of the conflicts.",
    "unauthenticated": "Correct the key or the token of the sender, or the principals file.",
    "forbidden_agent": "Correct the agents of the principal, or the name of the agent.",
    "identity_quarantined": "An operator has closed this boot: restart the agent.",
    "overloaded": "Start another gateway, or raise its limits.",
}
"""What to do about the most frequent outcome of refused uploads."""


def _of_gateways(gateways: Sequence[GatewayHealth]) -> Iterator[AttentionItem]:
    broken = [one for one in gateways if one.problem]
    if broken and len(broken) == len(gateways):
        yield _gateway_item("error", "No gateway responds", broken[0].problem, broken[0].url)
    else:
        for one in broken[:_NAMED_MAX]:
            yield _gateway_item("warning", "A gateway does not respond", one.problem, one.url)
    found = [item for one in gateways for item in _of_gateway(one)]
    yield from found[: 2 * _NAMED_MAX]


def _of_gateway(one: GatewayHealth) -> Iterator[AttentionItem]:
    if one.journal_age_s > JOURNAL_AGE_S_MAX:
        detail = (
            f"Its journal is {_duration(one.journal_age_s)} old; from 60 s it accepts nothing."
            " Check its rights for gateways/, and the store."
        )
        yield _gateway_item("error", "A gateway cannot write its journal", detail, one.url)
    if one.spool_full:
        detail = (
            f"Accepted batches are on this disk only, and {one.spool_full}. Restore the connection"
            " to the bucket, or enlarge the disk; delete no file of the spool."
        )
        yield _gateway_item("error", "The spool of a gateway is nearly full", detail, one.url)
    if one.principals_stale:
        detail = (
            "New and revoked keys have no effect. Its log names the line, event"
            " principals_invalid; the corrected file is read without a restart."
        )
        title = "A gateway ignores an invalid principals file"
        yield _gateway_item("warning", title, detail, one.url)
    if one.refused > REFUSED_SHARE_MAX:
        conflict = one.refused_as == "identity_conflict"
        title = f"A gateway refuses {one.refused:.0%} of the uploads"
        remedy = _REMEDIES.get(one.refused_as, "Check the store and the limits of the gateway.")
        detail = f"Most often: {one.refused_as}. {remedy}"
        page = "conflicts" if conflict else "queue"
        yield _gateway_item("warning", title, detail, one.url, page=page)
    if one.slow > SLOW_SHARE_MAX:
        title = "The store is slow for a gateway"
        detail = (
            f"{one.slow:.0%} of its calls took longer than 5 s. Compare with the status page of the"
            " provider; uploads wait at most 30 s and are repeated."
        )
        yield _gateway_item("warning", title, detail, one.url, page="store")


def _gateway_item(
    severity: Severity, title: str, detail: str, url: str, *, page: str = "queue"
) -> AttentionItem:
    return AttentionItem(
        severity=severity,
        title=title,
        detail=f"{detail} url={url}",
        page=page,
        command=f"curl {url}/readyz",
    )


def _of_no_gateway(facts: OverviewFacts) -> Iterator[AttentionItem]:
    """Yield an item if batches were accepted and every gateway has ended.

    A gateway with a spool writes its journal into the spool, so it cannot be seen here.
    """
    discovery = facts.discovery
    if discovery is None or facts.acceptance != "s3_manifest" or facts.gateways:
        return
    used = bool(discovery.processes) or discovery.batches > 0
    if used and all(one.state in _ENDED for one in discovery.processes):
        yield AttentionItem(
            severity="warning",
            title="No gateway is running",
            detail="All have stopped, so nothing is accepted. Start one: `sluice gateway`.",
            page="queue",
            command="sluice reconciler status",
        )


def _of_discovery(discovery: DiscoveryStatus | None) -> Iterator[AttentionItem]:
    if discovery is None:
        return
    command = "sluice reconciler status"
    lapsed = [one for one in discovery.processes if one.state is ProcessState.LAPSED]
    for one in lapsed[:_NAMED_MAX]:
        yield AttentionItem(
            severity="error",
            title=f"Gateway {one.gateway} stopped reporting",
            detail=f"Its process {one.process} wrote nothing for {_duration(one.silent_s)}."
            " Start it again, or wait for the full pass that follows.",
            page="queue",
            command=command,
        )
    if discovery.complete_through_unix_ns is None:
        yield AttentionItem(
            severity="warning",
            title="No reconciler has finished a pass",
            detail="Nothing is known to be enqueued. Start `sluice reconciler`.",
            page="queue",
            command=command,
        )
    elif discovery.behind_s is not None and discovery.behind_s > BEHIND_S_MAX and not lapsed:
        holder = f", held by {discovery.held_by}" if discovery.held_by else ""
        yield AttentionItem(
            severity="warning",
            title=f"Accepted batches are enqueued {_duration(discovery.behind_s)} late",
            detail=f"The reconciler is stopped or overloaded{holder}.",
            page="queue",
            command=command,
        )


def _of_batches(facts: OverviewFacts) -> Iterator[AttentionItem]:
    if facts.held:
        yield AttentionItem(
            severity="error",
            title=f"{_count(facts.held, facts.held_more, 'batch', 'batches')} held back",
            detail=f"Reasons: {', '.join(facts.held_reasons)}. Restore the blobs; the reconciler"
            " checks them again each minute.",
            page="queue",
            command="sluice reconciler status",
        )
    if facts.conflicts_open:
        count = _count(facts.conflicts_open, facts.conflicts_more, "conflict", "conflicts")
        yield AttentionItem(
            severity="warning",
            title=f"{count} without a decision",
            detail="Other bytes were sent under an accepted identity. Compare both and decide.",
            page="conflicts",
            command="sluice conflicts list",
        )
    if facts.gaps is not None and facts.gaps.agents:
        agents = _count(facts.gaps.agents, False, "agent has", "agents have")  # noqa: FBT003
        yield AttentionItem(
            severity="warning",
            title=f"{agents} gaps",
            detail=f"Records are missing, the oldest for {_duration(facts.gaps.oldest_s)}. Check"
            " whether the spool of the agent still contains them.",
            page="agents",
            command="sluice gaps",
        )


def _of_lanes(lanes: Sequence[LaneStatus]) -> Iterator[AttentionItem]:
    for lane in [one for one in lanes if one.condition is not LaneCondition.SOUND][:_NAMED_MAX]:
        yield AttentionItem(
            severity="error",
            title=f"Lane {lane.lane} of {lane.queue} is {lane.condition.value}",
            detail=lane.problem,
            page="queue",
            command="sluice queue status",
        )
    oldest_s = max((one.oldest_waiting_s or 0.0 for one in lanes), default=0.0)
    if oldest_s > LAKE_BEHIND_S_MAX:
        yield AttentionItem(
            severity="warning",
            title=f"The lake is {_duration(oldest_s)} behind",
            detail="The consumer of the queue is stopped or too slow. Check `sluice maintain` or"
            " `sluice spark ingest`.",
            page="queue",
            command="sluice queue status",
        )


def _of_doctor(facts: OverviewFacts) -> Iterator[AttentionItem]:
    if facts.doctor_ran is False:
        yield AttentionItem(
            severity="error",
            title="The store was never tested",
            detail="Gateways do not start without a result of the doctor.",
            page="store",
            command="sluice doctor",
        )
    broken = facts.doctor.broken(Need.ACCEPTANCE) if facts.doctor is not None else ()
    for one in broken[:_NAMED_MAX]:
        yield AttentionItem(
            severity="error",
            title=f"The store breaks a promise: {one.promise}",
            detail=f"{one.seen}. Otherwise: {one.cost}.",
            page="store",
            command="sluice doctor",
        )


def _of_maintenance(status: MaintenanceStatus | None) -> Iterator[AttentionItem]:
    for task in status.tasks if status is not None else ():
        if task.trouble:
            yield AttentionItem(
                severity="error" if task.halted else "warning",
                title=f"Maintenance task {task.task} has a problem",
                detail=task.trouble,
                page="audit",
                command="sluice maintain status",
            )


def _of_audit(audit: AuditOverview | UnreadableRecord | None) -> Iterator[AttentionItem]:
    if isinstance(audit, UnreadableRecord):
        yield AttentionItem(
            severity="error",
            title="The newest certificate cannot be read",
            detail=f"{audit.unreadable}, key={audit.key}. Restore it from a backup.",
            page="audit",
            command="sluice audit verify",
        )
    elif audit is not None and audit.wrong:
        found = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in audit.wrong.items())
        yield AttentionItem(
            severity="error",
            title=f"The newest audit found {found}",
            detail="Restore each named object from a backup, or run `sluice rebuild` for"
            " references. Nothing is deleted meanwhile.",
            page="audit",
            command="sluice audit show",
        )


def _count(number: int, more: bool, one: str, many: str) -> str:  # noqa: FBT001 - private
    if more:
        return f"More than {number} {many}"
    return f"{number} {one if number == 1 else many}"


_STEPS: Final = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))


def _duration(seconds: float) -> str:
    for size_s, unit in _STEPS:
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"
