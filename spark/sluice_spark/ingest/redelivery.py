"""Enqueue dead letters again whose blobs were restored.

The ingest job compares the open dead letters with the store when it starts, and then once a minute.
A repeated entry is harmless, because the ledger drops a batch that it contains. Each check takes
the letters in rotation and reads at most `PAGE` that were not restored, so its cost is bounded: a
GET of the manifest and a HEAD of the blob for each. A blob with the same tag as before is not read
again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from sluice_lake.blobs import RejectedBlob, fetch_frame
from sluice_lake.errors import TableRefused
from sluice_lake.open_dead_letters import read_open_dead_letters
from sluice_protocol.clock import Clock
from sluice_protocol.errors import InvalidRecord, OutcomeUnknown, StoreError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import INGEST_QUEUE, accepted_key
from sluice_protocol.manifests import AcceptedManifest, decode_record
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey
from sluice_queue.producer import Producer
from sluice_queue.worklists import by_lane
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_store import read_authority
from sluice_store.port import ObjectStore

INTERVAL_S: Final = 60.0
PAGE: Final = 100
"""Dead letters that one check reads without finding a restored one."""
_SENT_S: Final = 600.0
"""Time for which a batch that was enqueued again is not enqueued again."""

_log = structlog.get_logger("sluice.ingest")


@dataclass(slots=True, kw_only=True)
class Redelivery:
    """The dead letters of one store, for one ingest job."""

    store_url: str
    consumers: FencedConsumers
    clock: Clock
    open_letters: int = 0
    redelivered: int = 0
    _checked_ns: int | None = None
    _after: int = 0
    _rejected: dict[Identity, ETag] = field(default_factory=dict)
    _sent: dict[Identity, int] = field(default_factory=dict)

    def check_if_due(self) -> None:
        """Check if the interval is over; a failed check is repeated after the next interval."""
        now_ns = self.clock.monotonic_ns()
        if self._checked_ns is None or now_ns - self._checked_ns >= INTERVAL_S * NS_PER_S:
            self._checked_ns = now_ns
            self.check()

    def count_open(self) -> int:
        """Return how many dead letters are open now, or at the last check if that is unknown."""
        try:
            self.open_letters = len(read_open_dead_letters(self.store_url))
        except (StoreError, TableRefused) as error:
            _log.info("dead_letters_not_checked", reason=str(error))
        return self.open_letters

    def check(self) -> None:
        """Enqueue the dead letters whose blobs were restored."""
        try:
            letters = list(read_open_dead_letters(self.store_url))
            self.open_letters = len(letters)
            now_ns = self.clock.monotonic_ns()
            self._sent = {
                who: at_ns
                for who, at_ns in self._sent.items()
                if now_ns - at_ns < _SENT_S * NS_PER_S
            }
            waiting = [who for who in letters if who not in self._sent]
            self._rejected = {who: self._rejected[who] for who in waiting if who in self._rejected}
            if waiting:
                self.consumers.run(lambda store: self._redeliver(store, waiting))
        except (StoreError, OutcomeUnknown, TableRefused, InvalidRecord, TimeoutError) as error:
            _log.info("dead_letters_not_checked", reason=str(error))

    async def _redeliver(self, store: ObjectStore, waiting: Sequence[Identity]) -> None:
        start = self._after % len(waiting)
        turn = [*waiting[start:], *waiting[:start]]
        lanes = (await read_authority(store)).lanes
        for first in range(0, len(turn), PAGE):
            page = turn[first : first + PAGE]
            restored = [one for who in page if (one := await self._restored(store, who))]
            self._after = start + first + len(page)
            await self._enqueue(store, restored, lanes)
            if not restored:
                return

    async def _restored(self, store: ObjectStore, who: Identity) -> AcceptedManifest | None:
        """Return the manifest of a batch if its blob is what the manifest names."""
        key = accepted_key(who)
        found = await store.get(key)
        if not isinstance(found, Found):
            return None
        manifest = decode_record(key, found.body, AcceptedManifest)
        head = await store.head(ObjectKey(manifest.raw_blob_key))
        if not isinstance(head, ObjectInfo) or self._rejected.get(who) == head.etag:
            return None
        if isinstance(await fetch_frame((store,), manifest), RejectedBlob):
            self._rejected[who] = head.etag
            return None
        return manifest

    async def _enqueue(
        self, store: ObjectStore, restored: Sequence[AcceptedManifest], lanes: int
    ) -> None:
        for lane, batches in by_lane(restored, lanes).items():
            async with Producer.open(store, queue=INGEST_QUEUE, lane=lane) as producer:
                await (await producer.produce(batches)).result()
            self.redelivered += len(batches)
            now_ns = self.clock.monotonic_ns()
            self._sent |= {one.identity: now_ns for one in batches}
            _log.info("dead_letters_enqueued", lane=lane, batches=len(batches))
