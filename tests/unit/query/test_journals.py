"""Journals that a query reads itself: where their time ends, and what they name."""

import asyncio

import msgspec
import pytest
from support.acceptance_world import AcceptanceWorld
from support.builders import manifest
from support.query_lake import make_query

from sluice_protocol.authority import VISIBILITY_S_MAX, Authority
from sluice_protocol.journals import DISCOVERY, DiscoveryRecord, journal_key
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import UnixNs
from sluice_query import coverage
from sluice_query.coverage import Coverage, decide_completeness, read_coverage
from sluice_query.settings import QuerySettings
from sluice_store import create_authority

SETTINGS = QuerySettings()
EVERYTHING = make_query(from_ns=UnixNs(0), to_ns=UnixNs(2**62))


def read(world: AcceptanceWorld, **changes: object) -> Coverage:
    async def run() -> Coverage:
        await create_authority(world.store, Authority(authority_id="A" * 26, lanes=2))
        query = make_query(from_ns=UnixNs(0), to_ns=UnixNs(2**62), **changes)
        return await read_coverage(world.store, query, SETTINGS, with_spool=False)

    return asyncio.run(run())


def reconciled() -> AcceptanceWorld:
    """Return one gateway whose journal is processed up to a while ago."""
    world = AcceptanceWorld()
    gateway = world.register()
    world.accept(gateway)
    world.flush(gateway)
    world.reconcile(full=True)
    world.wait(30)
    return world


def three_objects() -> tuple[AcceptanceWorld, list[int]]:
    """Return a world with three objects that no reconciler processed, and their times."""
    world = reconciled()
    for _ in range(3):
        world.accept(world.gateways[0])
        world.flush(world.gateways[0])
        world.wait(1)
    return world, [one.complete_through_unix_ns for one, _ in world.gateways[0].written[1:]]


def test_objects_after_the_processed_ones_are_read() -> None:
    world, times = three_objects()
    found = read(world)
    assert found.discovered_ns == times[-1]
    assert [one.identity for one in found.named] == [
        one.identity for one, _ in world.acknowledged[1:]
    ]
    assert found.held_by == f"gw (process {world.gateways[0].process})"


def test_a_named_batch_that_cannot_match_is_not_read() -> None:
    world, times = three_objects()
    found = read(world, agents=("host-1",))
    assert [one.agent_id for one in found.named] == ["host-1"]
    assert found.discovered_ns == times[-1]
    assert read(world, kind="metrics").named == ()


@pytest.mark.parametrize("fault", ["missing", "torn", "foreign"])
def test_the_time_of_a_process_ends_at_a_defective_object(fault: str) -> None:
    world, times = three_objects()
    key = journal_key(world.gateways[0].process, 3)
    body = world.store.held[key].body
    if fault == "missing":
        del world.store.held[key]
    else:
        broken = body[:-9] if fault == "torn" else body.replace(b'"number":3', b'"number":4')
        world.store.held[key].body = broken
    found = read(world)
    assert found.discovered_ns == times[0]
    assert len(found.named) == 1


def test_an_idle_process_holds_the_time_back_at_its_last_processed_object() -> None:
    """It is not counted as lapsed by the age of its registration."""
    world = reconciled()
    gateway = world.gateways[0]
    for _ in range(12):
        world.wait(15)
        world.flush(gateway)
    world.reconcile()
    world.accept(gateway)
    world.wait(10)
    found = read(world)
    assert world.record is not None
    assert found.discovered_ns == world.record.complete_through_unix_ns
    assert found.discovered_ns <= world.acknowledged[-1][1]


def test_a_process_that_lapsed_before_the_last_pass_does_not_hold_the_time_back() -> None:
    world = reconciled()
    world.wait(300)
    world.reconcile(full=True)
    world.wait(30)
    alive = world.register()
    world.flush(alive)
    found = read(world)
    assert found.discovered_ns == alive.written[0][0].complete_through_unix_ns
    assert str(found.held_by).endswith(f"{alive.process})")


def test_a_dead_gateway_is_named_in_the_reason() -> None:
    world = reconciled()
    world.wait(3600)
    found = read(world)
    (reason,) = decide_completeness(found, EVERYTHING, SETTINGS, ()).reasons
    assert f"gateway gw (process {world.gateways[0].process}) has not reported since" in reason


def test_a_closed_process_does_not_hold_the_time_back() -> None:
    world = reconciled()
    world.accept(world.gateways[0])
    world.flush(world.gateways[0], closed=True)
    world.wait(600)
    found = read(world)
    assert found.discovered_ns == found.now_ns
    assert len(found.named) == 1
    assert found.held_by is None


@pytest.mark.parametrize("age_s", [1, 600])
def test_an_answer_is_complete_now_if_no_gateway_is_open(age_s: int) -> None:
    """However recent the record is; its time is a past one."""
    world = reconciled()
    world.flush(world.gateways[0], closed=True)
    world.reconcile()
    world.wait(age_s)
    found = decide_completeness(read(world), EVERYTHING, SETTINGS, ())
    assert found.is_now


def test_an_idle_gateway_holds_no_complete_answer_back() -> None:
    """Its last report is some seconds old, as it should be: it is the bound, and no fault."""
    world = reconciled()
    world.flush(world.gateways[0])
    world.wait(4)
    found = decide_completeness(read(world), EVERYTHING, SETTINGS, ())
    assert (found.is_now, found.reasons, found.held_by) == (False, (), None)


def test_a_damaged_registration_holds_the_time_back() -> None:
    world = reconciled()
    process = world.gateways[0].process
    world.store.held[f"gateways/v1/processes/{process}.json"].body = b"{"
    world.flush(world.register())
    found = read(world)
    assert world.record is not None
    assert found.discovered_ns == world.record.complete_through_unix_ns


def test_a_recent_record_is_used_without_reading_journals() -> None:
    world = reconciled()
    world.reconcile(full=True)
    world.wait(2)
    world.accept(world.gateways[0])
    world.flush(world.gateways[0])
    found = read(world)
    assert found.named == ()
    assert world.record is not None
    assert found.discovered_ns == world.record.complete_through_unix_ns


def test_journals_prove_nothing_while_a_gateway_may_write_none() -> None:
    """Their batches are shown all the same; the listing of the small store decides the time."""
    world, _ = three_objects()
    assert world.record is not None
    record = msgspec.structs.replace(world.record, journaled_since_unix_ns=None)
    world.put(DISCOVERY, encode_record(record))
    found = read(world)
    assert found.discovered_ns == record.complete_through_unix_ns
    assert len(found.named) == 3
    assert found.new is not None


def test_the_number_of_objects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "JOURNALS_MAX", 2)
    monkeypatch.setattr(coverage, "JOURNALS_MIN", 1)
    world, times = three_objects()
    assert read(world).discovered_ns == times[1]
    monkeypatch.setattr(coverage, "JOURNAL_BYTES_MAX", 1)
    assert read(world).discovered_ns == times[0]


def test_a_manifest_may_appear_later_than_its_time() -> None:
    """No gateway is registered. The last pass has listed the key before the manifest appeared."""
    world = AcceptanceWorld()
    late = manifest(0, at_ns=world.clock.at_ns)
    created_ns = world.put(accepted_key(late.identity), encode_record(late))
    world.wait(VISIBILITY_S_MAX)
    passed_ns = world.clock.at_ns
    record = DiscoveryRecord(
        complete_through_unix_ns=passed_ns, listed=0, pass_began_unix_ns=passed_ns
    )
    world.put(DISCOVERY, encode_record(record))
    world.wait(1)
    found = decide_completeness(read(world), EVERYTHING, SETTINGS, ())
    assert found.accepted_until_ns == created_ns
    assert found.reasons[0].startswith("1 accepted batch is not enqueued yet")
