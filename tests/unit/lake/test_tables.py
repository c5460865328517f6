import pytest

from sluice_lake.locations import TableLocation, lake_location
from sluice_lake.tables import RECORD_TABLES, TABLES, accepted_date, accepted_hour
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import KINDS
from sluice_store.s3.settings import parse_s3_url


def test_the_partition_column_is_last_and_not_stored_in_the_files() -> None:
    for table in TABLES:
        assert table.columns[-1].name == table.partition_column
        assert table.partition_column not in {c.name for c in table.stored_columns}
        assert len({c.name for c in table.columns}) == len(table.columns)


def test_partitions_are_utc() -> None:
    at_ns = 1_700_000_000 * 10**9
    assert accepted_date(at_ns) == "2023-11-14"
    assert accepted_hour(at_ns) == "2023-11-14T22"


def test_each_kind_has_its_own_fields_in_this_order() -> None:
    names = {kind: [field.name for field in KINDS[kind].own_fields] for kind in RECORD_TABLES}
    assert names == {
        "logs": ["body", "severity"],
        "metrics": ["name", "value", "type"],
        "entries": ["key", "value"],
        "spans": [
            *("name", "span_kind", "duration_ns", "status", "status_message"),
            *("trace_id", "span_id", "parent_id", "trace_state", "events", "links"),
        ],
    }


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def test_a_table_of_a_directory_is_a_path() -> None:
    location = lake_location("file:///data/store", "logs")
    assert location == TableLocation(uri="/data/store/lake/v1/logs")
    assert location.is_local
    assert dict(location.storage_options) == {}
    assert location.uri_of("d=1/p.parquet") == "/data/store/lake/v1/logs/d=1/p.parquet"


def test_a_table_of_a_bucket_has_connection_settings() -> None:
    url = "s3://bucket/deep/prefix?endpoint=http://127.0.0.1:7070&region=eu-1"
    location = lake_location(url, "logs")
    assert location.uri == "s3://bucket/deep/prefix/lake/v1/logs"
    assert not location.is_local
    assert dict(location.storage_options) == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:7070",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "eu-1",
    }


def test_absolute_paths_of_data_files_are_kept() -> None:
    location = lake_location("s3://bucket", "logs")
    assert location.uri == "s3://bucket/lake/v1/logs"
    for path in ("/data/p.parquet", "s3://other/p.parquet"):
        assert location.uri_of(path) == path


@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("s3://bucket/a%3Db?endpoint=http://s3:9000", "s3://bucket/a=b/lake/v1/logs"),
        ("s3://bucket/data/?endpoint=http://s3:9000/", "s3://bucket/data/lake/v1/logs"),
        ("s3://bucket?endpoint=http://old:1&endpoint=http://s3:9000", "s3://bucket/lake/v1/logs"),
    ],
)
def test_a_table_is_in_the_place_of_its_store(url: str, uri: str) -> None:
    """The store's client decodes the prefix, and ignores a slash behind the endpoint."""
    location, store = lake_location(url, "logs"), parse_s3_url(url)
    assert location.uri == uri == f"s3://{store.bucket}/{store.prefix}lake/v1/logs"
    assert location.bucket is not None
    assert location.bucket.endpoint == store.endpoint == "http://s3:9000"


@pytest.mark.parametrize(
    "url",
    [
        *("http://host/store", "s3://", "s3://bucket?colour=red"),
        *(f"s3://bucket/{one}" for one in ("a#1", "a%231", "a%2520b", "a%20b", "a~b", "a//b", "é")),
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(BadUsage, match="cannot locate the lake"):
        lake_location(url, "logs")


def test_delta_rs_reaches_every_region() -> None:
    for region, suffix in (("cn-north-1", "com.cn"), ("eu-central-1", "com")):
        options = lake_location(f"s3://bucket?region={region}", "logs").storage_options
        assert options["AWS_ENDPOINT_URL"] == f"https://s3.{region}.amazonaws.{suffix}"


def test_a_bucket_in_the_host_is_part_of_the_endpoint() -> None:
    """delta-rs expects the whole host of a bucket."""
    url = "s3://bucket?endpoint=https://s3.example:9000&addressing=virtual"
    options = lake_location(url, "logs").storage_options
    assert options["AWS_ENDPOINT_URL"] == "https://bucket.s3.example:9000"
    assert options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] == "true"
