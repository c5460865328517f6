"""What is read to explain one batch: one lane, and the work lists of its time."""

import asyncio
import random

from support.queue_store import SimClock, SimIds, SimStore
from support.reconciler_seed import accept_logs

from sluice_protocol.authority import Authority
from sluice_protocol.keys import WORK_LISTS
from sluice_protocol.outcomes import GetOutcome
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.lane import Runtime
from sluice_reconciler.explain import explain
from sluice_reconciler.lanes.state import LANES
from sluice_reconciler.service import Reconciler
from sluice_store.authority import create_authority

AUTHORITY = Authority(authority_id="A", lanes=4)
BATCHES = 20


class Recording(SimStore):
    """Records the keys that are read."""

    def __init__(self) -> None:
        super().__init__(clock=SimClock())
        self.read: list[str] = []

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        self.read.append(key)
        return await super().get(key, first=first, last=last)


def test_of_a_long_backlog_only_the_work_lists_of_the_batch_are_read() -> None:
    async def run() -> None:
        store = Recording()
        await create_authority(store, AUTHORITY)
        runtime = Runtime(clock=store.clock, ids=SimIds(1), rng=random.Random(1))
        batches = []
        for number in range(BATCHES):
            store.clock.at_ns += NS_PER_S
            agent = f"host-{number % 5}"
            at_ns = store.clock.at_ns
            one = await accept_logs(store, ["a"], seq=number, at_ns=at_ns, agent=agent)
            batches.append(one)
            await Reconciler(store, AUTHORITY, runtime=runtime).once()
        store.read.clear()
        [path] = await explain(store, batches[7].identity)
        assert [(one.enqueued, one.sequence is None) for one in path.queues] == [(True, False)]
        assert sum(key.startswith(WORK_LISTS) for key in store.read) == 1
        assert len({key for key in store.read if key.startswith(LANES)}) == 1

    asyncio.run(run())
