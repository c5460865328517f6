from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable
from support.query_lake import DAY0_NS, deployment, log_batch
from support.spark_local import ingest_locally

from sluice_lake.data_files import STATS_SLACK_NS, DataFile, TimeStats, list_files, total_bytes
from sluice_lake.delta import find_table
from sluice_lake.tables import LOGS


def opened(root: Path) -> DeltaTable:
    place = deployment(root, lanes=1)
    place.deliver([log_batch(["a"], agent="host-1"), log_batch(["b", "c"], agent="host-2")])
    place.deliver([log_batch(["d"], start=9, at_ns=DAY0_NS + 86_400 * 10**9)])
    ingest_locally(place.url)
    found = find_table(place.url, LOGS)
    assert found is not None
    return found


def test_files_are_listed_with_the_statistics_of_the_log(tmp_path: Path) -> None:
    files = list_files(opened(tmp_path), LOGS)
    assert [(file.partition, file.records) for file in files] == [
        ("2026-09-21", 3),
        ("2026-09-22", 1),
    ]
    first = files[0]
    assert first.agents == ("host-1", "host-2")
    assert first.ts == TimeStats(range_ns=(DAY0_NS, DAY0_NS + 10**9), nulls=0)
    assert first.accepted_at == TimeStats(range_ns=(DAY0_NS, DAY0_NS), nulls=0)
    assert total_bytes(files) == sum(file.size_bytes for file in files) > 0


def test_only_wanted_partitions_are_listed(tmp_path: Path) -> None:
    table = opened(tmp_path)
    files = list_files(table, LOGS, lambda partition: partition > "2026-09-21")
    assert [file.partition for file in files] == ["2026-09-22"]


def test_bounds_of_times_include_what_writers_truncate() -> None:
    ts = TimeStats(range_ns=(10, 20), nulls=0)
    known = DataFile(path="p", partition="x", size_bytes=1, ts=ts)
    assert known.times_ns == (10 - STATS_SLACK_NS, 20 + STATS_SLACK_NS)


def test_bounds_of_times_are_unknown_without_statistics_or_with_nulls() -> None:
    """A record without a time has that of its acceptance, which may be later."""
    ranged = TimeStats(range_ns=(10, 20))
    for ts in (TimeStats(), ranged, replace(ranged, nulls=1)):
        assert DataFile(path="p", partition="x", size_bytes=1, ts=ts).times_ns is None
