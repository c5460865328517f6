"""Listings of current objects: one signed request per page, sent as the requests on objects are.

The SDK resolves an endpoint and builds a description of the client for every request, which costs
many times what the page needs (ADR 10).
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.exchange_verdicts import RefusalReason, RequestRefused, Succeeded, resolve_read
from sluice_protocol.units import ETag, ObjectKey, UnixNs
from sluice_store.port import ListedObject, Versioning
from sluice_store.s3.exchange import S3Request, S3Transport, datetime_ns, refusal_error

ParseTime = Callable[[str], datetime]

_OPERATION: Final = "list"
_RESULT: Final = "ListBucketResult"
_FLAGS: Final = {"true": True, "false": False}
_VERSIONING: Final = ("VersioningConfiguration", "GetBucketVersioningResponse")
"""The second name is that of moto."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPage:
    """One page of a listing, with the keys as the bucket has them.

    `token` continues the listing; None at its end. `date_ns` is the store's clock in the response.
    """

    objects: tuple[ListedObject, ...]
    token: str | None
    date_ns: UnixNs


class InvalidListing(Exception):
    """A response is no page of a listing."""


def parse_page(
    body: bytes,
    date_ns: UnixNs,
    parse_time: ParseTime,
    prefix: str = "",
    *,
    listed: str = "",
    bucket: str = "",
) -> KeyPage:
    """Return the page in a response to ListObjectsV2; `prefix` is removed from each key."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - of the configured store, as the SDK does
        namespace = root.tag.removesuffix(_RESULT)  # some servers leave it out
        if namespace == root.tag:
            raise InvalidListing(f"its element is {root.tag}")
        encoded = root.findtext(f"{namespace}EncodingType") == "url"
        key, size, etag, modified = (
            f"{namespace}{name}" for name in ("Key", "Size", "ETag", "LastModified")
        )
        objects = tuple(
            ListedObject(
                key=_key(_text(one, key), prefix, encoded=encoded),
                size_bytes=int(_text(one, size)),
                etag=ETag(_text(one, etag)),
                last_modified_ns=datetime_ns(parse_time(_text(one, modified))),
            )
            for one in root.iterfind(f"{namespace}Contents")
        )
        _check_place(root, namespace, listed, bucket, encoded=encoded)
        if any(not (prefix + one.key).startswith(listed) for one in objects):
            raise InvalidListing("it has keys of another prefix")
        more = _FLAGS[_text(root, f"{namespace}IsTruncated").strip().lower()]
        token = _text(root, f"{namespace}NextContinuationToken") if more else None
    except (ET.ParseError, ValueError, KeyError) as error:
        raise InvalidListing(str(error)) from error
    return KeyPage(objects=objects, token=token, date_ns=date_ns)


def _check_place(
    root: ET.Element, namespace: str, listed: str, bucket: str, *, encoded: bool
) -> None:
    if not names_bucket(root.findtext(f"{namespace}Name"), bucket):
        raise InvalidListing(f"it is of another bucket, {root.findtext(f'{namespace}Name')}")
    found = root.findtext(f"{namespace}Prefix")
    if found and found != listed and not (encoded and unquote_plus(found) == listed):
        raise InvalidListing(f"it is of another prefix, {found}")


def names_bucket(found: str | None, bucket: str) -> bool:
    """Return False if a listing is of another bucket than requested.

    An access point has other names than its bucket, and Ceph omits the tenant of `tenant:bucket`.
    """
    is_access_point = bucket.startswith("arn:") or bucket.endswith(("-s3alias", "-ext-s3alias"))
    return not found or not bucket or is_access_point or bucket.rpartition(":")[2] == found


def parse_versioning(body: bytes) -> Versioning | None:
    """Return the state in a response to GetBucketVersioning; None if it is none."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - of the configured store, as the SDK does
        name = next((one for one in _VERSIONING if root.tag.endswith(one)), None)
        if name is None:
            return None
        namespace = root.tag.removesuffix(name)
        return Versioning(root.findtext(f"{namespace}Status") or Versioning.OFF)
    except (ET.ParseError, ValueError):
        return None


def _text(element: ET.Element, tag: str) -> str:
    found = element.findtext(tag)
    if found is None:
        raise InvalidListing(f"{tag.rpartition('}')[2]} is missing")
    return found


def _key(text: str, prefix: str, *, encoded: bool) -> ObjectKey:
    return ObjectKey((unquote_plus(text) if encoded else text).removeprefix(prefix))


async def read_pages(
    transport: S3Transport,
    prefix: str,
    start_after: str,
    parse_time: ParseTime,
    removed: str,
    bucket: str = "",
) -> AsyncGenerator[KeyPage]:
    """Yield the pages of a listing.

    `prefix` and `start_after` are those of whole keys; `removed` is cut from the start of each key.
    The response must name `bucket`.
    """
    query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
    if start_after:
        query["start-after"] = start_after
    while True:
        request = S3Request(method="GET", key="", headers={}, query=tuple(query.items()))
        exchange = await transport.send(request)
        shown = prefix.removeprefix(removed)
        match resolve_read(exchange.seen):
            case Succeeded():
                pass
            case RequestRefused(refusal=refusal):
                raise refusal_error(refusal, _OPERATION, shown, exchange.detail)
            case _:
                raise refusal_error(RefusalReason.REJECTED, _OPERATION, shown, exchange.detail)
        try:
            page = parse_page(
                exchange.body, exchange.date_ns, parse_time, removed, listed=prefix, bucket=bucket
            )
        except InvalidListing as error:
            detail = f"it is no listing: {error}"
            raise refusal_error(RefusalReason.FOREIGN, _OPERATION, shown, detail) from error
        yield page
        if page.token is None:
            return
        if page.token == query.get("continuation-token"):
            reason = "the store continues the listing at the same place again"
            raise StoreUnavailable(_OPERATION, shown, reason)
        query["continuation-token"] = page.token
