"""Open conflicts, held batches and missing indexes, for the overview and `sluice status`."""

from dataclasses import dataclass
from typing import Final

from sluice_protocol.keys import (
    ACCEPTED,
    ACCEPTED_BY_BLOB,
    ACCEPTED_BY_TIME,
    EXPIRED,
    RAW_BLOBS,
    RAW_BLOBS_BY_TIME,
)
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.discovery import DiscoveryStatus
from sluice_reconciler.passes.index_check import read_index_check
from sluice_reconciler.verify import list_hold_records
from sluice_store.conflicts import StoredConflicts
from sluice_store.port import ListedObject, ObjectStore

HOLDS_MAX: Final = 1_000
"""Hold records that are read."""
_INDEXES: Final = (
    (ACCEPTED, (ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB)),
    (RAW_BLOBS, (RAW_BLOBS_BY_TIME,)),
)
"""What each derived index follows from."""
_INDEXED_NS: Final = 60 * NS_PER_S
"""Time after which an accepted batch that discovery has passed is in every index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCount:
    """The batches that are held back."""

    count: int
    more: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenConflicts:
    """The conflicts without a decision."""

    count: int
    more: bool


async def count_open_conflicts(conflicts: StoredConflicts, limit: int) -> OpenConflicts:
    """Count the conflicts without a decision among the first `limit` in the order of keys."""
    page = await conflicts.list_page(agents=None, after=None, limit=limit)
    return OpenConflicts(
        count=sum(one.state == "open" for one in page.conflicts),
        more=page.next_after is not None,
    )


async def count_held(store: ObjectStore) -> HeldCount:
    """Count the batches that are held back."""
    reasons: list[str] = []
    async for record in list_hold_records(store):
        reasons.append(record.reason.value)
        if len(reasons) == HOLDS_MAX:
            break
    return HeldCount(
        count=len(reasons), more=len(reasons) == HOLDS_MAX, reasons=tuple(sorted(set(reasons)))
    )


async def find_missing_indexes(store: ObjectStore, discovery: DiscoveryStatus) -> tuple[str, ...]:
    """Return the derived indexes that have missing entries.

    Those are the indexes without any entry whose first source was indexed long ago, unless batches
    have expired, and those with missing entries in the last check of a full pass. It costs one page
    of a listing for each index and for each kind of source, and one GET.
    """
    through_ns = discovery.complete_through_unix_ns or 0
    missing: list[str] = []
    for source, indexes in _INDEXES:
        first = await _first_of(store, source)
        if first is None or first.last_modified_ns + _INDEXED_NS > through_ns:
            continue
        missing += [one for one in indexes if await _first_of(store, one) is None]
    if missing and await _first_of(store, EXPIRED) is not None:
        missing = []  # their entries end; a full pass compares those of the others
    checked = await read_index_check(store)
    incomplete = checked.missing if checked is not None else ()
    return tuple(dict.fromkeys([*missing, *incomplete]))


async def _first_of(store: ObjectStore, prefix: str) -> ListedObject | None:
    async for page in store.list(prefix):
        return page.objects[0] if page.objects else None
    return None
