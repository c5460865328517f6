"""Times in responses of the SDK: those of S3 are parsed without guessing, and to the same value."""

import threading

import pytest
from botocore import utils
from botocore.utils import parse_timestamp as parse_any
from support.store_versitygw import Server, make_bucket

from sluice_protocol.units import ObjectKey
from sluice_store.conformance import collect_incarnations, collect_keys
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


async def test_a_listing_uses_this_parser(moto: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = moto.url("bucket")

    parse, main = utils._parse_timestamp_with_tzinfo, threading.current_thread()

    def refuse(text: str, zone: object) -> object:
        if threading.current_thread() is main:
            raise AssertionError(text)
        return parse(text, zone)  # moto's thread

    await make_bucket(url)
    async with open_s3_store(parse_s3_url(url)) as store:
        await store.create(ObjectKey("a"), b"x")
        monkeypatch.setattr(utils, "_parse_timestamp_with_tzinfo", refuse)
        assert [one.key for one in await collect_keys(store, "")] == ["a"]
        assert [one.key for one in await collect_incarnations(store, "")] == ["a"]
