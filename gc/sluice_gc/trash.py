"""The undo window: copies of blobs that were deleted, until their own time is over."""

from sluice_gc.objects import create_once
from sluice_protocol.deletion import Candidate
from sluice_protocol.keys import GC_TRASH, digest_of
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.port import ObjectStore


def trash_key(digest: Digest) -> ObjectKey:
    """Gives where the copy of a deleted blob stands."""
    return ObjectKey(f"{GC_TRASH}sha256/{digest[:2]}/{digest[2:4]}/{digest}.lmbatch")


async def keep_for_undo(store: ObjectStore, candidate: Candidate) -> bool:
    """Copies a blob to the trash before it is deleted.

    Returns:
        Whether a right copy stands there; a blob whose bytes do not hash to its key stays.

    Raises:
        OutcomeUnknown: Nobody knows whether the copy landed; nothing was deleted.
        StoreError: No answer, or a refusal.
    """
    read = await store.get(candidate.key)
    if not isinstance(read, Found) or digest_of(read.body) != candidate.digest:
        return False
    return await create_once(store, trash_key(candidate.digest), read.body)
