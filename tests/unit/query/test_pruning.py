from dataclasses import replace

import pytest
from support.index_store import log_file, put_chunk
from support.query_lake import DAY0_NS, make_query
from support.queue_store import SimStore

from sluice_lake.data_files import STATS_SLACK_NS, DataFile, TimeStats
from sluice_lake.locations import TableLocation
from sluice_query.pruning import SelectedFiles, may_contain, prune_by_index

RANGE = TimeStats(range_ns=(DAY0_NS, DAY0_NS + 10), nulls=0)
FILE = DataFile(
    path="p",
    partition="2026-09-21",
    size_bytes=1,
    records=5,
    agents=("host-2", "host-4"),
    ts=RANGE,
    accepted_at=RANGE,
)


def test_a_file_is_read_if_its_times_overlap_the_range() -> None:
    """The upper bound may be truncated to milliseconds, so it counts as that much later."""
    latest = DAY0_NS + 10 + STATS_SLACK_NS
    assert may_contain(FILE, make_query(from_ns=DAY0_NS - 5, to_ns=DAY0_NS + 1))
    assert not may_contain(FILE, make_query(from_ns=DAY0_NS - 5, to_ns=DAY0_NS))
    assert may_contain(FILE, make_query(from_ns=latest - 1))
    assert not may_contain(FILE, make_query(from_ns=latest))


@pytest.mark.parametrize(
    ("agent", "read"),
    [
        ("host-1", False),
        ("host-2", True),
        ("host-3", True),
        ("host-4", True),
        ("host-44", True),
        ("host-5", False),
    ],
)
def test_a_file_is_read_if_an_agent_is_within_its_bounds(agent: str, read: bool) -> None:
    """The upper bound may be truncated: an agent that it is a prefix of may be in the file."""
    assert may_contain(FILE, make_query(agents=(agent,))) is read
    assert may_contain(FILE, make_query(agents=("a", agent))) is read


def test_missing_statistics_rule_nothing_out() -> None:
    late = make_query(from_ns=DAY0_NS + 10**15, to_ns=DAY0_NS + 10**16)
    assert not may_contain(FILE, late)
    assert may_contain(replace(FILE, ts=TimeStats()), late)
    assert may_contain(replace(FILE, ts=TimeStats(nulls=1)), late)
    assert may_contain(replace(FILE, agents=None), make_query(agents=("a",)))
    assert may_contain(replace(FILE, records=None), make_query())


def test_records_without_a_time_are_found_by_their_acceptance() -> None:
    without_times = replace(FILE, ts=TimeStats(nulls=5))
    assert may_contain(without_times, make_query(from_ns=DAY0_NS))
    assert not may_contain(without_times, make_query(from_ns=DAY0_NS + 10**10))
    some = replace(FILE, ts=TimeStats(range_ns=(0, 1), nulls=1))
    assert may_contain(some, make_query(from_ns=DAY0_NS))


def test_an_empty_file_is_not_read() -> None:
    assert not may_contain(replace(FILE, records=0), make_query())


async def test_a_chunk_that_is_removed_during_a_search_rules_nothing_out() -> None:
    """The other chunk is used, and the files of the removed one are read."""
    first, second = log_file("2026-09-21", "a"), log_file("2026-09-21", "b")
    selected = SelectedFiles(location=TableLocation(uri="/lake"), read=(first, second), lanes={})
    store = SimStore()
    keys = [await put_chunk(store, [one]) for one in (first, second)]
    query = make_query(text="nothing of this is in a line")
    assert (await prune_by_index(store, selected, query)).read == ()
    # The index job removes a chunk between its listing and its read.
    store.before = lambda verb, key: verb == "get" and key == keys[0] and store.held.pop(key, None)
    assert (await prune_by_index(store, selected, query)).read == (first,)
