"""A delete that is submitted again under its id: one record, one cut-off, never another delete."""

import contextlib
from typing import Any

import pytest
from support.dying_store import Died, DyingStore
from support.gc_store import VersionedStore
from support.gc_world import MovedClock
from ulid import ULID

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import ACTIVE_DELETES, DELETES
from sluice_protocol.record_deletes import DeleteRecord, DeleteRequest, delete_key
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_store.retry import Backoff
from sluice_store.stored_deletes import (
    DeleteIdTaken,
    WrittenDelete,
    compact_deletes,
    read_active_deletes,
    read_all_deletes,
    submit_delete,
)

IDS = SystemIds()
CLOCK = MovedClock()


async def new_id(store: VersionedStore) -> str:
    return str(ULID.from_timestamp((await store.head(ACTIVE_DELETES)).date_ns / NS_PER_S))


async def submit(store: Any, request: DeleteRequest, who: str = "operator:x") -> WrittenDelete:
    return await submit_delete(store, request, who, Backoff.seeded_by(MovedClock()), IDS)


async def stored(store: VersionedStore) -> list[DeleteRecord]:
    return await read_all_deletes(store)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(4))
async def test_a_crash_at_any_write_is_repaired_by_the_same_request(
    at: int, after: bool, compacted: bool
) -> None:
    store = VersionedStore(clock=CLOCK)
    if compacted:
        await compact_deletes(store, (), Backoff.seeded_by(MovedClock()), IDS)
    request = DeleteRequest(delete_id=await new_id(store), where="agent = 'a'")
    dying: Any = DyingStore(store, at, after, {"create", "replace", "get"})
    with contextlib.suppress(Died):
        await submit(dying, request)
    existed = await stored(store)
    written = await submit(store, request)
    assert await stored(store) == [written.record]
    assert existed in ([], [written.record])
    assert await read_active_deletes(store) == (written.record,)


async def test_a_repeated_request_keeps_the_first_cut_off() -> None:
    """A batch that is accepted between the two attempts is not hidden."""

    store = VersionedStore(clock=CLOCK)
    request = DeleteRequest(delete_id=await new_id(store), older_than_days=1)
    first = await submit(store, request)
    CLOCK.pass_s(3600.0)
    again = await submit(store, request)
    assert (first.created, again.created) == (True, False)
    assert again.record == first.record
    assert (await store.head(ACTIVE_DELETES)).date_ns > first.record.accepted_until_unix_ns


async def test_an_id_means_one_delete_also_after_its_day() -> None:
    store = VersionedStore(clock=CLOCK)
    request = DeleteRequest(delete_id=await new_id(store), where="agent = 'a'")
    first = await submit(store, request)
    CLOCK.pass_s(10 * 86_400.0)
    assert (await submit(store, request)).record == first.record
    other = DeleteRequest(delete_id=request.delete_id, where="agent = 'b'")
    with pytest.raises(DeleteIdTaken, match="use a new ULID"):
        await submit(store, other)
    with pytest.raises(DeleteIdTaken):
        await submit(store, request, "operator:y")
    assert await stored(store) == [first.record]
    late = DeleteRequest(delete_id=str(ULID.from_timestamp(1)), where="agent = 'a'")
    with pytest.raises(BadUsage, match="too old"):
        await submit(store, late)


async def test_of_two_concurrent_deletes_with_one_id_the_first_decides() -> None:
    """The second one publishes the stored record, never its own."""

    store = VersionedStore(clock=CLOCK)
    await compact_deletes(store, (), Backoff.seeded_by(MovedClock()), IDS)
    delete_id = await new_id(store)
    rival = DeleteRequest(delete_id=delete_id, where="agent = 'b'")
    store.hooks["create", delete_key(delete_id)] = lambda: submit(store, rival)
    with pytest.raises(DeleteIdTaken):
        await submit(store, DeleteRequest(delete_id=delete_id, where="agent = 'a'"))
    (only,) = await stored(store)
    assert only.agent_id == "b"
    assert await read_active_deletes(store) == (only,)
    assert [key for key in store.versions if key.startswith(DELETES)] == [delete_key(delete_id)]
