"""Audit of one shard of the sha256 space: manifests, reverse references and blobs.

The task merges the manifests of the shard with their reverse references, both in key order. It
writes missing references first. Then it lists the object versions of the blobs and compares them
with every name.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice_gc.audit_findings import AuditTaskFacts, FindingKind, FindingLog
from sluice_gc.certificate import AuditCounts
from sluice_gc.digest_join import are_named
from sluice_gc.eligible_versions import EligibleVersions, eligible_table, join_names
from sluice_gc.evidence_files import (
    BLOBS,
    NAMED,
    NAMES,
    EvidenceFile,
    digest_bytes,
    digest_from_bytes,
    put_table,
    read_tables,
)
from sluice_gc.key_ranges import DigestShard, KeyRange, RangeListing, parse_shard
from sluice_gc.packed_references import are_packed
from sluice_protocol.clock import Clock
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED_BY_BLOB,
    QUARANTINE_BY_BLOB,
    RAW_BLOBS,
    accepted_by_blob_key,
    accepted_key,
    blob_key,
    digest_of,
    parse_accepted_key,
    parse_blob_key,
    parse_by_blob_key,
    parse_quarantine_key,
    quarantine_by_blob_key,
    quarantine_key,
)
from sluice_protocol.manifests import encode_reference
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.concurrent_requests import run_concurrently
from sluice_store.port import ListedIncarnation, ObjectStore
from sluice_store.retry import Backoff, create_known

_BLOBS_AT_ONCE: Final = 8
"""A blob has up to 16 MiB. This limit bounds the memory of a deep audit."""


class ShardTask(msgspec.Struct, frozen=True, kw_only=True):
    """The audit task for one shard of the sha256 space.

    Attributes:
        folder: Key prefix of the evidence.
        shard: Name of the shard.
        named: Files of `NAMED` of this shard.
        reads_max: Most concurrent requests.
        deep: Share of the blobs that are read and hashed, 0.0 to 1.0.
        deep_seed: Seed that selects them.
        list_blobs: Whether blobs are listed.
        repair_references: Whether missing references of accepted manifests are written, unless they
            are packed.
    """

    folder: str
    shard: str
    named: tuple[EvidenceFile, ...]
    reads_max: int
    deep: float
    deep_seed: int
    list_blobs: bool
    repair_references: bool = True


@dataclass(slots=True)
class ShardScan:
    """The results of one pass over a shard."""

    task: ShardTask
    shard: DigestShard
    backoff: Backoff
    findings: FindingLog = field(default_factory=FindingLog)
    names: set[bytes] = field(default_factory=set)
    references: int = 0
    deep_read: int = 0


async def audit_shard(store: ObjectStore, task: ShardTask, *, clock: Clock) -> AuditTaskFacts:
    """Join manifests, references and blobs of a shard, and write the evidence.

    Raises:
        AuditIncomplete: A range could not be listed in order and completely.
        GcRefused: Evidence of the manifests was altered.
        StoreError: The store is unreachable or refused a request.
    """
    backoff = Backoff.seeded_by(clock)
    seen = ShardScan(task=task, shard=parse_shard(task.shard), backoff=backoff)
    named = await read_tables(store, task.named, NAMED)
    seen.names.update(named["sha256"].to_pylist())
    ranges = [
        (root, await _join_references(store, seen, root, _expected_references(named, root)))
        for root in (ACCEPTED_BY_BLOB, QUARANTINE_BY_BLOB)
    ]
    blobs = None
    if task.list_blobs:
        blobs, covered_range = await _list_blobs(store, seen)
        ranges.append((RAW_BLOBS, covered_range))
        await _read_deep(store, seen, blobs)
    names = pa.table([pa.array(sorted(seen.names), pa.binary(32))], schema=NAMES)
    counts = _count(names, seen)
    tables = {"names": names}
    if blobs is not None:
        eligible = join_names(blobs, names["sha256"])
        counts = counts.plus(_compare(blobs, eligible, named, seen))
        tables |= {"blobs": blobs, "eligible": eligible_table(eligible)}
    return AuditTaskFacts(
        ranges=tuple(ranges), files=await _write(store, seen, tables), counts=counts
    )


def _expected_references(named: pa.Table, root: str) -> list[tuple[str, str]]:
    """Return (reference key, manifest key) of each reference that must exist, in key order."""
    quarantined = root == QUARANTINE_BY_BLOB
    mine = named.filter(pc.equal(named["quarantined"], quarantined))
    pairs = zip(mine["sha256"].to_pylist(), mine["key"].to_pylist(), strict=True)
    return sorted(
        (reference_of(digest_from_bytes(sha256), ObjectKey(key)), key) for sha256, key in pairs
    )


def reference_of(digest: Digest, manifest_key: ObjectKey) -> ObjectKey:
    """Return the key of the reverse reference from `digest` to a manifest."""
    try:
        return accepted_by_blob_key(digest, parse_accepted_key(manifest_key))
    except InvalidRecord:
        return quarantine_by_blob_key(digest, parse_quarantine_key(manifest_key)[0])


async def _join_references(
    store: ObjectStore, seen: ShardScan, root: str, wanted: list[tuple[str, str]]
) -> KeyRange:
    """Merge expected and listed references: write missing ones, check unexpected ones."""
    listing = RangeListing(store, root, *seen.shard.bounds(root))
    missing: list[tuple[str, str]] = []
    extra: list[str] = []
    pending = iter(wanted)
    head = next(pending, None)
    async for page in listing.objects():
        for listed in page:
            while head is not None and head[0] < listed.key:
                missing.append(head)
                head = next(pending, None)
            if head is not None and head[0] == listed.key:
                head = next(pending, None)
            else:
                extra.append(listed.key)
            seen.references += 1
    missing += [] if head is None else [head, *pending]
    concurrency = seen.task.reads_max
    if root == ACCEPTED_BY_BLOB and missing:
        manifests = [manifest for _, manifest in missing]
        if not seen.task.repair_references or await are_packed(store, manifests):
            missing = []  # the manifests themselves name their blobs in this audit
    await run_concurrently(
        missing, lambda pair: _repair(store, seen, *pair), concurrency=concurrency
    )
    await run_concurrently(
        extra, lambda key: _check_unexpected(store, seen, key), concurrency=concurrency
    )
    return listing.covered_range()


async def _repair(store: ObjectStore, seen: ShardScan, key: str, manifest_key: str) -> None:
    body = encode_reference(ObjectKey(manifest_key))
    await create_known(store, ObjectKey(key), body, seen.backoff)
    seen.findings.add(FindingKind.REFERENCE_REPAIRED, key, manifest_key)


async def _check_unexpected(store: ObjectStore, seen: ShardScan, key: str) -> None:
    """Check a reference without a listed manifest; in every case it keeps its blob."""
    try:
        reference = parse_by_blob_key(key)
    except InvalidRecord as error:
        seen.findings.add(FindingKind.FOREIGN, key, error.reason)
        return
    seen.names.add(digest_bytes(reference.digest))
    if key.startswith(ACCEPTED_BY_BLOB):
        manifest = accepted_key(reference.identity)
    else:
        manifest = quarantine_key(reference.identity, reference.digest)
    if isinstance(await store.head(manifest), NotFound):
        seen.findings.add(FindingKind.DANGLING_REFERENCE, key, manifest)


async def _list_blobs(store: ObjectStore, seen: ShardScan) -> tuple[pa.Table, KeyRange]:
    listing = RangeListing(store, RAW_BLOBS, *seen.shard.bounds(RAW_BLOBS))
    pages = [
        blobs_table(_blob_versions(page, seen.findings)) async for page in listing.incarnations()
    ]
    return pa.concat_tables([BLOBS.empty_table(), *pages]), listing.covered_range()


def _blob_versions(
    page: Iterable[ListedIncarnation], findings: FindingLog
) -> Iterator[tuple[Digest, ListedIncarnation]]:
    """Yield the object versions of blobs; delete markers have no bytes and are ignored."""
    for one in page:
        try:
            digest = parse_blob_key(one.key)
        except InvalidRecord as error:
            findings.add(FindingKind.FOREIGN, one.key, error.reason)
            continue
        if not one.marker:
            yield digest, one


def blobs_table(rows: Iterable[tuple[Digest, ListedIncarnation]]) -> pa.Table:
    """Return rows of `BLOBS`."""
    taken = list(rows)
    return pa.table(
        [
            pa.array([digest_bytes(digest) for digest, _ in taken], pa.binary(32)),
            pa.array([one.incarnation for _, one in taken], pa.string()),
            pa.array([one.last_modified_ns for _, one in taken], pa.int64()),
            pa.array([one.size_bytes for _, one in taken], pa.int64()),
            pa.array([one.current for _, one in taken], pa.bool_()),
        ],
        schema=BLOBS,
    )


def in_sample(sha256: bytes, share: float, seed: int) -> bool:
    """Return True if a blob is in the sample; a seed always selects the same blobs."""
    if share >= 1.0:
        return True
    mixed = hashlib.sha256(seed.to_bytes(8, "big", signed=True) + sha256).digest()
    return int.from_bytes(mixed[:8], "big") < share * 2**64


async def _read_deep(store: ObjectStore, seen: ShardScan, blobs: pa.Table) -> None:
    """Read and hash the current blobs in the sample."""
    share, seed = seen.task.deep, seen.task.deep_seed
    if share <= 0.0:
        return
    current = blobs.filter(blobs["current"])["sha256"].to_pylist()
    chosen = [one for one in current if in_sample(one, share, seed)]
    await run_concurrently(
        chosen,
        lambda one: _hash_blob(store, seen, digest_from_bytes(one)),
        concurrency=min(seen.task.reads_max, _BLOBS_AT_ONCE),
    )


async def _hash_blob(store: ObjectStore, seen: ShardScan, digest: Digest) -> None:
    read = await store.get(blob_key(digest))
    seen.deep_read += 1
    if isinstance(read, Found) and digest_of(read.body) != digest:
        seen.findings.add(FindingKind.CORRUPT_BLOB, blob_key(digest), digest_of(read.body))


def _compare(
    blobs: pa.Table, eligible: EligibleVersions, named: pa.Table, seen: ShardScan
) -> AuditCounts:
    """Count the results of the join of names and blobs in both directions."""
    current = blobs.filter(blobs["current"])
    for sha256 in _missing_digests(named, current):
        seen.findings.add(FindingKind.MISSING_BLOB, blob_key(digest_from_bytes(sha256)))
    superseded = int(np.count_nonzero(eligible.named))
    return AuditCounts(
        incarnations=len(blobs),
        incarnations_bytes=pc.sum(blobs["size_bytes"]).as_py() or 0,
        orphans=len(eligible.rows) - superseded,
        superseded=superseded,
        missing_blobs=seen.findings.count(FindingKind.MISSING_BLOB),
        corrupt_blobs=seen.findings.count(FindingKind.CORRUPT_BLOB),
        deep_read=seen.deep_read,
    )


def _count(names: pa.Table, seen: ShardScan) -> AuditCounts:
    """Count names, references and keys of unknown form."""
    count = seen.findings.count
    return AuditCounts(
        references=seen.references,
        names=len(names),
        foreign=count(FindingKind.FOREIGN),
        dangling_references=count(FindingKind.DANGLING_REFERENCE),
        references_repaired=count(FindingKind.REFERENCE_REPAIRED),
    )


def _missing_digests(named: pa.Table, current: pa.Table) -> list[bytes]:
    """Return the digests that a manifest names and no current blob has."""
    there = are_named(named["sha256"], current["sha256"])
    return sorted(set(named["sha256"].filter(pa.array(~there)).to_pylist()))


async def _write(
    store: ObjectStore, seen: ShardScan, tables: dict[str, pa.Table]
) -> tuple[EvidenceFile, ...]:
    folder, place = seen.task.folder, seen.task.shard
    put = partial(put_table, backoff=seen.backoff)
    files = [await put(store, folder, kind, place, table) for kind, table in tables.items()]
    if seen.findings.rows:
        table = seen.findings.table()
        files.append(await put(store, folder, "findings", f"shard-{place}", table))
    return tuple(files)
