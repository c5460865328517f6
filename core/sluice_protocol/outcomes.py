"""What an object store may answer, each answer by name.

Every conditional write ends in one of three ways, and mypy makes a caller name all of them:
it was applied, it met another state, or nobody knows. "Nobody knows" is neither success nor
failure: the write may still land. A read that finds nothing proves nothing about it.

Every answer carries `date_ns`, the store's own clock, whole seconds on S3 (RFC 9110 section 6.6.1).
"""

from dataclasses import dataclass
from enum import StrEnum

from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion, UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The write is durable and was ours.

    Attributes:
        etag: The tag of the new state, for the next compare-and-swap.
        incarnation: The version written, or None on a store without versioning.
        date_ns: The store's clock in this answer.
    """

    etag: ETag
    incarnation: ObjectVersion | None
    date_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Exists:
    """Create met an object: nothing was written. It may be our own earlier try."""

    date_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Replace met another state, or none: nothing was written by this try."""

    date_ns: UnixNs


class UnknownReason(StrEnum):
    """Why nobody knows whether a write landed."""

    CONFLICT = "conflict"
    """S3's 409 ConditionalRequestConflict: evidence of nothing, try again."""
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    RESET = "reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nobody knows: the write may have landed, may land later, or may never land."""

    reason: UnknownReason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What the store says of one current object.

    Attributes:
        key: The key, relative to the deployment's prefix.
        size_bytes: Length of the body.
        etag: The tag of this state.
        incarnation: The version, or None on a store without versioning.
        last_modified_ns: The store's stamp of this state, whole seconds on S3.
        sha256: The checksum that the store verified at upload, or None when it holds none.
        date_ns: The store's clock in this answer.
    """

    key: ObjectKey
    size_bytes: int
    etag: ETag
    incarnation: ObjectVersion | None
    last_modified_ns: UnixNs
    sha256: Digest | None
    date_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A read that found an object; `body` is the range asked for, or the whole."""

    info: ObjectInfo
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """A read that found nothing; it proves nothing of writes in flight."""

    date_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """That exact incarnation is gone, whether this call removed it or it was gone before."""

    date_ns: UnixNs


CreateOutcome = Applied | Exists | Unknown
ReplaceOutcome = Applied | Mismatch | Unknown
OverwriteOutcome = Applied | Unknown
DeleteOutcome = Deleted | Unknown
GetOutcome = Found | NotFound
HeadOutcome = ObjectInfo | NotFound
