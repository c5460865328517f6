"""How old the oldest waiting batch is."""

import asyncio
import random

from support.queue_store import SimClock, SimIds, SimStore
from support.reconciler_seed import accept

from sluice_protocol.authority import Authority
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import WORK_LISTS
from sluice_protocol.outcomes import CreateOutcome
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_queue.lane import Runtime
from sluice_reconciler.metrics import Stage, StageBacklog
from sluice_reconciler.service import Reconciler


def test_oldest_age_is_that_of_the_longest_waiting_until_it_is_past() -> None:
    """Each stage by itself; ages go on with the clock; nothing waiting is 0."""
    waiting = StageBacklog(SimClock())
    waiting.dated(UnixNs(100 * NS_PER_S))
    one, two = ObjectKey("one"), ObjectKey("two")
    waiting.begin(Stage.INDEX, one, UnixNs(90 * NS_PER_S))
    waiting.begin(Stage.INDEX, two, UnixNs(97 * NS_PER_S))
    assert (waiting.oldest_s(Stage.INDEX), waiting.oldest_s(Stage.ENQUEUE)) == (10, 0)
    waiting.end(Stage.INDEX, [one, one])
    assert waiting.oldest_s(Stage.INDEX) == 3


class Away(SimStore):
    """Work lists cannot be written while `away`."""

    away = True

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        if self.away and key.startswith(WORK_LISTS):
            raise StoreUnavailable("create", key, "away")
        return await super().create(key, body, sha256=sha256)


def test_batch_whose_append_failed_waits_until_a_pass_took_it() -> None:
    """It stays before `enqueue` through the failure; a full pass that left nothing clears it."""

    async def run() -> None:
        store = Away(clock=SimClock())
        await accept(store, 0)
        runtime = Runtime(clock=store.clock, ids=SimIds(1), rng=random.Random(1))
        reconciler = Reconciler(store, Authority(authority_id="A", lanes=1), runtime=runtime)
        waiting = reconciler.intake.waiting
        assert (await reconciler.once()).outcome.left == 1
        assert [len(keys) for keys in waiting.known().values()] == [0, 1]
        store.away = False
        await reconciler.once()
        assert [len(keys) for keys in waiting.known().values()] == [0, 0]

    asyncio.run(run())
