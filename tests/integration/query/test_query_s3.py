"""Queries over a lake in a bucket of the real S3 server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import sluice
from support.query_lake import DAY0_NS, bodies, log_batch, make_query, run_query
from support.spark_local import ingest_locally
from support.store_buckets import Bucket, versitygw_deployment

from sluice_lake.delta import find_table
from sluice_lake.errors import TableRefused
from sluice_lake.tables import LOGS
from sluice_protocol.units import NS_PER_S
from sluice_query.request import TopValues, parse_filter
from sluice_query.views import TopValuesResult

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


def test_files_of_a_bucket_are_searched_with_and_without_a_promoted_column(place: Bucket) -> None:
    """One file of each, and a pending batch: equal values are found in all of them."""
    for start, words in ((0, ""), (1, "attributes.k text"), (2, "")):
        if words:
            done = sluice("columns", "add", "logs", *words.split(), "--store", place.url)
            assert done.returncode == 0, done.stderr
        place.deliver([log_batch([f"GET /{start}"], start=start, attributes={"k": "v"})])
        place.deliver([log_batch(["PUT /"], start=start, agent="host-2", attributes={"k": "w"})])
        if start < 2:
            ingest_locally(place.url)
    filters = (parse_filter("attributes.k=v", "logs"),)
    result = run_query(place, make_query(filters=filters))
    assert sorted(map(str, bodies(result))) == ["GET /0", "GET /1", "GET /2"]
    top = run_query(place, make_query(view=TopValues(field=filters[0].field))).view
    assert isinstance(top, TopValuesResult)
    assert [(one.value, one.count) for one in top.values] == [("v", 3), ("w", 3)]


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
