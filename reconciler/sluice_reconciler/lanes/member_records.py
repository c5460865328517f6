"""Reading member records: for the members themselves, and to show which of them works on a lane."""

from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ETag, ObjectKey
from sluice_reconciler.lanes.membership import MEMBERS, MemberRecord, is_live
from sluice_store.concurrent_requests import run_concurrently
from sluice_store.port import ObjectStore

MEMBERS_MAX: Final = 1000
"""Member records that are read, at most; more reconcilers than lanes have no work anyway."""
_READS_AT_ONCE: Final = 16


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
    """

    records: tuple[MemberRecord, ...] = ()
    unreadable: int = 0


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


async def read_live_members(store: ObjectStore) -> LiveMembers:
    """Read the records of all live members, and change nothing.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    keys = [
        one.key
        async for page in store.list(MEMBERS)
        for one in page.objects
        if is_live(one.last_modified_ns, page.date_ns)
    ]
    found: list[MemberRecord] = []
    unreadable: list[ObjectKey] = []

    async def read(key: ObjectKey) -> None:
        try:
            seen = await read_member_record(store, key)
        except InvalidRecord:
            unreadable.append(key)
            return
        if seen is not None and not seen.record.leaving:
            found.append(seen.record)

    await run_concurrently(keys[:MEMBERS_MAX], read, concurrency=_READS_AT_ONCE)
    return LiveMembers(
        records=tuple(sorted(found, key=lambda one: one.member)), unreadable=len(unreadable)
    )
