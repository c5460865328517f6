"""What deletion plans have deleted and kept, and the copies of blobs that can be restored."""

from collections import Counter
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import GC_PLANS, GC_PROOFS, GC_TRASH, parse_trash_key
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import NotFound
from sluice_protocol.units import ObjectKey
from sluice_store.plan_folders import is_plan_id
from sluice_store.port import ObjectStore, read_bodies

BATCHES_MAX: Final = 1_000
"""Finished batches whose records are read."""
COPIES_MAX: Final = 100


class PlanResults(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the finished batches of a plan.

    Attributes:
        plan_id: ULID of the plan.
        batches: Number of finished batches.
        more: Whether there are more than were read, so all numbers are too small.
        deleted: Deleted object versions.
        deleted_bytes: Their bytes.
        kept: Candidates that were kept although the plan named them, by the clause that kept them.
        unreadable: Keys of records that cannot be read.
        proofs: The prefix of the proofs of all plans; each was written before its deletions.
    """

    plan_id: str
    batches: int
    more: bool
    deleted: int
    deleted_bytes: int
    kept: dict[str, int]
    unreadable: tuple[str, ...]
    proofs: str = GC_PROOFS


class RestorableBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a deleted blob.

    Attributes:
        sha256: The digest of the blob.
        size_bytes: Its size.
        copied_at_unix_ns: When it was copied, immediately before its deletion.
    """

    sha256: str
    size_bytes: int
    copied_at_unix_ns: int


class RestorableBlobs(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of deleted blobs.

    Attributes:
        blobs: The first of them, by digest.
        more: Whether there are more.
    """

    blobs: tuple[RestorableBlob, ...]
    more: bool


class _Facts(msgspec.Struct, frozen=True):
    deleted: int = 0
    deleted_bytes: int = 0
    kept: dict[str, int] = {}


class _BatchDone(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["sluice.gc_batch.v1"] = "sluice.gc_batch.v1"
    facts: _Facts


async def read_plan_results(store: ObjectStore, plan_id: str) -> PlanResults | None:
    """Return what the finished batches of a plan deleted; None if there is no such plan.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    folder = f"{GC_PLANS}{plan_id}/"
    if not is_plan_id(plan_id):
        return None
    if isinstance(await store.head(ObjectKey(f"{folder}plan.json")), NotFound):
        return None
    keys: list[ObjectKey] = []
    more = False
    async for page in store.list(f"{folder}done/"):
        keys += [one.key for one in page.objects]
        more = len(keys) > BATCHES_MAX or not page.last
        if len(keys) >= BATCHES_MAX:
            break
    keys = keys[:BATCHES_MAX]
    bodies = await read_bodies(store, keys)
    kept: Counter[str] = Counter()
    deleted = deleted_bytes = 0
    broken: list[str] = []
    for key, body in zip(keys, bodies, strict=True):
        try:
            facts = decode_record(key, body or b"", _BatchDone).facts
        except InvalidRecord:
            broken.append(key)
            continue
        deleted += facts.deleted
        deleted_bytes += facts.deleted_bytes
        kept.update(facts.kept)
    return PlanResults(
        plan_id=plan_id,
        batches=len(keys),
        more=more,
        deleted=deleted,
        deleted_bytes=deleted_bytes,
        kept=dict(kept),
        unreadable=tuple(broken),
    )


async def list_restorable(store: ObjectStore) -> RestorableBlobs:
    """Return the copies of deleted blobs that a run with `undo` kept.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    found: list[RestorableBlob] = []
    async for page in store.list(GC_TRASH):
        for one in page.objects:
            if len(found) == COPIES_MAX:
                return RestorableBlobs(blobs=tuple(found), more=True)
            try:
                digest = parse_trash_key(one.key)
            except InvalidRecord:
                continue  # a foreign key, which `sluice gc purge` reports
            found.append(
                RestorableBlob(
                    sha256=digest,
                    size_bytes=one.size_bytes,
                    copied_at_unix_ns=one.last_modified_ns,
                )
            )
    return RestorableBlobs(blobs=tuple(found), more=False)
