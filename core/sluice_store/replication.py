"""Whether a bucket is a copy of another one, which must never accept batches.

S3 Replication copies objects later and without conditions. If a gateway accepts in the copy, two
buckets decide the same identity, and a copied object can replace one that was created once.

What a client can see: an object that S3 Replication wrote has `x-amz-replication-status: REPLICA`.
The settings of the authority are created once, by `sluice init`, in the bucket that decides. If
they are a replica, the bucket is a copy. A bucket's own rules name the buckets that it replicates
to; with the right to read their rules too, two-way replication is visible.

Source: Amazon S3 User Guide, "Getting replication status information".
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from sluice_protocol.errors import StoreDenied, StoreMisconfigured
from sluice_protocol.keys import ACCEPTED, AUTHORITY_SETTINGS, QUARANTINE, RAW_BLOBS
from sluice_protocol.units import ObjectKey
from sluice_store.conformance import expect
from sluice_store.port import ObjectStore

SAMPLE: Final = 5
"""Objects at each end of the first page of a listing that the doctor checks."""
_SAMPLED: Final = (ACCEPTED, QUARANTINE, RAW_BLOBS)
REASON: Final = (
    "this bucket is a replica of another one: use the original, or, if it is lost, turn off"
    " replication, copy the authority's settings onto themselves, and run `sluice restore`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationRule:
    """One rule of a bucket: keys of the whole bucket with `prefix` are copied to `target`."""

    target: str
    prefix: str = ""
    enabled: bool = True


ReplicationRules = tuple[ReplicationRule, ...]


@runtime_checkable
class ReplicationReader(Protocol):
    """A store that can be a replica; a directory cannot."""

    @property
    def place(self) -> tuple[str, str]:
        """The bucket, and the deployment's prefix in it."""
        ...

    async def is_replica(self, key: ObjectKey) -> bool:
        """Return True if S3 Replication wrote the current version of an object."""
        ...

    async def read_replication(self, bucket: str) -> ReplicationRules | None:
        """Return a bucket's rules; None if the caller may not read them or the server has none."""
        ...


async def refuse_replica(store: ObjectStore) -> None:
    """Refuse a bucket whose authority was copied into it. One request on S3, none elsewhere."""
    if isinstance(store, ReplicationReader) and await store.is_replica(AUTHORITY_SETTINGS):
        bucket, _ = store.place
        raise StoreMisconfigured("open", AUTHORITY_SETTINGS, f"{REASON}, bucket=`{bucket}`")


async def check_not_replicated(store: ObjectStore) -> None:
    """Check that no sampled object is a replica, and that replication is not two-way."""
    if not isinstance(store, ReplicationReader):
        return
    for key in [AUTHORITY_SETTINGS, *await _sample(store)]:
        is_replica = await store.is_replica(key)
        expect("no object of the deployment is a replica", holds=not is_replica, seen=key)
    bucket, prefix = store.place
    rules = await store.read_replication(bucket) or ()
    targets = sorted({one.target for one in rules if one.enabled})
    back = {target: await store.read_replication(target) for target in targets}
    both = two_way_targets(bucket, prefix, rules, back)
    expect("no bucket that it replicates to replicates back", holds=not both, seen=both)


async def _sample(store: ObjectStore) -> list[ObjectKey]:
    """Return some objects of the prefixes that this principal may list."""
    keys: list[ObjectKey] = []
    for prefix in _SAMPLED:
        with suppress(StoreDenied):  # a deployer lists no batches
            async for page in store.list(prefix):
                found = [one.key for one in page.objects]
                keys += dict.fromkeys([*found[:SAMPLE], *found[-SAMPLE:]])
                break
    return keys


def two_way_targets(
    bucket: str,
    prefix: str,
    rules: Collection[ReplicationRule],
    back: Mapping[str, Sequence[ReplicationRule] | None],
) -> list[str]:
    """Return the buckets that receive objects of a deployment and send objects into it.

    `back` has the rules of the buckets that it replicates to; None where they are unknown.
    """
    to = {one.target for one in rules if one.enabled and _overlap(one.prefix, prefix)}
    found = [
        target
        for target in to
        for one in back.get(target) or ()
        if one.enabled and one.target == bucket and _overlap(one.prefix, prefix)
    ]
    return sorted(set(found))


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
