"""When a message of an event queue is removed: after its keys were processed, never before."""

import asyncio
import json
import random
from collections.abc import Sequence

import pytest
from support.queue_store import SimClock, SimIds, SimStore
from support.reconciler_seed import accept, enqueued

from sluice_protocol.authority import Authority
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import accepted_key
from sluice_protocol.outcomes import GetOutcome
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Runtime
from sluice_reconciler.events import process_events
from sluice_reconciler.service import Reconciler
from sluice_store.s3.events import EventMessage


class Messages:
    """An event queue in memory that delivers every message until it is removed."""

    def __init__(self, *bodies: bytes) -> None:
        self.left = [
            EventMessage(body=body, receipt=str(number)) for number, body in enumerate(bodies)
        ]

    async def receive(self) -> list[EventMessage]:
        return self.left[:10]

    async def done(self, messages: Sequence[EventMessage]) -> None:
        removed = {one.receipt for one in messages}
        self.left = [one for one in self.left if one.receipt not in removed]


class Unreadable(SimStore):
    """A store that fails reads of manifests while `down` is set."""

    down = False

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        if self.down and key.startswith("accepted/"):
            raise StoreUnavailable("get", key, "is down")
        return await super().get(key, first=first, last=last)


def event(key: str) -> bytes:
    return json.dumps(
        {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"object": {"key": key}}}]}
    ).encode()


def make(store: SimStore) -> Reconciler:
    runtime = Runtime(clock=store.clock, ids=SimIds(1), rng=random.Random(1))
    return Reconciler(store, Authority(authority_id="A", lanes=2), runtime=runtime)


def test_messages_are_removed_once_their_batches_are_enqueued() -> None:
    """Valid, repeated, foreign and invalid messages are all removed, ten at a time."""

    async def run() -> None:
        store = SimStore(clock=SimClock())
        keys = [accepted_key((await accept(store, seq)).identity) for seq in range(0, 100, 10)]
        source = Messages(*map(event, keys), event(keys[0]), event("other/key"), b"no event")
        reconciler = make(store)
        for left in (3, 0):
            await process_events(source, reconciler.pipeline, reconciler.metrics)
            assert len(source.left) == left
        assert len(await enqueued(store)) == 10

    asyncio.run(run())


def test_messages_stay_until_the_store_can_be_read() -> None:

    async def run() -> None:
        store = Unreadable(clock=SimClock())
        source = Messages(event(accepted_key((await accept(store, 0)).identity)), b"no event")
        reconciler = make(store)
        store.down = True
        with pytest.raises(StoreUnavailable):
            await process_events(source, reconciler.pipeline, reconciler.metrics)
        assert len(source.left) == 2
        store.down = False
        await process_events(source, reconciler.pipeline, reconciler.metrics)
        assert source.left == []
        assert len(await enqueued(store)) == 1

    asyncio.run(run())
