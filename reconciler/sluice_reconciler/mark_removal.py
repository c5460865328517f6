"""Removal of high-water marks that no longer show anything.

A mark shows the records at the end of a boot that were never accepted. As soon as batches through
its number are accepted it shows nothing, and that stays so, because accepted manifests are
permanent. It is removed after the retry horizon. A mark above the last accepted number is kept: it
is the only evidence that records were lost. Source: ADR 29.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_protocol.errors import StoreError
from sluice_protocol.keys import high_water_key
from sluice_protocol.outcomes import Deleted, ObjectInfo
from sluice_protocol.units import NULL_VERSION, ETag, ObjectKey, UnixNs
from sluice_reconciler.completeness import BootReport
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.high_water import HighWaterMarks
from sluice_store.port import ObjectStore

log = structlog.get_logger()

REMOVED_MARKS_MAX: Final = 10_000
"""Marks that one full pass removes, at most; the next pass removes further ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredMark:
    """A mark to remove.

    Attributes:
        key: Its key.
        etag: Of the mark that was compared; a mark that was raised since is another one.
    """

    key: ObjectKey
    etag: ETag


class CoveredMarks:
    """The marks that batches cover and that were not written for a time, in bounded number."""

    def __init__(self, marks: HighWaterMarks, quiet_ns: int) -> None:
        """Begin a listing of `accepted/`, which must begin after the marks were read.

        Args:
            marks: The marks.
            quiet_ns: How long a mark is kept after it was written, so that it is not written again.
        """
        self._marks = marks
        self._quiet_ns = quiet_ns
        self.found: list[CoveredMark] = []

    def observe(self, boot: BootReport, now_ns: UnixNs) -> None:
        """Add the mark of a boot that was listed, if the mark shows nothing.

        Args:
            boot: What is accepted.
            now_ns: The store's clock.
        """
        mark = self._marks.get((boot.agent_id, boot.boot_id))
        if mark is None or boot.tail_missing or mark.reported_at_ns + self._quiet_ns > now_ns:
            return
        if len(self.found) < REMOVED_MARKS_MAX:
            key = high_water_key(boot.agent_id, boot.boot_id)
            self.found.append(CoveredMark(key=key, etag=mark.etag))


async def remove_marks(
    store: ObjectStore, requests: RequestLimit, marks: Iterable[CoveredMark]
) -> int:
    """Delete marks, each by the version that was compared; return how many were deleted.

    A gateway may raise a mark at any moment. Only a version id excludes that the raised one is
    deleted, so a bucket without versioning keeps its marks. An error is logged, because no work
    depends on the removal; the next pass tries again.
    """

    async def remove(mark: CoveredMark) -> bool:
        found = await store.head(mark.key)
        if not isinstance(found, ObjectInfo) or found.etag != mark.etag:
            return False
        if found.incarnation in {None, NULL_VERSION}:
            return False
        return isinstance(await store.delete(mark.key, found.incarnation), Deleted)

    try:
        return sum(await requests.each(list(marks), remove))
    except StoreError as error:
        log.warning("high_water_not_removed", reason=str(error))
        return 0
