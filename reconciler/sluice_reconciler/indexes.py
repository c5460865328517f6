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
from sluice_reconciler.packs import Entry
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


def by_time_of(sound: Sound) -> tuple[Entry, Entry]:
    """Gives the two by-time entries of an accepted batch."""
    manifest = sound.manifest
    at_ns, reference = manifest.accepted_at_ns, encode_reference(sound.key)
    by_time = accepted_by_time_key(sound.key, at_ns)
    raw = raw_blob_by_time_key(manifest.digest, at_ns)
    return (
        Entry(at_ns=at_ns, key=by_time, body=sound.body),
        Entry(at_ns=at_ns, key=raw, body=reference),
    )


def by_blob_of(sound: Sound) -> tuple[ObjectKey, bytes]:
    """Gives the reverse reference of an accepted batch, key and bytes."""
    manifest = sound.manifest
    return accepted_by_blob_key(manifest.digest, manifest.identity), encode_reference(sound.key)


def quarantine_entry(
    key: ObjectKey, identity: Identity, submitted: Digest
) -> tuple[ObjectKey, bytes]:
    """Gives the reverse reference of a quarantine manifest, key and bytes."""
    return quarantine_by_blob_key(submitted, identity), encode_reference(key)
