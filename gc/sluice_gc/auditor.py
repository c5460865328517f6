"""A complete audit: list, join, repair, certify; and what an audit costs.

The order of evidence is fixed. A first response of the store sets `started_at`. Then every manifest
is listed, and after that, shard by shard, the reverse references and the blobs. A certificate is
created only if every range of every prefix was listed to its end.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa

from sluice_gc.audit_tasks import (
    AuditTaskFacts,
    ManifestTask,
    ShardTask,
    TombstoneTask,
    audit_manifests,
    audit_shard,
    audit_tombstones,
)
from sluice_gc.certificate import (
    AUDITED_PREFIXES,
    PROVING_PREFIXES,
    ChainLink,
    append_certificate,
    merkle_root_of,
    prepare_key_file,
    put_parts,
    read_evidence_files,
    read_newest,
    restore_copy,
    sign_certificate,
)
from sluice_gc.errors import AuditIncomplete, GcRefused, RefusalRule
from sluice_gc.evidence_files import FINDINGS, read_table_if_kept
from sluice_gc.evidence_retention import decide_kept_from, evidence_folder, read_pinned_places
from sluice_gc.key_ranges import (
    Bounds,
    cover_prefix,
    decide_range_count,
    split_prefix,
    split_shards,
)
from sluice_gc.plan import check_clock_fall
from sluice_gc.settings import AuditSettings
from sluice_gc.signing_keys import AuditorKeys, load_keys, public_texts
from sluice_gc.task_engine import TaskEngine
from sluice_gc.tombstones import list_tombstones
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.collection_records import AuditCounts, Certificate, EvidenceFile, KeyRange
from sluice_protocol.expiry import keep_s_least
from sluice_protocol.keys import ACCEPTED, AUDIT, QUARANTINE
from sluice_protocol.prices import RequestCounts, request_dollars
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_store.authority import read_authority, read_store_time
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_expiry import read_retention

_PLACES_MAX: Final = 16
"""How often an audit tries the next chain position when concurrent audits take its position."""


TOMBSTONES_TOGETHER: Final = 64
"""Tombstones that one task reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditContext:
    """The state of one audit.

    Attributes:
        started_at_ns: The store's Date before the first evidence request.
        before: None for the first audit.
    """

    audit_id: str
    authority: Authority
    started_at_ns: UnixNs
    clock_skew_ns: int
    before: ChainLink | None

    @property
    def folder(self) -> str:
        """Return the key prefix of this audit's evidence."""
        return evidence_folder(self.audit_id)


FINDINGS_SHOWN: Final = 1000


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate with the findings of its audit.

    Attributes:
        findings: Kind, key and detail, at most `FINDINGS_SHOWN`.
        removed: The findings were removed by rule; the counts in the certificate remain.
    """

    certificate: Certificate
    findings: tuple[tuple[str, str, str], ...]
    removed: bool = False

    @property
    def found_wrong(self) -> bool:
        """Return True if an operator must act on a finding."""
        return self.certificate.counts.found_wrong


async def read_audit_report(store: ObjectStore, certificate: Certificate) -> AuditReport:
    """Read the findings of an audit."""
    files = await read_evidence_files(store, certificate, "findings")
    if files is None:
        return AuditReport(certificate=certificate, findings=(), removed=True)
    tables = [await read_table_if_kept(store, one, FINDINGS) for one in files]
    kept = [one for one in tables if one is not None]
    rows = pa.concat_tables([FINDINGS.empty_table(), *kept]).slice(0, FINDINGS_SHOWN).to_pylist()
    return AuditReport(
        certificate=certificate,
        findings=tuple((row["kind"], row["key"], row["detail"]) for row in rows),
        removed=len(kept) < len(tables),
    )


async def audit_store(
    store: ObjectStore, engine: TaskEngine, settings: AuditSettings, clock: Clock, ids: IdSource
) -> AuditReport:
    """Audit a store; the first audit creates the auditor's key if its file does not exist.

    Raises:
        BadUsage: The key file does not exist although the store has certificates.
    """
    await prepare_key_file(store, settings.key_file)
    keys = load_keys(settings.key_file)
    certificate = await Auditor(store, engine, keys, clock, ids).audit(settings)
    return await read_audit_report(store, certificate)


class Auditor:
    """The audits of one store."""

    def __init__(
        self, store: ObjectStore, engine: TaskEngine, keys: AuditorKeys, clock: Clock, ids: IdSource
    ) -> None:
        self._store = store
        self._engine = engine
        self._keys = keys
        self._clock = clock
        self._ids = ids

    async def audit(self, settings: AuditSettings) -> Certificate:
        """Audit the whole store and write a certificate.

        Raises:
            AuditIncomplete: A range could not be listed completely; there is no certificate.
            GcRefused: Evidence of the previous audit was altered, or the store's clock went back.
        """
        audit = await self._begin()
        first = await self._audit_manifests(audit, settings)
        first += await self._audit_tombstones(audit, settings)
        second = await self._audit_shards(audit, settings, first)
        return await self._certify(audit, settings, [*first, *second])

    async def _begin(self) -> AuditContext:
        authority = await read_authority(self._store)
        before = await read_newest(self._store, self._keys.trusted)
        if before is not None and before.certificate.authority_id != authority.authority_id:
            raise GcRefused(
                RefusalRule.OTHER_AUTHORITY,
                "the chain of certificates belongs to another authority",
            )
        if before is not None:
            await restore_copy(self._store, before, Backoff.seeded_by(self._clock))
        started_at_ns = await read_store_time(self._store)
        if before is not None:
            check_clock_fall(before.certificate.finished_at_unix_ns, started_at_ns, authority)
        return AuditContext(
            audit_id=self._ids.ulid(),
            authority=authority,
            started_at_ns=started_at_ns,
            clock_skew_ns=self._clock.now_ns() - started_at_ns,
            before=before,
        )

    async def _audit_manifests(
        self, audit: AuditContext, settings: AuditSettings
    ) -> list[AuditTaskFacts]:
        tasks = []
        before = audit.before.certificate.counts if audit.before else AuditCounts()
        # Without them every manifest is read again.
        previous = await self._previous_files(audit) or ()
        for prefix, objects in ((ACCEPTED, before.accepted), (QUARANTINE, before.quarantined)):
            wanted = decide_range_count(settings.ranges, self._engine.parallelism, objects)
            bounds = await split_prefix(self._store, prefix, wanted)
            tasks += [_manifest_task(audit, settings, prefix, one, previous) for one in bounds]
        work = partial(audit_manifests, clock=self._clock)
        return list(await self._engine.run(work, tasks, together=settings.concurrent_tasks))

    async def _audit_tombstones(
        self, audit: AuditContext, settings: AuditSettings
    ) -> list[AuditTaskFacts]:
        """Read tombstones after the manifests, so that a tombstone's manifest was listed."""
        keys = await list_tombstones(self._store)
        tasks = [
            TombstoneTask(
                folder=audit.folder,
                keys=tuple(keys[at : at + TOMBSTONES_TOGETHER]),
                trusted=public_texts(self._keys.trusted),
                authority_id=audit.authority.authority_id,
                settings=settings,
            )
            for at in range(0, len(keys), TOMBSTONES_TOGETHER)
        ]
        work = partial(audit_tombstones, clock=self._clock)
        return list(await self._engine.run(work, tasks, together=settings.concurrent_tasks))

    async def _previous_files(self, audit: AuditContext) -> tuple[EvidenceFile, ...] | None:
        if audit.before is None:
            return None
        return await read_evidence_files(self._store, audit.before.certificate, "manifests")

    async def _audit_shards(
        self, audit: AuditContext, settings: AuditSettings, first: Iterable[AuditTaskFacts]
    ) -> list[AuditTaskFacts]:
        named: dict[str, list[EvidenceFile]] = defaultdict(list)
        tombstones: dict[str, list[EvidenceFile]] = defaultdict(list)
        for facts in first:
            for file in facts.files:
                if file.kind == "named":
                    named[file.place].append(file)
                elif file.kind == "tombstones":
                    tombstones[file.place].append(file)
        rule = await read_retention(self._store)
        keep_s = None if rule is None else rule.raw_keep_s
        started_ns = audit.started_at_ns
        tasks = [
            ShardTask(
                folder=audit.folder,
                shard=shard.name,
                named=tuple(named[shard.name]),
                deep_seed=audit.started_at_ns // NS_PER_S,
                settings=settings,
                tombstones=tuple(tombstones[shard.name]),
                expiring_before_ns=None if keep_s is None else started_ns - keep_s * NS_PER_S,
                proved_before_ns=started_ns - keep_s_least(audit.authority) * NS_PER_S,
            )
            for shard in split_shards(settings.shards)
        ]
        work = partial(audit_shard, clock=self._clock)
        return list(await self._engine.run(work, tasks, together=settings.concurrent_tasks))

    async def _certify(
        self, audit: AuditContext, settings: AuditSettings, facts: list[AuditTaskFacts]
    ) -> Certificate:
        """Append the certificate to the chain; a concurrent audit may take the position first."""
        backoff = Backoff.seeded_by(self._clock)
        complete = make_certificate(audit, settings, facts)
        certificate = await put_parts(self._store, audit.folder, complete, backoff)
        check_clock_fall(audit.started_at_ns, certificate.finished_at_unix_ns, audit.authority)
        now_ns = certificate.finished_at_unix_ns
        pinned = await read_pinned_places(self._store, self._keys.trusted, now_ns)
        for _ in range(_PLACES_MAX):
            head = await read_newest(self._store, self._keys.trusted)
            if head is not None and head != audit.before:
                # Its audit may have been killed between the two copies; later audits restore only
                # that of the newest certificate.
                await restore_copy(self._store, head, backoff)
            linked = link_after(certificate, head, pinned)
            body = sign_certificate(linked, self._keys.private)
            if await append_certificate(self._store, linked, body, backoff):
                return linked
        raise AuditIncomplete(
            AUDIT, "concurrent audits took every chain position; run the audit again"
        )


def _manifest_task(
    audit: AuditContext,
    settings: AuditSettings,
    prefix: str,
    bounds: Bounds,
    previous: Sequence[EvidenceFile],
) -> ManifestTask:
    start_after, end_at = bounds
    return ManifestTask(
        folder=audit.folder,
        prefix=prefix,
        start_after=start_after,
        end_at=end_at,
        previous=tuple(one for one in previous if _overlaps(one, prefix, start_after, end_at)),
        settings=settings,
    )


def _overlaps(file: EvidenceFile, prefix: str, start_after: str, end_at: str | None) -> bool:
    inside = end_at is None or file.first_key <= end_at
    return file.prefix == prefix and file.rows > 0 and file.last_key > start_after and inside


def make_certificate(
    audit: AuditContext, settings: AuditSettings, facts: Iterable[AuditTaskFacts]
) -> Certificate:
    """Return the certificate for the facts of an audit; it has no chain position yet.

    Raise `AuditIncomplete` if the ranges of a prefix are not contiguous.
    """
    ranges: dict[str, list[KeyRange]] = defaultdict(list)
    files: list[EvidenceFile] = []
    counts = AuditCounts()
    for one in facts:
        for prefix, covered in one.ranges:
            ranges[prefix].append(covered)
        # Only this audit reads these files; their number is ranges times shards.
        files += [file for file in one.files if file.kind not in ("named", "tombstones")]
        counts = counts.plus(one.counts)
    prefixes = AUDITED_PREFIXES if settings.list_blobs else PROVING_PREFIXES
    coverage = tuple(cover_prefix(prefix, ranges[prefix]) for prefix in prefixes)
    return Certificate(
        authority_id=audit.authority.authority_id,
        retry_horizon_s=audit.authority.retry_horizon_s,
        audit_id=audit.audit_id,
        chain_index=0,
        previous_audit_id="",
        previous_sha256="",
        started_at_unix_ns=audit.started_at_ns,
        finished_at_unix_ns=max(
            covered_range.last_date_unix_ns for one in coverage for covered_range in one.ranges
        ),
        clock_skew_ns=audit.clock_skew_ns,
        deep=settings.deep,
        shards=settings.shards,
        coverage=coverage,
        merkle_root=merkle_root_of(coverage),
        counts=counts,
        evidence=tuple(sorted(files, key=lambda one: (one.kind, one.place, one.key))),
    )


def link_after(
    certificate: Certificate, head: ChainLink | None, pinned: Iterable[int] = ()
) -> Certificate:
    """Return the certificate with the chain position after `head`, and what it keeps.

    `pinned` are the chain positions whose evidence open plans need.
    """
    if head is None:
        return msgspec.structs.replace(certificate, evidence_kept_from=0)
    place = head.certificate.chain_index + 1
    return msgspec.structs.replace(
        certificate,
        evidence_kept_from=decide_kept_from(place, head.certificate.evidence_kept_from, pinned),
        chain_index=place,
        previous_audit_id=head.certificate.audit_id,
        previous_sha256=head.sha256,
    )


LIST_PAGE_OBJECTS: Final = 1000


EVIDENCE_BYTES_PER_BATCH: Final = 210
"""Parquet bytes that an audit writes for each batch. Measured: 182 for 2·10^4 batches; ids on S3
are longer."""


LIST_PAGE_S: Final = 0.15
"""Approximate time of one LIST page of 1,000 keys on S3. Streams are concurrent."""


STREAMS_PER_CORE: Final = 1


class AuditPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one audit: USD of the requests, and hours of listing on the given cores.

    The pages are those of the five prefixes; each manifest body is read only once.
    """

    list_requests: int
    get_requests: int
    usd: float
    hours: float
    evidence_gib: float


class AuditEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a first audit, which reads every manifest body, and of each later one.

    Each accepted batch has a manifest, a reference and a blob. `following_new_share` is the share
    of new batches, whose bodies a later audit reads.
    """

    batches: int
    cores: int
    first: AuditPrice
    following: AuditPrice
    following_new_share: float


NEW_SHARE: Final = 0.01
"""Share of the batches that are new at an audit a day, after a hundred days."""


def estimate_audit(batches: int, cores: int) -> AuditEstimate:
    """Return the cost of audits of a store with `batches` accepted batches.

    Quarantined batches and orphans are few in comparison. Each of the executors' cores has one LIST
    stream; `NEW_SHARE` of the batches were accepted since the previous audit.
    """
    return AuditEstimate(
        batches=batches,
        cores=cores,
        first=_price(batches, cores, bodies=batches),
        following=_price(batches, cores, bodies=math.ceil(batches * NEW_SHARE)),
        following_new_share=NEW_SHARE,
    )


def _price(batches: int, cores: int, *, bodies: int) -> AuditPrice:
    lists = 3 * math.ceil(batches / LIST_PAGE_OBJECTS) + 2
    usd = request_dollars(RequestCounts(lists=lists, gets=bodies))
    return AuditPrice(
        list_requests=lists,
        get_requests=bodies,
        usd=round(usd, 2),
        hours=round(lists * LIST_PAGE_S / (cores * STREAMS_PER_CORE) / 3600, 2),
        evidence_gib=round(batches * EVIDENCE_BYTES_PER_BATCH / 2**30, 1),
    )
