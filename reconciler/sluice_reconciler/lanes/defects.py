"""Defects in the bookkeeping of a lane: its register, its segments and its state.

A lane with a defect is halted: no batch is appended to it until `sluice rebuild` has replaced what
is lost or damaged. Nothing is written here. Source: ADR 26.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sluice_protocol.keys import LEDGER_LOG, LOGS_LOG, QUEUE
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.errors import LaneDamaged
from sluice_queue.inspection import (
    LANES_AT_ONCE,
    LaneCondition,
    LaneOwnership,
    LaneStatus,
    read_entries,
    read_lane_status,
)
from sluice_queue.lane import Lane, list_lanes
from sluice_queue.register import Register, body_descriptors, decode_register, is_other_register
from sluice_reconciler.lanes.membership import LiveMembers, decide_ownership, unread_ownership
from sluice_reconciler.lanes.part_log import check_parts
from sluice_reconciler.lanes.state import (
    LaneRecord,
    LaneStateDamaged,
    StoredLaneState,
    lane_key,
    list_lane_states,
    read_lane_state,
)
from sluice_store.port import ObjectStore, run_concurrently


class DefectKind(StrEnum):
    """What is wrong with a lane."""

    REGISTER_MISSING = "register_missing"
    REGISTER_REPLACED = "register_replaced"
    REGISTER_DAMAGED = "register_damaged"
    STATE_DAMAGED = "state_damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneDefect:
    """Why a lane is halted, and the object that is wrong."""

    lane: Lane
    kind: DefectKind
    key: ObjectKey
    detail: str


async def has_ledger(store: ObjectStore) -> bool:
    """Return True if the ledger of the lake has begun, so that a queue was read.

    Each round commits to the table of logs first. The first version of a table is empty: an ingest
    that starts creates it before the registers.
    """
    for table_log in (LEDGER_LOG, LOGS_LOG):
        async for page in store.list(table_log, start_after=f"{table_log}{0:020d}.json"):
            if page.objects:
                return True
            break
    return False


async def find_defect(
    store: ObjectStore, lane: Lane, *, persisted: int = 0, segments: bool = False
) -> LaneDefect | None:
    """Return what is wrong with a lane, or None.

    `persisted` is the last sequence that the lane's consumer persisted, 0 if that is not known.
    With `segments`, the segments of the register and the parts of the lane state are read too.
    """
    return await _defect_of(
        store, lane, await _read_state(store, lane), persisted, segments=segments
    )


async def _read_state(store: ObjectStore, lane: Lane) -> StoredLaneState | LaneStateDamaged | None:
    try:
        return await read_lane_state(store, lane)
    except LaneStateDamaged as error:
        return error


async def _defect_of(
    store: ObjectStore,
    lane: Lane,
    stored: StoredLaneState | LaneStateDamaged | None,
    persisted: int,
    *,
    segments: bool,
) -> LaneDefect | None:
    if isinstance(stored, LaneStateDamaged):
        register = await _find_register_defect(store, lane, None, persisted, segments=segments)
        if register is not None:
            return register
        return LaneDefect(
            lane=lane,
            kind=DefectKind.STATE_DAMAGED,
            key=lane_key(lane),
            detail=stored.reason,
        )
    record = stored.record if stored is not None else None
    register = await _find_register_defect(store, lane, record, persisted, segments=segments)
    if register is not None or stored is None:
        return register
    try:
        await check_parts(store, stored, read=segments)
    except LaneStateDamaged as error:
        return LaneDefect(
            lane=lane,
            kind=DefectKind.STATE_DAMAGED,
            key=ObjectKey(error.key),
            detail=error.reason,
        )
    return None


async def _find_register_defect(
    store: ObjectStore, lane: Lane, record: LaneRecord | None, persisted: int, *, segments: bool
) -> LaneDefect | None:
    read = await store.get(lane.key)
    if not isinstance(read, Found):
        evidence = await _evidence_of_loss(store, lane, record, persisted)
        return _register_defect(lane, DefectKind.REGISTER_MISSING, evidence) if evidence else None
    try:
        state = decode_register(lane.key, read.body)
        body_descriptors(lane.key, state)
        if segments:
            await read_entries(store, lane, state, after=state.acked_through, entries_max=None)
    except LaneDamaged as error:
        detail = error.reason if error.key == lane.key else f"{error.reason}: {error.key}"
        return _register_defect(lane, DefectKind.REGISTER_DAMAGED, detail)
    if state.next_sequence <= persisted:
        detail = f"its consumer persisted sequence {persisted}, which was never assigned"
        return _register_defect(lane, DefectKind.REGISTER_REPLACED, detail)
    if record is not None and _is_other(state, record):
        detail = "it does not contain the appends of the reconciler"
        return _register_defect(lane, DefectKind.REGISTER_REPLACED, detail)
    return None


def _register_defect(lane: Lane, kind: DefectKind, detail: str) -> LaneDefect:
    return LaneDefect(lane=lane, kind=kind, key=lane.key, detail=detail)


def _is_other(state: Register | None, record: LaneRecord) -> bool:
    wrote = record.writes or int(bool(record.pending) and state is None)
    return is_other_register(state, bytes.fromhex(record.producer_id), wrote)


async def _evidence_of_loss(
    store: ObjectStore, lane: Lane, record: LaneRecord | None, persisted: int
) -> str:
    """Return what shows that a missing register existed; empty if it was never created."""
    if persisted > 0:
        return f"its consumer persisted sequence {persisted}"
    if record is not None and _is_other(None, record):
        return "batches were appended to it"
    async for page in store.list(f"{QUEUE}{lane.queue}.{lane.lane:03d}/segments/"):
        if page.objects:
            return "segments of it exist"
        break
    return ""


_CONDITIONS: Final = {
    DefectKind.REGISTER_MISSING: LaneCondition.LOST,
    DefectKind.REGISTER_REPLACED: LaneCondition.LOST,
    DefectKind.REGISTER_DAMAGED: LaneCondition.DAMAGED,
    DefectKind.STATE_DAMAGED: LaneCondition.DAMAGED,
}


def defect_text(defect: LaneDefect) -> str:
    """Return a defect as one line with the next step."""
    what = defect.kind.value.replace("_", " ")
    return (
        f"{what}: {defect.detail}; stop its consumer and the reconcilers, and run `sluice"
        f" rebuild`, key=`{defect.key}`"
    )


async def read_queue_status(
    store: ObjectStore,
    lanes: int,
    queue: str | None = None,
    persisted: Mapping[Lane, int] | None = None,
    members: LiveMembers | None = None,
    *,
    layout: int = 0,
) -> list[LaneStatus]:
    """Read the status of every lane that exists or existed, of one queue or of all, in order.

    A lane is lost if its register is missing or replaced although a lane state, a segment or its
    consumer shows that it was used. `persisted` has the sequences that consumers persisted, where
    they are known; `members` are from `read_live_members`, or None if no owner is needed. A queue
    of None means all. `lanes` and `layout` are those of the authority.
    """
    known = persisted if persisted is not None else {}
    existing = await list_lanes(store, queue)
    recorded = [lane for lane in await list_lane_states(store) if queue in (None, lane.queue)]
    consumed = [lane for lane in known if queue in (None, lane.queue)]
    names = {lane.queue for lane in (*existing, *recorded, *consumed)}
    expected = {Lane(queue=name, lane=number) for name in names for number in range(lanes)}
    found = {(one.queue, one.lane): one for one in await read_lane_status(store, queue)}

    async def check(lane: Lane) -> None:
        place = (lane.queue, lane.lane)
        sound = place not in found or found[place].condition is LaneCondition.SOUND
        if not sound and members is None:
            return
        stored, defect = await _read_state(store, lane), None
        if sound:
            defect = await _defect_of(store, lane, stored, known.get(lane, 0), segments=False)
        if defect is not None:
            found[place] = LaneStatus(
                queue=lane.queue,
                lane=lane.lane,
                condition=_CONDITIONS[defect.kind],
                problem=defect_text(defect),
            )
        if members is not None and place in found:
            found[place] = replace(found[place], ownership=_ownership(lane, stored, members))

    all_lanes = {
        replace(lane, layout=layout) for lane in (*expected, *existing, *recorded, *consumed)
    }
    await run_concurrently(all_lanes, check, concurrency=LANES_AT_ONCE)
    # A lane that a change of the number of lanes removed keeps its register, without entries.
    return [found[place] for place in sorted(found) if place[1] < lanes or not layout]


def _ownership(
    lane: Lane, stored: StoredLaneState | LaneStateDamaged | None, members: LiveMembers
) -> LaneOwnership:
    if isinstance(stored, LaneStateDamaged):
        found, written_s = unread_ownership(lane.lane, members), None
    elif stored is None:
        found, written_s = decide_ownership(lane.lane, None, members), None
    else:
        found = decide_ownership(lane.lane, stored.record, members)
        written_ns = stored.written_ns or stored.date_ns
        written_s = max(0, stored.date_ns - written_ns) / NS_PER_S
    known = [one for one in (written_s, members.changed_s) if one is not None]
    return replace(found, unchanged_s=min(known, default=None))
