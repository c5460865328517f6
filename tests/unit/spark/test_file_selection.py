import pytest

from sluice_lake.data_files import STATS_SLACK_NS, DataFile, TimeStats
from sluice_protocol.record_deletes import DeleteRecord
from sluice_spark.compaction.file_selection import (
    is_closed,
    may_contain_deleted,
    removes_whole_file,
    retention_hours,
    small_files,
)

DAY_NS = 86_400 * 10**9
T0_NS = 1_790_000_000 * 10**9  # 2026-09-21T14:13:20Z
FIRST_NS, LAST_NS = T0_NS - STATS_SLACK_NS, T0_NS + 10 + STATS_SLACK_NS
"""The earliest and the latest time that a record of the file may have."""


def file(size_bytes: int = 1, **more: object) -> DataFile:
    given = {"agents": ("a", "c"), "ts": TimeStats(range_ns=(T0_NS, T0_NS + 10), nulls=0)} | more
    return DataFile(
        path=f"p{size_bytes}", partition="2026-09-21", size_bytes=size_bytes, records=1, **given
    )


def record(**more: object) -> DeleteRecord:
    given = {"accepted_until_unix_ns": T0_NS + DAY_NS, "agent_id": "b"} | more
    return DeleteRecord(delete_id="0" * 26, kind="logs", **given)


def test_partition_is_closed_when_the_grace_period_after_its_date_ends() -> None:
    end_ns = 1_790_035_200 * 10**9
    assert not is_closed("2026-09-21", end_ns + 3599 * 10**9, 3600)
    assert is_closed("2026-09-21", end_ns + 3600 * 10**9, 3600)


def test_two_or_more_small_files_are_selected() -> None:
    """A single small file is not rewritten, and large files never are."""
    assert small_files([file(10), file(1000)], 1000) == []
    assert [f.size_bytes for f in small_files([file(10), file(11), file(1000)], 1000)] == [10, 11]


def test_delete_selects_files_by_statistics() -> None:
    """Files are excluded by partition, agents and times; unknown statistics exclude none."""
    assert may_contain_deleted(file(), record())
    assert not may_contain_deleted(file(), record(agent_id="d"))
    assert not may_contain_deleted(file(), record(accepted_until_unix_ns=T0_NS - DAY_NS))
    assert not may_contain_deleted(file(), record(from_unix_ns=LAST_NS + 1))
    assert not may_contain_deleted(file(), record(to_unix_ns=FIRST_NS))
    assert may_contain_deleted(
        file(agents=None, ts=TimeStats()), record(agent_id="d", to_unix_ns=T0_NS)
    )


def test_retention_removes_a_file_unread_only_if_every_row_is_deleted() -> None:
    old = {"agent_id": None, "to_unix_ns": LAST_NS + 1}
    assert removes_whole_file(file(), record(**old))
    assert not removes_whole_file(file(), record(**old, accepted_until_unix_ns=T0_NS))
    assert not removes_whole_file(file(), record(to_unix_ns=T0_NS + 11))
    assert not removes_whole_file(file(), record(agent_id=None, to_unix_ns=T0_NS + 10))
    assert not removes_whole_file(file(ts=TimeStats()), record(**old))
    ranged = TimeStats(range_ns=(T0_NS, T0_NS + 10))  # how many have no time is not recorded
    assert not removes_whole_file(file(ts=ranged), record(**old))


@pytest.mark.parametrize(
    ("horizon_s", "hours", "kept"), [(3600, 24, 25), (3601, 24, 26), (1800, 0, 1), (7200, 1, 3)]
)
def test_files_are_kept_for_at_least_the_retry_horizon(
    horizon_s: int, hours: int, kept: int
) -> None:
    assert retention_hours(horizon_s, hours) == kept
