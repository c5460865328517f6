"""What an exchange with an object store over HTTP means: the rules, as pure functions.

An adapter reports how the exchange ended (`Seen`), and gets back what it means (`WriteVerdict`,
`ReadVerdict`, `DeleteVerdict`). mypy makes both sides name every case. The rules stand here and
nowhere else:

- 412 on a condition: another state stands, and this exchange wrote nothing.
- 404 on `If-Match`: the same, the key is gone. 404 for the bucket is a refusal.
- 409: a concurrent conditional write; evidence of nothing.
- 5xx, a timeout or a reset after sending began: nobody knows. The write may still land.
- Never sent: a definite failure.

Source: Amazon S3 User Guide, "How to prevent object overwrites with conditional writes"; RFC 9110
section 15; Amazon S3 API Reference, "Error responses".
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from sluice_protocol.outcomes import UnknownReason


class Condition(Enum):
    """The precondition that a write carried."""

    IF_ABSENT = auto()
    IF_MATCH = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The store answered, with this status and the error code of its body, if it has one."""

    status: int
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSent:
    """Not a byte of the request left this machine."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Sending had begun and no whole answer came."""

    reason: UnknownReason
    detail: str


Seen = Answered | NotSent | Lost


class Refusal(Enum):
    """Why a store definitely did nothing; an adapter raises the error that goes with it."""

    UNREACHABLE = auto()
    DENIED = auto()
    CLOCK_SKEWED = auto()
    NO_BUCKET = auto()
    WRONG_PLACE = auto()
    UNSUPPORTED = auto()
    CHECKSUM = auto()
    REJECTED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The request did what it asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionFailed:
    """Another state stands; this exchange changed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingThere:
    """A read met no object, or no such incarnation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEnd:
    """A ranged read began at or past the end of the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertain:
    """Nobody knows whether the request was applied or will be."""

    reason: UnknownReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The request did nothing, and the reason."""

    refusal: Refusal


WriteVerdict = Succeeded | ConditionFailed | Uncertain | Refused
ReadVerdict = Succeeded | NothingThere | PastEnd | Refused
DeleteVerdict = Succeeded | Uncertain | Refused

_CHECKSUM_CODES: Final = frozenset(
    {
        "BadDigest",
        "InvalidDigest",
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
        "ContentSHA256Mismatch",
    }
)
_DENIED_CODES: Final = frozenset(
    {"AccessDenied", "ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)
_PLACE_CODES: Final = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"}
)


def resolve_write(condition: Condition, seen: Seen) -> WriteVerdict:
    """Tells what the exchange of a write means under its condition."""
    match seen:
        case Answered(status=412) if condition is not Condition.NONE:
            return ConditionFailed()
        case Answered(status=404, code=code) if _key_is_gone(condition, code):
            return ConditionFailed()
        case Answered(status=409):
            return Uncertain(reason=UnknownReason.CONFLICT)
        case _:
            return _resolve_effect(seen)


def _key_is_gone(condition: Condition, code: str) -> bool:
    """An `If-Match` on a free key is answered 404; without a body it can mean nothing else."""
    return condition is Condition.IF_MATCH and code in {"", "NoSuchKey", "NotFound", "404"}


def resolve_delete(seen: Seen) -> DeleteVerdict:
    """Tells what the exchange of a delete of one incarnation means; gone before is gone."""
    if isinstance(seen, Answered) and seen.status == 404 and seen.code != "NoSuchBucket":  # noqa: PLR2004
        return Succeeded()
    if isinstance(seen, Answered) and seen.status == 409:  # noqa: PLR2004
        return Uncertain(reason=UnknownReason.CONFLICT)
    return _resolve_effect(seen)


def _resolve_effect(seen: Seen) -> DeleteVerdict:  # noqa: PLR0911 - a line per case
    match seen:
        case NotSent():
            return Refused(refusal=Refusal.UNREACHABLE)
        case Lost(reason=reason):
            return Uncertain(reason=reason)
        case Answered(status=status) if 200 <= status <= 299:  # noqa: PLR2004
            return Succeeded()
        case Answered(code="RequestTimeout"):
            return Uncertain(reason=UnknownReason.TIMEOUT)
        case Answered(status=501):
            return Refused(refusal=Refusal.UNSUPPORTED)  # it names the header that it does not know
        case Answered(status=status) if 300 <= status <= 499 and status != 429:  # noqa: PLR2004
            return Refused(refusal=refusal_of(seen))
        case Answered():
            return Uncertain(reason=UnknownReason.SERVER_ERROR)


def resolve_read(seen: Seen) -> ReadVerdict:  # noqa: PLR0911 - a line per case
    """Tells what the exchange of a read means; a read has no unknown, it is made again."""
    match seen:
        case NotSent() | Lost():
            return Refused(refusal=Refusal.UNREACHABLE)
        case Answered(status=200 | 206):
            return Succeeded()
        case Answered(status=416):
            return PastEnd()
        case Answered(status=404, code=code) if code != "NoSuchBucket":
            return NothingThere()
        case Answered(status=405, code=code) if code in {"", "MethodNotAllowed"}:
            return NothingThere()  # the incarnation is a delete marker
        case Answered(status=status) if status != 501 and (status >= 500 or status in {409, 429}):  # noqa: PLR2004
            return Refused(refusal=Refusal.UNREACHABLE)
        case Answered():
            return Refused(refusal=refusal_of(seen))


def refusal_of(seen: Answered) -> Refusal:  # noqa: C901, PLR0911 - a line per case
    """Tells why the store refused, from its error code where it sent one, else its status."""
    match seen:
        case Answered(code="RequestTimeTooSkewed"):
            return Refusal.CLOCK_SKEWED
        case Answered(code="NoSuchBucket"):
            return Refusal.NO_BUCKET
        case Answered(code=code) if code in _CHECKSUM_CODES:
            return Refusal.CHECKSUM
        case Answered(code=code) if code in _PLACE_CODES:
            return Refusal.WRONG_PLACE
        case Answered(status=401 | 403) | Answered(code="ExpiredToken"):
            return Refusal.DENIED
        case Answered(status=301 | 302 | 307 | 308):
            return Refusal.WRONG_PLACE
        case Answered(status=405 | 501):
            return Refusal.UNSUPPORTED
        case Answered(status=404):
            return Refusal.NO_BUCKET
        case Answered():
            return Refusal.DENIED if seen.code in _DENIED_CODES else Refusal.REJECTED
