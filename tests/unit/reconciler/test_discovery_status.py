"""The report of `sluice reconciler status`, from a store without a running reconciler."""

import pytest
from support.gateway_journal import JournalWriter
from support.queue_store import SimStore

from sluice_protocol.journals import JOURNAL_REPLACED_AFTER_S, journal_key
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.discovery import (
    DiscoveryStatus,
    ProcessState,
    ProcessStatus,
    read_discovery_status,
)


async def test_the_state_of_each_process_is_read_from_its_journal(store: SimStore) -> None:
    for name, closed in (("gw-1", False), ("gw-2", True)):
        writer = JournalWriter(
            store, store.clock.at_ns, collector_id=name, ulid=f"01J0000000000000000000000{closed:d}"
        )
        await writer.register()
        await writer.append([], through_ns=store.clock.at_ns, closed=closed)
    empty = await read_discovery_status(store)
    assert empty.complete_through_unix_ns is None
    assert not empty.journaled
    states = {one.gateway: (one.state, one.unprocessed) for one in empty.processes}
    # A gateway that wrote its last object has ended, whether or not a reconciler processed it.
    assert states == {"gw-1": (ProcessState.OPEN, 1), "gw-2": (ProcessState.CLOSED, 1)}
    assert not empty.is_caught_up
    store.clock.at_ns += int((JOURNAL_REPLACED_AFTER_S + 5) * NS_PER_S)
    later = await read_discovery_status(store)
    assert later.processes[0].state is ProcessState.LAPSED
    assert later.processes[0].silent_s >= JOURNAL_REPLACED_AFTER_S
    assert journal_key(later.processes[0].process, 1) in store.held


def process(state: ProcessState, unprocessed: int = 0) -> ProcessStatus:
    return ProcessStatus(
        gateway="gw",
        process="p",
        state=state,
        behind_s=16.0,
        silent_s=16.0,
        processed=1,
        unprocessed=unprocessed,
    )


@pytest.mark.parametrize(
    ("processes", "caught_up", "ended"),
    [
        ((process(ProcessState.OPEN),), True, False),
        ((process(ProcessState.OPEN), process(ProcessState.CLOSED)), True, False),
        ((process(ProcessState.CLOSED), process(ProcessState.REPLACED)), True, True),
        ((process(ProcessState.OPEN, 1),), False, False),
        ((process(ProcessState.CLOSED, 1),), False, False),
        ((process(ProcessState.LAPSED),), False, False),
        ((process(ProcessState.UNREADABLE),), False, False),
        ((), False, False),
    ],
)
def test_an_idle_system_is_caught_up(
    processes: tuple[ProcessStatus, ...], caught_up: bool, ended: bool
) -> None:
    """The age of the newest report of an idle gateway is no delay."""
    found = DiscoveryStatus(
        complete_through_unix_ns=1,
        behind_s=16.0,
        held_by="gw",
        journaled=True,
        pass_age_s=1.0,
        pass_running=False,
        pass_listed=0,
        missed=0,
        processes=processes,
    )
    assert (found.is_caught_up, found.has_ended) == (caught_up, ended)
    assert found.accepted_until_unix_ns == (1 + 16 * 10**9 if ended else 1)
