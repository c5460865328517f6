"""The small files of the ledger become one file an hour, with the same rows."""

import pytest
from support.constants import settings_with

from sluice_lake.data_files import DataFile
from sluice_protocol.units import NS_PER_S
from sluice_spark.compaction.file_merges import MERGED_BYTES_MAX, plan_hour_merges
from sluice_spark.settings import CompactSettings

HOUR = "2026-11-22T05"
ENDED_S = 1_795_327_200
"""06:00 on that day."""


def files(*sizes: int, hour: str = HOUR) -> list[DataFile]:
    return [
        DataFile(path=f"{hour}/{number}", partition=hour, size_bytes=size)
        for number, size in enumerate(sizes)
    ]


def plan(found: list[DataFile], now_s: int, **settings: bool) -> list[int]:
    chosen = settings_with(CompactSettings, grace_s=60, **settings)
    return [len(one) for one in plan_hour_merges(found, chosen, now_s * NS_PER_S)]


@pytest.mark.parametrize(
    ("now_s", "open_partitions", "expected"),
    [(ENDED_S + 60, False, [3]), (ENDED_S + 59, False, []), (ENDED_S, True, [3])],
    ids=["ended", "grace period", "open partitions"],
)
def test_an_hour_is_merged_after_it_ended(
    now_s: int, open_partitions: bool, expected: list[int]
) -> None:
    assert plan(files(1, 2, 3), now_s, open_partitions=open_partitions) == expected


def test_only_small_files_of_one_hour_are_merged() -> None:
    other = files(1, 1, hour="2026-11-22T04")
    found = [*files(1, MERGED_BYTES_MAX, 1), *other, *files(1, hour="2026-11-22T03")]
    assert plan(found, ENDED_S + 60) == [2, 2]


def test_a_merge_is_bounded() -> None:
    third = MERGED_BYTES_MAX // 3
    assert plan(files(*[third] * 7), ENDED_S + 60) == [3, 3]
