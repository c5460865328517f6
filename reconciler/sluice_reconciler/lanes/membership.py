"""Which lanes each reconciler works on, if several share a store.

Each reconciler has a member record, `reconciler/v1/members/<ulid>.json`, which it writes again as
its heartbeat. The record names the lanes that the member works on. From the same live members,
every member computes the same assignment.

States of a lane as one member sees it, and its transitions:

    of another    assigned to this member, and no live member names it      → working
                  assigned to this member for `HANDOVER_MAX_S`              → working
    working       assigned to another live member                           → released
    released      its state is stored, and the record names it no more     → of another

Membership only avoids that two reconcilers do the same work. It proves nothing: the owner term in
the lane state fences an owner that does not know that it lost a lane (ADR 24 and 25).

The lanes of a process of this machine that has ended are taken without a wait. A process is
identified by the boot of the machine, its pid namespace, its pid and its start time. A process of
the same boot and namespace is visible in `/proc` while it exists. Of any other process nothing is
known here: it counts as running until its record is too old.

For operators, `decide_ownership` shows which reconciler owns a lane. Two records name a process.
The claim in the lane state names the one that raised the owner term: only it can append. The member
records name the lanes that each live reconciler works on: it claims a lane with its next batch.
They differ while a lane is handed over, and after a process died.

    members that name the lane   claim                                             shown as
    two or more                  any                                               disputed
    one                          of a process without a member record              disputed
    one                          any other, or none                                owned
    none                         of a process without a member record              owned
    none                         of a member                                       lapsed
    none                         without a name                                    unknown
    none                         none, or released                                 unowned

While a live member record or the lane state cannot be read, `lapsed` and `unowned` are `unknown`.
"""

import hashlib
import os
import socket
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from sluice_protocol.batch_seal import ulid_time_ns
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import RECONCILER
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey, UnixNs
from sluice_queue.inspection import LaneOwnership, OwnerName, OwnershipState
from sluice_reconciler.lanes.state import LaneRecord, OwnerClaim
from sluice_reconciler.loop_health import StalledLoop
from sluice_store.port import ObjectStore, run_concurrently

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ENDED: Final = ("Z", "X")
"""States of a process that has ended: zombie, dead."""


class HostProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of one machine.

    Attributes:
        boot: Of the machine.
        started: Its start, in clock ticks after the boot.
    """

    boot: str
    namespace: int
    pid: int
    started: int


class HostProcesses:
    """The processes of this machine, as `/proc` shows them; without it, nothing is known."""

    def current(self) -> HostProcess | None:
        """Return this process, or None without `/proc`."""
        found = _read_stat(os.getpid())
        try:
            boot = _BOOT_ID.read_text().strip()
            namespace = Path("/proc/self/ns/pid").stat().st_ino
            # A mounted `/proc` of another namespace shows other processes under these numbers.
            is_own = int(Path("/proc/self/stat").read_text().partition(" ")[0]) == os.getpid()
        except (OSError, ValueError):
            return None
        if found is None or not is_own:
            return None
        return HostProcess(boot=boot, namespace=namespace, pid=os.getpid(), started=found[1])

    def has_ended(self, process: HostProcess) -> bool:
        """Return True if `/proc` shows that a process has ended."""
        mine = self.current()
        if mine is None or (mine.boot, mine.namespace) != (process.boot, process.namespace):
            return False
        try:
            os.kill(process.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass  # It exists, and belongs to another user.
        found = _read_stat(process.pid)
        return found is not None and (found[0] in _ENDED or found[1] != process.started)

    def host_name(self) -> str:
        """Return the name of this machine; in a container that of the container or pod."""
        return socket.gethostname()


def _read_stat(pid: int) -> tuple[str, int] | None:
    """Return state and start of a process, or None if they cannot be read."""
    try:
        # The name of the program is in parentheses and may contain any character.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


MEMBERS: Final = f"{RECONCILER}members/"

HEARTBEAT_S: Final = 3.0
"""Time between two heartbeats of a member, seconds."""
MEMBER_DEAD_AFTER_S: Final = 12.0
"""Age of a member record, by the store's clock, from which the member counts as dead, seconds."""
WORK_S: Final = 9.0
"""Time since its last heartbeat after which a member stops working, seconds; it counts as dead
later.
"""
HANDOVER_MAX_S: Final = 20.0
"""How long a member waits for a live one to release a lane, seconds. Then it takes the lane over,
which fences the other."""
TAKEOVER_S_MAX: Final = MEMBER_DEAD_AFTER_S + HANDOVER_MAX_S + 2 * HEARTBEAT_S
"""Time after a member starts, stops or dies within which each lane has an owner again, seconds."""
FORGET_S: Final = 3600.0
"""Age from which the record of a dead member is deleted, seconds."""


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One running reconciler; dead if the record is older than 12 s by the store's clock.

    A process of the same machine overwrites the record of one that has ended, without lanes.

    Attributes:
        url: Of the operator API for other processes and clients; empty if they cannot reach it.
        lanes: The lanes that it works on, of every queue, in order.
        leaving: Whether it stopped: its lanes may be taken.
        process: The process, so that another one of the same machine can see that it has ended.
        stalled: Its loops that have failed for some seconds.
    """

    schema: Literal["sluice.reconciler_member.v2"] = "sluice.reconciler_member.v2"
    member: str
    url: str = ""
    lanes: tuple[int, ...] = ()
    leaving: bool = False
    process: HostProcess | None = None
    host: str = ""
    stalled: tuple[StalledLoop, ...] = ()


def member_key(member: str) -> ObjectKey:
    """Return the key of a member record."""
    return ObjectKey(f"{MEMBERS}{member}.json")


def is_live(written_ns: UnixNs, date_ns: UnixNs) -> bool:
    """Return True if a record that was written then belongs to a live member.

    A record from the future was written by a clock that was ahead; a live member writes it again.
    """
    return abs(date_ns - written_ns) < MEMBER_DEAD_AFTER_S * NS_PER_S


def is_forgotten(written_ns: UnixNs, date_ns: UnixNs) -> bool:
    """Return True if a record is so old that it is deleted."""
    return date_ns - written_ns >= FORGET_S * NS_PER_S


def assign_lanes(members: Collection[str], lanes: int) -> dict[int, str]:
    """Return the member that each lane is assigned to.

    Every lane is assigned to the member with the highest hash of both (rendezvous hashing) that has
    fewer than its share. No member has more than one lane more than another one.
    """
    ordered = sorted(set(members))
    if not ordered:
        return {}
    low, extra = divmod(lanes, len(ordered))
    assigned: dict[int, str] = {}
    count: Counter[str] = Counter()
    for lane in range(lanes):
        full = low + (sum(one > low for one in count.values()) < extra)
        free = [one for one in ordered if count[one] < full]
        member = max(free, key=lambda one: _weight(lane, one))
        assigned[lane] = member
        count[member] += 1
    return assigned


def _weight(lane: int, member: str) -> bytes:
    return hashlib.blake2b(f"{lane}/{member}".encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneShares:
    """What one member does next.

    `working` are its lanes from now on, `released` those of them that it hands over, and `awaited`
    those assigned to it that a live member has not released yet.
    """

    working: frozenset[int]
    released: frozenset[int]
    awaited: frozenset[int]


def decide_shares(
    me: str,
    live: Mapping[str, Collection[int]],
    working: frozenset[int],
    lanes: int,
    overdue: frozenset[int] = frozenset(),
) -> LaneShares:
    """Decide which lanes a member works on.

    `live` maps each other live member to the lanes that it names; `overdue` are awaited lanes that
    were not released in time.
    """
    assigned = assign_lanes({me, *live}, lanes)
    wanted = frozenset(lane for lane, member in assigned.items() if member == me)
    named = frozenset(lane for one in live.values() for lane in one)
    awaited = (wanted & named) - working - overdue
    return LaneShares(working=wanted - awaited, released=working - wanted, awaited=awaited)


MEMBERS_MAX: Final = 1000
"""Member records that are read, at most; more reconcilers than lanes have no work anyway."""
_READS_AT_ONCE: Final = 16
_CLOCKS_DIFFER_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRecord:
    """A member record as it was read."""

    etag: ETag
    record: MemberRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMembers:
    """The reconcilers that share lanes, as their records show them at one moment.

    Attributes:
        records: Of live members that did not leave, in the order of their ids.
        unreadable: Number of live records that cannot be read.
        changed_s: Time since a reconciler started, stopped or wrote its last heartbeat before it
            died, seconds; None if that is not known. Dead ones are known for an hour.
    """

    records: tuple[MemberRecord, ...] = ()
    unreadable: int = 0
    changed_s: float | None = None
    silent_s: Mapping[str, float] = field(default_factory=dict)


async def read_member_record(store: ObjectStore, key: ObjectKey) -> SeenRecord | None:
    """Read one member record; return None if it was deleted."""
    read = await store.get(key)
    if not isinstance(read, Found):
        return None
    record = decode_record(key, read.body, MemberRecord)
    return SeenRecord(etag=read.info.etag, record=record)


def _started_ns(record: MemberRecord, written_ns: UnixNs) -> int:
    """Return when a member started, by the clock of its machine; 0 if that clock is wrong."""
    started_ns = ulid_time_ns(record.member) or 0
    return started_ns if started_ns < written_ns + int(_CLOCKS_DIFFER_S * NS_PER_S) else 0


async def read_live_members(store: ObjectStore) -> LiveMembers:
    """Read the records of all live members, and change nothing."""
    live: dict[ObjectKey, UnixNs] = {}
    date_ns, changed_ns = UnixNs(0), 0
    async for page in store.list(MEMBERS):
        date_ns = page.date_ns
        for one in page.objects:
            if is_live(one.last_modified_ns, page.date_ns):
                live[one.key] = one.last_modified_ns
            else:
                changed_ns = max(changed_ns, one.last_modified_ns)
    found: list[MemberRecord] = []
    unreadable: list[ObjectKey] = []
    changes = [changed_ns]

    async def read(key: ObjectKey) -> None:
        try:
            seen = await read_member_record(store, key)
        except InvalidRecord:
            unreadable.append(key)
            return
        if seen is None or seen.record.leaving:
            changes.append(live[key])
            return
        found.append(seen.record)
        changes.append(_started_ns(seen.record, live[key]))

    await run_concurrently([*live][:MEMBERS_MAX], read, concurrency=_READS_AT_ONCE)
    changed_ns = max(changes)
    return LiveMembers(
        records=tuple(sorted(found, key=lambda one: one.member)),
        silent_s={
            one.member: max(0, date_ns - live[member_key(one.member)]) / NS_PER_S
            for one in found
            if member_key(one.member) in live
        },
        unreadable=len(unreadable),
        changed_s=max(0, date_ns - changed_ns) / NS_PER_S if changed_ns else None,
    )


def decide_ownership(lane: int, record: LaneRecord | None, members: LiveMembers) -> LaneOwnership:
    """Return who owns a lane."""
    if record is not None and record.closed_for:
        detail = (
            f"closed, because the number of lanes is being changed to {record.closed_for}; if"
            f" `sluice queue lanes {record.closed_for}` was interrupted, run it again"
        )
        return LaneOwnership(state=OwnershipState.UNOWNED, detail=detail)
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
    """Return who claims a lane now; None after a release, or without a name."""
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
