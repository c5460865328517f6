"""A lagging reconciler whose events arrive late, twice, in any order or never.

The functions of the product parse the events and write the references. The passes are slow and omit
some keys permanently, so that only audit and deletion protect the blobs of these keys.
"""

import asyncio
import json
from dataclasses import dataclass, field
from random import Random
from urllib.parse import quote_plus

from support.gc_store import VersionedStore
from support.simloop import SimClock, SimLoop

from sluice_protocol.keys import (
    ACCEPTED,
    QUARANTINE_CONFLICTS,
    accepted_by_blob_key,
    parse_accepted_key,
    parse_quarantine_key,
)
from sluice_protocol.manifests import decode_accepted, encode_reference
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_reconciler.events import parse_events
from sluice_reconciler.indexes import put_derived, quarantine_entry
from sluice_store.retry import Backoff


@dataclass
class LaggingReconciler:
    """A reconciler that indexes the keys of which it learns.

    Attributes:
        events: Events that arrived.
        lost: Events that never arrived.
        ignored: Keys that no later pass reads, indexed or not.
    """

    loop: SimLoop
    rng: Random
    store: VersionedStore
    events: int = 0
    lost: int = 0
    ignored: set[ObjectKey] = field(default_factory=set)
    _waiting: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    def created(self, key: ObjectKey) -> None:
        """Send the event of a created object: immediately, later, twice or never."""
        if not key.startswith((ACCEPTED, QUARANTINE_CONFLICTS)):
            return
        times = self.rng.choice([0, 1, 1, 2])
        self.events += times
        self.lost += times == 0
        record = {
            "eventName": "ObjectCreated:Put",
            "s3": {"object": {"key": quote_plus(f"prefix/{key}")}},
        }
        body = json.dumps({"Records": [record]}).encode()
        for _ in range(times):
            late_s = self.rng.expovariate(1 / 60)
            self.loop.call_later(late_s, self._waiting.put_nowait, body)

    async def take_events(self) -> None:
        while True:
            for key in parse_events(await self._waiting.get()).keys:
                await self._index(key)

    async def make_passes(self) -> None:
        while True:
            await asyncio.sleep(self.rng.choice([20, 60, 400]))
            for prefix in (ACCEPTED, QUARANTINE_CONFLICTS):
                async for page in self.store.list(prefix):
                    for one in page.objects:
                        await self._look(one.key)

    async def _look(self, key: ObjectKey) -> None:
        if key in self.ignored:
            return
        self.ignored.add(key)
        if self.rng.random() >= 0.2:
            await self._index(key)

    def _backoff(self) -> Backoff:
        return Backoff(clock=SimClock(self.loop), rng=self.rng)

    async def _index(self, key: ObjectKey) -> None:
        if key.startswith(QUARANTINE_CONFLICTS):
            identity, submitted = parse_quarantine_key(key)
            await put_derived(
                self.store, *quarantine_entry(key, identity, submitted), self._backoff()
            )
            return
        found = await self.store.get(key)
        assert isinstance(found, Found), "an accepted manifest is never deleted"
        reference = accepted_by_blob_key(
            decode_accepted(key, found.body).digest, parse_accepted_key(key)
        )
        await put_derived(self.store, reference, encode_reference(key), self._backoff())
