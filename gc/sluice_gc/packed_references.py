"""Whether the reconciler of a deployment packs reverse references (ADR 0067).

A packed raw-blob entry is a reverse reference. Writing a single one for each of them would cost a
request for each batch and undo the packing, so an audit looks for a few of the missing references
before it writes any.
"""

from collections.abc import Sequence
from typing import Final

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import parse_pack_key, raw_blob_by_time_key
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore

SAMPLE_MAX: Final = 8
"""Manifests that are looked for, spread over all with a missing reference."""
PACKS_MAX: Final = 64
"""Packed objects that are read for one manifest: several reconcilers pack the same seconds."""


async def are_packed(store: ObjectStore, manifest_keys: Sequence[str]) -> bool:
    """Return True if one of a few manifests has a packed raw-blob entry.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    step = max(1, len(manifest_keys) // SAMPLE_MAX)
    for key in manifest_keys[::step][:SAMPLE_MAX]:
        if await _is_packed(store, ObjectKey(key)):
            return True
    return False


async def _is_packed(store: ObjectStore, manifest_key: ObjectKey) -> bool:
    read = await store.get(manifest_key)
    if not isinstance(read, Found):
        return False
    try:
        manifest = decode_accepted(manifest_key, read.body)
    except InvalidRecord:
        return False
    at_ns = manifest.accepted_at_ns
    entry = raw_blob_by_time_key(manifest.digest, at_ns)
    folder = entry.rpartition("/")[0] + "/"
    packs = 0
    # A packed object with this entry ends at its instant or later; its name begins with a digit.
    async for page in store.list(folder, start_after=f"{folder}{at_ns:020d}", end_at=f"{folder}:"):
        for one in page.objects:
            span = parse_pack_key(one.key)
            if span is None or not span.first_ns <= at_ns <= span.last_ns:
                continue
            packs += 1
            pack = await store.get(one.key)
            if isinstance(pack, Found) and entry.encode() in pack.body:
                return True
            if packs == PACKS_MAX:
                return False
    return False
