"""The age of the oldest pending batch of each stage."""

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
from sluice_reconciler.metrics import PendingStages, Stage, StoreClock
from sluice_reconciler.service import Reconciler


def test_age_is_that_of_the_oldest_pending_batch() -> None:
    """Stages are independent, ages grow with the clock, and an empty stage has age 0."""
    store_clock = StoreClock(SimClock())
    backlog = PendingStages(store_clock)
    store_clock.observe(UnixNs(100 * NS_PER_S))
    one, two = ObjectKey("one"), ObjectKey("two")
    backlog.begin(Stage.INDEX, one, UnixNs(90 * NS_PER_S))
    backlog.begin(Stage.INDEX, two, UnixNs(97 * NS_PER_S))
    assert (backlog.oldest_s(Stage.INDEX), backlog.oldest_s(Stage.ENQUEUE)) == (10, 0)
    backlog.end(Stage.INDEX, [one, one])
    assert backlog.oldest_s(Stage.INDEX) == 3


class RefusingStore(SimStore):
    """A store where work lists cannot be written while `unreachable` is set."""

    unreachable = True

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        if self.unreachable and key.startswith(WORK_LISTS):
            raise StoreUnavailable("create", key, "unreachable")
        return await super().create(key, body, sha256=sha256)


def test_batch_whose_append_failed_is_pending_until_a_pass_enqueues_it() -> None:
    """It is pending at `enqueue` after the failure; a full pass that left no batch clears it."""

    async def run() -> None:
        store = RefusingStore(clock=SimClock())
        await accept(store, 0)
        runtime = Runtime(clock=store.clock, ids=SimIds(1), rng=random.Random(1))
        reconciler = Reconciler(store, Authority(authority_id="A", lanes=1), runtime=runtime)
        backlog = reconciler._context.pending
        assert (await reconciler.once()).outcome.left == 1
        assert [len(keys) for keys in backlog.known().values()] == [0, 1]
        store.unreachable = False
        await reconciler.once()
        assert [len(keys) for keys in backlog.known().values()] == [0, 0]

    asyncio.run(run())
