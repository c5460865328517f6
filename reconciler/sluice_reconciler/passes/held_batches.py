"""Held batches and quarantined uploads: both are checked again until nothing is missing.

A full pass verifies each held batch again, and writes the reference of each quarantine manifest
without one. While journals decide the frontier, full passes are rare, so `HeldBatches` does the
same at an interval. The references are listed first, then only manifests without one are read: the
cost depends on the number of conflicts, not on the number of batches. Conflicts are permanent, so a
check lists a bounded number of pages, and the next one continues.
"""

import itertools
from typing import Final

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.journals import HoldReason, HoldRecord
from sluice_protocol.keys import ACCEPTED, QUARANTINE, QUARANTINE_BY_BLOB, parse_quarantine_key
from sluice_protocol.manifests import decode_conflict
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.context import ReconcilerContext
from sluice_reconciler.indexes import put_derived, quarantine_entry
from sluice_reconciler.lanes.new_batches import KeyHashSet
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_reconciler.verify import HoldRecords, list_hold_records
from sluice_store.port import ListPage, ObjectStore
from sluice_store.retry import Backoff

HELD_MAX: Final = 1_000
"""Held batches that one check processes again; the next check continues behind them."""
PAGES_MAX: Final = 20
"""Pages of conflicts and of their references that one check lists; the next check continues."""
_PREFIXES: Final = (QUARANTINE_BY_BLOB, QUARANTINE)
"""The references are listed first; then each manifest without one is read."""


class QuarantinePass:
    """The pass over `quarantine/`; each one lists everything again."""

    def __init__(
        self,
        store: ObjectStore,
        holds: HoldRecords,
        requests: RequestLimit,
        backoff: Backoff,
    ) -> None:
        self._store = store
        self._holds = holds
        self._requests = requests
        self._backoff = backoff
        self.written = 0
        self.held = 0
        self._begin()

    def _begin(self) -> None:
        self._existing = KeyHashSet()
        self._listing = 0
        self._after = ""

    async def run(self, pages_max: int | None = None) -> bool:
        """Continue the pass where the last call ended.

        At most `pages_max` pages are listed; None means all that are left. Return True if the pass
        has ended, so that the next call begins another one.
        """
        pages = 0
        while self._listing < len(_PREFIXES):
            if pages == pages_max:
                return False
            prefix = _PREFIXES[self._listing]
            async for page in self._store.list(prefix, start_after=self._after):
                await self._index_page(page)
                self._after = page.objects[-1].key if page.objects else self._after
                pages += 1
                if pages == pages_max and not page.last:
                    return False
            self._listing, self._after = self._listing + 1, ""
        self._begin()
        return True

    async def _index_page(self, page: ListPage) -> None:
        if _PREFIXES[self._listing] == QUARANTINE_BY_BLOB:
            self._existing.add(one.key for one in page.objects)
            return

        async def index(key: ObjectKey) -> bool:
            return await self._index(key, page.date_ns, self._existing)

        keys = [one.key for one in page.objects]
        self.written += sum(await self._requests.each(keys, index))

    async def _index(self, key: ObjectKey, date_ns: UnixNs, existing: KeyHashSet) -> bool:
        try:
            who, submitted = parse_quarantine_key(key)
            place, body = quarantine_entry(key, who, submitted)
            if place in existing:
                return False
            match await self._store.get(key):
                case NotFound():
                    return False
                case Found(body=found):
                    decode_conflict(key, found)
        except InvalidRecord as error:
            record = HoldRecord(
                key=key,
                reason=HoldReason.INVALID_MANIFEST,
                detail=error.reason,
                seen_at_unix_ns=date_ns,
            )
            await self._holds.hold(record)
            self.held += 1
            return False
        return await put_derived(self._store, place, body, self._backoff)


class HeldBatches:
    """Checks held batches and quarantined uploads again; each full pass does so too."""

    def __init__(self, context: ReconcilerContext, pipeline: BatchPipeline) -> None:
        self._context = context
        self._pipeline = pipeline
        self._quarantine = QuarantinePass(
            context.store, context.holds, context.requests, context.backoff
        )
        self._after = ""

    async def check(self) -> PipelineResult:
        """Process held batches again, and write missing references of quarantined uploads."""
        holds = self._context.holds
        await holds.read()
        keys = sorted(
            [
                one.key
                async for one in list_hold_records(self._context.store, holds.damaged)
                if one.key.startswith(ACCEPTED)
            ]
        )
        behind = [key for key in keys if key > self._after]
        selected = list(itertools.islice(behind or keys, HELD_MAX))
        self._after = selected[-1] if len(behind) > HELD_MAX else ""
        result = PipelineResult()
        if selected:
            result = await self._pipeline.process([ObjectKey(key) for key in selected])
        self._context.metrics.held.set(len(holds))
        await self._quarantine.run(PAGES_MAX)
        return result
