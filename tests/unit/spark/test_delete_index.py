"""Which deletes are considered for a data file, and what their conditions mean."""

from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_lake.data_files import DataFile, TimeStats
from sluice_protocol.record_deletes import DeleteRecord
from sluice_spark.compaction import deleted_rows
from sluice_spark.compaction.delete_matches import any_of, sql_literal
from sluice_spark.compaction.deleted_rows import DeleteIndex
from sluice_spark.compaction.file_selection import may_contain_deleted

DAY_NS = 86_400 * 10**9
TODAY = 20_000
AGENTS = ["a", "ab", "abc", "abd", "b", "b\U0010ffff", "c"]


def day(number: int) -> str:
    return datetime.fromtimestamp(number * 86_400, UTC).date().isoformat()


DELETES = st.builds(
    lambda number, until, agent, span: DeleteRecord(
        delete_id=f"{number:026d}",
        kind="logs",
        accepted_until_unix_ns=until * DAY_NS // 2,
        from_unix_ns=span[0],
        to_unix_ns=span[1],
        agent_id=agent,
        contains="x",
    ),
    number=st.integers(0, 10**6),
    until=st.integers(0, 20),
    agent=st.none() | st.sampled_from(AGENTS),
    span=st.tuples(st.none() | st.integers(0, 5), st.none() | st.integers(6, 12)).map(
        lambda pair: tuple(None if one is None else one * DAY_NS for one in pair)
    ),
)
FILES = st.builds(
    lambda at, agents, times: DataFile(
        path="f",
        partition=day(at),
        size_bytes=1,
        agents=agents,
        ts=TimeStats(range_ns=times, nulls=0),
    ),
    at=st.integers(0, 10),
    agents=st.none()
    | st.tuples(st.sampled_from(AGENTS), st.sampled_from(AGENTS)).map(sorted).map(tuple),
    times=st.none()
    | st.tuples(st.integers(0, 9), st.integers(0, 9)).map(
        lambda pair: tuple(one * DAY_NS for one in sorted(pair))
    ),
)


@given(records=st.lists(DELETES, max_size=12, unique_by=lambda one: one.delete_id), file=FILES)
def test_the_index_finds_what_a_comparison_with_every_delete_finds(
    records: list[DeleteRecord], file: DataFile
) -> None:
    found = DeleteIndex(records).touching(file)
    wanted = [one for one in records if may_contain_deleted(file, one)]
    assert sorted(found, key=lambda one: one.delete_id) == sorted(
        wanted, key=lambda one: one.delete_id
    )


@pytest.mark.parametrize("agents", [False, True])
def test_old_deletes_are_not_compared_with_files_of_recent_records(
    agents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = Mock(wraps=may_contain_deleted)
    records = [
        DeleteRecord(
            delete_id=f"{number:026d}",
            kind="logs",
            accepted_until_unix_ns=(TODAY - number) * DAY_NS,
            agent_id=f"agent {number % 5}" if agents else None,
            contains="x",
        )
        for number in range(3_000)
    ]
    index = DeleteIndex(records)
    monkeypatch.setattr(deleted_rows, "may_contain_deleted", compared)
    recent = DataFile(path="f", partition=day(TODAY - 2), size_bytes=1, agents=("agent", "agent 9"))
    assert {one.delete_id for one in index.touching(recent)} == {
        one.delete_id for one in records[:3]
    }
    assert compared.call_count == 3


def test_deletes_of_other_agents_are_not_compared_with_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = Mock(wraps=may_contain_deleted)
    index = DeleteIndex(
        [
            DeleteRecord(
                delete_id=f"{number:026d}",
                kind="logs",
                accepted_until_unix_ns=TODAY * DAY_NS,
                agent_id=f"agent {number:05d}",
            )
            for number in range(3_000)
        ]
    )
    monkeypatch.setattr(deleted_rows, "may_contain_deleted", compared)
    file = DataFile(path="f", partition=day(1), size_bytes=1, agents=("agent 01000", "agent 01004"))
    assert len(index.touching(file)) == compared.call_count == 5


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 500])
def test_one_true_condition_makes_the_whole_true(count: int) -> None:
    """Python reads the same text, with `or` in lower case."""
    plain = ["(1 > 2)"] * count
    for true in (None, *range(min(count, 7))):
        parts = [("(2 > 1)" if place == true else one) for place, one in enumerate(plain)]
        text = any_of(parts).replace(" OR ", " or ").replace("false", "False")
        assert eval(text) is (true is not None)  # noqa: S307 - a text of this test


def test_the_depth_grows_with_the_logarithm_of_the_conditions() -> None:
    """Spark's stack does not suffice for a thousand conditions in a row."""
    depth = deepest = 0
    for one in any_of(["x"] * 500):
        depth += {"(": 1, ")": -1}.get(one, 0)
        deepest = max(deepest, depth)
    assert deepest == 9


def test_quotes_and_backslashes_of_a_text_are_escaped() -> None:
    assert sql_literal("it's \\ here") == r"'it\'s \\ here'"
