"""The one tree of errors, and what each of them means to an HTTP client and to a shell.

A class exists only where a caller would act differently. Every class carries its fields as
positional arguments, so that it survives pickling to a Spark worker, and a message that says what
happened, to which object, and what to do next.
"""

from enum import Enum, StrEnum


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
    IDENTITY_CONFLICT = "identity_conflict"
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
    """What a refused request may have done: nothing, or something that nobody could confirm."""

    NONE = "none"
    UNKNOWN = "unknown"


class ExitCode(Enum):
    """Exit codes of the `sluice` command."""

    DONE = 0
    FOUND_WRONG = 1
    BAD_USAGE = 2
    STORE_UNREACHABLE = 3


def status_of(code: ErrorCode) -> int:  # noqa: C901, PLR0911 - mypy checks that it is complete
    """Gives the HTTP status of an error code."""
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
        case ErrorCode.IDENTITY_CONFLICT:
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
    """Tells whether the same bytes may be sent again."""
    again = {ErrorCode.DIGEST_MISMATCH, ErrorCode.LENGTH_REQUIRED, ErrorCode.UNSUPPORTED_MEDIA_TYPE}
    return status_of(code) >= 500 or code in again  # noqa: PLR2004 - RFC 9110 section 15.6


def effect_of(code: ErrorCode) -> Effect:
    """Tells whether a request answered with this code may have changed the store."""
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
    """Bytes that are not a frame of version 1.

    Attributes:
        field: The field that is wrong, as `docs/protocol.md` names it.
        reason: What is wrong with it.
    """

    code = ErrorCode.INVALID_FRAME

    def __init__(self, field: str, reason: str) -> None:
        """Carries the field and the reason."""
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        """Says which field is wrong and why."""
        return f"invalid frame: {self.reason}, field=`{self.field}`"


class UnsupportedVersion(SluiceError):
    """A frame, envelope or stored record of a version that this build cannot read.

    Attributes:
        field: The field that contains the version.
        found: The version in that field.
        supported: The versions that this build reads.
        key: Key of the stored object; empty for a frame that has no key yet.
    """

    code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(
        self, field: str, found: int | str, supported: tuple[int | str, ...], key: str = ""
    ) -> None:
        super().__init__(field, found, supported, key)
        self.field = field
        self.found = found
        self.supported = supported
        self.key = key

    def __str__(self) -> str:
        known = ", ".join(str(version) for version in self.supported)
        where = f", key=`{self.key}`" if self.key else ""
        return (
            f"unsupported version: upgrade this reader, field=`{self.field}`,"
            f" found=`{self.found}`, supported=`{known}`{where}"
        )


class TooLarge(SluiceError):
    """A frame or body over a size limit, in bytes."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, field: str, size_bytes: int, limit_bytes: int) -> None:
        """Carries what is too large, its size and the limit."""
        super().__init__(field, size_bytes, limit_bytes)
        self.field = field
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        """Says the size and the limit."""
        return (
            f"too large: send a smaller batch, field=`{self.field}`,"
            f" size_bytes=`{self.size_bytes}`, limit_bytes=`{self.limit_bytes}`"
        )


class DigestMismatch(SluiceError):
    """A body that is not what its Content-Digest says: damaged on the way, send it again."""

    code = ErrorCode.DIGEST_MISMATCH

    def __init__(self, expected: str, actual: str) -> None:
        """Carries what was announced and what came."""
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        """Says both."""
        return (
            "digest mismatch: send the same bytes again,"
            f" expected=`{self.expected}`, actual=`{self.actual}`"
        )


class Unauthenticated(SluiceError):
    """A request whose sender is not known; the reason is for our own log, never for the answer."""

    code = ErrorCode.UNAUTHENTICATED

    def __init__(self, reason: str) -> None:
        """Carries the reason."""
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        """Says why."""
        return f"unauthenticated: {self.reason}"


class InvalidRecord(SluiceError):
    """A stored record (manifest, settings, index entry) that breaks its schema."""

    code = ErrorCode.CORRUPT_OBJECT

    def __init__(self, key: str, reason: str) -> None:
        """Carries the key of the record and what is wrong with it."""
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        """Says which record and why."""
        return f"stored record is not valid: {self.reason}, key=`{self.key}`"


class BadUsage(SluiceError):
    """Settings, arguments or input of a person that cannot be used as they are."""

    code = ErrorCode.BAD_REQUEST
    exit_code = ExitCode.BAD_USAGE


class InvariantViolated(SluiceError):
    """A promise of sluice's own that does not hold: a defect, never the caller's fault."""


class StoreError(SluiceError):
    """A definite failure of the object store: the request did nothing.

    Attributes:
        operation: The verb of the port, `create` or `list` say.
        key: The key or prefix that it was for.
        reason: What happened and what to do.
    """

    code = ErrorCode.STORE_UNAVAILABLE
    exit_code = ExitCode.STORE_UNREACHABLE

    def __init__(self, operation: str, key: str, reason: str) -> None:
        """Carries the verb, the key and the reason."""
        super().__init__(operation, key, reason)
        self.operation = operation
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        """Says what failed, on which key, and why."""
        return f"object store: {self.reason}, operation=`{self.operation}`, key=`{self.key}`"


class StoreUnavailable(StoreError):
    """The store could not be reached or did not answer a read: the same call may succeed later."""


class StoreDenied(StoreError):
    """The store refused the caller: credentials, policy, or a clock more than 15 minutes off."""


class StoreMisconfigured(StoreError):
    """The store is not what the settings say: no such bucket, not a directory, read-only, full."""


class ChecksumRefused(StoreError):
    """The store refused a body because it did not match its checksum: corrupted on the way."""


class Fenced(SluiceError):
    """A consumer whose epoch was overtaken: it must stop, and it has changed nothing.

    Attributes:
        register: The key of the queue's register.
        epoch: The epoch that the caller held.
        current: The epoch that stands in the register now.
    """

    def __init__(self, register: str, epoch: int, current: int) -> None:
        """Carries the register and both epochs."""
        super().__init__(register, epoch, current)
        self.register = register
        self.epoch = epoch
        self.current = current

    def __str__(self) -> str:
        """Says who fenced whom."""
        return (
            "fenced: another consumer opened this lane, stop this one,"
            f" register=`{self.register}`, epoch=`{self.epoch}`, current=`{self.current}`"
        )


class OutcomeUnknown(SluiceError):
    """Bounded tries are spent and nobody knows whether the write landed.

    The same call may be made again.
    """

    code = ErrorCode.OUTCOME_UNKNOWN
    exit_code = ExitCode.STORE_UNREACHABLE

    def __init__(self, operation: str, key: str, tries: int) -> None:
        """Carries the verb, the key and the tries made."""
        super().__init__(operation, key, tries)
        self.operation = operation
        self.key = key
        self.tries = tries

    def __str__(self) -> str:
        """Says what is unknown."""
        return (
            "outcome unknown: send the same bytes again,"
            f" operation=`{self.operation}`, key=`{self.key}`, tries=`{self.tries}`"
        )
