"""Which reconciler owns a lane, for operators. Pure: no I/O, clock or randomness.

Two records name a process. The claim in the lane state names the one that raised the owner term:
only it can append. The member records name the lanes that each live reconciler works on: it claims
a lane with its next batch. They differ while a lane is handed over, and after a process died.

    members that name the lane   claim                                             shown as
    two or more                  any                                               disputed
    one                          of a process without a member record              disputed
    one                          any other, or none                                owned
    none                         of a process without a member record              owned
    none                         of a member                                       lapsed
    none                         without a name                                    unknown
    none                         none, or released                                 unowned

While a live member record or the lane state cannot be read, `lapsed` and `unowned` are `unknown`.
Source: ADR 25.
"""

from sluice_queue.inspection import LaneOwnership, OwnerName, OwnershipState
from sluice_reconciler.lanes.member_records import LiveMembers
from sluice_reconciler.lanes.membership import MEMBER_DEAD_AFTER_S, MemberRecord
from sluice_reconciler.lanes.state import LaneRecord, OwnerClaim


def decide_ownership(lane: int, record: LaneRecord | None, members: LiveMembers) -> LaneOwnership:
    """Return who owns a lane.

    Args:
        lane: The number of the lane.
        record: The lane state; None if there is none.
        members: The live members.
    """
    working = [one for one in members.records if lane in one.lanes]
    claim = _claim_of(record)
    stranger = claim if claim is not None and not claim.sharing else None
    names = [_name_of(one, claim) for one in working]
    if stranger is not None and stranger.member not in {one.member for one in names}:
        names.append(_claimed_by(stranger, is_running=None))
    if len(names) > 1:
        return _disputed(tuple(names), claim)
    if working:
        return _owned(names[0], record, claim)
    if stranger is not None:
        detail = "it writes no member record, so it is not known whether it still runs"
        return LaneOwnership(state=OwnershipState.OWNED, owners=tuple(names), detail=detail)
    return _without_member(record, claim, members)


def unread_ownership(lane: int, members: LiveMembers) -> LaneOwnership:
    """Return who owns a lane whose state cannot be read."""
    found = decide_ownership(lane, None, members)
    if found.owners:
        return found
    return _unknown("the lane state cannot be read")


def _claim_of(record: LaneRecord | None) -> OwnerClaim | None:
    """Return who claims a lane now; None after a release, and for a claim without a name."""
    return record.owner if record is not None and record.has_owner else None


def _name_of(member: MemberRecord, claim: OwnerClaim | None) -> OwnerName:
    since_ns = None
    if claim is not None and claim.member == member.member:
        since_ns = claim.since_unix_ns
    return OwnerName(
        member=member.member,
        url=member.url,
        host=member.host,
        pid=member.process.pid if member.process is not None else 0,
        since_unix_ns=since_ns,
        is_running=True,
    )


def _claimed_by(claim: OwnerClaim, *, is_running: bool | None) -> OwnerName:
    return OwnerName(
        member=claim.member,
        url=claim.url,
        host=claim.host,
        pid=claim.pid,
        since_unix_ns=claim.since_unix_ns,
        is_running=is_running,
    )


def _disputed(names: tuple[OwnerName, ...], claim: OwnerClaim | None) -> LaneOwnership:
    detail = (
        f"{len(names)} reconcilers report this lane, and only the one that claimed it last can"
        " append, so nothing is enqueued twice; if this lasts longer than a minute, stop all but"
        " one of them and compare their clocks and their log"
    )
    if claim is None:
        detail += "; the lane state names none of them"
    return LaneOwnership(state=OwnershipState.DISPUTED, owners=names, detail=detail)


def _owned(name: OwnerName, record: LaneRecord | None, claim: OwnerClaim | None) -> LaneOwnership:
    detail = ""
    if name.since_unix_ns is None:
        detail = "it claims the lane with the next batch"
        if claim is None and record is not None and record.has_owner:
            detail = "the lane state does not name who claimed it"
    return LaneOwnership(state=OwnershipState.OWNED, owners=(name,), detail=detail)


def _without_member(
    record: LaneRecord | None, claim: OwnerClaim | None, members: LiveMembers
) -> LaneOwnership:
    """Return the ownership of a lane that no live member names."""
    if members.unreadable:
        return _unknown(
            f"{members.unreadable} member records cannot be read: run one version of"
            " sluice, and delete the records that no reconciler writes"
        )
    if claim is not None:
        running = any(one.member == claim.member for one in members.records)
        reason = "works on it no more" if running else "has not reported since its last heartbeat"
        detail = (
            f"it {reason} and did not release the lane; another reconciler takes it within"
            f" {MEMBER_DEAD_AFTER_S + 3:g} s: if none does, start `sluice reconciler`"
        )
        owner = _claimed_by(claim, is_running=running)
        return LaneOwnership(state=OwnershipState.LAPSED, owners=(owner,), detail=detail)
    if record is not None and record.has_owner:
        return _unknown("the lane state does not name who claimed it: `sluice rebuild` wrote it")
    detail = "no reconciler works on this lane: start `sluice reconciler`"
    return LaneOwnership(state=OwnershipState.UNOWNED, detail=detail)


def _unknown(detail: str) -> LaneOwnership:
    return LaneOwnership(state=OwnershipState.UNKNOWN, detail=detail)
