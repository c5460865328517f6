"""Times in responses of the SDK: those of S3 are parsed without guessing, and to the same value."""

import asyncio

import pytest
from botocore import utils
from botocore.utils import parse_timestamp as parse_any
from support.memory_bucket.server import serve_memory

from sluice_protocol.units import ObjectKey
from sluice_store.conformance import collect_keys
from sluice_store.s3.sdk import open_s3_store, parse_timestamp
from sluice_store.s3.settings import parse_s3_url


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22T05:59:59.000Z",
        "2026-11-22T05:59:59.123Z",
        "2026-11-22T05:59:59.123456Z",
        "2026-11-22T05:59:59Z",
        "2026-11-22T05:59:59+00:00",
        "Sun, 22 Nov 2026 05:59:59 GMT",
        "20261122T055959Z",
        "1795327199",
        1795327199,
    ],
)
def test_equals_the_parser_of_the_sdk(text: str | int) -> None:
    found = parse_timestamp(text)
    assert found == parse_any(text)
    assert found.utcoffset() == parse_any(text).utcoffset()


def test_an_invalid_time_is_refused() -> None:
    with pytest.raises(ValueError, match="Invalid timestamp"):
        parse_timestamp("yesterday Z")


def test_a_listing_uses_this_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def refuse(text: str, _: object) -> None:
        raise AssertionError(text)

    async def run() -> None:
        async with serve_memory({"access": "secret"}) as server:
            server.make_bucket("bucket")
            url = f"s3://bucket?endpoint={server.endpoint}&region=us-east-1"
            async with open_s3_store(parse_s3_url(url)) as store:
                await store.create(ObjectKey("a"), b"x")
                monkeypatch.setattr(utils, "_parse_timestamp_with_tzinfo", refuse)
                assert [one.key for one in await collect_keys(store, "")] == ["a"]

    asyncio.run(run())
