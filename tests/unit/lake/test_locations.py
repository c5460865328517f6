import pytest

from sluice_lake.locations import TableLocation, lake_location
from sluice_protocol.errors import BadUsage


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
        "AWS_ENDPOINT_URL": "http://127.0.0.1:7070",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "eu-1",
    }


def test_absolute_paths_of_data_files_are_kept() -> None:
    location = lake_location("s3://bucket", "logs")
    assert location.uri == "s3://bucket/lake/v1/logs"
    for path in ("/data/p.parquet", "s3://other/p.parquet"):
        assert location.uri_of(path) == path


@pytest.mark.parametrize("url", ["http://host/store", "s3://", "s3://bucket?colour=red"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(BadUsage, match="cannot locate the lake"):
        lake_location(url, "logs")


def test_delta_rs_reaches_a_bucket_in_china() -> None:
    options = lake_location("s3://bucket?region=cn-north-1", "logs").storage_options
    assert options["AWS_ENDPOINT_URL"] == "https://s3.cn-north-1.amazonaws.com.cn"
    for region in ("eu-central-1", "us-gov-west-1"):
        options = lake_location(f"s3://bucket?region={region}", "logs").storage_options
        assert "AWS_ENDPOINT_URL" not in options
