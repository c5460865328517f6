"""The journal of a spool over two stores in memory: its processes are killed and continued."""

from dataclasses import dataclass

import pytest
from support.gateway_journal import Failing, MachineClock, entry, journals, named, registrations
from support.gc_world import MovedClock
from support.memory_bucket import Crashed, Fault, MemoryBucket, open_memory_store

from sluice_gateway.journal import AcceptanceJournal, JournalOwner
from sluice_gateway.metrics import GatewayMetrics, ObservedStore
from sluice_gateway.spool.journal import STATE, SpoolJournal, SpoolJournalState, SpoolRules
from sluice_protocol.errors import StoreError, StoreUnavailable
from sluice_protocol.keys import GATEWAY_JOURNALS, GATEWAY_PROCESSES, GATEWAYS
from sluice_protocol.manifests import decode_record
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import UnixNs
from sluice_store import create_authority
from sluice_store.port import ObjectStore
from sluice_web.problems import HttpRefusal

CREATED_NS = UnixNs(77)


@dataclass
class Site:
    """A spool and its authority, which outlive the processes."""

    clock: MachineClock
    local: MemoryBucket
    remote: MemoryBucket
    away: bool = False

    @property
    def authority(self) -> ObjectStore:
        return open_memory_store(self.remote, clock=self.clock)[0]

    def start(
        self, remote_plan: Failing | None = None, local_plan: Failing | None = None
    ) -> SpoolJournal:
        """Return the journal of a new process, after the scan of its spool."""
        metrics, ids = GatewayMetrics(), SystemIds()
        local = open_memory_store(self.local, clock=self.clock, plan=local_plan)[0]
        remote = open_memory_store(self.remote, clock=self.clock, plan=remote_plan)[0]
        rules = SpoolRules(local, ids=ids, clock=self.clock, created_ns=CREATED_NS)
        owner = JournalOwner(collector_id="gw", acceptance="local_spool", fence_s=float("inf"))
        store = ObservedStore(remote, metrics, self.clock)
        writer = AcceptanceJournal(store, owner, rules=rules, clock=self.clock, metrics=metrics)

        async def claim() -> None:
            if self.away:
                raise StoreUnavailable("get", "claim", "planned")

        rules.transferred.scanned = True
        return SpoolJournal(writer, rules, clock=self.clock, claim=claim)

    async def state(self) -> SpoolJournalState:
        read = await open_memory_store(self.local, clock=self.clock)[0].get(STATE)
        return decode_record(STATE, read.body, SpoolJournalState)

    async def only_journal(self) -> list[tuple[list[int], bool]]:
        """Return the entries of each object of the only journal, and whether it is closed."""
        (objects,) = (await journals(self.authority)).values()
        return [(named([one]), one.header.closed) for one in objects]


async def open_site() -> Site:
    clock = MachineClock(MovedClock().at_ns)
    bucket = open_memory_store(clock=clock)[1].bucket
    other = open_memory_store(clock=clock)[1].bucket
    site = Site(clock, bucket, other)
    await create_authority(site.authority, clock=clock)
    return site


async def land(journal: SpoolJournal, *seqs: int) -> None:
    for seq in seqs:
        journal.note_transferred(entry(seq))
    await journal.flush()


async def test_the_first_start_registers_with_the_creation_of_the_authority() -> None:
    """Batches of an older version may be in the spool: no later time is proved."""
    site = await open_site()
    journal = site.start()
    await journal.open()
    (record,) = (await registrations(site.authority)).values()
    assert (record.acceptance, record.started_at_unix_ns) == ("local_spool", CREATED_NS)
    journal.require_room()


async def test_a_spool_that_was_never_registered_accepts_nothing_offline() -> None:
    """A reader that finds no open registration of it assumes that it acknowledged nothing."""
    site = await open_site()
    site.away = True
    journal = site.start()
    await journal.open()
    with pytest.raises(HttpRefusal, match="registered"):
        journal.require_room()
    assert journal.problem()
    site.away = False
    await journal.prepare()
    journal.require_room()


async def test_a_process_after_a_kill_starts_offline_and_continues_the_journal() -> None:
    site = await open_site()
    first = site.start()
    await first.open()
    await land(first, 0)
    site.away = True
    second = site.start()
    await second.open()
    second.require_room()
    with pytest.raises(StoreError):
        await second.prepare()
    site.away = False
    await second.prepare()
    await land(second, 10)
    assert len(await registrations(site.authority)) == 1
    assert await site.only_journal() == [([0], False), ([10], False)]


async def test_what_landed_before_the_journal_is_continued_is_in_its_next_object() -> None:
    site = await open_site()
    first = site.start()
    await first.open()
    await land(first, 0)
    site.away = True
    second = site.start()
    await second.open()
    second.note_transferred(entry(10))
    with pytest.raises(StoreError):
        await second.flush()
    site.away = False
    await second.flush()
    assert await site.only_journal() == [([0], False), ([10], False)]


async def test_a_flush_registers_first_and_registering_claims_the_authority() -> None:
    site = await open_site()
    site.away = True
    journal = site.start()
    with pytest.raises(StoreError):
        await land(journal, 0)
    assert (await registrations(site.authority), await journals(site.authority)) == ({}, {})
    site.away = False
    await journal.flush()
    assert await site.only_journal() == [([0], False)]


async def test_a_journal_without_objects_is_continued_with_the_first_number() -> None:
    site = await open_site()
    await site.start().open()
    second = site.start()
    await second.open()
    await land(second, 10)
    ((only,),) = (await journals(site.authority)).values()
    assert only.header.number == 1


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
async def test_a_number_that_the_killed_process_used_is_not_taken_for_an_own_write(
    fault: Fault,
) -> None:
    """The killed process had other entries in it: those of the next one need another number."""
    site = await open_site()
    plan = Failing(prefix="never", fault=fault)
    first = site.start(plan)
    await first.open()
    await land(first, 0)
    plan.prefix = GATEWAY_JOURNALS
    with pytest.raises(Crashed):
        await land(first, 10)
    second = site.start()
    await second.open()
    await land(second, 20)
    used = [([10], False)] if fault == Fault.CRASH_AFTER else []
    assert await site.only_journal() == [([0], False), *used, ([20], False)]


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_AFTER, Fault.TIMEOUT_BEFORE])
async def test_a_lost_response_in_a_resumed_journal_names_the_entries_again(fault: Fault) -> None:
    site = await open_site()
    first = site.start()
    await first.open()
    await land(first, 0)
    plan = Failing(prefix=GATEWAY_JOURNALS, fault=fault, times=2)
    second = site.start(plan)
    await second.open()
    await land(second, 10)
    names = [seqs for seqs, _ in await site.only_journal()]
    assert names[0] == [0]
    assert names[-1] == [10]


async def test_a_clean_stop_closes_and_the_next_start_needs_the_authority() -> None:
    site = await open_site()
    first = site.start()
    await first.open()
    await land(first, 0)
    await first.close(transferred=True)
    assert await site.only_journal() == [([0], False), ([], True)]
    assert (await site.state()).status == "closed"
    site.away = True
    second = site.start()
    await second.open()
    with pytest.raises(HttpRefusal):
        second.require_room()
    site.away = False
    site.clock.pass_s(100)
    await second.prepare()
    second.require_room()
    records = await registrations(site.authority)
    assert len(records) == 2
    assert max(one.started_at_unix_ns for one in records.values()) >= site.clock.at_ns - 10**9


async def test_a_stop_with_batches_left_keeps_the_journal_open() -> None:
    site = await open_site()
    first = site.start()
    await first.open()
    await land(first, 0)
    await first.close(transferred=False)
    assert await site.only_journal() == [([0], False)]
    assert (await site.state()).status == "open"


async def test_a_journal_whose_last_object_is_not_written_stays_open() -> None:
    site = await open_site()
    plan = Failing(prefix="never", fault=Fault.DENIED)
    first = site.start(plan)
    await first.open()
    await land(first, 0)
    plan.prefix = GATEWAY_JOURNALS
    await first.close(transferred=True)
    assert (await site.state()).status == "closing"
    await site.start().open()
    assert [one[-1].header.closed for one in (await journals(site.authority)).values()] == [True]


async def test_a_kill_while_closing_is_completed_by_the_next_process() -> None:
    site = await open_site()
    plan = Failing(prefix="never", fault=Fault.CRASH_BEFORE)
    first = site.start(plan)
    await first.open()
    await land(first, 0)
    plan.prefix = GATEWAY_JOURNALS
    with pytest.raises(Crashed):
        await first.close(transferred=True)
    second = site.start()
    await second.open()
    found = await journals(site.authority)
    assert [objects[-1].header.closed for objects in found.values()] == [True]
    assert len(await registrations(site.authority)) == 2
    assert (await site.state()).status == "open"


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
async def test_a_kill_while_registering_leaves_one_registration(fault: Fault) -> None:
    site = await open_site()
    first = site.start(Failing(prefix=GATEWAY_PROCESSES, fault=fault))
    with pytest.raises(Crashed):
        await first.open()
    assert (await site.state()).status == "registering"
    second = site.start()
    await second.open()
    assert len(await registrations(site.authority)) == 1
    second.require_room()


async def test_an_object_is_written_only_after_its_number_is_stored() -> None:
    """Otherwise the next process would try a number whose object was processed and removed."""
    site = await open_site()
    full = Failing(prefix="never", fault=Fault.DENIED)
    first = site.start(local_plan=full)
    await first.open()
    full.prefix = STATE
    with pytest.raises(StoreError):
        await land(first, 0)
    assert await journals(site.authority) == {}
    full.prefix = "never"
    await first.flush()
    assert await site.only_journal() == [([0], False)]
    assert (await site.state()).number == 1


async def test_the_time_is_written_after_batches_landed() -> None:
    site = await open_site()
    journal = site.start()
    await journal.open()
    await land(journal, 0)
    site.clock.pass_s(2)
    await journal.write_due()
    await journal.write_due()
    assert [seqs for seqs, _ in await site.only_journal()] == [[0], []]


async def test_a_spool_without_the_right_to_journal_is_not_registered() -> None:
    site = await open_site()
    journal = site.start(Failing(prefix=GATEWAYS, fault=Fault.DENIED))
    await journal.open()
    assert journal.problem()
