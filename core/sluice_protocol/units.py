"""Types for values that are easily confused with each other, and the limits of version 1."""

from typing import Final, NewType

UnixNs = NewType("UnixNs", int)
"""Nanoseconds since 1970-01-01T00:00:00Z, without leap seconds."""

ObjectKey = NewType("ObjectKey", str)
"""A key relative to the deployment's prefix; it never starts with a slash."""

Digest = NewType("Digest", str)
"""The sha256 of an object's bytes, 64 lower-case hex digits."""

ETag = NewType("ETag", str)
"""The store's opaque tag of one state of one key, with its quotes if the store sends them."""

ObjectVersion = NewType("ObjectVersion", str)
"""One stored version of a key: an S3 version id, or the generation of a local store.

S3 names a version `null` that was written without versioning: see `NULL_VERSION`.
"""

NULL_VERSION: Final = ObjectVersion("null")

NS_PER_S: Final = 1_000_000_000
UNITS_NS: Final = {
    "ms": NS_PER_S // 1000,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
    "d": 86_400 * NS_PER_S,
}
"""The units of durations that people write."""
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
RAW_BYTES_MAX: Final = 64 * 1024 * 1024
ENVELOPE_BYTES_MAX: Final = 65_535
AGENT_ID_BYTES_MAX: Final = 120
BOOT_ID_BYTES_MAX: Final = 64
SEQ_END: Final = 2**63
"""Sequence numbers are below this."""
