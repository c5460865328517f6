"""The possible outcomes of a request to an object store, each as a type.

A conditional write has three outcomes, and mypy makes a caller handle each of them: it was applied,
it found another state, or the outcome is unknown. Unknown is neither success nor failure: the write
may still be applied later. A read that finds nothing proves nothing about it.

Every outcome contains `date_ns`, the store's clock, in whole seconds on S3 (RFC 9110 section
6.6.1).
"""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion, UnixNs


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The write is durable, and this call made it.

    `etag` is for the next compare-and-swap. `incarnation` is None on a store without versioning.
    """

    etag: ETag
    incarnation: ObjectVersion | None
    date_ns: UnixNs


class Exists(msgspec.Struct, frozen=True, kw_only=True):
    """A create wrote nothing: an object exists, perhaps from an earlier try of this caller."""

    date_ns: UnixNs


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """A replace found another state or no object; this try wrote nothing."""

    date_ns: UnixNs


class UnknownReason(StrEnum):
    """Why it is unknown whether a write was applied."""

    CONFLICT = "conflict"
    """S3's 409 ConditionalRequestConflict: it proves nothing; try again."""
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    RESET = "reset"
    FOREIGN = "foreign"
    """Another program than the store responded, such as a proxy or a login page."""


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """The write may have been applied, may be applied later, or may never be applied."""

    reason: UnknownReason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """The metadata of one current object.

    `incarnation` is None on a store without versioning. `last_modified_ns` is in whole seconds on
    S3. `sha256` is the checksum that the store verified at upload, or None.
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
    """A read found an object; `body` is the requested range, or the whole object."""

    info: ObjectInfo
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """A read found no object; this proves nothing about writes in flight."""

    date_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """Exactly that object version is deleted, by this call or an earlier one."""

    date_ns: UnixNs


CreateOutcome = Applied | Exists | Unknown
ReplaceOutcome = Applied | Mismatch | Unknown
OverwriteOutcome = Applied | Unknown
DeleteOutcome = Deleted | Unknown
GetOutcome = Found | NotFound
HeadOutcome = ObjectInfo | NotFound
