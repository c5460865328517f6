"""Deletion and replacement of objects by the version that a read has just shown as current.

A delete names a version, so it never removes what another writer adds meanwhile. A store without
versioning shows no version: there only lifecycle rules of the operator remove objects.
"""

from enum import Enum
from typing import Final

from sluice_protocol.outcomes import Deleted, NotFound, ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, overwrite_known

VERSIONS_MAX: Final = 100
"""Versions of one object that `delete_versions` deletes, at most."""


class CurrentDeletion(Enum):
    """The outcome of deleting the current version of an object."""

    MISSING = "missing"
    """No object exists under the key."""
    DELETED = "deleted"
    UNKNOWN = "unknown"
    """The version may still exist; the same call may be repeated."""
    UNVERSIONED = "unversioned"
    """The store has no versions: nothing was deleted, and no other object of it would be."""

    @property
    def is_gone(self) -> bool:
        """Whether the version that was current no longer exists."""
        return self in (CurrentDeletion.MISSING, CurrentDeletion.DELETED)


async def delete_current_version(store: ObjectStore, key: ObjectKey) -> CurrentDeletion:
    """Delete the current version of an object.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    match await store.head(key):
        case NotFound():
            return CurrentDeletion.MISSING
        case ObjectInfo(incarnation=incarnation) if incarnation is not None:
            outcome = await store.delete(key, incarnation)
            is_deleted = isinstance(outcome, Deleted)
            return CurrentDeletion.DELETED if is_deleted else CurrentDeletion.UNKNOWN
        case ObjectInfo():
            return CurrentDeletion.UNVERSIONED


async def delete_versions(store: ObjectStore, key: ObjectKey) -> None:
    """Delete an object with its noncurrent versions.

    Deleting the current version restores the one before it, so this repeats until none is left.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    for _ in range(VERSIONS_MAX):
        outcome = await delete_current_version(store, key)
        if outcome in (CurrentDeletion.MISSING, CurrentDeletion.UNVERSIONED):
            return


async def replace_version(
    store: ObjectStore, key: ObjectKey, body: bytes, backoff: Backoff
) -> None:
    """Overwrite an object of a single writer, and delete the version that was current before.

    Raises:
        OutcomeUnknown: The retries are spent; the same call may be repeated.
        StoreError: The store is unreachable or refused a request; the new bytes may be stored.
    """
    old = await store.head(key)
    await overwrite_known(store, key, body, backoff)
    if isinstance(old, ObjectInfo) and old.incarnation is not None:
        await store.delete(key, old.incarnation)
