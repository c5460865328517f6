"""Headers and error bodies of S3 as values of the port."""

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final

from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import NS_PER_S, Digest, ETag, ObjectKey, ObjectVersion, UnixNs

_CODE: Final = re.compile(rb"<Code>\s*([A-Za-z0-9.]+)\s*</Code>")
_MESSAGE: Final = re.compile(rb"<Message>\s*([^<]{0,300})")


@lru_cache(maxsize=256)
def parse_http_date_ns(text: str) -> UnixNs:
    """Gives an HTTP date in Unix ns, or 0 when there is none that can be read."""
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return UnixNs(0)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return UnixNs(int(moment.timestamp()) * NS_PER_S)


def datetime_ns(moment: datetime) -> UnixNs:
    """Gives a moment of a listing in Unix ns; S3 cuts it to milliseconds or seconds."""
    return UnixNs(int(moment.timestamp()) * NS_PER_S + moment.microsecond * 1000)


def parse_checksum(text: str | None) -> Digest | None:
    """Gives the whole-object sha256 of a header; a composite one (`…-3`) is none."""
    if not text:
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return Digest(raw.hex()) if len(raw) == 32 else None  # noqa: PLR2004 - bytes of a sha256


def encode_checksum(sha256: Digest) -> str:
    """Gives a sha256 as the header carries it."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def parse_error(body: bytes) -> tuple[str, str]:
    """Gives code and message of an error body, both empty when it has none."""
    code, message = _CODE.search(body), _MESSAGE.search(body)
    return (
        code[1].decode() if code else "",
        message[1].decode("utf-8", "replace").strip() if message else "",
    )


def parse_incarnation(headers: Mapping[str, str]) -> ObjectVersion | None:
    """Gives the version id of an answer, or None on a store without versioning."""
    version = headers.get("x-amz-version-id")
    return ObjectVersion(version) if version else None


def parse_date_ns(headers: Mapping[str, str]) -> UnixNs:
    """Gives the store's clock in an answer."""
    return parse_http_date_ns(headers.get("Date", ""))


def parse_info(key: ObjectKey, headers: Mapping[str, str]) -> ObjectInfo:
    """Gives what the headers of a GET or HEAD say of an object; a range tells the whole size."""
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
