"""The journal of a worker over a store in memory, with clocks that only the test moves."""

import asyncio

import pytest
from support.gateway_journal import JournalWorld, entry, journals, named, open_world, registrations
from support.memory_bucket import Fault

from sluice_gateway.journal import CLOSE_S_MAX, EARLY_ENTRIES, ENTRIES_BYTES_MAX, SUPERSEDED_S_MAX
from sluice_protocol.errors import SluiceError
from sluice_protocol.journals import FENCE_S, HEARTBEAT_S
from sluice_protocol.keys import AUTHORITY_SETTINGS, GATEWAY_JOURNALS, GATEWAY_PROCESSES, GATEWAYS
from sluice_protocol.units import NS_PER_S
from sluice_web.problems import HttpRefusal

UNKNOWN = (Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.RESET_AFTER, Fault.ERROR_AFTER)


async def objects_of(seen: JournalWorld) -> list[int]:
    return named((await journals(seen.inner)).get(seen.journal.process, []))


async def test_a_worker_registers_with_the_time_of_the_store() -> None:
    seen = await open_world()
    record = (await registrations(seen.inner))[seen.journal.process]
    assert record.started_at_unix_ns == seen.authority.at_ns // NS_PER_S * NS_PER_S
    assert (record.collector_id, record.acceptance) == ("gw", "s3_manifest")
    assert seen.journal.problem() == ""


async def test_a_worker_that_cannot_register_does_not_start() -> None:
    seen = await open_world(registered=False)
    seen.plan.prefix = GATEWAY_PROCESSES
    with pytest.raises(SluiceError):
        await seen.journal.open()
    assert not seen.journal.is_current


@pytest.mark.parametrize("fault", UNKNOWN)
async def test_a_lost_response_to_a_registration_is_resolved(fault: Fault) -> None:
    seen = await open_world(registered=False)
    seen.plan.fault, seen.plan.prefix, seen.plan.times = fault, GATEWAY_PROCESSES, 1
    await seen.journal.open()
    assert list(await registrations(seen.inner)) == [seen.journal.process]


async def test_an_object_names_what_was_noted_and_the_time_of_an_earlier_answer() -> None:
    seen = await open_world()
    answered_ns = seen.authority.at_ns // NS_PER_S * NS_PER_S
    seen.journal.note(entry(0))
    seen.pass_s(5)  # no response since: the time does not move
    await seen.journal.write_due()
    (written,) = (await journals(seen.inner))[seen.journal.process]
    assert named([written]) == [0]
    assert written.header.complete_through_unix_ns == answered_ns


async def test_a_batch_noted_during_a_write_is_in_the_next_object() -> None:
    """The time of an object is of an answer before its entries were collected."""
    seen = await open_world()
    seen.journal.note(entry(0))
    noted_at: list[int] = []

    def note(call: object) -> None:
        if getattr(call, "method", "") in {"PUT", "HEAD", "GET"} and not noted_at:
            seen.pass_s(3)
            noted_at.append(seen.authority.at_ns)
            seen.journal.note(entry(10))
            seen.pass_s(3)

    seen.pass_s(HEARTBEAT_S)
    seen.plan.seen = note
    await seen.journal.write_due()
    seen.plan.seen = lambda _: None
    assert await objects_of(seen) == [0]
    await seen.journal.write_due()
    first, second = (await journals(seen.inner))[seen.journal.process]
    assert (named([first]), named([second])) == ([0], [10])
    assert first.header.complete_through_unix_ns <= noted_at[0]


@pytest.mark.parametrize(
    ("a_second", "least", "most"),
    [(20, 8, 11), (1000, 75, 101)],
    ids=["20 a second", "1000 a second"],
)
async def test_objects_do_not_cost_more_requests_than_batches(
    a_second: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream costs an object a second, or one for `EARLY_ENTRIES` batches.

    Batches arrive during each write too, and must not begin another object.
    """
    seen = await open_world()
    noted, began_ns = 0, seen.machine.at_ns

    def arrive(_: object = None) -> None:
        nonlocal noted
        while noted < (seen.machine.at_ns - began_ns) * a_second // NS_PER_S:
            seen.journal.note(entry(noted))
            noted += 1

    def write(_: object) -> None:
        seen.pass_s(0.02)
        arrive()

    async def sleep(seconds: float) -> None:
        if seen.machine.at_ns - began_ns > 10 * NS_PER_S:
            raise asyncio.CancelledError
        seen.pass_s(seconds)
        arrive()

    monkeypatch.setattr(seen.machine, "sleep", sleep)
    seen.plan.seen = write
    with pytest.raises(asyncio.CancelledError):
        await seen.journal.run()
    seen.plan.seen = lambda _: None
    written = (await journals(seen.inner))[seen.journal.process]
    assert least <= len(written) <= most
    assert named(written) == list(range(len(named(written))))
    assert len(named(written)) >= noted - max(2 * a_second, 2 * EARLY_ENTRIES)


async def test_an_idle_worker_writes_a_heartbeat_every_interval_and_nothing_between() -> None:
    seen = await open_world()
    for _ in range(int(HEARTBEAT_S) * 2):
        seen.pass_s(1)
        await seen.journal.write_due()
    times = [
        one.header.complete_through_unix_ns
        for one in (await journals(seen.inner))[seen.journal.process]
    ]
    assert len(times) == 2
    assert times == sorted(times)


@pytest.mark.parametrize("fault", [*UNKNOWN, Fault.DENIED, Fault.NOT_SENT, Fault.CONFLICT])
async def test_a_failed_write_is_repeated_with_the_same_number_and_bytes(fault: Fault) -> None:
    seen = await open_world()
    seen.journal.note(entry(0))
    seen.plan.prefix, seen.plan.fault = GATEWAY_JOURNALS, fault
    await seen.journal.write_due()
    assert seen.journal.problem().startswith("the last write")
    seen.journal.note(entry(10))
    seen.plan.prefix = "never"
    await seen.journal.write_due()
    first, second = (await journals(seen.inner))[seen.journal.process]
    assert (named([first]), named([second])) == ([0], [10])
    assert seen.journal.problem() == ""


async def test_a_lapsed_worker_registers_again_before_it_is_current() -> None:
    """Entries that are not durable are in the new journal; the old one is closed with them too."""
    seen = await open_world()
    old = seen.journal.process
    seen.journal.note(entry(0))
    seen.pass_s(FENCE_S + 1)
    assert not seen.journal.is_current
    seen.journal.note(entry(10))
    await seen.journal.require_current()
    new = seen.journal.process
    assert new != old
    await seen.journal.write_due()
    found = await journals(seen.inner)
    assert named(found[new]) == [0, 10]
    assert (named(found[old]), found[old][-1].header.closed) == ([0, 10], True)
    record = (await registrations(seen.inner))[new]
    assert record.started_at_unix_ns > found[old][-1].header.complete_through_unix_ns - NS_PER_S


async def test_a_suspension_is_noticed() -> None:
    """The monotonic clock did not run; the clock with suspension did."""
    seen = await open_world()
    seen.machine.suspended_ns += int((FENCE_S + 1) * NS_PER_S)
    assert not seen.journal.is_current


async def test_a_lapsed_worker_that_cannot_register_answers_503() -> None:
    seen = await open_world()
    seen.pass_s(FENCE_S + 1)
    seen.journal.note(entry(0))
    seen.plan.prefix = GATEWAYS
    with pytest.raises(HttpRefusal) as refused:
        await seen.journal.require_current()
    assert refused.value.code.value == "outcome_unknown"
    assert "journal" in seen.journal.problem()
    seen.plan.prefix = "never"
    await seen.journal.require_current()
    await seen.journal.write_due()
    assert await objects_of(seen) == [0]


async def test_concurrent_uploads_of_a_lapsed_worker_register_once() -> None:
    seen = await open_world()
    seen.pass_s(FENCE_S + 1)
    await asyncio.gather(*(seen.journal.require_current() for _ in range(50)))
    assert len(await registrations(seen.inner)) == 2


async def test_the_writer_registers_again_without_uploads() -> None:
    seen = await open_world()
    old = seen.journal.process
    seen.pass_s(FENCE_S + 1)
    await seen.journal.write_due()
    assert seen.journal.process != old
    assert seen.journal.is_current
    assert (await journals(seen.inner))[old][-1].header.closed


async def test_a_late_write_of_the_replaced_journal_does_not_renew_the_new_one() -> None:
    """The write began long ago: what counts is the new registration."""
    seen = await open_world()
    old = seen.journal.process
    seen.journal.note(entry(0))
    renewed: list[asyncio.Task[None]] = []

    def stall(call: object) -> None:
        if not renewed and GATEWAY_JOURNALS in getattr(call, "key", ""):
            seen.pass_s(FENCE_S + 1)
            renewed.append(asyncio.create_task(seen.journal.require_current()))

    seen.plan.seen = stall
    await seen.journal.write_due()
    await asyncio.gather(*renewed)
    seen.plan.seen = lambda _: None
    await seen.journal.write_due()
    assert seen.journal.process != old
    assert seen.journal.age_s() < FENCE_S
    assert named((await journals(seen.inner))[old]) == [0]


async def test_a_clean_stop_writes_a_closed_object_with_the_last_entries() -> None:
    seen = await open_world()
    seen.journal.note(entry(0))
    await seen.journal.write_due()
    seen.journal.note(entry(10))
    await seen.journal.close(transferred=True)
    found = (await journals(seen.inner))[seen.journal.process]
    assert named(found) == [0, 10]
    assert [one.header.closed for one in found] == [False, True]


async def test_a_stop_with_a_pending_object_writes_it_first() -> None:
    seen = await open_world()
    seen.journal.note(entry(0))
    seen.plan.prefix = GATEWAY_JOURNALS
    await seen.journal.write_due()
    seen.journal.note(entry(10))
    seen.plan.prefix = "never"
    await seen.journal.close(transferred=True)
    found = (await journals(seen.inner))[seen.journal.process]
    assert [(named([one]), one.header.closed) for one in found] == [([0], False), ([10], True)]


async def test_no_200_after_the_journal_is_closed() -> None:
    """The closed object states that nothing is acknowledged after it, also in a cut drain."""
    seen = await open_world()
    current: list[bool] = []
    seen.plan.seen = lambda _: current.append(seen.journal.is_current)
    await seen.journal.close(transferred=True)
    assert current == [False], "a batch noted while the object is written is not in it"
    seen.journal.note(entry(0))
    with pytest.raises(HttpRefusal) as refused:
        await seen.journal.require_current()
    assert refused.value.code.value == "outcome_unknown"


async def test_a_stop_without_the_store_ends_in_time_and_leaves_the_journal_open() -> None:
    seen = await open_world()
    seen.plan.prefix = GATEWAYS
    async with asyncio.timeout(CLOSE_S_MAX + 5):
        await seen.journal.close(transferred=True)
    assert await journals(seen.inner) == {}


async def test_a_full_journal_refuses_uploads_before_they_are_stored() -> None:
    seen = await open_world()
    seen.journal.note(b"x" * (ENTRIES_BYTES_MAX - 1))
    seen.journal.require_room()
    seen.journal.note(b"x")
    with pytest.raises(HttpRefusal) as refused:
        seen.journal.require_room()
    assert refused.value.code.value == "overloaded"


async def test_the_metrics_show_age_entries_and_failures() -> None:
    seen = await open_world()

    def value(name: str) -> float | None:
        return seen.metrics.registry.get_sample_value(name)

    seen.journal.note(entry(0))
    seen.pass_s(7)
    assert value("sluice_journal_age_seconds") == pytest.approx(7, abs=0.1)
    assert value("sluice_journal_waiting_entries") == 1
    seen.plan.prefix = GATEWAY_JOURNALS
    await seen.journal.write_due()
    seen.plan.prefix = "never"
    await seen.journal.write_due()
    assert value("sluice_journal_failures_total") == 1
    assert value("sluice_journal_entries_total") == 1
    assert value("sluice_journal_registrations_total") == 1
    assert value("sluice_journal_waiting_entries") == 0


async def test_registration_reads_the_clock_of_the_store_first() -> None:
    """The time in a registration is not later than its write."""
    seen = await open_world(registered=False)
    calls: list[tuple[str, str]] = []
    seen.plan.seen = lambda call: calls.append((call.method, call.key.split("/")[0]))
    await seen.journal.open()
    assert calls == [("HEAD", AUTHORITY_SETTINGS.split("/")[0]), ("PUT", "gateways")]


async def test_the_age_of_a_registration_counts_from_before_its_write() -> None:
    """A write that takes long may have been visible for all of that time."""
    seen = await open_world(registered=False)

    def delay(call: object) -> None:
        if str(getattr(call, "key", "")).startswith(GATEWAY_PROCESSES):
            seen.pass_s(FENCE_S + 1)

    seen.plan.seen = delay
    await seen.journal.open()
    assert seen.journal.process
    assert not seen.journal.is_current


@pytest.mark.parametrize("pause_s", [2, FENCE_S + 1])
@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.RESET_AFTER, Fault.TIMEOUT_BEFORE])
async def test_attempts_to_register_leave_one_registration(fault: Fault, pause_s: float) -> None:
    """Readers wait for the journal of each registration until it is closed or lapses."""
    seen = await open_world()
    first = seen.journal.process
    seen.pass_s(FENCE_S + 1)
    seen.plan.prefix, seen.plan.fault = GATEWAYS, fault
    for _ in range(5):
        with pytest.raises(HttpRefusal):
            await seen.journal.require_current()
        seen.pass_s(pause_s)
    seen.plan.prefix = "never"
    await seen.journal.require_current()
    found = await registrations(seen.inner)
    assert len(found) == (2 if pause_s < FENCE_S else 3)
    await seen.journal.close(transferred=True)
    ends = {process: of[-1].header.closed for process, of in (await journals(seen.inner)).items()}
    assert ends == dict.fromkeys(found, True)
    assert first in ends


@pytest.mark.parametrize("transferred", [False, True])
async def test_a_worker_that_stops_sends_no_200(transferred: bool) -> None:
    """Also with batches left in a spool, when no closed object is written."""
    seen = await open_world()
    await seen.journal.close(transferred=transferred)
    with pytest.raises(HttpRefusal):
        await seen.journal.require_current()


@pytest.mark.parametrize(("age_s", "closed"), [(FENCE_S + 1, True), (SUPERSEDED_S_MAX + 1, False)])
async def test_a_stop_closes_the_journals_of_earlier_registrations(
    age_s: float, *, closed: bool
) -> None:
    """A journal older than an hour is left to a full pass, which may have replaced it already."""
    seen = await open_world()
    first = seen.journal.process
    seen.journal.note(entry(0))
    seen.pass_s(age_s)
    await seen.journal.require_current()
    second = seen.journal.process
    assert second != first
    await seen.journal.close(transferred=True)
    found = await journals(seen.inner)
    assert [one.header.closed for one in found.get(first, [])] == [True] * closed
    assert found[second][-1].header.closed
    assert named(found[second]) == [0]
