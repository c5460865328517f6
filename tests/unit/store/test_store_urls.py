"""Store URLs that name more than one bucket, or that would be cut, are refused."""

import pytest

from sluice_protocol.errors import BadUsage
from sluice_store.s3.settings import parse_s3_url

HOST = "mfzwi23gnjvgw.mrap.accesspoint.s3-global.amazonaws.com"


@pytest.mark.parametrize(
    "url",
    [
        "s3://mfzwi23gnjvgw.mrap/prefix",
        "s3://MFZWI23GNJVGW.MRAP",
        "s3://arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap/prefix",
        "s3://arn:aws-cn:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap",
        f"s3://bucket/prefix?endpoint=https://{HOST}",
        f"s3://{HOST}/prefix",
    ],
)
def test_a_multi_region_access_point_is_refused(url: str) -> None:
    with pytest.raises(BadUsage, match="Multi-Region Access Point cannot be the store"):
        parse_s3_url(url)


@pytest.mark.parametrize("bucket", ["mrap", "bucket.mrap.example", "a-mrap", "s3-global"])
def test_buckets_with_similar_names_are_accepted(bucket: str) -> None:
    assert (
        parse_s3_url(f"s3://{bucket}/p?endpoint=https://s3.eu-west-1.amazonaws.com").bucket
        == bucket
    )


def test_a_url_with_a_fragment_is_refused() -> None:
    """Two stores that differ behind it only would be one, and its options would be ignored."""
    for url in ("s3://bucket/team#1", "s3://bucket/p?region=eu-1#x", "s3://bucket#"):
        with pytest.raises(BadUsage, match="from # on would be ignored"):
            parse_s3_url(url)
    assert parse_s3_url("s3://bucket/team%231").prefix == "team#1/"
