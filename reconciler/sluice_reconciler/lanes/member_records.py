"""Reading member records: for the members themselves, and to show which of them works on a lane."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice_protocol.batch_seal import ulid_time_ns
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey, UnixNs
from sluice_reconciler.lanes.membership import MEMBERS, MemberRecord, is_live, member_key
from sluice_store.concurrent_requests import run_concurrently
from sluice_store.port import ObjectStore

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
        records: The records of live members that did not leave, in the order of their ids.
        unreadable: Number of live records that cannot be read.
        changed_s: Time since a reconciler started, stopped or wrote its last heartbeat before it
            died, seconds; None if that is not known. Dead ones are known for an hour.
        silent_s: Time since the last heartbeat of each of these, seconds, by member.
    """

    records: tuple[MemberRecord, ...] = ()
    unreadable: int = 0
    changed_s: float | None = None
    silent_s: Mapping[str, float] = field(default_factory=dict)


async def read_member_record(store: ObjectStore, key: ObjectKey) -> SeenRecord | None:
    """Read one member record; return None if it was deleted.

    Raises:
        InvalidRecord: It cannot be decoded.
        StoreError: The store is unreachable or refused the request.
    """
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
    """Read the records of all live members, and change nothing.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
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
