"""A request to a door: what its head states, who sent it, what identifies it, and its responses.

A protocol defines how a request is read, and three kinds of responses: success, later, never. What
identifies a request is a name that came with it, its records, or nothing.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import hdrs, web

from sluice_doors.decoded import BodyUnreadable, DecodedRecords, canonical, form_digest
from sluice_doors.json.timed_lines import TimedLines, lines_digest
from sluice_doors.table import DoorName
from sluice_protocol.columns import kind_of
from sluice_protocol.errors import Unauthenticated
from sluice_protocol.identity import IdentitySource, RequestIdentity, request_identity
from sluice_protocol.units import UnixNs
from sluice_web.problems import RETRY_AFTER_S, Problem


def sent_token(headers: Mapping[str, str]) -> str | None:
    """Return the token in the header fields of a request; None where there is none.

    Known forms: `Bearer T`, `Splunk T`, `ApiKey T` or `ApiKey base64(id:T)` as Elasticsearch's
    clients send it, `Basic base64(user:T)`, and Firehose's own field.
    """
    access_key = headers.get("X-Amz-Firehose-Access-Key")
    if access_key is not None:
        return access_key
    authorization = headers.get(hdrs.AUTHORIZATION)
    return None if authorization is None else token_of(authorization)


def token_of(authorization: str) -> str:
    """Return the token in the value of an `Authorization` field."""
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "bearer" | "splunk":
            return value.strip()
        case "basic":
            return _after_colon(value)
        case "apikey":
            return _after_colon(value) if _decoded(value) is not None else value.strip()
        case _:
            raise Unauthenticated("the scheme of Authorization is not known")


def credentials_remedy(headers: Mapping[str, str]) -> str:
    """Return what the sender of a request without a known token has to change.

    It depends on the form of the request alone, so it reveals nothing about the tokens.
    """
    authorization = headers.get(hdrs.AUTHORIZATION)
    if "X-Amz-Firehose-Access-Key" in headers:
        return "check the access key"
    if authorization is None:
        return "send the token as `Authorization: Bearer TOKEN`, or as the password of HTTP basic"
    scheme, _, value = authorization.partition(" ")
    known = scheme.lower() in _SCHEMES
    if not known or not value.strip():
        return "begin Authorization with `Bearer`, a space and the token"
    if scheme.lower() == "basic" and (_decoded(value) or ":").endswith(":"):
        return "the token is the password of HTTP basic, with any user"
    return "check the token"


_SCHEMES: Final = frozenset(("bearer", "splunk", "basic", "apikey"))


def _after_colon(value: str) -> str:
    decoded = _decoded(value)
    if decoded is None:
        raise Unauthenticated("Authorization is not base64 of name and token")
    return decoded.partition(":")[2]


def _decoded(value: str) -> str | None:
    try:
        decoded = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return decoded if ":" in decoded else None


SERVER_ERRORS: Final = 500
LATER: Final = 503
RECEIVED_NS: Final = web.RequestKey("received_ns", int)
"""When a request was received, Unix ns; set before it is read or refused."""

Decode = Callable[[bytes, UnixNs], Sequence[DecodedRecords]]
"""Decodes a decompressed body that was received at a time."""


class DoorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of a request states.

    `coding` is the Content-Encoding, or the one that the protocol prescribes. `key` is the name
    that came with the request; empty where there is none. `read_lines` reads a small body so that
    its records can be decoded together with others; None where the protocol has no such form.
    """

    door: DoorName
    decode: Decode
    coding: str
    key: bytes = b""
    read_lines: Callable[[bytes], TimedLines | None] | None = None


class DoorResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was accepted.

    `records` includes duplicates, and `unreadable` counts those that were kept raw. `duplicate` is
    True if all were accepted before this request. `combined` is True if records are in a batch with
    those of other requests, so that a repetition is found within a window of time only.
    """

    records: int
    unreadable: int
    duplicate: bool
    source: IdentitySource
    combined: bool = False

    @property
    def identity(self) -> str:
        """What identifies the request, as the response reports it."""
        is_bounded = self.combined and self.source != "none"
        return f"{self.source}; combined" if is_bounded else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorRoute:
    """One path of a protocol.

    `media_type` is that of most request bodies. `respond` is called after every record was
    accepted, `refuse` for a request that is not accepted, or not yet. `ignores_others` is as in
    `check_query`: real clients of another product send parameters that the door does not need.
    """

    door: DoorName
    path: str
    summary: str
    media_type: str
    read: Callable[[web.Request], DoorRequest]
    respond: Callable[[web.Request, DoorResult], web.Response]
    refuse: Callable[[web.Request, Problem], web.Response]
    parameters: tuple[str, ...] = ()
    ignores_others: bool = True


def request_head(
    request: web.Request,
    door: DoorName,
    decode: Decode,
    *,
    usual_coding: str = "identity",
    read_lines: Callable[[bytes], TimedLines | None] | None = None,
) -> DoorRequest:
    """Return what the head of a request states; `usual_coding` applies if it names none."""
    return DoorRequest(
        door=door,
        decode=decode,
        coding=request.headers.get(hdrs.CONTENT_ENCODING, usual_coding),
        key=request.headers.get("Idempotency-Key", "").encode(errors="surrogateescape"),
        read_lines=read_lines,
    )


def status_for(problem: Problem) -> int:
    """Return the status of a refusal; trouble of the gateway or the store is always 503.

    Most clients drop a batch on any other error of the server than 503.
    """
    return LATER if problem.status >= SERVER_ERRORS else problem.status


def retry_later(response: web.Response) -> web.Response:
    """Add `Retry-After` to a 503."""
    if response.status == LATER:
        response.headers[hdrs.RETRY_AFTER] = str(RETRY_AFTER_S)
    return response


def readable_detail(problem: Problem) -> str:
    """Return the reason of a refusal as text that can be encoded."""
    return problem.detail.encode(errors="replace").decode()


def refuse_in_text(request: web.Request, problem: Problem) -> web.Response:
    """Return a refusal as plain text, which clients log."""
    del request
    return retry_later(web.Response(status=status_for(problem), text=readable_detail(problem)))


class RequestOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Whose request it is, and how it names itself.

    `key` is the name that came with the request; empty where there is none. No other request has
    the value `unique`, for a request that cannot be recognised.
    """

    principal: str
    door: DoorName
    key: bytes
    unique: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalRecords:
    """The records of one kind of a request.

    `named` is what identifies them: the same, with a constant in place of the time of receipt where
    the request has a key. That time differs in every retry.
    """

    records: DecodedRecords
    named: DecodedRecords


def canonical_records(
    plain: bytes, wanted: DoorRequest, received_ns: UnixNs
) -> list[CanonicalRecords]:
    """Decode a body without its content coding, and return the records of each kind.

    Every door calls this function, so it enforces the rule of all doors: a body that is not empty
    and yields no record is refused. A client that got a success would never send the records again
    that were in the body in a form that the decoder does not know.
    """
    decoded = [canonical(records) for records in wanted.decode(plain, received_ns)]
    if plain and not decoded:
        raise BodyUnreadable(
            f"no record was found in the body, which is not empty; check that it has the form of"
            f" this protocol and path, door=`{wanted.door}` bytes={len(plain)}"
        )
    named = decoded
    if wanted.key and not all(records.timed for records in decoded):
        named = [canonical(records) for records in wanted.decode(plain, UnixNs(0))]
    return [
        CanonicalRecords(records=records, named=constant)
        for records, constant in zip(decoded, named, strict=True)
    ]


def identity_of(named: DecodedRecords, origin: RequestOrigin) -> RequestIdentity:
    """Return the identity of the records of one kind of a request, from their `named` form."""
    source, value = _source(named, origin)
    return request_identity(
        principal=origin.principal,
        door=origin.door,
        kind=kind_of(named.columns),
        source=source,
        value=value,
    )


def identity_of_lines(found: TimedLines, origin: RequestOrigin) -> RequestIdentity:
    """Return the identity of a small request in the form of `TimedLines`.

    It differs from the identity of the same records as columns: one request has one form, because
    the choice follows from its records.
    """
    return request_identity(
        principal=origin.principal,
        door=origin.door,
        kind="logs",
        source="key" if origin.key else "content",
        value=lines_digest(found) + origin.key,
    )


def _source(named: DecodedRecords, origin: RequestOrigin) -> tuple[IdentitySource, bytes]:
    """Return what identifies the request.

    A key is combined with the content: a sender that uses a key twice for other records sends two
    requests, and loses nothing. Records without their own time may be equal and meant twice, so
    without a key they identify nothing.
    """
    if origin.key:
        return "key", form_digest(named) + origin.key
    if named.timed:
        return "content", form_digest(named)
    return "none", origin.unique
