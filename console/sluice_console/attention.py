"""Derive what needs an operator's attention from the facts of one sample. Pure.

Each rule returns at most a few items. An item names what is wrong, what to do, the page that
explains it and the command with the same content. The order is the order of the overview: errors
first, then warnings, then notices, each in the order in which a batch passes the components.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from sluice_console.attention_items import (
    NAMED_MAX,
    SEVERITIES,
    AttentionItem,
    ServiceState,
    Severity,
    counted_noun,
    duration_text,
)
from sluice_console.gateway_health import (
    JOURNAL_AGE_S_MAX,
    LOOKUP,
    REFUSED_SHARE_MAX,
    SLOW_SHARE_MAX,
    GatewayHealth,
)
from sluice_maintain.status import MaintenanceStatus
from sluice_protocol.blob_deletion import PlanState
from sluice_protocol.journals import HEARTBEAT_S
from sluice_queue.inspection import LaneCondition, LaneStatus, OwnershipState
from sluice_reconciler.audit_summaries import AuditOverview, PlanOverview, UnreadableRecord
from sluice_reconciler.discovery import DiscoveryStatus, ProcessState
from sluice_reconciler.lanes.membership import WORK_S, LiveMembers
from sluice_reconciler.loop_health import NEEDED
from sluice_store.doctor import DoctorResult, Need
from sluice_store.stored_expiry import RetentionState
from sluice_web.refused_clients import WINDOW_MINUTES, RefusedDoor

_REMEDIES: Final = {
    "identity_conflict": "Other bytes own their identities: compare both sides of the conflicts.",
    "unauthenticated": "Correct the key or the token of the sender, or the principals file.",
    "forbidden_agent": "Correct the agents of the principal, or the name of the agent.",
    "identity_quarantined": "An operator has closed this boot: restart the agent.",
    "overloaded": "Start another gateway, or raise its limits.",
}
"""What to do about the most frequent outcome of refused uploads."""


def list_gateway_items(gateways: Sequence[GatewayHealth]) -> Iterator[AttentionItem]:
    """Yield what needs attention at gateways whose metrics are read."""
    broken = [one for one in gateways if one.problem]
    if broken and len(broken) == len(gateways):
        yield _gateway_item("error", "No gateway responds", broken[0].problem, broken[0].url)
    else:
        for one in broken[:NAMED_MAX]:
            yield _gateway_item("warning", "A gateway does not respond", one.problem, one.url)
    closed = [one for one in gateways if one.not_ready]
    if closed and len(closed) == len(gateways):
        yield _gateway_item("error", "No gateway is ready", closed[0].not_ready, closed[0].url)
    else:
        for one in closed[:NAMED_MAX]:
            yield _gateway_item("warning", "A gateway is not ready", one.not_ready, one.url)
    found = [item for one in gateways for item in _of_gateway(one)]
    yield from found[: 2 * NAMED_MAX]
    yield from _of_refused_clients(gateways)


def _of_refused_clients(gateways: Sequence[GatewayHealth]) -> Iterator[AttentionItem]:
    """Yield one item for each door whose clients some gateways refused in the last minutes."""
    by_door: defaultdict[str, list[tuple[GatewayHealth, RefusedDoor]]] = defaultdict(list)
    for one in gateways:
        for door in one.refused_doors:
            by_door[door.door].append((one, door))
    for name, found in sorted(by_door.items()):
        gateway, last = min(found, key=lambda pair: pair[1].last_s)
        refusals = sum(door.refusals for _, door in found)
        peer = f" from {last.peer}" if last.peer else ""
        yield _gateway_item(
            "notice",
            "Agents without a valid key are refused"
            if name == "uploads"
            else f"Clients without a valid key are refused, door={name}",
            f"{counted_noun(refusals, 'refusal', 'refusals')} in the last {WINDOW_MINUTES} min, the"
            f" last {duration_text(last.last_s)} ago{peer}: {last.reason}. Nothing of what they"
            " sent is stored, and many do not notice it. Give them the key of a principal; the"
            " log of the gateway has the reason, event request_refused.",
            gateway.url,
        )


def _of_gateway(one: GatewayHealth) -> Iterator[AttentionItem]:
    if one.journal_age_s > JOURNAL_AGE_S_MAX:
        detail = (
            f"Its journal is {duration_text(one.journal_age_s)} old; from 60 s it accepts nothing."
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
        command="" if url.startswith(LOOKUP) else f"curl {url}/readyz",
    )


LAKE_BEHIND_S_MAX: Final = 600.0
"""Ingestion is late if the oldest entry that is not in the lake is older than this."""
WITHOUT_OWNER_S_MAX: Final = 60.0
"""Time without an owner from which a lane is not just handed over: longer than `TAKEOVER_S_MAX` of
members, and than the default of `takeover_after_s` after it."""
_WITHOUT_OWNER: Final[dict[OwnershipState, tuple[Severity, str]]] = {
    OwnershipState.UNOWNED: ("error", "has no owner"),
    OwnershipState.LAPSED: ("error", "lost its owner"),
    OwnershipState.DISPUTED: ("warning", "has several owners"),
    OwnershipState.UNKNOWN: ("warning", "has an unknown owner"),
}
"""For each state of a lane, its severity and the words of the title, in the order of the overview.
"""


def list_lane_items(
    lanes: Sequence[LaneStatus], discovery: DiscoveryStatus | None
) -> Iterator[AttentionItem]:
    """Yield what needs attention at the lanes of all queues."""
    for lane in [one for one in lanes if one.condition is not LaneCondition.SOUND][:NAMED_MAX]:
        yield AttentionItem(
            severity="error",
            title=f"Lane {lane.lane} of {lane.queue} is {lane.condition.value}",
            detail=lane.problem,
            page="queue",
            command="sluice queue status",
        )
    for state, found in lanes_without_owner(lanes, discovery).items():
        if found:
            yield _without_owner(state, found)
    late = max(lanes, key=lambda one: one.oldest_waiting_s or 0.0, default=None)
    oldest_s = 0.0 if late is None else late.oldest_waiting_s or 0.0
    if late is None or oldest_s <= LAKE_BEHIND_S_MAX:
        return
    if oldest_s - late.clock_ahead_s <= LAKE_BEHIND_S_MAX:
        yield AttentionItem(
            severity="warning",
            title=f"The clock of the store is {duration_text(late.clock_ahead_s)} ahead",
            detail="It differs from the clock of this machine, so ages are shown too long; the"
            " consumer of the queue is not late. Correct the clock that is wrong. The clock of a"
            " directory store never goes back: after a correction, wait until the time has passed.",
            page="queue",
            command="sluice queue status",
        )
        return
    yield AttentionItem(
        severity="warning",
        title=f"The lake is {duration_text(oldest_s)} behind",
        detail="The consumer of the queue is stopped or too slow. Check `sluice maintain` or"
        " `sluice spark ingest`.",
        page="queue",
        command="sluice queue status",
    )


def may_lack_owner(discovery: DiscoveryStatus | None) -> bool:
    """Return True if the owners of lanes must be read, because some lane is late."""
    if discovery is None or discovery.behind_s is None:
        return True
    return discovery.behind_s > WITHOUT_OWNER_S_MAX


def lanes_without_owner(
    lanes: Sequence[LaneStatus], discovery: DiscoveryStatus | None
) -> dict[OwnershipState, list[LaneStatus]]:
    """Return the sound lanes that stay without one owner, by state; each state is contained.

    A lane is listed if its accepted batches are not enqueued, and if for the same time no owner
    wrote its state and no reconciler started, stopped or died. So a lane that is handed over, and
    an idle lane that its standby claims with the next batch, are not listed. While the journal of a
    gateway holds the time back, an owner that is only not known is no reason for it.
    """
    found: dict[OwnershipState, list[LaneStatus]] = {state: [] for state in _WITHOUT_OWNER}
    held = discovery is not None and discovery.held_by is not None
    for lane in lanes:
        owner = lane.ownership
        if owner is None or owner.state not in found or lane.condition is not LaneCondition.SOUND:
            continue
        if held and owner.state in (OwnershipState.DISPUTED, OwnershipState.UNKNOWN):
            continue
        behind_s = None if discovery is None else discovery.lane_behind_s(lane.lane)
        times = [one for one in (behind_s, owner.unchanged_s) if one is not None]
        if all(one > WITHOUT_OWNER_S_MAX for one in times):
            found[owner.state].append(lane)
    return found


def _without_owner(state: OwnershipState, lanes: Sequence[LaneStatus]) -> AttentionItem:
    severity, what = _WITHOUT_OWNER[state]
    names = [f"{one.queue}.{one.lane:03d}" for one in lanes]
    title = f"Lane {names[0]} {what}"
    if len(names) > 1:
        title = f"{title}, and {len(names) - 1} more"
    owner = lanes[0].ownership
    reason = owner.detail if owner is not None else ""
    remedy = " Start a reconciler of this release." if state is OwnershipState.UNKNOWN else ""
    return AttentionItem(
        severity=severity,
        title=title,
        detail=f"Its accepted batches are not enqueued. Reason: {reason}.{remedy}"
        " Runbook: SluiceLaneWithoutOwner.",
        page="queue",
        command="sluice queue status",
    )


class PolicyTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How many required denials the documents of the bucket prove.

    Attributes:
        first: The first that is not denied, and the statements that are missing.
        problem: Why nothing could be proved; empty if it could.
    """

    denied: int = 0
    allowed: int = 0
    undecided: int = 0
    first: str = ""
    problem: str = ""
    command: str = "sluice policies denials"


def list_policy_items(totals: PolicyTotals | None) -> Iterator[AttentionItem]:
    """Yield an item if a request is allowed that must be denied, or if that is unknown."""
    if totals is None:
        return
    if totals.problem:
        yield AttentionItem(
            severity="warning",
            title="The policies of the bucket cannot be proved",
            detail=totals.problem,
            page="store",
            command=totals.command,
        )
    if totals.allowed:
        lost = counted_noun(
            totals.allowed, "denial of the policies is lost", "denials of the policies are lost"
        )
        yield AttentionItem(
            severity="error",
            title=lost,
            detail=f"{totals.first}. Compare with `sluice policies diff`, then apply the policies.",
            page="store",
            command=totals.command,
        )
    if totals.undecided:
        denials = counted_noun(totals.undecided, "denial", "denials")
        yield AttentionItem(
            severity="warning",
            title=f"The solver cannot decide {denials} of the policies",
            detail="A document contains more than sluice renders. Compare with"
            " `sluice policies diff`.",
            page="store",
            command=totals.command,
        )


BEHIND_S_MAX: Final = 60.0
"""Discovery is late if the time through which everything is enqueued is older than this."""
SILENT_S_MAX: Final = HEARTBEAT_S + 10.0
"""Time since the newest journal object of a gateway from which it does not report: an idle one
writes an object every `HEARTBEAT_S`."""
_ENDED: Final = (ProcessState.CLOSED, ProcessState.REPLACED)


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
        dead_letters: Accepted batches that could not be ingested and are not in the lake; None if
            unknown.
        erasures_late: Erasures that have not ended in the time that they may take; None if unknown.
        doctor_ran: Whether there is a result; None if that could not be read.
        disk_problem: Why a directory store cannot be written; empty if it can, or if it is none.
        plan: The newest deletion plan; None if there is none.
    """

    problems: tuple[SourceProblem, ...] = ()
    acceptance: str | None = None
    services: tuple[ServiceState, ...] = ()
    discovery: DiscoveryStatus | None = None
    members: LiveMembers | None = None
    lanes: tuple[LaneStatus, ...] | None = None
    conflicts_open: int | None = None
    conflicts_more: bool = False
    held: int | None = None
    held_more: bool = False
    held_reasons: tuple[str, ...] = ()
    dead_letters: int | None = None
    erasures_late: int | None = None
    missing_indexes: tuple[str, ...] = ()
    gaps: GapTotals | None = None
    doctor: DoctorResult | None = None
    doctor_ran: bool | None = None
    disk_problem: str = ""
    maintenance: MaintenanceStatus | None = None
    audit: AuditOverview | UnreadableRecord | None = None
    plan: PlanOverview | None = None
    gateways: tuple[GatewayHealth, ...] = ()
    policies: PolicyTotals | None = None
    lake_problems: tuple[str, ...] = ()
    retention: RetentionState | None = None


def list_attention(facts: OverviewFacts) -> tuple[AttentionItem, ...]:
    """Return what needs attention, errors first."""
    found = [
        *_of_problems(facts.problems),
        *_of_services(facts.services),
        *list_gateway_items(facts.gateways),
        *_of_no_gateway(facts),
        *_of_members(facts.members),
        *_of_discovery(facts.discovery),
        *_of_batches(facts),
        *list_lane_items(facts.lanes or (), facts.discovery),
        *_of_lake(facts.lake_problems),
        *_of_disk(facts.disk_problem),
        *_of_doctor(facts),
        *list_policy_items(facts.policies),
        *_of_maintenance(facts.maintenance),
        *_of_audit(facts.audit),
        *_of_plan(facts.plan),
        *_of_holds(facts.retention),
    ]
    return tuple(sorted(found, key=lambda item: SEVERITIES.index(item.severity)))


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
            state = "cannot do its work" if one.responds else "does not respond"
            yield AttentionItem(
                severity="error" if one.service == "reconciler" else "warning",
                title=f"The {one.service} service {state}",
                detail=f"{one.problem}, url={one.url}",
                page="agents" if one.service == "reconciler" else "explore",
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
    for one in lapsed[:NAMED_MAX]:
        yield AttentionItem(
            severity="error",
            title=f"Gateway {one.gateway} stopped reporting",
            detail=f"Its process {one.process} wrote nothing for {duration_text(one.silent_s)}."
            " Start it again, or wait for the full pass that follows.",
            page="queue",
            command=command,
        )
    silent = [
        one
        for one in discovery.processes
        if one.state is ProcessState.OPEN and one.silent_s > SILENT_S_MAX
    ]
    for one in silent[:NAMED_MAX]:
        yield AttentionItem(
            severity="warning",
            title=f"Gateway {one.gateway} does not report",
            detail=f"Its process {one.process} wrote nothing for {duration_text(one.silent_s)}. It"
            " has ended, is overloaded, or cannot reach the store.",
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
    elif (
        discovery.behind_s is not None
        and discovery.behind_s > BEHIND_S_MAX
        and not lapsed
        and not discovery.has_ended
    ):
        # A gateway that reports is the bound of the time, not what holds it back.
        holder = f", held by {discovery.held_by}" if discovery.held_by and silent else ""
        yield AttentionItem(
            severity="warning",
            title=f"Accepted batches are enqueued {duration_text(discovery.behind_s)} late",
            detail=f"The reconciler is stopped or overloaded{holder}.",
            page="queue",
            command=command,
        )


def _of_members(members: LiveMembers | None) -> Iterator[AttentionItem]:
    """Yield which loops of reconcilers fail, as their last heartbeats show it."""
    if members is None:
        return
    if not members.records and not members.unreadable and members.changed_s is not None:
        yield AttentionItem(
            severity="error",
            title="No reconciler is running",
            detail=f"The last one reported {duration_text(members.changed_s)} ago. Accepted batches"
            " are not enqueued. Start `sluice reconciler`.",
            page="queue",
            command="sluice reconciler status",
        )
    for record in members.records:
        silent_s = members.silent_s.get(record.member, 0.0)
        name = record.url or record.host or record.member
        if silent_s > WORK_S:
            yield AttentionItem(
                severity="error",
                title=f"The reconciler on {record.host or 'an unknown machine'} stopped reporting",
                detail=f"Its last heartbeat is {duration_text(silent_s)} old, so it works on no"
                f" lane. Check its log, and whether it reaches the store, reconciler={name}",
                page="queue",
                command="sluice queue status",
            )
        for one in record.stalled[:NAMED_MAX]:
            yield AttentionItem(
                severity="error" if one.loop in NEEDED else "warning",
                title=f"The reconciler cannot do its work: {one.loop.value}",
                detail=f"Each try fails, reason=`{one.reason}`, reconciler={name}",
                page="queue",
                command="sluice reconciler status",
            )


def _of_batches(facts: OverviewFacts) -> Iterator[AttentionItem]:
    if facts.held:
        held = counted_noun(facts.held, "batch", "batches", more=facts.held_more)
        yield AttentionItem(
            severity="error",
            title=f"{held} held back",
            detail=f"Reasons: {', '.join(facts.held_reasons)}. Restore the blobs and manifests, or"
            " send the batches again; the reconciler checks them again each minute.",
            page="queue",
            command="sluice reconciler status",
        )
    if facts.dead_letters:
        letters = counted_noun(facts.dead_letters, "accepted batch", "accepted batches")
        yield AttentionItem(
            severity="error",
            title=f"{letters} missing from the lake",
            detail="Their blobs could not be read. Restore each byte for byte, or send the batch"
            " again; ingestion checks once a minute.",
            page="queue",
            command="sluice query dead-letters",
        )
    if facts.erasures_late:
        yield AttentionItem(
            severity="error",
            title=f"{counted_noun(facts.erasures_late, 'erasure', 'erasures')} late",
            detail="They have not ended a month after their decision. Run each again; its report"
            " names what keeps records.",
            page="audit",
            command="sluice erase list",
        )
    if facts.missing_indexes:
        yield AttentionItem(
            severity="error",
            title=f"Derived indexes are missing or incomplete: {', '.join(facts.missing_indexes)}",
            detail="Objects of them were deleted, and audits and rebuilds by time need them. They"
            " follow from the manifests and blobs: run `sluice rebuild`.",
            page="queue",
            command="sluice rebuild --verify",
        )
    if facts.conflicts_open:
        conflicts = counted_noun(
            facts.conflicts_open, "conflict", "conflicts", more=facts.conflicts_more
        )
        yield AttentionItem(
            severity="warning",
            title=f"{conflicts} without a decision",
            detail="Other bytes were sent under an accepted identity. Compare both and decide.",
            page="conflicts",
            command="sluice conflicts list",
        )
    if facts.gaps is not None and facts.gaps.agents:
        agents = counted_noun(facts.gaps.agents, "agent has", "agents have")
        yield AttentionItem(
            severity="warning",
            title=f"{agents} gaps",
            detail=f"Records are missing, the oldest for {duration_text(facts.gaps.oldest_s)}."
            " Check whether the spool of the agent still contains them.",
            page="agents",
            command="sluice gaps",
        )


def _of_lake(problems: Sequence[str]) -> Iterator[AttentionItem]:
    for place, problem in enumerate(problems[:NAMED_MAX], 1):
        left = len(problems) - NAMED_MAX if place == NAMED_MAX else 0
        more = f" ({left} more)" if left > 0 else ""
        yield AttentionItem(
            severity="error",
            title="The lake is incomplete",
            detail=f"Answers are partial. {problem}{more}",
            page="queue",
            command="sluice query",
        )


def _of_disk(problem: str) -> Iterator[AttentionItem]:
    if problem:
        yield AttentionItem(
            severity="error",
            title="The directory of the store cannot be written",
            detail=f"{problem}. Batches are refused until then; agents keep them.",
            page="store",
            command="sluice doctor --dry-run",
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
    for one in broken[:NAMED_MAX]:
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


def _of_plan(plan: PlanOverview | None) -> Iterator[AttentionItem]:
    if plan is not None and plan.state == PlanState.STOPPED:
        yield AttentionItem(
            severity="warning",
            title="The newest deletion plan is stopped",
            detail=f"{plan.stopped}, plan={plan.plan_id}. The next cycle makes a newer plan, which"
            " is executed after its grace period; `sluice gc plan` makes one now.",
            page="audit",
            command="sluice gc plans",
        )


def _of_holds(state: RetentionState | None) -> Iterator[AttentionItem]:
    """Yield holds that an operator has to review, and those that cannot be read."""
    if state is None:
        return
    due = [one for one in state.holds if one.hold_id in state.due]
    if due:
        cases = ", ".join(one.case for one in due[:NAMED_MAX])
        yield AttentionItem(
            severity="warning",
            title=f"{counted_noun(len(due), 'hold', 'holds')} to review",
            detail=f"The review date is over: {cases}. A hold stays in effect until"
            " `sluice hold lift`. Lift it, or add a hold with a later date before.",
            page="audit",
            command="sluice hold list",
        )
    if state.unreadable:
        yield AttentionItem(
            severity="error",
            title=f"{counted_noun(len(state.unreadable), 'hold', 'holds')} cannot be read",
            detail=f"Nothing expires, and records are not deleted: {state.unreadable[0]}. Restore"
            " the record from a backup.",
            page="audit",
            command="sluice hold list",
        )
