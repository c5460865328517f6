"""What needs attention at the lanes of the queue. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from sluice_console.attention_items import NAMED_MAX, AttentionItem, Severity, duration_text
from sluice_queue.inspection import LaneCondition, LaneStatus, OwnershipState
from sluice_reconciler.discovery_status import DiscoveryStatus

LAKE_BEHIND_S_MAX: Final = 600.0
"""Age of the oldest entry that is not in the lake, from which ingestion is late."""
WITHOUT_OWNER_S_MAX: Final = 60.0
"""Time without an owner from which a lane is not just handed over: longer than `TAKEOVER_S_MAX` of
members, and than the default of `takeover_after_s` after it."""
_WITHOUT_OWNER: Final[dict[OwnershipState, tuple[Severity, str]]] = {
    OwnershipState.UNOWNED: ("error", "has no owner"),
    OwnershipState.LAPSED: ("error", "lost its owner"),
    OwnershipState.DISPUTED: ("warning", "has several owners"),
    OwnershipState.UNKNOWN: ("warning", "has an unknown owner"),
}
"""Per state of a lane its severity and what the title states; in the order of the overview."""


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
    """Return whether the owners of lanes have to be read: some lane is late."""
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
