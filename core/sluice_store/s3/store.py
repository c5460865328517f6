"""The S3 adapter: one signed request per verb, and one per page of a listing.

The SDK resolves an endpoint and builds a description of the client for every request, which costs
many times what a page needs (ADR 10).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from sluice_protocol.errors import StoreError, StoreMisconfigured, StoreUnavailable
from sluice_protocol.exchange_verdicts import (
    ConditionFailed,
    ExchangeResult,
    Foreign,
    NoSuchObject,
    PastEnd,
    RefusalReason,
    RequestRefused,
    Responded,
    Succeeded,
    Uncertain,
    WriteCondition,
    resolve_delete,
    resolve_read,
    resolve_write,
)
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import (
    Applied,
    CreateOutcome,
    Deleted,
    DeleteOutcome,
    Exists,
    Found,
    GetOutcome,
    HeadOutcome,
    Mismatch,
    NotFound,
    ObjectInfo,
    OverwriteOutcome,
    ReplaceOutcome,
    Unknown,
)
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.port import (
    IncarnationPage,
    ListedObject,
    ListPage,
    NewObject,
    ObjectStore,
    Versioning,
    run_together,
)
from sluice_store.replication import ReplicationRules
from sluice_store.s3.exchange import (
    BucketReader,
    S3Exchange,
    S3Request,
    S3Transport,
    datetime_ns,
    encode_checksum,
    parse_incarnation,
    parse_info,
    refusal_error,
)

_CHECKSUM_MODE = {"x-amz-checksum-mode": "ENABLED"}


_REPLICA: Final = "REPLICA"
_ERRORS_FROM: Final = 300
_SERVER_ERRORS_FROM: Final = 500
_NOT_IMPLEMENTED: Final = 501
_HEAD_TRIES: Final = 2
_MANY_IN_FLIGHT: Final = 32
"""Requests of the verbs for many objects in flight, of all callers of a store."""

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class S3Store(ObjectStore):
    """One bucket and prefix as a store. One verb is one request; nothing is retried here."""

    def __init__(self, transport: S3Transport, bucket: BucketReader, prefix: str) -> None:
        self._transport = transport
        self._bucket = bucket
        self._prefix = prefix
        self._many = asyncio.Semaphore(_MANY_IN_FLIGHT)

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        """Write `body` under a key that does not exist."""
        exchange = await self._put(key, body, sha256, {"If-None-Match": "*"})
        match resolve_write(WriteCondition.IF_ABSENT, exchange.seen):
            case ConditionFailed():
                return Exists(date_ns=exchange.date_ns)
            case Succeeded() | Uncertain() | RequestRefused() as verdict:
                return _written("create", key, exchange, verdict)

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        """Write `body` over the state tagged `if_match`."""
        exchange = await self._put(key, body, None, {"If-Match": if_match})
        match resolve_write(WriteCondition.IF_MATCH, exchange.seen):
            case ConditionFailed():
                return Mismatch(date_ns=exchange.date_ns)
            case Succeeded() | Uncertain() | RequestRefused() as verdict:
                return _written("replace", key, exchange, verdict)

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        """Write `body`, whether or not the key exists."""
        exchange = await self._put(key, body, sha256, {})
        match resolve_write(WriteCondition.NONE, exchange.seen):
            case ConditionFailed():
                raise refusal_error(RefusalReason.REJECTED, "overwrite", key, exchange.detail)
            case Succeeded() | Uncertain() | RequestRefused() as verdict:
                return _written("overwrite", key, exchange, verdict)

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        """Read an object or a range of it."""
        headers = dict(_CHECKSUM_MODE)
        if first or last is not None:
            headers["Range"] = f"bytes={first}-{'' if last is None else last}"
        exchange = await self._transport.send(
            S3Request(method="GET", key=self._prefix + key, headers=headers)
        )
        match resolve_read(exchange.seen):
            case Succeeded():
                found = exchange.body
                if "Content-Range" not in exchange.headers and "Range" in headers:
                    # A server may ignore the field and send everything (RFC 9110, section 14.2).
                    found = found[first : None if last is None else last + 1]
                return Found(info=parse_info(key, exchange.headers), body=found)
            case PastEnd():
                info = await self.head(key)
                return Found(info=info, body=b"") if isinstance(info, ObjectInfo) else info
            case NoSuchObject():
                return NotFound(date_ns=exchange.date_ns)
            case RequestRefused(refusal=refusal):
                raise refusal_error(refusal, "get", key, exchange.detail)

    async def head(self, key: ObjectKey) -> HeadOutcome:
        """Read the metadata of an object."""
        return await self._head("head", key, ())

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        """Read the metadata of one version."""
        return await self._head("head_incarnation", key, (("versionId", incarnation),))

    async def create_many(self, objects: Sequence[NewObject]) -> list[CreateOutcome | StoreError]:
        """Create objects by concurrent requests."""
        return await self._each(
            objects, lambda one: self.create(one.key, one.body, sha256=one.sha256)
        )

    async def get_many(self, keys: Sequence[ObjectKey]) -> list[GetOutcome | StoreError]:
        """Read objects by concurrent requests."""
        return await self._each(keys, self.get)

    async def head_many(self, keys: Sequence[ObjectKey]) -> list[HeadOutcome | StoreError]:
        """Read the metadata of objects by concurrent requests."""
        return await self._each(keys, self.head)

    async def _each(
        self, items: Sequence[_In], verb: Callable[[_In], Awaitable[_Out]]
    ) -> list[_Out | StoreError]:
        async def one(item: _In) -> _Out | StoreError:
            async with self._many:
                try:
                    return await verb(item)
                except StoreError as error:
                    return error

        return list(await run_together(*map(one, items)))

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        """Delete exactly this version."""
        try:
            return await self._delete(key, (("versionId", incarnation),))
        except StoreMisconfigured:
            # versitygw refuses (400) a deleted version while other versions of the key exist.
            # Version ids are never reused, so here, and only here, a read that finds nothing
            # proves that the version is deleted.
            seen = await self.head_incarnation(key, incarnation)
            if isinstance(seen, NotFound):
                return Deleted(date_ns=seen.date_ns)
            raise

    async def delete_current(self, key: ObjectKey) -> DeleteOutcome:
        """Put a delete marker over the key. Not part of the port: the doctor tests its effect."""
        return await self._delete(key, ())

    @property
    def place(self) -> tuple[str, str]:
        """The bucket, and the deployment's prefix in it."""
        return self._bucket.name, self._prefix

    async def is_replica(self, key: ObjectKey) -> bool:
        """Return True if S3 Replication wrote the current version of an object."""
        exchange = await self._metadata(key, ())
        match resolve_read(exchange.seen):
            case Succeeded():
                return exchange.headers.get("x-amz-replication-status", "").upper() == _REPLICA
            case NoSuchObject() | PastEnd():
                return False
            case RequestRefused(refusal=refusal):
                raise refusal_error(refusal, "is_replica", key, exchange.detail)

    async def read_replication(self, bucket: str) -> ReplicationRules | None:
        """Return a bucket's rules, or None if they cannot be read."""
        return await self._bucket.read_replication(bucket)

    async def locks_by_default(self) -> bool | None:
        """Return True if Object Lock keeps each new version; not part of the port."""
        return await self._bucket.locks_by_default()

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        """List current objects, page by page."""
        async for page in self._bucket.objects(prefix, start_after, end_at):
            yield page

    async def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        """List every version and delete marker, page by page."""
        async for page in self._bucket.incarnations(prefix, start_after, end_at):
            yield page

    async def read_versioning(self) -> Versioning:
        """Read whether the bucket keeps versions now."""
        return await self._bucket.read_versioning()

    def _put(
        self, key: ObjectKey, body: bytes, sha256: Digest | None, condition: dict[str, str]
    ) -> Awaitable[S3Exchange]:
        digest = sha256 or digest_of(body)
        headers = {"x-amz-checksum-sha256": encode_checksum(digest), **condition}
        request = S3Request(method="PUT", key=self._prefix + key, headers=headers, sha256=digest)
        return self._transport.send(request, body)

    async def _head(
        self, operation: str, key: ObjectKey, query: tuple[tuple[str, str], ...]
    ) -> HeadOutcome:
        exchange = await self._metadata(key, query)
        match resolve_read(exchange.seen):
            case Succeeded():
                return parse_info(key, exchange.headers)
            case NoSuchObject() | PastEnd():
                return NotFound(date_ns=exchange.date_ns)
            case RequestRefused(refusal=refusal):
                raise refusal_error(refusal, operation, key, exchange.detail)

    async def _metadata(self, key: ObjectKey, query: tuple[tuple[str, str], ...]) -> S3Exchange:
        """Send a HEAD; if it fails, learn the reason from a GET of one byte.

        An error in response to a HEAD has no body, so it shows neither its reason nor that it is
        the store's. The GET returns the error document. If it succeeds, the object was created, or
        the credentials were renewed, between the two, and the HEAD is sent again.
        """
        head = S3Request(method="HEAD", key=self._prefix + key, headers=_CHECKSUM_MODE, query=query)
        first_byte = S3Request(
            method="GET", key=self._prefix + key, headers={"Range": "bytes=0-0"}, query=query
        )
        exchange = await self._transport.send(head)
        for _ in range(_HEAD_TRIES):
            if not _is_unexplained(exchange.seen):
                return exchange
            reason = await self._transport.send(first_byte)
            if not isinstance(resolve_read(reason.seen), Succeeded | PastEnd):
                return reason
            exchange = await self._transport.send(head)
        if not _is_unexplained(exchange.seen):
            return exchange
        detail = f"HEAD and GET differ ({exchange.detail})"
        return S3Exchange(seen=Foreign(detail=detail), detail=detail)

    async def _delete(self, key: ObjectKey, query: tuple[tuple[str, str], ...]) -> DeleteOutcome:
        exchange = await self._transport.send(
            S3Request(method="DELETE", key=self._prefix + key, headers={}, query=query)
        )
        match resolve_delete(exchange.seen):
            case Succeeded():
                return Deleted(date_ns=exchange.date_ns)
            case Uncertain(reason=reason):
                return Unknown(reason=reason, detail=exchange.detail)
            case RequestRefused(refusal=refusal):
                raise refusal_error(refusal, "delete", key, exchange.detail)


def _is_unexplained(seen: ExchangeResult) -> bool:
    """Return True for an error without a code that is no failure of the server."""
    if not isinstance(seen, Responded) or seen.code:
        return False
    return _ERRORS_FROM <= seen.status < _SERVER_ERRORS_FROM or seen.status == _NOT_IMPLEMENTED


def _written(
    operation: str,
    key: ObjectKey,
    exchange: S3Exchange,
    verdict: Succeeded | Uncertain | RequestRefused,
) -> Applied | Unknown:
    match verdict:
        case Succeeded():
            return Applied(
                etag=ETag(exchange.headers.get("ETag", "")),
                incarnation=parse_incarnation(exchange.headers),
                date_ns=exchange.date_ns,
            )
        case Uncertain(reason=reason):
            return Unknown(reason=reason, detail=exchange.detail)
        case RequestRefused(refusal=refusal):
            raise refusal_error(refusal, operation, key, exchange.detail)


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
