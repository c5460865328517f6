"""Pages of a listing, of objects and of versions: what is found in them, and what is refused."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import pytest
from botocore.handlers import decode_list_object_v2
from botocore.loaders import create_loader
from botocore.model import ServiceModel
from botocore.parsers import ResponseParserError, create_parser
from hypothesis import given
from hypothesis import strategies as st

from sluice_protocol.errors import StoreDenied, StoreError, StoreMisconfigured, StoreUnavailable
from sluice_protocol.exchange_verdicts import ExchangeResult, NoResponse, Responded
from sluice_protocol.outcomes import UnknownReason
from sluice_protocol.units import UnixNs
from sluice_store.s3.credentials import CredentialSource, FrozenCredentials
from sluice_store.s3.exchange import S3Exchange, S3Request, datetime_ns
from sluice_store.s3.sdk import S3Session, SdkBucket, parse_timestamp
from sluice_store.s3.store import InvalidListing, KeyPage, parse_page, read_pages

NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
WHOLE = (
    f"<ListBucketResult{NAMESPACE}><IsTruncated>false</IsTruncated><Contents><Key>a</Key>"
    "<LastModified>2026-11-22T05:59:59.123Z</LastModified><ETag>&quot;e&quot;</ETag><Size>7</Size>"
    "</Contents></ListBucketResult>"
).encode()

KEYS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"),
    min_size=1,
    max_size=20,
)


def listing(
    keys: Sequence[str], *, token: str = "", encoded: bool = True, namespace: str = NAMESPACE
) -> bytes:
    """Return a response of S3."""
    written = [quote_plus(key, safe="/") if encoded else escape(key) for key in keys]
    contents = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-11-22T05:59:{number % 60:02d}.000Z"
        f"</LastModified><ETag>&quot;{number:032x}&quot;</ETag><Size>{number}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for number, key in enumerate(written)
    )
    more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
    kind = "<EncodingType>url</EncodingType>" if encoded else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        f"<ListBucketResult{namespace}><Name>b</Name><Prefix></Prefix>{kind}"
        f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>{more}{contents}</ListBucketResult>"
    ).encode()


@cache
def service() -> ServiceModel:
    return ServiceModel(create_loader().load_service_model("s3", "service-2"))


def by_the_sdk(body: bytes) -> dict[str, Any]:
    shape = service().operation_model("ListObjectsV2").output_shape
    response = {"status_code": 200, "headers": {}, "body": body, "context": {}}
    parsed: dict[str, Any] = create_parser("rest-xml").parse(response, shape)
    decode_list_object_v2(parsed, {"encoding_type_auto_set": True})
    return parsed


@given(
    keys=st.lists(KEYS, max_size=8, unique=True),
    token=st.sampled_from(["", "1/a+b&c=="]),
    encoded=st.booleans(),
    namespace=st.sampled_from(["", NAMESPACE]),
)
def test_a_page_has_what_the_parser_of_the_sdk_finds(
    keys: list[str], token: str, encoded: bool, namespace: str
) -> None:
    body = listing(keys, token=token, encoded=encoded, namespace=namespace)
    page, expected = parse_page(body, UnixNs(5), parse_timestamp), by_the_sdk(body)
    assert [(one.key, one.size_bytes, one.etag, one.last_modified_ns) for one in page.objects] == [
        (one["Key"], one["Size"], one["ETag"], datetime_ns(one["LastModified"]))
        for one in expected.get("Contents", [])
    ]
    assert [one.key for one in page.objects] == keys
    assert page.token == expected.get("NextContinuationToken")
    assert page.date_ns == 5


def test_the_prefix_of_the_deployment_is_removed() -> None:
    page = parse_page(listing(["run/a", "run/run/b"]), UnixNs(0), parse_timestamp, "run/")
    assert [one.key for one in page.objects] == ["a", "run/b"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no xml",
        WHOLE[:-1],
        WHOLE[: len(WHOLE) // 2],
        b"<Error><Code>SlowDown</Code></Error>",
        WHOLE.replace(b"<Key>a</Key>", b""),
        WHOLE.replace(b">7<", b">seven<"),
        WHOLE.replace(b"<Size>7</Size>", b""),
        WHOLE.replace(b"2026-11-22", b"yesterday"),
        WHOLE.replace(b"<IsTruncated>false", b"<IsTruncated>true"),
    ],
)
def test_anything_else_is_no_page(body: bytes) -> None:
    with pytest.raises(InvalidListing):
        parse_page(body, UnixNs(0), parse_timestamp)
    with pytest.raises(StoreUnavailable, match="no listing"):
        collect([answer(body)])


def test_the_times_are_parsed_by_the_given_function() -> None:
    at = datetime(2000, 1, 1, tzinfo=UTC)
    page = parse_page(WHOLE, UnixNs(0), lambda _: at)
    assert page.objects[0].last_modified_ns == datetime_ns(at)


def answer(body: bytes, seen: ExchangeResult | None = None) -> S3Exchange:
    return S3Exchange(seen=seen or Responded(status=200), body=body)


class Answers:
    """A transport with prepared responses."""

    def __init__(self, answers: list[S3Exchange]) -> None:
        self.answers = answers
        self.requests: list[S3Request] = []

    async def send(self, request: S3Request, body: bytes = b"") -> S3Exchange:
        assert body == b""
        self.requests.append(request)
        return self.answers.pop(0)


def collect(answers: list[S3Exchange]) -> tuple[list[KeyPage], list[S3Request]]:
    transport = Answers(answers)

    async def run() -> list[KeyPage]:
        pages = read_pages(transport, "run/p", "run/p1", parse_timestamp, "run/")
        return [page async for page in pages]

    return asyncio.run(run()), transport.requests


def test_each_page_continues_the_one_before() -> None:
    pages, requests = collect(
        [
            answer(listing(["run/p2"], token="t=1")),
            answer(listing(["run/p3"], token="t=2")),
            answer(listing(["run/p4"])),
        ]
    )
    assert [one.key for page in pages for one in page.objects] == ["p2", "p3", "p4"]
    first, *others = [dict(one.query) for one in requests]
    assert first == {
        "list-type": "2",
        "prefix": "run/p",
        "encoding-type": "url",
        "start-after": "run/p1",
    }
    assert [one["continuation-token"] for one in others] == ["t=1", "t=2"]


def test_a_listing_that_does_not_advance_is_an_error() -> None:
    same = listing(["run/p2"], token="t")
    with pytest.raises(StoreUnavailable, match="same place"):
        collect([answer(same), answer(same), answer(same)])


@pytest.mark.parametrize(
    ("seen", "error"),
    [
        (Responded(status=404, code="NoSuchBucket"), StoreMisconfigured),
        (Responded(status=404), StoreMisconfigured),
        (Responded(status=403, code="AccessDenied"), StoreDenied),
        (Responded(status=503, code="SlowDown"), StoreUnavailable),
        (NoResponse(reason=UnknownReason.TIMEOUT, detail="late"), StoreUnavailable),
    ],
)
def test_a_refusal_is_an_error_of_the_port(seen: ExchangeResult, error: type[StoreError]) -> None:
    with pytest.raises(error):
        collect([answer(b"", seen)])


def test_an_exchange_without_a_response_has_no_headers() -> None:
    exchange = S3Exchange(seen=NoResponse(reason=UnknownReason.TIMEOUT, detail="late"))
    assert exchange.headers == {}
    assert exchange.date_ns == 0


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


def count_read_pages(client: Client) -> int:
    session = S3Session(client=client, credentials=Keys())
    bucket = SdkBucket("b", session.call, None, "place/")

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
        count_read_pages(Client(*pages))
    assert "\n" not in str(refused.value)


def test_a_listing_continues_within_a_key_and_behind_it() -> None:
    client = Client(
        page(NextKeyMarker="a", NextVersionIdMarker="1"),
        page(NextKeyMarker="a", NextVersionIdMarker="2"),
        page(NextKeyMarker="a"),
        page(NextKeyMarker="b"),
        page(IsTruncated=False),
    )
    assert count_read_pages(client) == 5
    base = {"Bucket": "b", "Prefix": "place/raw/"}
    assert client.queries == [
        base,
        base | {"KeyMarker": "a", "VersionIdMarker": "1"},
        base | {"KeyMarker": "a", "VersionIdMarker": "2"},
        base | {"KeyMarker": "a"},
        base | {"KeyMarker": "b"},
    ]
