"""Audit of one key range of `accepted/` or `quarantine/`.

The body of a manifest is read only once. Each audit copies (key, ETag, sha256) from the previous
certificate and reads a manifest only if its key is new or its ETag changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pyarrow as pa

from sluice_gc.audit_findings import AuditTaskFacts, FindingKind, FindingLog, SequenceChecker
from sluice_gc.certificate import AuditCounts
from sluice_gc.evidence_files import (
    MANIFESTS,
    NAMED,
    EvidenceFile,
    digest_bytes,
    digest_from_bytes,
    put_table,
    read_table_if_kept,
)
from sluice_gc.key_ranges import DigestShard, RangeListing, split_shards
from sluice_protocol.clock import Clock
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED,
    digest_of,
    parse_accepted_key,
    parse_digest,
    parse_quarantine_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    ConflictManifest,
    decode_accepted,
    decode_conflict,
    decode_record,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, ETag, ObjectKey
from sluice_store.concurrent_requests import run_concurrently
from sluice_store.port import ListedObject, ObjectStore
from sluice_store.retry import Backoff


class ManifestTask(msgspec.Struct, frozen=True, kw_only=True):
    """The audit task for one key range of manifests.

    Attributes:
        folder: Key prefix of the evidence.
        prefix: `accepted/v1/` or `quarantine/v1/`.
        start_after: Lower bound, exclusive.
        end_at: Upper bound, inclusive, or None.
        shards: Number of shards into which the named digests are split.
        reads_max: Most bodies that are read concurrently.
        previous: Files of the previous certificate that may contain keys of this range.
        reread: Whether every body is read again (`--deep`).
    """

    folder: str
    prefix: str
    start_after: str
    end_at: str | None
    shards: int
    reads_max: int
    previous: tuple[EvidenceFile, ...]
    reread: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRow:
    """A listed manifest and the blob that it names."""

    key: ObjectKey
    etag: ETag
    digest: Digest
    last_modified_ns: int


@dataclass(slots=True)
class ManifestScan:
    """The results of one pass over the range."""

    previous: dict[str, tuple[str, Digest]]
    findings: FindingLog = field(default_factory=FindingLog)
    rows: list[ManifestRow] = field(default_factory=list)
    bodies_read: int = 0


async def audit_manifests(
    store: ObjectStore, task: ManifestTask, *, clock: Clock
) -> AuditTaskFacts:
    """List a range, read its new manifests, and write the evidence.

    Raises:
        AuditIncomplete: The range could not be listed in order and completely.
        GcRefused: Evidence of the previous audit was altered.
        StoreError: The store is unreachable or refused a request.
    """
    previous = {} if task.reread else await _read_previous(store, task)
    listing = RangeListing(store, task.prefix, task.start_after, task.end_at)
    seen = ManifestScan(previous=previous)
    watch = SequenceChecker(seen.findings)
    async for page in listing.objects():
        wanted = [one for one in page if _check_key(one.key, seen.findings, watch)]
        seen.rows += await _read_page(store, wanted, seen, task.reads_max)
    return AuditTaskFacts(
        ranges=((task.prefix, listing.covered_range()),),
        files=await _write(store, task, seen, Backoff.seeded_by(clock)),
        counts=_count(task, seen),
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
    store: ObjectStore, page: Sequence[ListedObject], seen: ManifestScan, concurrency: int
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


async def _read_body(store: ObjectStore, key: ObjectKey, seen: ManifestScan) -> Digest | None:
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


async def _write(
    store: ObjectStore, task: ManifestTask, seen: ManifestScan, backoff: Backoff
) -> tuple[EvidenceFile, ...]:
    """Write the manifests in key order, and again split by the shard of the named digest."""
    put = partial(put_table, backoff=backoff)
    place = digest_of(f"{task.prefix} {task.start_after}".encode())[:16]
    whole = await put(store, task.folder, "manifests", place, manifests_table(seen.rows))
    files = [msgspec.structs.replace(whole, prefix=task.prefix, **_span(seen.rows))]
    for shard in split_shards(task.shards):
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
        ],
        schema=NAMED,
    )


def _count(task: ManifestTask, seen: ManifestScan) -> AuditCounts:
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
