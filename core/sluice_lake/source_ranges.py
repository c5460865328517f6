"""Source ranges: which samples the table `rollups` contains, and which deletes it honours.

A source range is created by a conditional write and never changes. Range n contains, for each lane,
the queue sequence after which it starts, which is where range n - 1 ends, and the sequence at which
it ends. The object exists before its rows. The table contains the rows of range n only if the
version of its transaction `ROLLUP_APP` is at least n. A reader takes the number from the state of
the table that it reads, never from a listing of the objects.
"""

from typing import Final

import msgspec

from sluice_protocol.keys import ROLLUP
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore

SOURCE_RANGES_PREFIX: Final = f"{ROLLUP}covers/"
ROLLUP_APP: Final = "sluice-rollup"
"""The application id whose transaction version is the last source range in the table."""


class SourceRange(msgspec.Struct, frozen=True, kw_only=True):
    """One source range; a lane that is not named is at 0.

    Attributes:
        number: 1, 2, 3 … without gaps.
        after: Lane to the last sequence before the range.
        through: Lane to the last sequence of the range.
        deletes: The deletes that apply to every row up to this range, sorted. For those that the
            range before did not list, the affected hours are aggregated again (ADR 0057).
        metrics_version: A version of the table `metrics` without rows later than `through`, so that
            the next range needs only files that were added after it. A range of an earlier version
            of sluice has none.
    """

    schema: str = "sluice.rollup_cover.v1"
    number: int
    after: dict[str, int]
    through: dict[str, int]
    deletes: tuple[str, ...] = ()
    metrics_version: int | msgspec.UnsetType = msgspec.UNSET

    def ends(self, lane: int) -> tuple[int, int]:
        """Return the sequences of a lane: after the first, through the second."""
        return self.after.get(str(lane), 0), self.through.get(str(lane), 0)


def source_range_key(number: int) -> ObjectKey:
    """Return the key of a source range."""
    return ObjectKey(f"{SOURCE_RANGES_PREFIX}{number:020d}.json")


async def read_source_range(store: ObjectStore, number: int) -> SourceRange | None:
    """Read a source range; return None if it does not exist.

    Raises:
        InvalidRecord: It cannot be decoded.
        StoreError: The store is unreachable.
    """
    key = source_range_key(number)
    read = await store.get(key)
    return decode_record(key, read.body, SourceRange) if isinstance(read, Found) else None
