"""The derived indexes of one accepted or quarantined batch; every writer makes the same objects."""

from sluice_protocol.errors import OutcomeUnknown
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    accepted_by_blob_key,
    accepted_by_time_key,
    quarantine_by_blob_key,
    raw_blob_by_time_key,
)
from sluice_protocol.manifests import encode_reference
from sluice_protocol.outcomes import Applied, Exists, Unknown
from sluice_protocol.units import Digest, ObjectKey
from sluice_reconciler.verify import Sound
from sluice_store.port import ObjectStore

TRIES_MAX = 5


async def put_derived(store: ObjectStore, key: ObjectKey, body: bytes) -> bool:
    """Creates a derived object; True when it was not there.

    Raises:
        OutcomeUnknown: No try had a known outcome; the next pass tries again.
        StoreError: The store refused.
    """
    for _ in range(TRIES_MAX):
        match await store.create(key, body):
            case Applied():
                return True
            case Exists():
                return False
            case Unknown():
                continue
    raise OutcomeUnknown("create", key, TRIES_MAX)


def entries_of(sound: Sound) -> tuple[tuple[ObjectKey, bytes], ...]:
    """Gives the three index entries of an accepted batch, keys and bytes."""
    manifest, reference = sound.manifest, encode_reference(sound.key)
    at_ns, digest = manifest.accepted_at_ns, manifest.digest
    return (
        (accepted_by_time_key(sound.key, at_ns), sound.body),
        (accepted_by_blob_key(digest, manifest.identity), reference),
        (raw_blob_by_time_key(digest, at_ns), reference),
    )


def quarantine_entry(
    key: ObjectKey, identity: Identity, submitted: Digest
) -> tuple[ObjectKey, bytes]:
    """Gives the reverse reference of a quarantine manifest, key and bytes."""
    return quarantine_by_blob_key(submitted, identity), encode_reference(key)
