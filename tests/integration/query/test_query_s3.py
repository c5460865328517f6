"""Queries over a lake in a bucket of the real S3 server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.query_lake import DAY0_NS, bodies, log_batch, make_query, run_query
from support.spark_local import ingest_locally
from support.store_buckets import Bucket, versitygw_deployment

from sluice_lake.delta import find_table
from sluice_lake.errors import TableRefused
from sluice_lake.tables import LOGS
from sluice_protocol.units import NS_PER_S

pytestmark = pytest.mark.s3


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Bucket]:
    with versitygw_deployment(tmp_path) as made:
        yield made


def test_a_lake_in_a_bucket_returns_the_same_records_as_a_directory(place: Bucket) -> None:
    place.deliver([log_batch(["GET /a", "GET /b", "PUT /c"], attributes={"k": "v"})])
    ingest_locally(place.url)
    place.deliver([log_batch(["GET /d"], start=3, from_ns=DAY0_NS + 9 * NS_PER_S)])
    result = run_query(place, make_query(text="GET"))
    assert bodies(result) == ["GET /a", "GET /b", "GET /d"]
    assert (result.summary.segments_read, result.summary.waiting_batches) == (1, 1)
    late = make_query(text="/[cd]$", regex=True, from_ns=DAY0_NS + NS_PER_S)
    assert bodies(run_query(place, late)) == ["PUT /c", "GET /d"]
    tagged = make_query(attributes=(("k", "v"),), stats_only=True)
    assert run_query(place, tagged).summary.results == 3
    nothing = run_query(place, make_query(from_ns=DAY0_NS + 3600 * NS_PER_S))
    assert (nothing.summary.segments_pruned, nothing.summary.results) == (1, 0)


def test_a_data_file_that_is_missing_from_a_bucket_is_an_error(
    place: Bucket, tmp_path: Path
) -> None:
    """The result is never shortened silently."""
    place.deliver([log_batch(["x"])])
    ingest_locally(place.url)
    assert find_table(place.url, LOGS) is not None
    for path in (tmp_path / "data").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(TableRefused, match="data file is missing"):
        run_query(place, make_query())


def test_data_without_a_log_in_a_bucket_is_refused(place: Bucket, tmp_path: Path) -> None:
    """It is never treated as a table that does not exist yet."""
    assert find_table(place.url, LOGS) is None
    place.deliver([log_batch(["x"])])
    ingest_locally(place.url)
    for path in (tmp_path / "data").rglob("lake/v1/logs/_delta_log/*.json"):
        path.unlink()
    with pytest.raises(TableRefused, match="not a Delta table"):
        find_table(place.url, LOGS)
