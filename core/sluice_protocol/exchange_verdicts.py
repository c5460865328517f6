"""The meaning of an HTTP exchange with an object store: the rules, as pure functions.

An adapter reports how the exchange ended (`ExchangeResult`) and gets its meaning (`WriteVerdict`,
`ReadVerdict`, `DeleteVerdict`). mypy makes both sides handle every case. These rules exist only
here:

- 412 on a condition: the object has another state, and this exchange wrote nothing.
- 404 on `If-Match`: the same, the object does not exist. 404 for the bucket is a refusal.
- 409: a concurrent conditional write; it proves nothing.
- 5xx, a timeout or a reset after sending began: unknown. The write may still be applied.
- Never sent: a definite failure.
- A response without the marks of S3 is that of another program, such as a proxy or a login page. It
  proves nothing: a write stays unknown, and a read is repeated.

Source: Amazon S3 User Guide, "How to prevent object overwrites with conditional writes"; RFC 9110
section 15; Amazon S3 API Reference, "Error responses".
"""

from enum import Enum, auto
from typing import Final

import msgspec

from sluice_protocol.outcomes import UnknownReason


class WriteCondition(Enum):
    """The precondition of a write."""

    IF_ABSENT = auto()
    IF_MATCH = auto()
    NONE = auto()


class Responded(msgspec.Struct, frozen=True, kw_only=True):
    """The store responded, with this status and the error code of the body, if it has one."""

    status: int
    code: str = ""


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """A program other than the store responded; the store may or may not have seen the request."""

    detail: str


class NotSent(msgspec.Struct, frozen=True, kw_only=True):
    """No byte of the request was sent, and why."""

    detail: str
    cause: "RefusalReason | None" = None


class NoResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Sending had begun and no complete response arrived."""

    reason: UnknownReason
    detail: str


class RefusalReason(Enum):
    """Why a store definitely did nothing; an adapter raises the matching error."""

    UNREACHABLE = auto()
    NAME_UNKNOWN = auto()
    CONNECTION_REFUSED = auto()
    CONNECT_TIMEOUT = auto()
    UNTRUSTED = auto()
    NO_RESPONSE = auto()
    OVERLOADED = auto()
    SERVER_ERROR = auto()
    FOREIGN = auto()
    DENIED = auto()
    CLOCK_SKEWED = auto()
    NO_BUCKET = auto()
    WRONG_PLACE = auto()
    UNSUPPORTED = auto()
    CHECKSUM = auto()
    REJECTED = auto()


ExchangeResult = Responded | Foreign | NotSent | NoResponse


class Succeeded(msgspec.Struct, frozen=True, kw_only=True):
    """The request had its effect."""


class ConditionFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The object has another state; this exchange changed nothing."""


class NoSuchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A read found no object, or no such object version."""


class PastEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A ranged read began at or past the end of the object."""


class Uncertain(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the request was applied, or will be, is unknown."""

    reason: UnknownReason


class RequestRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The request did nothing, and the reason."""

    refusal: RefusalReason


WriteVerdict = Succeeded | ConditionFailed | Uncertain | RequestRefused
ReadVerdict = Succeeded | NoSuchObject | PastEnd | RequestRefused
DeleteVerdict = Succeeded | Uncertain | RequestRefused

_CHECKSUM_CODES: Final = frozenset(
    {
        "BadDigest",
        "InvalidDigest",
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
        "ContentSHA256Mismatch",
    }
)
_ABSENT_CODES: Final = frozenset({"NoSuchKey", "NoSuchVersion", "NotFound"})
CREDENTIAL_CODES: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidToken",
        "TokenRefreshRequired",
        "UnrecognizedClientException",
    }
)
"""Codes of a store that no longer accepts the credentials; those of SQS and STS are among them."""
_DENIED_CODES: Final = frozenset({"AccessDenied", "SignatureDoesNotMatch", *CREDENTIAL_CODES})
_PLACE_CODES: Final = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"}
)


def resolve_write(condition: WriteCondition, seen: ExchangeResult) -> WriteVerdict:
    """Return the meaning of the exchange of a write under its condition."""
    match seen:
        case Responded(status=412, code=code) if code and condition is not WriteCondition.NONE:
            return ConditionFailed()
        case Responded(status=404, code=code) if _key_is_gone(condition, code):
            return ConditionFailed()
        case Responded(status=409):
            return Uncertain(reason=UnknownReason.CONFLICT)
        case _:
            return _resolve_effect(seen)


def _key_is_gone(condition: WriteCondition, code: str) -> bool:
    return condition is WriteCondition.IF_MATCH and code in _ABSENT_CODES


def resolve_delete(seen: ExchangeResult) -> DeleteVerdict:
    """Return the meaning of a delete of one object version; an earlier delete is a success."""
    if isinstance(seen, Responded) and seen.status == 404 and seen.code in _ABSENT_CODES:  # noqa: PLR2004
        return Succeeded()
    if isinstance(seen, Responded) and seen.status == 409:  # noqa: PLR2004
        return Uncertain(reason=UnknownReason.CONFLICT)
    return _resolve_effect(seen)


def _resolve_effect(seen: ExchangeResult) -> DeleteVerdict:  # noqa: C901, PLR0911 - a line per case
    match seen:
        case NotSent(cause=cause):
            return RequestRefused(refusal=cause or RefusalReason.UNREACHABLE)
        case NoResponse(reason=reason):
            return Uncertain(reason=reason)
        case Foreign():
            return Uncertain(reason=UnknownReason.FOREIGN)
        case Responded(status=status) if 200 <= status <= 299:  # noqa: PLR2004
            return Succeeded()
        case Responded(code="RequestTimeout"):
            return Uncertain(reason=UnknownReason.TIMEOUT)
        case Responded(status=501):  # the response names the unsupported header
            return RequestRefused(refusal=RefusalReason.UNSUPPORTED)
        case Responded(status=status) if 300 <= status <= 499 and status != 429:  # noqa: PLR2004
            return RequestRefused(refusal=refusal_reason(seen))
        case Responded():
            return Uncertain(reason=UnknownReason.SERVER_ERROR)


def resolve_read(seen: ExchangeResult) -> ReadVerdict:  # noqa: C901, PLR0911 - a line per case
    """Return the meaning of the exchange of a read; a caller repeats it instead of resolving it."""
    match seen:
        case NotSent(cause=cause):
            return RequestRefused(refusal=cause or RefusalReason.UNREACHABLE)
        case NoResponse():
            return RequestRefused(refusal=RefusalReason.NO_RESPONSE)
        case Foreign():
            return RequestRefused(refusal=RefusalReason.FOREIGN)
        case Responded(status=200 | 206):
            return Succeeded()
        case Responded(status=416):
            return PastEnd()
        case Responded(status=404, code=code) if code in _ABSENT_CODES:
            return NoSuchObject()
        case Responded(status=405, code="MethodNotAllowed"):
            return NoSuchObject()  # the object version is a delete marker
        case Responded(status=status) if status != 501 and (status >= 500 or status in {409, 429}):  # noqa: PLR2004
            return RequestRefused(refusal=_trouble(seen))
        case Responded():
            return RequestRefused(refusal=refusal_reason(seen))


def _trouble(seen: Responded) -> RefusalReason:
    busy = seen.status in {409, 429, 503} or seen.code in {"SlowDown", "Throttling"}
    return RefusalReason.OVERLOADED if busy else RefusalReason.SERVER_ERROR


def refusal_reason(seen: Responded) -> RefusalReason:  # noqa: C901, PLR0911 - a line per case
    """Return why the store refused: from its error code if it sent one, else from its status."""
    match seen:
        case Responded(code="RequestTimeTooSkewed"):
            return RefusalReason.CLOCK_SKEWED
        case Responded(code="NoSuchBucket"):
            return RefusalReason.NO_BUCKET
        case Responded(code=code) if code in _CHECKSUM_CODES:
            return RefusalReason.CHECKSUM
        case Responded(code=code) if code in _PLACE_CODES:
            return RefusalReason.WRONG_PLACE
        case Responded(status=401 | 403) | Responded(code="ExpiredToken"):
            return RefusalReason.DENIED
        case Responded(status=301 | 302 | 307 | 308):
            return RefusalReason.WRONG_PLACE
        case Responded(status=405 | 501):
            return RefusalReason.UNSUPPORTED
        case Responded():
            return RefusalReason.DENIED if seen.code in _DENIED_CODES else RefusalReason.REJECTED
