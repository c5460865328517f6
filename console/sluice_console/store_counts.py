"""Counts of open conflicts and held batches, bounded, for the overview and `sluice status`."""

from dataclasses import dataclass
from typing import Final

from sluice_reconciler.verify import list_hold_records
from sluice_store.port import ObjectStore
from sluice_store.stored_conflicts import StoredConflicts

HOLDS_MAX: Final = 1_000
"""Hold records that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBatches:
    """The batches that are held back.

    Attributes:
        count: Their number.
        more: Whether there are more than were read.
        reasons: Their reasons, each once, sorted.
    """

    count: int
    more: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenConflicts:
    """The conflicts without a decision.

    Attributes:
        count: Their number.
        more: Whether there are more conflicts than were read.
    """

    count: int
    more: bool


async def count_open_conflicts(conflicts: StoredConflicts, limit: int) -> OpenConflicts:
    """Count the conflicts without a decision among the first `limit`, in the order of their keys.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    page = await conflicts.list_page(agents=None, after=None, limit=limit)
    return OpenConflicts(
        count=sum(one.state == "open" for one in page.conflicts),
        more=page.next_after is not None,
    )


async def count_held(store: ObjectStore) -> HeldBatches:
    """Count the batches that are held back.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    reasons: list[str] = []
    async for record in list_hold_records(store):
        reasons.append(record.reason.value)
        if len(reasons) == HOLDS_MAX:
            break
    return HeldBatches(
        count=len(reasons), more=len(reasons) == HOLDS_MAX, reasons=tuple(sorted(set(reasons)))
    )
