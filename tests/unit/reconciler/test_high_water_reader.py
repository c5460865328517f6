"""High-water marks are read many at a time, and again only after they changed."""

import asyncio

from support.queue_store import CrowdedStore, SimClock, SimStore

from sluice_protocol.keys import high_water_key
from sluice_protocol.manifests import HighWaterMark, encode_record
from sluice_reconciler.completeness import HighWaterReader
from sluice_reconciler.concurrency import RequestLimit

MARKS = 30


def put(store: SimStore, boot: int, seq_end: int) -> None:
    mark = HighWaterMark(agent_id="host-1", boot_id=f"b{boot}", seq_end=seq_end)
    store._put(high_water_key(mark.agent_id, mark.boot_id), encode_record(mark))


def test_changed_marks_are_read_concurrently() -> None:
    """A restarted reconciler reads the marks of all agents: one at a time would take hours."""

    async def run() -> None:
        store = CrowdedStore(clock=SimClock())
        for boot in range(MARKS):
            put(store, boot, 9)
        reader = HighWaterReader(store, RequestLimit(8))
        assert len(await reader.read()) == MARKS
        assert (store.counts["get"], store.most) == (MARKS, 8)
        put(store, 3, 19)
        marks = await reader.read("host-1")
        assert (marks["host-1", "b3"].seq_end, marks["host-1", "b4"].seq_end) == (19, 9)
        assert store.counts["get"] == MARKS + 1

    asyncio.run(run())
