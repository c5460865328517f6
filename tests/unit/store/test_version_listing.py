"""Pages of object versions that are no pages, or that never end."""

import asyncio
from typing import Any

import pytest
from botocore.parsers import ResponseParserError

from sluice_protocol.errors import StoreUnavailable
from sluice_store.s3.credentials import CredentialSource, FrozenCredentials
from sluice_store.s3.sdk import S3Session, SdkBucket
from sluice_store.s3.settings import Addressing
from sluice_store.s3.signing import BucketAddress

ADDRESS = BucketAddress(
    endpoint="http://127.0.0.1:1", region="us-east-1", bucket="b", addressing=Addressing.PATH
)


def page(**more: Any) -> dict[str, Any]:
    headers = {"date": "Mon, 21 Sep 2026 14:13:20 GMT"}
    return {"ResponseMetadata": {"HTTPHeaders": headers}, "IsTruncated": True} | more


class Keys(CredentialSource):
    """Credentials of a client that signs nothing."""

    async def get_frozen_credentials(self) -> FrozenCredentials:
        return FrozenCredentials("key", "secret")


class Client:
    """A client of the SDK that returns pages, the last of them again and again."""

    def __init__(self, *pages: Any) -> None:
        self._pages = list(pages)
        self.queries: list[dict[str, str]] = []

    async def list_object_versions(self, **query: str) -> Any:
        self.queries.append(query)
        found = self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]
        if isinstance(found, Exception):
            raise found
        return found


def read_pages(client: Client) -> int:
    bucket = SdkBucket(
        S3Session(client=client, address=ADDRESS, credentials=Keys()),
        None,
        "place/",
    )

    async def read() -> int:
        return len([one async for one in bucket.incarnations("raw/", "", None)])

    return asyncio.run(read())


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param([ResponseParserError("not XML:\n<html>")], id="no XML"),
        pytest.param([{"ResponseMetadata": {"HTTPHeaders": {}}}], id="another document"),
        pytest.param([page()], id="no place to continue"),
        pytest.param([page(NextKeyMarker="a"), page(NextKeyMarker="a")], id="the same key"),
        pytest.param([page(NextKeyMarker="a", NextVersionIdMarker="1")] * 2, id="the same version"),
    ],
)
def test_a_response_that_is_no_page_is_an_unreachable_store(pages: list[Any]) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        read_pages(Client(*pages))
    assert "\n" not in str(refused.value)


def test_a_listing_continues_within_a_key_and_behind_it() -> None:
    client = Client(
        page(NextKeyMarker="a", NextVersionIdMarker="1"),
        page(NextKeyMarker="a", NextVersionIdMarker="2"),
        page(NextKeyMarker="a"),
        page(NextKeyMarker="b"),
        page(IsTruncated=False),
    )
    assert read_pages(client) == 5
    base = {"Bucket": "b", "Prefix": "place/raw/"}
    assert client.queries == [
        base,
        base | {"KeyMarker": "a", "VersionIdMarker": "1"},
        base | {"KeyMarker": "a", "VersionIdMarker": "2"},
        base | {"KeyMarker": "a"},
        base | {"KeyMarker": "b"},
    ]
