"""Which noncurrent object versions may be deleted, and where a version is never deleted.

Every swap of a register, every vacuumed file of a table and every removed record leaves a version
or a delete marker on a versioned store. Under `EXPIRING` all of them are derived data or state that
only the current version defines. Under `PERMANENT` an older version can be the only copy of
accepted bytes, of a decision or of evidence.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_protocol import keys
from sluice_protocol.units import NULL_VERSION, ObjectKey, ObjectVersion, UnixNs

EXPIRING: Final = (
    *(keys.GATEWAYS, keys.INDEX, keys.LAKE, keys.MAINTAIN, keys.WORK_LISTS),
    *(keys.QUEUE, keys.RECONCILER, keys.ROLLUP),
)
"""Prefixes whose noncurrent versions and delete markers expire, in the order of their keys."""

SWEPT: Final = tuple(prefix for prefix in EXPIRING if prefix != keys.GATEWAYS)
"""Those under which a task deletes versions where the store has no lifecycle. Journals are created
once, and the reconciler, which alone may delete them, deletes exact versions. So nothing noncurrent
is left there, and no further role needs a right to delete."""

PERMANENT: Final = (
    *(keys.ACCEPTED, keys.RAW_BLOBS, keys.QUARANTINE, keys.AUDIT, "gc/v1/"),
    *(keys.DECISIONS, keys.DELETES, keys.AUTHORITY),
    *(keys.ACCEPTED_BY_BLOB, keys.QUARANTINE_BY_BLOB),
)
"""Prefixes under which no version expires; only GC deletes there, with a proof."""


class VersionRuling(StrEnum):
    """What happens to one version, and why."""

    DELETE = "delete"
    PERMANENT = "permanent"
    """It is not under a prefix whose versions expire."""
    CURRENT = "current"
    """A read of the key returns it, or it is a marker that hides an older version."""
    NULL = "null"
    """The next write without versioning would replace it under the same id."""
    YOUNG = "young"
    """It was superseded less than the retention ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """One version as listed.

    Attributes:
        key: The key, relative to the deployment's prefix.
        incarnation: The version id.
        current: Whether it is the newest of its key.
        marker: Whether it is a delete marker.
        hides: Whether another version of the key remains below it.
        last_modified_ns: When it was written.
        superseded_at_ns: When the next newer version was written, or None if it is the newest.
    """

    key: ObjectKey
    incarnation: ObjectVersion
    current: bool
    marker: bool
    hides: bool
    last_modified_ns: UnixNs
    superseded_at_ns: UnixNs | None


def decide_version(version: StoredVersion, *, now_ns: int, retention_ns: int) -> VersionRuling:
    """Decide about one version, as S3 does for `NoncurrentVersionExpiration`.

    A version counts from the moment at which it was superseded, not from its own time: a register
    may have been current for years. A delete marker goes only after everything below it, because
    the store would make the version below it current.

    Args:
        version: The version as listed.
        now_ns: The store's clock.
        retention_ns: How long a superseded version is kept.
    """
    if not version.key.startswith(EXPIRING):
        return VersionRuling.PERMANENT
    if version.incarnation == NULL_VERSION:
        return VersionRuling.NULL
    if version.current:
        if not version.marker or version.hides:
            return VersionRuling.CURRENT
        since_ns = version.last_modified_ns
    elif version.superseded_at_ns is None:
        return VersionRuling.CURRENT
    else:
        since_ns = version.superseded_at_ns
    return VersionRuling.DELETE if since_ns + retention_ns <= now_ns else VersionRuling.YOUNG
