"""One request on S3 and its response: values, header parsing, and refusals as errors of the port.

Independent of what sends the request, so that tests can send it to a model of a bucket.
"""

import base64
import binascii
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

    Attributes:
        method: `PUT`, `GET`, `HEAD` or `DELETE`.
        key: The key with the deployment's prefix; empty for the bucket itself.
        headers: Headers in addition to those of the signature; every one is signed.
        query: The query parameters, in any order.
        sha256: The digest of the body.
    """

    method: str
    key: str
    headers: Mapping[str, str]
    query: tuple[tuple[str, str], ...] = ()
    sha256: Digest = EMPTY_SHA256


class S3Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its result.

    Attributes:
        seen: How it ended, for `sluice_protocol.exchange_verdicts`.
        headers: Headers of the response, empty without one.
        body: Body of a success.
        detail: What the store or the network reported about a failure.
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
        """Yield pages of current objects.

        Raises:
            StoreError: The store could not be read.
        """
        ...

    def incarnations(
        self, prefix: str, start_after: str, end_at: str | None
    ) -> AsyncIterator[IncarnationPage]:
        """Yield pages of versions and delete markers.

        Raises:
            StoreError: The store could not be read.
        """
        ...

    async def read_versioning(self) -> Versioning:
        """Read whether the bucket keeps versions.

        Raises:
            StoreError: The store could not be read.
        """
        ...

    async def read_replication(self, bucket: str) -> ReplicationRules | None:
        """Return the replication rules of a bucket, or None if they cannot be read.

        Raises:
            StoreUnavailable: The store is unreachable.
        """
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
    """Return the object that the headers of a GET or HEAD describe.

    The size is that of the whole object, also in the response to a ranged GET.
    """
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
