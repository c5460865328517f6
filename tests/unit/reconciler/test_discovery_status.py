"""The report of `sluice reconciler status`, from a store without a running reconciler."""

import asyncio

from support.journal_writer import JournalWriter
from support.queue_store import SimClock, SimStore

from sluice_protocol.journals import LAPSE_S, journal_key
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.discovery_status import ProcessState, read_discovery_status


def test_the_state_of_each_process_is_read_from_its_journal() -> None:
    async def run() -> None:
        store = SimStore(clock=SimClock())
        for name, closed in (("gw-1", False), ("gw-2", True)):
            writer = JournalWriter(
                store,
                store.clock.at_ns,
                collector_id=name,
                ulid=f"01J0000000000000000000000{closed:d}",
            )
            await writer.register()
            await writer.append([], through_ns=store.clock.at_ns, closed=closed)
        empty = await read_discovery_status(store)
        assert empty.complete_through_unix_ns is None
        assert not empty.journaled
        assert [one.state for one in empty.processes] == [ProcessState.OPEN, ProcessState.OPEN]
        assert [one.unprocessed for one in empty.processes] == [1, 1]
        store.clock.at_ns += int((LAPSE_S + 5) * NS_PER_S)
        later = await read_discovery_status(store)
        assert later.processes[0].state is ProcessState.LAPSED
        assert later.processes[0].silent_s >= LAPSE_S
        assert journal_key(later.processes[0].process, 1) in store.held

    asyncio.run(run())
