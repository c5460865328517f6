"""The two kinds of task of an audit: a key range of manifests, and a shard of the sha256 space.

The first lists a range of `accepted/` or `quarantine/`. The body of a manifest is read only once:
each audit copies (key, ETag, sha256) from the previous certificate, and reads a manifest only if
its key is new or its ETag changed.

The second merges the manifests of its shard with their reverse references, both in key order. It
writes missing references first. Then it lists the object versions of the blobs and compares them
with every name. A packed raw-blob entry is a reverse reference too (ADR 27), and writing one for
each of them would undo the packing. So a task looks for a few of the missing references in packed
entries before it writes any.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice_gc.eligible_versions import (
    EligibleVersions,
    Mask,
    are_named,
    eligible_table,
    join_names,
)
from sluice_gc.evidence_files import (
    BLOBS,
    EXPIRING,
    FINDINGS,
    MANIFESTS,
    NAMED,
    NAMES,
    digest_bytes,
    digest_from_bytes,
    put_table,
    read_table_if_kept,
    read_tables,
)
from sluice_gc.key_ranges import DigestShard, RangeListing, parse_shard, split_shards
from sluice_gc.settings import AuditSettings
from sluice_gc.signing_keys import trusted_of
from sluice_gc.tombstones import TOMBSTONES, read_tombstone, tombstones_tables
from sluice_protocol.clock import Clock
from sluice_protocol.collection_records import AuditCounts, EvidenceFile, KeyRange
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.expiry import Tombstone
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
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
    parse_digest,
    parse_pack_key,
    parse_quarantine_key,
    quarantine_by_blob_key,
    quarantine_key,
    raw_blob_by_time_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    ConflictManifest,
    decode_accepted,
    decode_conflict,
    decode_record,
    encode_reference,
)
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import NS_PER_S, Digest, ETag, ObjectKey
from sluice_store.port import ListedIncarnation, ListedObject, ObjectStore, run_concurrently
from sluice_store.retry import Backoff, create_known


class FindingKind(StrEnum):
    """The kind of a finding."""

    MISSING_BLOB = "missing_blob"
    """A manifest names a blob that does not exist: it is lost, or the manifest is `unproved` and
    caused no 200.
    """
    UNREADABLE_MANIFEST = "unreadable_manifest"
    MISNAMED = "misnamed"
    """A manifest under a wrong key; the blob that it names is kept."""
    CORRUPT_BLOB = "corrupt_blob"
    FOREIGN = "foreign"
    DANGLING_REFERENCE = "dangling_reference"
    REFERENCE_REPAIRED = "reference_repaired"
    GAP = "gap"
    OVERLAP = "overlap"
    REFUSED_TOMBSTONE = "refused_tombstone"
    """A tombstone that is damaged or that no trusted key signed; its batches count as unexpired."""


@dataclass(slots=True)
class FindingLog:
    """The findings of one task."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, kind: FindingKind, key: str, detail: str = "") -> None:
        """Add one finding."""
        self.rows.append((kind.value, key, detail))

    def count(self, kind: FindingKind) -> int:
        """Return the number of findings of a kind."""
        return sum(1 for row in self.rows if row[0] == kind.value)

    def table(self) -> pa.Table:
        """Return the findings as rows of `FINDINGS`."""
        columns = list(zip(*self.rows, strict=True)) or [(), (), ()]
        return pa.table([pa.array(one, pa.string()) for one in columns], schema=FINDINGS)


class SequenceChecker:
    """Detection of gaps and overlaps in the sequence numbers of each (agent, boot)."""

    def __init__(self, findings: FindingLog) -> None:
        self._findings = findings
        self._who: tuple[str, str] | None = None
        self._next = 0

    def see(self, key: str, identity: Identity) -> None:
        """Check the next identity in key order; a boot may start at any number."""
        who = (identity.agent_id, identity.boot_id)
        if who == self._who and identity.seq_start > self._next:
            self._findings.add(FindingKind.GAP, key, f"{self._next}-{identity.seq_start - 1}")
        if who == self._who and identity.seq_start < self._next:
            last = min(self._next - 1, identity.seq_end)
            self._findings.add(FindingKind.OVERLAP, key, f"{identity.seq_start}-{last}")
        after = identity.seq_end + 1
        self._next = max(self._next, after) if who == self._who else after
        self._who = who


class AuditTaskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one audit task. The listed rows are in the evidence files.

    The ranges have their prefixes.
    """

    ranges: tuple[tuple[str, KeyRange], ...]
    files: tuple[EvidenceFile, ...]
    counts: AuditCounts


SAMPLE_MAX: Final = 8
"""Manifests that are looked for, spread over all with a missing reference."""
PACKS_MAX: Final = 64
"""Packed objects that are read for one manifest: several reconcilers pack the same seconds."""


async def are_packed(store: ObjectStore, manifest_keys: Sequence[str]) -> bool:
    """Return True if one of a few sampled manifests has a packed raw-blob entry."""
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
            if span is None or not span.contains(at_ns):
                continue
            packs += 1
            pack = await store.get(one.key)
            if isinstance(pack, Found) and entry.encode() in pack.body:
                return True
            if packs == PACKS_MAX:
                return False
    return False


class ManifestTask(msgspec.Struct, frozen=True, kw_only=True):
    """The audit task for one key range of manifests.

    Attributes:
        start_after: Lower bound, exclusive.
        end_at: Upper bound, inclusive, or None.
        previous: Files of the previous certificate that may contain keys of this range.
    """

    folder: str
    prefix: str
    start_after: str
    end_at: str | None
    previous: tuple[EvidenceFile, ...]
    settings: AuditSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRow:
    """A listed manifest and the blob that it names."""

    key: ObjectKey
    etag: ETag
    digest: Digest
    last_modified_ns: int


@dataclass(slots=True)
class ManifestPass:
    """One pass over a range of manifests."""

    previous: dict[str, tuple[str, Digest]]
    findings: FindingLog = field(default_factory=FindingLog)
    rows: list[ManifestRow] = field(default_factory=list)
    bodies_read: int = 0


async def audit_manifests(
    store: ObjectStore, task: ManifestTask, *, clock: Clock
) -> AuditTaskFacts:
    """List a range, read its new manifests, and write the evidence.

    Raise `AuditIncomplete` if the range could not be listed in order and completely.
    """
    previous = {} if task.settings.deep > 0.0 else await _read_previous(store, task)
    listing = RangeListing(store, task.prefix, task.start_after, task.end_at)
    seen = ManifestPass(previous=previous)
    watch = SequenceChecker(seen.findings)
    async for page in listing.objects():
        wanted = [one for one in page if _check_key(one.key, seen.findings, watch)]
        seen.rows += await _read_page(store, wanted, seen, task.settings.reads_max)
    return AuditTaskFacts(
        ranges=((task.prefix, listing.covered_range()),),
        files=await _write_manifests(store, task, seen, Backoff.seeded_by(clock)),
        counts=_count_manifests(task, seen),
    )


async def _read_previous(store: ObjectStore, task: ManifestTask) -> dict[str, tuple[str, Digest]]:
    """Return key -> (ETag, sha256) from the previous certificate, within the range.

    A file that does not exist is left out: its manifests are read again, which only costs requests.
    Audits that finished since may have removed it by rule.
    """
    low, high = task.start_after, task.end_at
    previous: dict[str, tuple[str, Digest]] = {}
    for file in task.previous:
        table = await read_table_if_kept(store, file, MANIFESTS)
        if table is None:
            continue
        columns = (table[name].to_pylist() for name in ("key", "etag", "sha256"))
        for key, etag, sha256 in zip(*columns, strict=True):
            if key > low and (high is None or key <= high):
                previous[key] = (etag, digest_from_bytes(sha256))
    return previous


def _check_key(key: ObjectKey, findings: FindingLog, watch: SequenceChecker) -> bool:
    try:
        if key.startswith(ACCEPTED):
            watch.see(key, parse_accepted_key(key))
        else:
            parse_quarantine_key(key)
    except InvalidRecord as error:
        findings.add(FindingKind.FOREIGN, key, error.reason)
        return False
    return True


async def _read_page(
    store: ObjectStore, page: Sequence[ListedObject], seen: ManifestPass, concurrency: int
) -> list[ManifestRow]:
    """Return the rows of a page in key order; an unreadable manifest becomes a finding."""
    rows: dict[ObjectKey, ManifestRow] = {}
    unread = []
    for listed in page:
        known = seen.previous.get(listed.key)
        if known is not None and known[0] == listed.etag:
            rows[listed.key] = _row(listed, known[1])
        else:
            unread.append(listed)

    async def one(listed: ListedObject) -> None:
        digest = await _read_body(store, listed.key, seen)
        if digest is not None:
            rows[listed.key] = _row(listed, digest)

    await run_concurrently(unread, one, concurrency=concurrency)
    return [rows[listed.key] for listed in page if listed.key in rows]


async def _read_body(store: ObjectStore, key: ObjectKey, seen: ManifestPass) -> Digest | None:
    read = await store.get(key)
    seen.bodies_read += 1
    if isinstance(read, Found):
        return decode_named_digest(key, read.body, seen.findings)
    detail = "listed but no longer present, although manifests are never deleted"
    seen.findings.add(FindingKind.UNREADABLE_MANIFEST, key, detail)
    return None


def _row(listed: ListedObject, digest: Digest) -> ManifestRow:
    return ManifestRow(
        key=listed.key,
        etag=listed.etag,
        digest=digest,
        last_modified_ns=listed.last_modified_ns,
    )


def decode_named_digest(key: ObjectKey, body: bytes, findings: FindingLog) -> Digest | None:
    """Return the sha256 that a manifest names; None and a finding if it cannot be decoded.

    A manifest under a wrong key still keeps the blob that it names.
    """
    accepted = key.startswith(ACCEPTED)
    try:
        if accepted:
            return decode_accepted(key, body).digest
        return Digest(decode_conflict(key, body).submitted_frame_sha256)
    except InvalidRecord as error:
        named = _decode_misplaced(key, body, accepted=accepted)
        kind = FindingKind.UNREADABLE_MANIFEST if named is None else FindingKind.MISNAMED
        findings.add(kind, key, error.reason)
        return named


def _decode_misplaced(key: ObjectKey, body: bytes, *, accepted: bool) -> Digest | None:
    try:
        if accepted:
            return parse_digest(decode_record(key, body, AcceptedManifest).frame_sha256)
        return parse_digest(decode_record(key, body, ConflictManifest).submitted_frame_sha256)
    except (InvalidRecord, ValueError):
        return None


async def _write_manifests(
    store: ObjectStore, task: ManifestTask, seen: ManifestPass, backoff: Backoff
) -> tuple[EvidenceFile, ...]:
    """Write the manifests in key order, and again split by the shard of the named digest."""
    put = partial(put_table, backoff=backoff)
    place = digest_of(f"{task.prefix} {task.start_after}".encode())[:16]
    whole = await put(store, task.folder, "manifests", place, manifests_table(seen.rows))
    files = [msgspec.structs.replace(whole, prefix=task.prefix, **_span(seen.rows))]
    for shard in split_shards(task.settings.shards):
        table = named_table(seen.rows, shard)
        if len(table):
            written = await put(store, task.folder, "named", f"{shard.name}-{place}", table)
            files.append(msgspec.structs.replace(written, place=shard.name))
    if seen.findings.rows:
        at = f"manifests-{place}"
        files.append(await put(store, task.folder, "findings", at, seen.findings.table()))
    return tuple(files)


def _span(rows: Sequence[ManifestRow]) -> dict[str, str]:
    return {"first_key": rows[0].key, "last_key": rows[-1].key} if rows else {}


def manifests_table(rows: Sequence[ManifestRow]) -> pa.Table:
    """Return rows of `MANIFESTS`."""
    return pa.table(
        [
            pa.array([row.key for row in rows], pa.string()),
            pa.array([row.etag for row in rows], pa.string()),
            pa.array([digest_bytes(row.digest) for row in rows], pa.binary(32)),
            pa.array([row.last_modified_ns for row in rows], pa.int64()),
        ],
        schema=MANIFESTS,
    )


def named_table(rows: Sequence[ManifestRow], shard: DigestShard) -> pa.Table:
    """Return the rows of `NAMED` whose digest belongs to a shard."""
    mine = [row for row in rows if row.digest in shard]
    return pa.table(
        [
            pa.array([digest_bytes(row.digest) for row in mine], pa.binary(32)),
            pa.array([not row.key.startswith(ACCEPTED) for row in mine], pa.bool_()),
            pa.array([row.key for row in mine], pa.string()),
            pa.array([row.last_modified_ns for row in mine], pa.int64()),
        ],
        schema=NAMED,
    )


def _count_manifests(task: ManifestTask, seen: ManifestPass) -> AuditCounts:
    count = seen.findings.count
    accepted = task.prefix == ACCEPTED
    return AuditCounts(
        accepted=len(seen.rows) if accepted else 0,
        quarantined=0 if accepted else len(seen.rows),
        bodies_read=seen.bodies_read,
        unreadable_manifests=count(FindingKind.UNREADABLE_MANIFEST),
        misnamed=count(FindingKind.MISNAMED),
        foreign=count(FindingKind.FOREIGN),
        gaps=count(FindingKind.GAP),
        overlaps=count(FindingKind.OVERLAP),
    )


class TombstoneTask(msgspec.Struct, frozen=True, kw_only=True):
    """The audit task for some tombstones.

    `trusted` are public keys in base64.
    """

    folder: str
    keys: tuple[ObjectKey, ...]
    trusted: tuple[str, ...]
    authority_id: str
    settings: AuditSettings


async def audit_tombstones(
    store: ObjectStore, task: TombstoneTask, *, clock: Clock
) -> AuditTaskFacts:
    """Read and verify tombstones, and write the batches that they name by shard."""
    findings = FindingLog()
    trusted = trusted_of(task.trusted)
    found: list[Tombstone] = []
    for key in task.keys:
        one = await read_tombstone(store, key, trusted, task.authority_id)
        if one is None:
            findings.add(FindingKind.REFUSED_TOMBSTONE, key)
        else:
            found.append(one)
    put = partial(put_table, backoff=Backoff.seeded_by(clock))
    place = digest_of(task.keys[0].encode())[:16]
    files = []
    tables = tombstones_tables(found, split_shards(task.settings.shards))
    for shard, table in sorted(tables.items()):
        written = await put(store, task.folder, "tombstones", f"{shard}-{place}", table)
        files.append(msgspec.structs.replace(written, place=shard))
    if findings.rows:
        at = f"tombstones-{place}"
        files.append(await put(store, task.folder, "findings", at, findings.table()))
    counts = AuditCounts(refused_tombstones=len(findings.rows) or msgspec.UNSET)
    return AuditTaskFacts(ranges=(), files=tuple(files), counts=counts)


SOON_NS: Final = 7 * 86_400 * NS_PER_S
"""Batches that will be old enough to expire within this time are counted separately."""
_BLOBS_AT_ONCE: Final = 8
"""A blob has up to 16 MiB. This limit bounds the memory of a deep audit."""


class ShardTask(msgspec.Struct, frozen=True, kw_only=True):
    """The audit task for one shard of the sha256 space.

    Attributes:
        deep_seed: Seed that selects the blobs that are hashed.
        expiring_before_ns: Manifests that appeared before it are older than the raw retention; None
            if nothing expires.
        proved_before_ns: A tombstone that was made before it is proved again if the blob exists.
    """

    folder: str
    shard: str
    named: tuple[EvidenceFile, ...]
    deep_seed: int
    settings: AuditSettings
    tombstones: tuple[EvidenceFile, ...] = ()
    expiring_before_ns: int | None = None
    proved_before_ns: int = 0


@dataclass(slots=True)
class ShardPass:
    """The results of one pass over a shard."""

    task: ShardTask
    shard: DigestShard
    backoff: Backoff
    findings: FindingLog = field(default_factory=FindingLog)
    names: set[bytes] = field(default_factory=set)
    tombstones: pa.Table = field(default_factory=TOMBSTONES.empty_table)
    references: int = 0
    deep_read: int = 0


async def audit_shard(store: ObjectStore, task: ShardTask, *, clock: Clock) -> AuditTaskFacts:
    """Join manifests, references and blobs of a shard, and write the evidence.

    Raise `AuditIncomplete` if a range could not be listed in order and completely.
    """
    backoff = Backoff.seeded_by(clock)
    seen = ShardPass(task=task, shard=parse_shard(task.shard), backoff=backoff)
    named = await read_tables(store, task.named, NAMED)
    seen.tombstones = await read_tables(store, task.tombstones, TOMBSTONES)
    unexpired, batches_expired = named, 0
    if len(seen.tombstones):
        expired = pa.array(_are_expired(named, seen.tombstones))
        unexpired = named.filter(pc.invert(expired))
        batches_expired = pc.sum(pc.and_not(expired, named["quarantined"])).as_py()
    seen.names.update(unexpired["sha256"].to_pylist())
    ranges = [
        (root, await _join_references(store, seen, root, _expected_references(named, root)))
        for root in (ACCEPTED_BY_BLOB, QUARANTINE_BY_BLOB)
    ]
    blobs = None
    if task.settings.list_blobs:
        blobs, covered_range = await _list_blobs(store, seen)
        ranges.append((RAW_BLOBS, covered_range))
        await _read_deep(store, seen, blobs)
    names = pa.table([pa.array(sorted(seen.names), pa.binary(32))], schema=NAMES)
    counts = _count(names, seen)
    tables = {"names": names}
    if blobs is not None:
        eligible = join_names(blobs, names["sha256"])
        counts = counts.plus(_compare(blobs, eligible, unexpired, seen))
        counts = counts.plus(AuditCounts(expired=batches_expired))
        tables |= {"blobs": blobs, "eligible": eligible_table(eligible)}
        tables |= _expired_table(eligible, seen)
        expiring, expiring_counts = _select_expiring(blobs, named, seen)
        tables |= expiring
        counts = counts.plus(expiring_counts)
    return AuditTaskFacts(
        ranges=tuple(ranges), files=await _write(store, seen, tables), counts=counts
    )


def _pairs(rows: pa.Table) -> pa.ChunkedArray:
    """Return the sha256 and the key of each row as one value."""
    sha256, key = (rows[name].cast(pa.large_binary()) for name in ("sha256", "key"))
    return pc.binary_join_element_wise(sha256, key, pa.scalar(b"", pa.large_binary()))


def _are_expired(named: pa.Table, tombstones: pa.Table) -> Mask:
    """Return which manifests have expired: those whose key and sha256 a tombstone names."""
    if not len(tombstones):
        return np.zeros(len(named), bool)
    found = pc.is_in(_pairs(named), value_set=_pairs(tombstones).combine_chunks())
    expired: Mask = found.to_numpy()
    return expired


def _expired_table(eligible: EligibleVersions, seen: ShardPass) -> dict[str, pa.Table]:
    """Return which blobs are of expired batches."""
    if not len(seen.tombstones):
        return {}
    unnamed = eligible.rows["sha256"].filter(pa.array(~eligible.named))
    of_batches = pc.is_in(unnamed, value_set=seen.tombstones["sha256"].combine_chunks())
    gone = unnamed.filter(of_batches).unique().sort()
    return {"expired": pa.table([gone], schema=NAMES)} if len(gone) else {}


def _select_expiring(
    blobs: pa.Table, named: pa.Table, seen: ShardPass
) -> tuple[dict[str, pa.Table], AuditCounts]:
    """Return the manifests that are old enough to expire, and count those of the next week too."""
    before_ns = seen.task.expiring_before_ns
    if before_ns is None:
        return {}, AuditCounts()
    rows = named.filter(
        pc.and_(
            pc.invert(named["quarantined"]),
            pc.less(named["last_modified_ns"], before_ns + SOON_NS),
        )
    )
    current = blobs.filter(blobs["current"])
    place = pc.index_in(rows["sha256"], value_set=current["sha256"].combine_chunks())
    fresh = pc.greater_equal(seen.tombstones["made_at_ns"], seen.task.proved_before_ns)
    proved = _are_expired(rows, seen.tombstones.filter(fresh))
    rows = rows.append_column("size_bytes", current["size_bytes"].take(place))
    rows = rows.filter(pc.and_(pc.is_valid(place), pa.array(~proved)))
    due = pc.less(rows["last_modified_ns"], before_ns)
    expiring, soon = rows.filter(due), rows.filter(pc.invert(due))
    counts = AuditCounts(
        expiring=len(expiring),
        expiring_bytes=pc.sum(expiring["size_bytes"]).as_py() or 0,
        expiring_soon=len(soon),
        expiring_soon_bytes=pc.sum(soon["size_bytes"]).as_py() or 0,
    )
    return {"expiring": expiring.select(EXPIRING.names)} if len(expiring) else {}, counts


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
    store: ObjectStore, seen: ShardPass, root: str, wanted: list[tuple[str, str]]
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
    if missing and len(seen.tombstones):
        expired = set(seen.tombstones["key"].to_pylist())
        # A reference is not repaired, which is harmless even if the tombstone is of other bytes.
        missing = [pair for pair in missing if pair[1] not in expired]
    concurrency = seen.task.settings.reads_max
    if root == ACCEPTED_BY_BLOB and missing:
        manifests = [manifest for _, manifest in missing]
        if not seen.task.settings.repair_references or await are_packed(store, manifests):
            missing = []  # the manifests themselves name their blobs in this audit
    await run_concurrently(
        missing, lambda pair: _repair(store, seen, *pair), concurrency=concurrency
    )
    await run_concurrently(
        extra, lambda key: _check_unexpected(store, seen, key), concurrency=concurrency
    )
    return listing.covered_range()


async def _repair(store: ObjectStore, seen: ShardPass, key: str, manifest_key: str) -> None:
    body = encode_reference(ObjectKey(manifest_key))
    await create_known(store, ObjectKey(key), body, seen.backoff)
    seen.findings.add(FindingKind.REFERENCE_REPAIRED, key, manifest_key)


async def _check_unexpected(store: ObjectStore, seen: ShardPass, key: str) -> None:
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


async def _list_blobs(store: ObjectStore, seen: ShardPass) -> tuple[pa.Table, KeyRange]:
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


async def _read_deep(store: ObjectStore, seen: ShardPass, blobs: pa.Table) -> None:
    """Read and hash the current blobs in the sample."""
    share, seed = seen.task.settings.deep, seen.task.deep_seed
    if share <= 0.0:
        return
    current = blobs.filter(blobs["current"])["sha256"].to_pylist()
    chosen = [one for one in current if in_sample(one, share, seed)]
    await run_concurrently(
        chosen,
        lambda one: _hash_blob(store, seen, digest_from_bytes(one)),
        concurrency=min(seen.task.settings.reads_max, _BLOBS_AT_ONCE),
    )


async def _hash_blob(store: ObjectStore, seen: ShardPass, digest: Digest) -> None:
    read = await store.get(blob_key(digest))
    seen.deep_read += 1
    if isinstance(read, Found) and digest_of(read.body) != digest:
        seen.findings.add(FindingKind.CORRUPT_BLOB, blob_key(digest), digest_of(read.body))


def _compare(
    blobs: pa.Table, eligible: EligibleVersions, named: pa.Table, seen: ShardPass
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


def _count(names: pa.Table, seen: ShardPass) -> AuditCounts:
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
    store: ObjectStore, seen: ShardPass, tables: dict[str, pa.Table]
) -> tuple[EvidenceFile, ...]:
    folder, place = seen.task.folder, seen.task.shard
    put = partial(put_table, backoff=seen.backoff)
    files = [await put(store, folder, kind, place, table) for kind, table in tables.items()]
    if seen.findings.rows:
        table = seen.findings.table()
        files.append(await put(store, folder, "findings", f"shard-{place}", table))
    return tuple(files)
