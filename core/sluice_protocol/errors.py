"""The hierarchy of errors, and their meaning for an HTTP client and for a shell.

A separate class exists only where a caller acts differently. Every class passes its fields as
positional arguments, so that it can be pickled to a Spark worker. Its message states what failed,
on which object, and what to do.

A `Raises:` section names an error only if its caller should know more than the class states.
Reading a store can raise `StoreError`; writing to it also `OutcomeUnknown`, once all tries are
spent. Bytes that cannot be decoded raise `InvalidFrame`, `InvalidRecord` or `LaneDamaged`, or
`UnsupportedVersion` if another build wrote them. A request can raise `BadUsage`.
"""

from enum import Enum, StrEnum
from typing import Final

import msgspec


class ErrorCode(StrEnum):
    """The `code` of a problem document (`docs/protocol.md`, HTTP)."""

    INVALID_FRAME = "invalid_frame"
    DIGEST_MISMATCH = "digest_mismatch"
    UNSUPPORTED_VERSION = "unsupported_version"
    BAD_REQUEST = "bad_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    FORBIDDEN_AGENT = "forbidden_agent"
    IDENTITY_QUARANTINED = "identity_quarantined"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    IDENTITY_CONFLICT = "identity_conflict"
    FENCED = "fenced"
    DELETE_ID_TAKEN = "delete_id_taken"
    LENGTH_REQUIRED = "length_required"
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    CORRUPT_OBJECT = "corrupt_object"
    INTERNAL = "internal"
    STORE_UNAVAILABLE = "store_unavailable"
    OVERLOADED = "overloaded"
    DRAINING = "draining"
    OUTCOME_UNKNOWN = "outcome_unknown"


class Effect(StrEnum):
    """The possible effect of a refused request: none, or one that could not be confirmed."""

    NONE = "none"
    UNKNOWN = "unknown"


class ExitCode(Enum):
    """Exit codes of the `sluice` command."""

    DONE = 0
    FOUND_WRONG = 1
    BAD_USAGE = 2
    STORE_UNREACHABLE = 3


def status_of(code: ErrorCode) -> int:  # noqa: C901, PLR0911 - mypy checks that it is complete
    """Return the HTTP status of an error code."""
    match code:
        case (
            ErrorCode.INVALID_FRAME
            | ErrorCode.DIGEST_MISMATCH
            | ErrorCode.UNSUPPORTED_VERSION
            | ErrorCode.BAD_REQUEST
        ):
            return 400
        case ErrorCode.UNAUTHENTICATED:
            return 401
        case ErrorCode.FORBIDDEN | ErrorCode.FORBIDDEN_AGENT | ErrorCode.IDENTITY_QUARANTINED:
            return 403
        case ErrorCode.NOT_FOUND:
            return 404
        case ErrorCode.METHOD_NOT_ALLOWED:
            return 405
        case ErrorCode.IDENTITY_CONFLICT | ErrorCode.FENCED | ErrorCode.DELETE_ID_TAKEN:
            return 409
        case ErrorCode.LENGTH_REQUIRED:
            return 411
        case ErrorCode.TOO_LARGE:
            return 413
        case ErrorCode.UNSUPPORTED_MEDIA_TYPE:
            return 415
        case ErrorCode.CORRUPT_OBJECT | ErrorCode.INTERNAL:
            return 500
        case (
            ErrorCode.STORE_UNAVAILABLE
            | ErrorCode.OVERLOADED
            | ErrorCode.DRAINING
            | ErrorCode.OUTCOME_UNKNOWN
        ):
            return 503


def retryable(code: ErrorCode) -> bool:
    """Return True if the same bytes may be accepted later, by this or another server."""
    again = {
        ErrorCode.DIGEST_MISMATCH,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.LENGTH_REQUIRED,
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    }
    return status_of(code) >= 500 or code in again  # noqa: PLR2004 - RFC 9110 section 15.6


def effect_of(code: ErrorCode) -> Effect:
    """Return whether a request that got this code may have changed the store."""
    maybe = {
        ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.STORE_UNAVAILABLE,
        ErrorCode.CORRUPT_OBJECT,
        ErrorCode.INTERNAL,
    }
    return Effect.UNKNOWN if code in maybe else Effect.NONE


class SluiceError(Exception):
    """The root of every error that sluice raises on purpose."""

    code = ErrorCode.INTERNAL
    exit_code = ExitCode.FOUND_WRONG


class InvalidFrame(SluiceError):
    """The bytes are not a valid frame; `field` is named as in `docs/protocol.md`."""

    code = ErrorCode.INVALID_FRAME

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"invalid frame: {self.reason}, field=`{self.field}`"


def describe_version(what: str, found: int, known: int) -> str:
    """Return the sentence about a structure whose version this build does not read."""
    writer = (
        "an unreleased version of sluice made it: create it again with this one"
        if found < known
        else "a newer version of sluice made it: update this one"
    )
    return f"unsupported version of {what}: {writer}, found=`{found}`, supported=`{known}`"


class UnsupportedVersion(SluiceError):
    """A frame, or a structure that must not be replaced, of another version than this build's.

    `location` is a key or a path; empty for a frame that has no key yet.
    """

    code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, what: str, found: int, known: int, location: str = "") -> None:
        super().__init__(what, found, known, location)
        self.what = what
        self.found = found
        self.known = known
        self.location = location

    def __str__(self) -> str:
        where = f", location=`{self.location}`" if self.location else ""
        return describe_version(self.what, self.found, self.known) + where


class TooLarge(SluiceError):
    """A frame or body over a size limit, in bytes."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, field: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(field, size_bytes, limit_bytes)
        self.field = field
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return (
            f"too large: send a smaller batch, field=`{self.field}`,"
            f" size_bytes=`{self.size_bytes}`, limit_bytes=`{self.limit_bytes}`"
        )


class DigestMismatch(SluiceError):
    """The body does not match its Content-Digest: it was damaged in transit; send it again."""

    code = ErrorCode.DIGEST_MISMATCH

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return (
            "digest mismatch: send the same bytes again,"
            f" expected=`{self.expected}`, actual=`{self.actual}`"
        )


class Unauthenticated(SluiceError):
    """The sender of a request is not known; the reason is only logged, never sent."""

    code = ErrorCode.UNAUTHENTICATED

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"unauthenticated: {self.reason}"


class InvalidRecord(SluiceError):
    """A stored record (manifest, settings, index entry) that breaks its schema."""

    code = ErrorCode.CORRUPT_OBJECT

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"stored record is not valid: {self.reason}, key=`{self.key}`"


class UnsupportedRecord(InvalidRecord):
    """A stored record of another version than this build's; it is handled as an unreadable one."""

    def __init__(self, what: str, found: int, known: int, key: str) -> None:
        super().__init__(key, describe_version(what, found, known))
        self.args = (what, found, known, key)
        self.what = what
        self.found = found
        self.known = known

    def __str__(self) -> str:
        return f"{self.reason}, location=`{self.key}`"


class BadUsage(SluiceError):
    """Settings, arguments or input that cannot be used as they are."""

    code = ErrorCode.BAD_REQUEST
    exit_code = ExitCode.BAD_USAGE


class InvariantViolated(SluiceError):
    """A guarantee of sluice is broken: a defect, never the caller's fault."""


class StoreError(SluiceError):
    """A definite failure of the object store: the request did nothing.

    `operation` is that of the port, for example `create` or `list`. `reason` is what happened and
    what to do.
    """

    code = ErrorCode.STORE_UNAVAILABLE
    exit_code = ExitCode.STORE_UNREACHABLE

    def __init__(self, operation: str, key: str, reason: str) -> None:
        super().__init__(operation, key, reason)
        self.operation = operation
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"object store: {self.reason}, operation=`{self.operation}`, key=`{self.key}`"


class StoreUnavailable(StoreError):
    """The store is unreachable or did not respond to a read: the same call may succeed later."""


class StoreDenied(StoreError):
    """The store rejected the caller: credentials, a policy, or a clock more than 15 minutes off."""


class StoreMisconfigured(StoreError):
    """The store does not match the settings: no such bucket, not a directory, read-only, full."""


class NoStore(StoreMisconfigured):
    """There is no store at a path, or no authority in a bucket: the caller named another place.

    A command ends as for every wrong setting. A service repeats, because the folder of its store
    may be moved away for a moment. `place` is the path, or the key of the settings.
    """

    exit_code = ExitCode.BAD_USAGE

    def __init__(self, place: str, remedy: str) -> None:
        super().__init__("open", place, f"no store here; {remedy}")
        self.args = (place, remedy)  # pickle calls the class with them
        self.place = place

    def __str__(self) -> str:
        return f"{self.reason}, path=`{self.place}`"


class ChecksumRefused(StoreError):
    """The store rejected a body that did not match its checksum: it was damaged in transit."""


class Fenced(SluiceError):
    """The register names another consumer: this one must stop, and it has changed nothing.

    `epoch` is that of the caller, and `current` that in the register now.
    """

    def __init__(self, register: str, epoch: int, current: int) -> None:
        super().__init__(register, epoch, current)
        self.register = register
        self.epoch = epoch
        self.current = current

    @property
    def by_newer(self) -> bool:
        """Whether a newer consumer opened the lane; else its register is lost or is another one."""
        return self.current >= self.epoch

    def __str__(self) -> str:
        if not self.by_newer:
            return (
                "fenced: the register of this lane is lost, was rebuilt, or begins another number"
                " of lanes; open the lane again,"
                f" register=`{self.register}`, epoch=`{self.epoch}`, current=`{self.current}`"
            )
        return (
            "fenced: another consumer opened this lane, stop this one,"
            f" register=`{self.register}`, epoch=`{self.epoch}`, current=`{self.current}`"
        )


class OutcomeUnknown(SluiceError):
    """No tries are left, and the write may or may not be applied; the call may be repeated."""

    code = ErrorCode.OUTCOME_UNKNOWN
    exit_code = ExitCode.STORE_UNREACHABLE

    def __init__(self, operation: str, key: str, tries: int, why: str = "") -> None:
        super().__init__(operation, key, tries, why)
        self.operation = operation
        self.key = key
        self.tries = tries
        self.why = why

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return (
            f"outcome unknown: send the same bytes again{why},"
            f" operation=`{self.operation}`, key=`{self.key}`, tries=`{self.tries}`"
        )


UNREADABLE_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
