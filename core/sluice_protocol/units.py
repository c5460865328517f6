"""Values that are easy to swap, each as a type of its own, and the limits of version 1."""

from typing import Final, NewType

UnixNs = NewType("UnixNs", int)
"""Nanoseconds since 1970-01-01T00:00:00Z, without leap seconds."""

ObjectKey = NewType("ObjectKey", str)
"""A key relative to the deployment's prefix; it never starts with a slash."""

Digest = NewType("Digest", str)
"""The sha256 of an object's bytes, 64 lower-case hex digits."""

ETag = NewType("ETag", str)
"""The store's opaque tag of one state of one key, quotes included where the store sends them."""

ObjectVersion = NewType("ObjectVersion", str)
"""One stored version of a key: an S3 version id, or the local store's generation.

S3 calls the version written while versioning was off or suspended `null`: see `NULL_VERSION`.
"""

NULL_VERSION: Final = ObjectVersion("null")

NS_PER_S: Final = 1_000_000_000
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
PAYLOAD_RAW_BYTES_MAX: Final = 64 * 1024 * 1024
ENVELOPE_BYTES_MAX: Final = 65_536
AGENT_ID_BYTES_MAX: Final = 120
BOOT_ID_BYTES_MAX: Final = 64
SEQ_END: Final = 2**63
"""Sequence numbers are below this."""
