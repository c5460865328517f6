import random
from typing import Any

import pytest
from support.builders import manifest
from support.constants import settings_with
from support.query_lake import DAY0_NS, log_batch, make_query, metric_batch
from support.queue_store import OneByOne, SimClock, SimIds, SimStore
from support.spark_lake import Sent

from sluice_protocol.manifests import WorkList, encode_record
from sluice_protocol.record_deletes import DeleteRecord
from sluice_query.pending import (
    IngestedBatch,
    PendingSnapshot,
    UnqueuedBatches,
    WorkListCache,
    choose_newest,
    choose_pending,
    choose_unqueued,
    may_match,
    read_pending,
)
from sluice_query.search import delete_applies
from sluice_query.settings import QuerySettings
from sluice_queue.appender import Appender
from sluice_queue.consumer import Consumer
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_queue.register_client import SWAP_RETRY, Runtime
from sluice_queue.worklists import PendingBatch, write_work_list

FIRST, SECOND = log_batch(["a"]), log_batch(["b"], start=1)
POINTS = metric_batch([1.0], start=2)


def pending(*entries: tuple[int, Sent], problems: tuple[str, ...] = ()) -> PendingSnapshot:
    batches = [
        PendingBatch(lane=0, sequence=sequence, position=0, manifest=batch.manifest)
        for sequence, batch in entries
    ]
    return PendingSnapshot(lanes=(0,), batches=tuple(batches), problems=problems)


def spooled(*batches: Sent) -> UnqueuedBatches:
    return UnqueuedBatches(batches=tuple(batch.manifest for batch in batches))


def row(batch: Sent, sequence: int) -> IngestedBatch:
    return IngestedBatch(identity=batch.manifest.identity, lane=0, sequence=sequence)


def test_pending_batches_that_the_lake_does_not_contain_are_chosen() -> None:
    queue = pending((1, FIRST), (2, SECOND))
    both = [FIRST.manifest, SECOND.manifest]
    assert choose_pending(queue, make_query(), {}, []) == both
    assert choose_pending(queue, make_query(), {0: 1}, []) == both[1:]
    assert choose_pending(queue, make_query(), {}, [SECOND.manifest.identity]) == both[:1]


def test_a_batch_that_is_pending_twice_is_chosen_once() -> None:
    queue = pending((1, FIRST), (2, FIRST))
    assert choose_pending(queue, make_query(), {}, []) == [FIRST.manifest]
    assert choose_pending(queue, make_query(), {0: 1}, []) == []


def test_the_lane_version_of_a_table_covers_only_its_kind() -> None:
    queue = pending((1, POINTS))
    assert choose_pending(queue, make_query(kind="metrics"), {0: 0}, []) == [POINTS.manifest]
    assert choose_pending(queue, make_query(kind="metrics"), {0: 1}, []) == []
    assert choose_pending(queue, make_query(), {}, []) == []


@pytest.mark.parametrize(
    ("changes", "matches"),
    [
        ({}, True),
        ({"kind": "metrics"}, False),
        ({"agents": ("host-1",)}, True),
        ({"agents": ("host-2",)}, False),
        ({"to_ns": DAY0_NS}, False),
        ({"from_ns": DAY0_NS}, True),
        ({"from_ns": DAY0_NS + 1}, False),
    ],
)
def test_a_batch_matches_by_kind_agent_and_times(changes: dict[str, object], matches: bool) -> None:
    assert may_match(FIRST.manifest, make_query(**{"from_ns": 0} | changes)) is matches


def test_spooled_batches_that_are_returned_elsewhere_are_dropped() -> None:
    """A batch is in the records exactly if their lane version has reached its sequence."""
    mine = spooled(FIRST)
    nowhere = pending()
    assert choose_unqueued(mine, (nowhere, nowhere), [], {0: 9}) == mine
    assert choose_unqueued(mine, (pending((1, FIRST)), nowhere), [], {0: 0}).batches == ()
    later = pending((3, FIRST))
    assert choose_unqueued(mine, (nowhere, later), [], {0: 2}) == mine
    assert choose_unqueued(mine, (nowhere, later), [], {0: 3}).batches == ()
    assert choose_unqueued(mine, (nowhere, nowhere), [row(FIRST, 3)], {0: 2}) == mine
    assert choose_unqueued(mine, (nowhere, nowhere), [row(FIRST, 3)], {0: 3}).batches == ()
    assert choose_unqueued(mine, (nowhere, nowhere), [row(SECOND, 1)], {0: 3}) == mine


def test_without_a_complete_second_reading_spooled_batches_are_left_out() -> None:
    """A batch that is returned twice would be worse than one that is reported as left out."""
    broken = pending(problems=("lane 0 could not be read",))
    found = choose_unqueued(spooled(FIRST), (pending(), broken), [], {})
    assert found.batches == ()
    assert found.problems[0].startswith("batches that are not enqueued yet were left")
    assert choose_unqueued(spooled(), (pending(), broken), [], {}).problems == ()


@pytest.mark.parametrize(
    ("changes", "applies"),
    [
        ({"contains": "x"}, True),
        ({"agent_id": "host-1"}, True),
        ({"agent_id": "host-2"}, False),
        ({"contains": "x", "from_unix_ns": DAY0_NS + 10}, False),
        ({"contains": "x", "from_unix_ns": DAY0_NS + 9}, True),
        ({"contains": "x", "to_unix_ns": DAY0_NS}, False),
        ({"contains": "x", "to_unix_ns": DAY0_NS + 1}, True),
    ],
)
def test_a_delete_applies_by_kind_agent_and_times(
    changes: dict[str, object], applies: bool
) -> None:
    record = DeleteRecord(delete_id="0" * 26, kind="logs", accepted_until_unix_ns=1, **changes)
    query = make_query(agents=("host-1",), to_ns=DAY0_NS + 10)
    assert delete_applies(record, query) is applies
    assert not delete_applies(record, make_query(kind="metrics"))


def _backlog() -> list[Sent]:
    """Return 27 batches of two lanes, lane by lane, as the queue is read."""
    made = [log_batch(["x"], start=n, at_ns=DAY0_NS + n, agent=f"host-{n % 2}") for n in range(27)]
    return made[::2] + made[1::2]


def test_of_a_long_backlog_the_newest_batches_of_all_lanes_are_read() -> None:
    backlog = [one.manifest for one in _backlog()]
    chosen = choose_newest(backlog, settings_with(QuerySettings, tail_frames_max=3))
    assert [one.seq_start for one in chosen.manifests] == [26, 25, 24]
    assert (chosen.left_out, chosen.bound) == (24, f"tail_bytes_max=`{256 << 20}`")


def test_the_bound_that_left_batches_out_is_named() -> None:
    backlog = [one.manifest for one in _backlog()]
    two = 2 * max(one.frame_bytes for one in backlog)
    chosen = choose_newest(
        backlog, settings_with(QuerySettings, tail_bytes_max=two, tail_frames_max=3)
    )
    assert [one.seq_start for one in chosen.manifests] == [26, 25]
    assert (chosen.left_out, chosen.bound) == (25, f"tail_bytes_max=`{two}`")
    everything = choose_newest(backlog, settings_with(QuerySettings, tail_frames_max=27))
    assert (len(everything.manifests), everything.left_out, everything.bound) == (27, 0, "")


def test_of_batches_accepted_at_the_same_time_the_last_enqueued_is_newest() -> None:
    same = [log_batch(["x"], start=n).manifest for n in range(4)]
    chosen = choose_newest(same, settings_with(QuerySettings, tail_frames_max=1))
    assert [one.seq_start for one in chosen.manifests] == [3]


LANE = Lane(queue="spark", lane=0)


class CountingReads(OneByOne):
    """A store that notes the keys of its reads."""

    def __init__(self, store: SimStore) -> None:
        self._store = store
        self.keys: list[str] = []

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name == "get":
            return lambda key, **kwargs: (self.keys.append(key), verb(key, **kwargs))[1]
        return verb

    def lists_read(self) -> int:
        found, self.keys = [one for one in self.keys if one.startswith("manifests/")], []
        return len(found)


async def enqueue(store: Any, *sequences: range) -> None:
    clock = SimClock()
    runtime = Runtime(clock=clock, ids=SimIds(sequences[0].start), rng=random.Random(1))
    appender = Appender(store, LANE, runtime=runtime)
    for numbers in sequences:
        batches = [manifest(number) for number in numbers]
        await appender.append([await write_work_list(appender.client, batches, retry=SWAP_RETRY)])


def numbers_of(found: PendingSnapshot) -> list[int]:
    assert not found.problems
    return [one.manifest.seq_start for one in found.batches]


async def test_a_work_list_is_read_once() -> None:
    store, lists = CountingReads(SimStore()), WorkListCache()
    await enqueue(store, range(3), range(3, 5))

    async def read() -> list[int]:
        return numbers_of(await read_pending(store, QuerySettings(), lists))

    assert await read() == [0, 1, 2, 3, 4]
    assert store.lists_read() == 2
    assert await read() == [0, 1, 2, 3, 4]
    assert store.lists_read() == 0
    await enqueue(store, range(5, 6))
    assert await read() == [0, 1, 2, 3, 4, 5]
    assert store.lists_read() == 1
    consumer = await Consumer.open(store, queue="spark", lane=0)
    await consumer.next_descriptors(10)
    await consumer.ack_through(2)
    assert await read() == [5]


@pytest.mark.parametrize(("batches_max", "read_again"), [(6, 0), (5, 1), (1, 3)])
async def test_the_memory_of_work_lists_is_bounded(batches_max: int, read_again: int) -> None:
    store, lists = CountingReads(SimStore()), WorkListCache(batches_max)
    await enqueue(store, range(2), range(2, 4), range(4, 6))
    view = await read_lane(store, "spark", 0)
    for one in view.descriptors:
        await lists.read(store, LANE, one)
    store.lists_read()
    await read_pending(store, QuerySettings(), lists)
    assert store.lists_read() == read_again


async def test_a_work_list_of_another_lane_is_a_problem() -> None:
    store, lists = SimStore(), WorkListCache()
    await enqueue(store, range(1))
    place = (await read_lane(store, "spark", 0)).descriptors[0].location
    other = WorkList(queue="spark", lane=1, batches=(manifest(0),))
    await store.overwrite(place, encode_record(other))
    for _ in range(2):
        found = await read_pending(store, QuerySettings(), lists)
        assert "belongs to spark.1" in found.problems[0]
