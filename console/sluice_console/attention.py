"""What needs the attention of an operator, from the facts of one sample. Pure.

Each rule returns at most a few items. An item names what is wrong, what to do, the page that
explains it and the command with the same content. The order is the order of the overview: errors
first, then warnings, each in the order in which a batch passes the components.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from sluice_console.reconcilers import ServiceState
from sluice_maintain.status import MaintenanceStatus
from sluice_queue.inspection import LaneCondition, LaneStatus
from sluice_reconciler.discovery_status import DiscoveryStatus, ProcessState
from sluice_store.doctor_result import DoctorResult, Need

BEHIND_S_MAX: Final = 60.0
"""Age of the time through which everything is enqueued, from which discovery is late."""
LAKE_BEHIND_S_MAX: Final = 600.0
"""Age of the oldest entry that is not in the lake, from which ingestion is late."""
_NAMED_MAX: Final = 3

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
    """

    problems: tuple[SourceProblem, ...] = ()
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


def list_attention(facts: OverviewFacts) -> tuple[AttentionItem, ...]:
    """Return what needs attention, errors first."""
    found = [
        *_of_problems(facts.problems),
        *_of_services(facts.services),
        *_of_discovery(facts.discovery),
        *_of_batches(facts),
        *_of_lanes(facts.lanes or ()),
        *_of_doctor(facts),
        *_of_maintenance(facts.maintenance),
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
