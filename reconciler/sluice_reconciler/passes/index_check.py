"""A check of the derived indexes by a sample: a full pass notices that its earlier output is gone.

A pass writes the index entries of batches that it has not enqueued yet. It would therefore never
read those that were deleted later. It compares the entries of a bounded random sample of the
batches that it has listed: of 100 batches with a tenth of the entries missing, one is found with a
probability of 99.997 %. The result replaces `reconciler/v1/index-check.json`, which `sluice status`
reads. Nothing is written again here, because the sample does not show what else is missing.

For each batch of the sample a check costs one GET of the manifest, three of single entries, a LIST
of its hour, and the packed objects whose span contains it. That does not depend on the size of the
store.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import structlog

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import ACCEPTED_BY_BLOB, ACCEPTED_BY_TIME, RAW_BLOBS_BY_TIME, RECONCILER
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.context import ReconcilerContext
from sluice_reconciler.indexes import DerivedDifference, EntryComparison, read_source
from sluice_store.port import ObjectStore

log = structlog.get_logger()

INDEX_CHECK: Final = ObjectKey(f"{RECONCILER}index-check.json")
SAMPLE: Final = 100
"""Batches that one check compares."""
CHECK_S: Final = 600.0
"""Time between two checks of one process, unless the last one found something missing."""
SETTLED_S: Final = 600.0
"""Age from which the entries of a listed batch must exist; before, they may be being written."""
_CHECKED: Final = (ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB, RAW_BLOBS_BY_TIME)


class IndexCheckRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the last comparison of a sample of batches with their index entries.

    Attributes:
        missing: By the prefix of their index; empty for none.
    """

    schema: Literal["sluice.index_check.v1"] = "sluice.index_check.v1"
    checked_unix_ns: int
    checked: int
    missing: dict[str, int]


async def read_index_check(store: ObjectStore) -> IndexCheckRecord | None:
    """Read the result of the last check; return None without a readable one."""
    read = await store.get(INDEX_CHECK)
    if not isinstance(read, Found):
        return None
    try:
        return decode_record(INDEX_CHECK, read.body, IndexCheckRecord)
    except InvalidRecord:
        return None


class IndexCheck:
    """Chooses the sample of a pass, and compares it after the pass."""

    def __init__(self, context: ReconcilerContext) -> None:
        self._context = context
        self._next_at_ns = context.runtime.clock.monotonic_ns()
        self._is_due = False
        self._settled_ns = UnixNs(0)
        self._offered = 0
        self._chosen: list[ObjectKey] = []

    def begin(self, began_ns: UnixNs) -> None:
        """Begin the sample of a pass."""
        self._is_due = self._context.runtime.clock.monotonic_ns() >= self._next_at_ns
        self._settled_ns = UnixNs(began_ns - int(SETTLED_S * NS_PER_S))
        self._offered, self._chosen = 0, []

    def offer(self, key: ObjectKey, appeared_ns: UnixNs) -> None:
        """Offer a listed manifest; each one is chosen with the same probability."""
        if not self._is_due or appeared_ns > self._settled_ns:
            return
        self._offered += 1
        if len(self._chosen) < SAMPLE:
            self._chosen.append(key)
        elif (place := self._context.runtime.rng.randrange(self._offered)) < SAMPLE:
            self._chosen[place] = key

    async def run(self, began_ns: UnixNs) -> None:
        """Compare the sample, and report and store the result."""
        if not self._is_due:
            return
        held = set(self._context.holds.held(self._chosen))
        keys = [key for key in self._chosen if key not in held]
        comparison = EntryComparison(self._context.store)

        async def compare(key: ObjectKey) -> Sequence[DerivedDifference]:
            batch = await read_source(self._context.store, key)
            return await comparison.compare_accepted(batch) if batch is not None else ()

        found = [one for some in await self._context.requests.each(keys, compare) for one in some]
        missing = Counter(_index_of(one.key) for one in found)
        for index in _CHECKED:
            self._context.metrics.index_entries_missing.labels(index).set(missing[index])
            if missing[index]:
                first = next(one for one in found if one.key.startswith(index))
                log.error(
                    "derived_index_incomplete",
                    index=index,
                    missing=missing[index],
                    checked=len(keys),
                    key=first.key,
                )
        record = IndexCheckRecord(
            checked_unix_ns=began_ns, checked=len(keys), missing=dict(sorted(missing.items()))
        )
        if keys:  # the check of an empty store shows nothing
            await self._context.store.overwrite(INDEX_CHECK, encode_record(record))
        pause_s = 0.0 if missing else CHECK_S
        self._next_at_ns = self._context.runtime.clock.monotonic_ns() + int(pause_s * NS_PER_S)


def _index_of(key: ObjectKey) -> str:
    return next(index for index in _CHECKED if key.startswith(index))
