"""Whether a response is the store's, or that of another program in front of it.

A captive portal, a firewall, a load balancer or a cache can respond to any request, and a write
that it accepted exists nowhere. So a response counts only with the marks that S3 and its
implementations send. Everything else proves nothing: a write stays unknown, a 412 or 404 shows
neither an object nor its absence, and a read is repeated.

Each mark is one that every server with conditional writes sends, in each of its documented modes
(sources in `docs/store.md`, "What a response must contain"):

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
import hashlib
import re
from collections.abc import Mapping
from typing import Final

from sluice_store.s3.exchange import S3Request, encode_checksum, parse_error

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

    A response without them is in doubt: it may be that of another program, or that of a server of
    another version behind the same address. Reading the object decides, and `learn` keeps the
    result, so that a store is not read for every write.
    """

    def __init__(self) -> None:
        self._returns_checksum = False
        self._etag_is_md5 = True

    async def describe_doubt(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return why a success may be that of another program; empty if it is the store's.

        Args:
            headers: The headers of the response.
            body: The body that was sent.
        """
        if _CHECKSUM in headers:
            self._returns_checksum = True
            return ""
        tag = _MD5.fullmatch(headers.get("ETag", ""))
        comparable = tag is not None and not any(name in headers for name in _ENCRYPTIONS)
        if tag is not None and comparable and (self._returns_checksum or self._etag_is_md5):
            small = len(body) <= _INLINE_BYTES_MAX
            digest = _md5(body) if small else await asyncio.to_thread(_md5, body)
            return "" if tag[1].lower() == digest else "its ETag is that of another body"
        return "its checksum is missing, which this store returned before" * self._returns_checksum

    def learn(self) -> None:
        """Remember that the store stored an object and sent none of the optional marks."""
        self._returns_checksum = self._etag_is_md5 = False


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def describe_foreign(  # noqa: C901, PLR0911 - a line per mark
    request: S3Request, status: int, headers: Mapping[str, str], body: bytes
) -> str:
    """Return why a response is not the store's; empty if it has the marks of one.

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
    """Return how a read shows another version or other bytes than were requested."""
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
