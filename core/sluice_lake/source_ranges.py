"""Source ranges: which samples the table `rollups` contains, and which deletes it honours.

A source range is created by a conditional write and never changes. Range n contains, for each lane,
the queue sequence after which it starts, which is where range n - 1 ends, and the sequence at which
it ends. The object exists before its rows. The table contains the rows of range n only if the
version of its transaction `ROLLUP_APP` is at least n. A reader takes the number from the state of
the table that it reads, never from a listing of the objects.

A range honours a set of deletes, which may be of any size (`delete_ids`).
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from sluice_lake.delete_ids import DeleteIds, DeleteIdsReader, with_ids
from sluice_protocol.clock import IdSource
from sluice_protocol.keys import ROLLUP
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff

SOURCE_RANGES_PREFIX: Final = f"{ROLLUP}covers/"
HONOURED_DELETES_PREFIX: Final = f"{ROLLUP}deletes/"
"""Parts of the sets of deletes that source ranges honour."""
ROLLUP_APP: Final = "sluice-rollup"
"""The application id whose transaction version is the last source range in the table."""


class SourceRange(msgspec.Struct, frozen=True, kw_only=True):
    """One source range; a lane that is not named is at 0.

    Attributes:
        number: 1, 2, 3 … without gaps.
        after: Lane to the last sequence before the range.
        through: Lane to the last sequence of the range.
        deletes: The deletes that apply to every row up to this range. For those that the range
            before did not contain, the affected hours are aggregated again (ADR 35).
        metrics_version: A version of the table `metrics` without rows later than `through`, so that
            the next range needs only files that were added after it; None if none is known.
    """

    schema: Literal["sluice.rollup_cover.v3"] = "sluice.rollup_cover.v3"
    number: int
    after: dict[str, int]
    through: dict[str, int]
    deletes: DeleteIds = DeleteIds()
    metrics_version: int | None = None

    def ends(self, lane: int) -> tuple[int, int]:
        """Return the sequences of a lane: after the first, through the second."""
        return self.after.get(str(lane), 0), self.through.get(str(lane), 0)


async def add_honoured(
    reader: DeleteIdsReader,
    before: SourceRange | None,
    new: Iterable[str],
    ids: IdSource,
    backoff: Backoff,
) -> DeleteIds:
    """Return the deletes of the range after `before`; parts that it names exist then.

    Raises:
        InvalidRecord: A part of the range before is missing or damaged.
        OutcomeUnknown: No attempt to create a part had a known outcome.
        StoreError: The store is unreachable or refused a request.
    """
    known = before.deletes if before is not None else DeleteIds()
    return await with_ids(
        reader, known, new, prefix=HONOURED_DELETES_PREFIX, ids=ids, backoff=backoff
    )


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
