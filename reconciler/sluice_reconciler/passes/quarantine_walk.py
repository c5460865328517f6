"""The walk over `quarantine/`: it writes the reverse references that do not exist.

It runs in every full pass, and separately where journals make full passes rare. Its cost depends on
the number of conflicts, not on the number of batches.
"""

from sluice_protocol.discovery import HoldReason, HoldRecord
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import QUARANTINE, QUARANTINE_BY_BLOB, parse_quarantine_key
from sluice_protocol.manifests import decode_conflict
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.indexes import put_derived, quarantine_entry
from sluice_reconciler.lanes.new_batches import KeyHashSet
from sluice_reconciler.verify import HoldRecords
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff


class QuarantineWalk:
    """The walk over `quarantine/`; each run lists everything again.

    Attributes:
        written: Reverse references that the runs wrote.
        held: Quarantine manifests that the runs held.
    """

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

    async def run(self) -> None:
        """Walk over all quarantine manifests.

        Raises:
            StoreError: The store is unreachable or refused a request.
            OutcomeUnknown: The retries of a write are spent; the next walk repeats it.
        """
        existing = KeyHashSet()
        async for page in self._store.list(QUARANTINE_BY_BLOB):
            existing.add(one.key for one in page.objects)

        async def index(listed: tuple[ObjectKey, UnixNs]) -> bool:
            return await self._index(*listed, existing)

        async for page in self._store.list(QUARANTINE):
            items = [(one.key, page.date_ns) for one in page.objects]
            self.written += sum(await self._requests.each(items, index))

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
