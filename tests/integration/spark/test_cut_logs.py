"""Cutting the log of a table: its present state, and every later commit, are not affected."""

from pathlib import Path

import pytest
from support.spark_lake import Deployment, assert_lake_holds, make_batch
from support.spark_local import ingest_locally, merge_locally

from sluice_lake.delta import find_table, list_paths_at, read_lane_versions
from sluice_lake.locations import lake_location
from sluice_lake.tables import LOGS
from sluice_spark.erasure import ErasureLake


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    place = Deployment(tmp_path, lanes=1).init()
    for n in range(4):
        place.deliver([make_batch(n * 10)])
        ingest_locally(place.url)
    return place


def lake_of(place: Deployment) -> ErasureLake:
    return ErasureLake(spark=None, store_url=place.url)


def entries(place: Deployment) -> list[str]:
    return sorted(one.name for one in (place.root / "lake/v1/logs/_delta_log").glob("0*"))


def test_a_table_without_its_old_log_is_read_and_written(place: Deployment) -> None:
    version = place.table("logs").version()
    lake, clean = lake_of(place), {"logs": version}
    lanes = read_lane_versions(lake_location(place.url, "logs"), place.table("logs"), [0])
    assert lake.count_old_entries(clean) == version
    assert lake.remove_old_entries(clean, None) == version
    assert lake.count_old_entries(clean) == 0
    assert entries(place) == [f"{version:020d}.checkpoint.parquet", f"{version:020d}.json"]
    opened = find_table(place.url, LOGS, for_writing=True)
    assert opened is not None
    assert read_lane_versions(lake_location(place.url, "logs"), opened, [0]) == lanes
    assert list_paths_at(place.url, LOGS, version - 1, {}) is None
    place.deliver([make_batch(90)])
    ingest_locally(place.url)
    merge_locally(place.url, LOGS)
    assert_lake_holds(place, place.sent)
    assert lake.remove_old_entries(clean, None) == 0


def test_entries_are_kept_until_the_wait_is_over_and_before_the_clean_state(
    place: Deployment,
) -> None:
    lake, before = lake_of(place), entries(place)
    assert lake.remove_old_entries({"logs": 9}, 1) == 0
    assert lake.remove_old_entries({"logs": 99}, None) == 0
    assert entries(place) == before
    assert lake.remove_old_entries({"logs": 2}, None) == 2
    assert [name for name in before if name[:20] >= f"{2:020d}"] == [
        name for name in entries(place) if "checkpoint" not in name
    ]
