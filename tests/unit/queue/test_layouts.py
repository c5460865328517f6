"""A register of another layout refuses its users; a sealed one continues after a change."""

import pytest
from support.queue_store import SimStore
from support.reconciler_seed import accept
from support.reconciler_world import runtime_of

from sluice_protocol.authority import Authority, LaneChange, apply_lane_change
from sluice_protocol.errors import InvalidRecord, InvariantViolated
from sluice_queue.appender import Appender
from sluice_queue.consumer import Consumer
from sluice_queue.errors import LayoutChanged
from sluice_queue.inspection import handed_over
from sluice_queue.lane import Lane
from sluice_queue.register import (
    NO_OWNER,
    SEALED,
    Register,
    Writer,
    continue_after,
    decode_register,
    encode_register,
    seal,
)
from sluice_queue.register_client import SWAP_RETRY
from sluice_queue.takeover import take_over
from sluice_queue.worklists import write_work_list

NONCE = bytes(16)
OLD, NEW = Lane(queue="spark", lane=0), Lane(queue="spark", lane=0, layout=1, after=9)
BEFORE = Authority(authority_id="A", lanes=4)
CHANGE = LaneChange(number=1, lanes=8, lanes_before=4, after_sequence=9, ends={"000": 7})
AFTER = apply_lane_change(BEFORE, CHANGE)


def register(lane: Lane, layout: int) -> SimStore:
    store = SimStore()
    state = Register(
        revision=1, nonce=NONCE, layout=layout, next_sequence=10, acked_through=9, epoch=3
    )
    store._put(lane.key, encode_register(state))
    return store


@pytest.mark.parametrize(("known", "layout"), [(OLD, 1), (OLD, SEALED), (NEW, 0), (NEW, SEALED)])
async def test_users_of_another_layout_are_refused_and_write_nothing(
    known: Lane, layout: int
) -> None:
    store = register(known, layout)
    body = store.held[known.key].body
    runtime = runtime_of(store)
    with pytest.raises(LayoutChanged, match="start this process again"):
        await Consumer.open(
            store, queue="spark", lane=0, layout=known.layout, after=known.after, runtime=runtime
        )
    with pytest.raises(LayoutChanged):
        await take_over(store, known, producer_id=b"p" * 16, term=1, runtime=runtime)
    appender = Appender(store, known, runtime=runtime)
    draft = await write_work_list(appender.client, [await accept(store)], retry=SWAP_RETRY)
    for _ in range(2):
        with pytest.raises(LayoutChanged):
            await appender.append([draft])
    assert store.held[known.key].body == body


async def test_a_new_register_begins_behind_the_change() -> None:
    store = SimStore()
    runtime = runtime_of(store)
    await Consumer.open(store, queue="spark", lane=0, layout=1, after=9, runtime=runtime)
    state = decode_register(NEW.key, store.held[NEW.key].body)
    assert (state.layout, state.next_sequence, state.acked_through) == (1, 10, 9)


def test_a_sealed_register_names_no_consumer_and_continues_after_the_change() -> None:
    drained = Register(revision=4, nonce=NONCE, next_sequence=8, acked_through=7, epoch=3)
    sealed = seal(drained, NONCE)
    assert (sealed.layout, sealed.epoch, sealed.owner) == (SEALED, 0, NO_OWNER)
    moved = continue_after(sealed, 9, 1, NONCE)
    assert (moved.layout, moved.next_sequence, moved.acked_through) == (1, 10, 9)
    with pytest.raises(InvariantViolated):
        continue_after(sealed, 6, 1, NONCE)
    with pytest.raises(InvariantViolated):
        seal(Register(revision=4, nonce=NONCE, next_sequence=8, acked_through=6), NONCE)


def test_the_sequence_of_an_entry_shows_its_number_of_lanes() -> None:
    again = apply_lane_change(
        AFTER, LaneChange(number=2, lanes=2, lanes_before=8, after_sequence=20, ends={})
    )
    counts = again.lane_counts
    assert [counts.of_sequence(one) for one in (1, 9, 10, 20, 21)] == [4, 4, 8, 8, 2]
    assert (again.lanes, again.layout, again.lanes_ever) == (2, 2, 8)
    assert counts.sql("s") == "(CASE WHEN s <= 9 THEN 4 WHEN s <= 20 THEN 8 ELSE 2 END)"
    assert BEFORE.lane_counts.sql("s") == "4"


@pytest.mark.parametrize(
    "change",
    [
        LaneChange(number=2, lanes=2, lanes_before=4, after_sequence=20, ends={}),
        LaneChange(number=2, lanes=2, lanes_before=8, after_sequence=8, ends={}),
    ],
)
def test_a_change_that_does_not_follow_is_refused(change: LaneChange) -> None:
    with pytest.raises(InvalidRecord):
        apply_lane_change(AFTER, change)


def test_what_the_tables_must_contain_is_the_last_real_entry() -> None:
    old = Writer(producer_id=bytes(16), counter=1, first_sequence=5)
    moved = Register(revision=1, nonce=NONCE, next_sequence=10, acked_through=9, writers=(old,))
    assert handed_over(AFTER, 0, moved) == 7
    assert handed_over(AFTER, 5, moved) == 0
    assert handed_over(BEFORE, 0, moved) == 9
    new = Writer(producer_id=bytes(16), counter=1, first_sequence=10)
    rebuilt = Register(revision=1, nonce=NONCE, next_sequence=11, acked_through=9, writers=(new,))
    assert handed_over(AFTER, 0, rebuilt) == 0
    later = Register(revision=1, nonce=NONCE, next_sequence=12, acked_through=11, writers=(old,))
    assert handed_over(AFTER, 0, later) == 11
