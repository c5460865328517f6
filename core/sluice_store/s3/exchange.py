"""One request on S3 and its response: values, header parsing, and refusals as errors of the port.

The transport is separate, so that tests can send a request to a model of a bucket. A captive
portal, a firewall, a load balancer or a cache can respond to any request, and a write that it
accepted exists nowhere. So a response counts only with the marks that S3 and its implementations
send. Everything else proves nothing: a write stays unknown, a 412 or 404 shows neither an object
nor its absence, and a read is repeated.

Every server with conditional writes sends these marks, in each of its documented modes (sources in
`docs/store.md`, "What a response must contain"):

- PUT of an object: 200, 201 or 204 with an ETag and no body. A checksum that is returned is the one
  that was sent. Without one, an ETag that is the MD5 of the body proves the write. Some servers
  send neither: `PutMarks` compares with what this store sent before, and in doubt the object is
  read.
- DELETE of an object: 204.
- GET and HEAD of an object: 200 or 206 with ETag and Last-Modified, and no HTML.
- An error: a document `<Error>` with a `<Code>`. The response to a HEAD has no body, so
  `S3Store` repeats a failed HEAD as a GET.
"""

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from sluice_protocol.errors import (
    ChecksumRefused,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from sluice_protocol.exchange_verdicts import ExchangeResult, RefusalReason
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import NS_PER_S, Digest, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.port import IncarnationPage, ListPage, Versioning
from sluice_store.replication import ReplicationRules

EMPTY_SHA256: Final = Digest("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
_CODE: Final = re.compile(rb"<Code>\s*([A-Za-z0-9.]+)\s*</Code>")
_MESSAGE: Final = re.compile(rb"<Message>\s*([^<]{0,300})")


class S3Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request on an object, before it is signed.

    `key` has the deployment's prefix; it is empty for the bucket itself. All `headers` are signed,
    in addition to those of the signature.
    """

    method: str
    key: str
    headers: Mapping[str, str]
    query: tuple[tuple[str, str], ...] = ()
    sha256: Digest = EMPTY_SHA256


class S3Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its result.

    `body` is that of a success. `detail` is what the store or the network reported about a failure.
    """

    seen: ExchangeResult
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""
    detail: str = ""

    @property
    def date_ns(self) -> UnixNs:
        """The store's clock in the response, or 0 without one."""
        return parse_date_ns(self.headers)


class S3Transport(Protocol):
    """Sends one request to a bucket, once."""

    async def send(self, request: S3Request, body: bytes = b"") -> S3Exchange:
        """Send the request and report the result; network errors are results, not exceptions."""
        ...


class BucketReader(Protocol):
    """Reads of a bucket other than of single objects. Prefixes and keys are the deployment's."""

    @property
    def name(self) -> str:
        """The bucket's name."""
        ...

    def objects(self, prefix: str, start_after: str, end_at: str | None) -> AsyncIterator[ListPage]:
        """Yield pages of current objects."""
        ...

    def incarnations(
        self, prefix: str, start_after: str, end_at: str | None
    ) -> AsyncIterator[IncarnationPage]:
        """Yield pages of versions and delete markers."""
        ...

    async def read_versioning(self) -> Versioning:
        """Read whether the bucket keeps versions."""
        ...

    async def read_replication(self, bucket: str) -> ReplicationRules | None:
        """Return the replication rules of a bucket, or None if they cannot be read."""
        ...

    async def locks_by_default(self) -> bool | None:
        """Return True if Object Lock keeps each new version; None if that cannot be read."""
        ...


@lru_cache(maxsize=256)
def parse_http_date_ns(text: str) -> UnixNs:
    """Return an HTTP date in Unix nanoseconds, or 0 when it is missing or malformed."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return UnixNs(0)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return UnixNs(int(moment.timestamp()) * NS_PER_S)


def datetime_ns(moment: datetime) -> UnixNs:
    """Return a listing's time in Unix nanoseconds; S3 truncates it to milliseconds or seconds."""
    return UnixNs(int(moment.timestamp()) * NS_PER_S + moment.microsecond * 1000)


def parse_checksum(text: str | None) -> Digest | None:
    """Return the sha256 of the whole object; None for a missing or composite (`…-3`) checksum."""
    if not text:
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return Digest(raw.hex()) if len(raw) == 32 else None  # noqa: PLR2004 - bytes of a sha256


def encode_checksum(sha256: Digest) -> str:
    """Return a sha256 in the base64 form of the checksum header."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def parse_error(body: bytes) -> tuple[str, str]:
    """Return code and message of an error body, both empty when it has none."""
    code, message = _CODE.search(body), _MESSAGE.search(body)
    return (
        code[1].decode() if code else "",
        message[1].decode("utf-8", "replace").strip() if message else "",
    )


def parse_incarnation(headers: Mapping[str, str]) -> ObjectVersion | None:
    """Return the version id of a response, or None on a store without versioning."""
    version = headers.get("x-amz-version-id")
    return ObjectVersion(version) if version else None


def parse_date_ns(headers: Mapping[str, str]) -> UnixNs:
    """Return the store's clock in a response, or 0 without a `Date` header."""
    return parse_http_date_ns(headers.get("Date", ""))


def parse_info(key: ObjectKey, headers: Mapping[str, str]) -> ObjectInfo:
    """Return the object of a GET or HEAD response, with its whole size also for a range."""
    whole = headers.get("Content-Range", "").rpartition("/")[2]
    size = whole if whole.isdigit() else headers.get("Content-Length", "0")
    return ObjectInfo(
        key=key,
        size_bytes=int(size),
        etag=ETag(headers.get("ETag", "")),
        incarnation=parse_incarnation(headers),
        last_modified_ns=parse_http_date_ns(headers.get("Last-Modified", "")),
        sha256=parse_checksum(headers.get("x-amz-checksum-sha256")),
        date_ns=parse_date_ns(headers),
    )


def refusal_error(reason: RefusalReason, operation: str, key: str, detail: str) -> StoreError:
    """Return the error for a refusal; `detail` is what the store or the network reported."""
    kind, advice = _kind_and_advice(reason)
    return kind(operation, key, f"{advice} ({detail})" if detail else advice)


def _kind_and_advice(reason: RefusalReason) -> tuple[type[StoreError], str]:  # noqa: C901, PLR0911, PLR0912 - a line per case
    match reason:
        case RefusalReason.UNREACHABLE:
            return StoreUnavailable, "cannot connect: check the endpoint and the network"
        case RefusalReason.NAME_UNKNOWN:
            return StoreUnavailable, "the name of the endpoint does not resolve: check it, or DNS"
        case RefusalReason.CONNECTION_REFUSED:
            return (
                StoreUnavailable,
                "connection refused: no server listens there: check the endpoint",
            )
        case RefusalReason.CONNECT_TIMEOUT:
            return StoreUnavailable, "no connection in time: check the endpoint and the network"
        case RefusalReason.UNTRUSTED:
            return StoreUnavailable, (
                "TLS failed: if the certificate is of a private authority, name its file with"
                " ca_bundle in the store URL or AWS_CA_BUNDLE; if the endpoint has no TLS, write"
                " http://"
            )
        case RefusalReason.NO_RESPONSE:
            return StoreUnavailable, "connected, but no complete response arrived: retry"
        case RefusalReason.OVERLOADED:
            return StoreUnavailable, "the store is overloaded or unavailable: retry later"
        case RefusalReason.SERVER_ERROR:
            return StoreUnavailable, "the store failed: retry, and read its log"
        case RefusalReason.FOREIGN:
            return StoreUnavailable, (
                "the response is not the store's: check the endpoint, and proxies, firewalls and"
                " login pages before it"
            )
        case RefusalReason.DENIED:
            return StoreDenied, "access denied: check credentials and policy"
        case RefusalReason.CLOCK_SKEWED:
            return StoreDenied, "this machine's clock is more than 15 minutes off: set it"
        case RefusalReason.NO_BUCKET:
            return StoreMisconfigured, "no such bucket: create it, or correct the store URL"
        case RefusalReason.WRONG_PLACE:
            return StoreMisconfigured, "wrong region or endpoint: set both in the store URL"
        case RefusalReason.UNSUPPORTED:
            return StoreMisconfigured, "the store does not support it: run `sluice doctor`"
        case RefusalReason.CHECKSUM:
            return ChecksumRefused, "the body did not match its checksum: send it again"
        case RefusalReason.REJECTED:
            return StoreMisconfigured, "the store rejected the request, see its response"


_ERRORS_FROM: Final = 300
_OK: Final = 200
_NO_CONTENT: Final = 204
_PARTIAL: Final = 206
_PUT_STATUSES: Final = frozenset({_OK, 201, _NO_CONTENT})
"""Ceph has a setting for the status, `rgw_s3_success_create_obj_status`."""
_MD5: Final = re.compile(r'"?([0-9A-Fa-f]{32})"?')
_RANGE_START: Final = re.compile(r"bytes[= ](\d+)-")
_CHECKSUM: Final = "x-amz-checksum-sha256"
_ENCRYPTION: Final = "x-amz-server-side-encryption"
_ENCRYPTIONS: Final = (_ENCRYPTION, f"{_ENCRYPTION}-customer-algorithm")
_INLINE_BYTES_MAX: Final = 128 * 1024
"""A larger body is hashed in a thread."""


class PutMarks:
    """Which of the optional marks this store sends in response to a PUT.

    A response without them is in doubt: another program may have sent it, or another version of the
    server behind the same address. Reading the object decides, and `learn` keeps the result, so
    that a store is not read for every write.
    """

    def __init__(self) -> None:
        self._returns_checksum = False
        self._etag_is_md5 = True

    async def describe_doubt(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return why another program may have sent a success; empty if the store did."""
        if _CHECKSUM in headers:
            self._returns_checksum = True
            return ""
        tag = _MD5.fullmatch(headers.get("ETag", ""))
        comparable = tag is not None and not any(name in headers for name in _ENCRYPTIONS)
        if tag is not None and comparable and (self._returns_checksum or self._etag_is_md5):
            small = len(body) <= _INLINE_BYTES_MAX
            digest = _md5(body) if small else await asyncio.to_thread(_md5, body)
            return "" if tag[1].lower() == digest else "its ETag is that of another body"
        return "it has no checksum, which this store returned before" * self._returns_checksum

    def learn(self) -> None:
        """Remember that the store stored an object and sent none of the optional marks."""
        self._returns_checksum = self._etag_is_md5 = False


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def describe_foreign(  # noqa: C901, PLR0911 - a line per mark
    request: S3Request, status: int, headers: Mapping[str, str], body: bytes
) -> str:
    """Return why a response is not from a store; empty if it has the marks of a store.

    The body of a listing is checked by its parser.
    """
    if status >= _ERRORS_FROM:
        if request.method == "HEAD" or (b"<Error" in body and parse_error(body)[0]):
            return ""
        return "an error without the error document of S3"
    if request.method == "DELETE":
        return "" if status == _NO_CONTENT else "a delete is confirmed with 204"
    if request.key and request.method == "PUT":
        return _describe_other_put(request, status, headers, body)
    if not request.key:
        return "" if status == _OK else "S3 responds with 200"
    if status != _OK and (status != _PARTIAL or "Range" not in request.headers):
        return "S3 responds with 200"
    if not headers.get("ETag"):
        return "it has no ETag"
    if not headers.get("Last-Modified"):
        return "it has no Last-Modified"
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/html":
        return "it is a page of HTML"
    return _describe_other_object(request, status, headers)


def _describe_other_put(
    request: S3Request, status: int, headers: Mapping[str, str], body: bytes
) -> str:
    if status not in _PUT_STATUSES:
        return "S3 responds with 200"
    if not headers.get("ETag"):
        return "it has no ETag"
    if body:
        return "it has a body"
    returned = headers.get(_CHECKSUM)
    wrong = returned is not None and returned != encode_checksum(request.sha256)
    return "it has the checksum of another body" if wrong else ""


def _describe_other_object(request: S3Request, status: int, headers: Mapping[str, str]) -> str:
    """Return why a read returned another version or other bytes than requested."""
    wanted, found = dict(request.query).get("versionId"), headers.get("x-amz-version-id")
    if wanted is not None and found is not None and wanted != found:
        return f"it is the version {found}"
    if request.method == "HEAD" and "Content-Length" not in headers:
        return "it has no Content-Length"
    if status == _PARTIAL:
        first = _RANGE_START.match(headers.get("Content-Range", ""))
        asked = _RANGE_START.match(request.headers["Range"])
        if first is None or asked is None or first[1] != asked[1]:
            return "it is another range"
    return ""
