"""A whole audit: list, join, repair, certify.

The order of evidence is fixed. First an answer that gives `started_at`; then every manifest; then,
shard by shard, reverse references and blobs. A certificate is made only when every range of every
prefix was listed to its end.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from sluice_gc.audit_manifests import ManifestTask, TaskFacts, audit_manifests
from sluice_gc.audit_shard import ShardTask, audit_shard
from sluice_gc.certificate import (
    AUDITED_PREFIXES,
    PROVING_PREFIXES,
    AuditCounts,
    Certificate,
    EvidenceFile,
    merkle_root_of,
    sign_certificate,
)
from sluice_gc.chain import Link, read_head, repair_copy, take_place
from sluice_gc.coverage import KeyRange, cover_prefix
from sluice_gc.engine import Engine
from sluice_gc.errors import AuditIncomplete, GcRefused, Refusal
from sluice_gc.objects import Keys
from sluice_gc.plan import check_clock_fall
from sluice_gc.ranges import split_prefix, wanted_ranges
from sluice_gc.settings import AuditSettings
from sluice_gc.shards import split_shards
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.keys import ACCEPTED, AUDIT, AUTHORITY_SETTINGS, QUARANTINE
from sluice_protocol.units import UnixNs
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff

_PLACES_MAX: Final = 16
"""How often an audit takes another place in the chain when others end at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One audit under way.

    Attributes:
        audit_id: ULID.
        authority: What is audited.
        started_at_ns: The store's Date before any evidence was asked for.
        clock_skew_ns: The local clock minus the store's.
        before: The certificate that this audit carries on from.
    """

    audit_id: str
    authority: Authority
    started_at_ns: UnixNs
    clock_skew_ns: int
    before: Link | None

    @property
    def folder(self) -> str:
        """Where this audit's evidence goes."""
        return f"{AUDIT}{self.audit_id}/evidence/"


class Auditor:
    """Makes audits of one store."""

    def __init__(
        self, store: ObjectStore, engine: Engine, keys: Keys, clock: Clock, ids: IdSource
    ) -> None:
        """Takes its parts."""
        self._store = store
        self._engine = engine
        self._keys = keys
        self._clock = clock
        self._ids = ids

    async def audit(self, settings: AuditSettings) -> Certificate:
        """Audits the whole store and certifies it.

        Raises:
            AuditIncomplete: A range could not be listed; there is no certificate.
            CertificateInvalid: The certificate before was altered.
            GcRefused: Evidence that is carried on was altered, or the store's clock fell.
            StoreError: No answer, or a refusal; there is no certificate.
        """
        audit = await self._begin()
        first = await self._audit_manifests(audit, settings)
        second = await self._audit_shards(audit, settings, first)
        return await self._certify(audit, settings, [*first, *second])

    async def _begin(self) -> Audit:
        authority = await read_authority(self._store)
        before = await read_head(self._store, self._keys.trusted)
        if before is not None and before.certificate.authority_id != authority.authority_id:
            raise GcRefused(Refusal.OTHER_AUTHORITY, "the chain belongs to another authority")
        if before is not None:
            await repair_copy(self._store, before, Backoff.seeded_by(self._clock))
        started_at_ns = (await self._store.head(AUTHORITY_SETTINGS)).date_ns
        if before is not None:
            check_clock_fall(before.certificate.finished_at_unix_ns, started_at_ns, authority)
        return Audit(
            audit_id=self._ids.ulid(),
            authority=authority,
            started_at_ns=started_at_ns,
            clock_skew_ns=self._clock.now_ns() - started_at_ns,
            before=before,
        )

    async def _audit_manifests(self, audit: Audit, settings: AuditSettings) -> list[TaskFacts]:
        tasks = []
        before = audit.before.certificate.counts if audit.before else AuditCounts()
        for prefix, objects in ((ACCEPTED, before.accepted), (QUARANTINE, before.quarantined)):
            wanted = wanted_ranges(settings.ranges, self._engine.tasks_at_once, objects)
            bounds = await split_prefix(self._store, prefix, wanted)
            tasks += [_manifest_task(audit, settings, prefix, *one) for one in bounds]
        return list(await self._engine.run(partial(audit_manifests, clock=self._clock), tasks))

    async def _audit_shards(
        self, audit: Audit, settings: AuditSettings, first: Iterable[TaskFacts]
    ) -> list[TaskFacts]:
        named: dict[str, list[EvidenceFile]] = defaultdict(list)
        for facts in first:
            for file in facts.files:
                if file.kind == "named":
                    named[file.place].append(file)
        tasks = [
            ShardTask(
                folder=audit.folder,
                shard=shard.name,
                named=tuple(named[shard.name]),
                reads_max=settings.reads_max,
                deep=settings.deep,
                deep_seed=settings.deep_seed,
                list_blobs=settings.list_blobs,
            )
            for shard in split_shards(settings.shards)
        ]
        return list(await self._engine.run(partial(audit_shard, clock=self._clock), tasks))

    async def _certify(
        self, audit: Audit, settings: AuditSettings, facts: list[TaskFacts]
    ) -> Certificate:
        """Takes the next place in the chain; another audit may take it first."""
        certificate = make_certificate(audit, settings, facts)
        check_clock_fall(audit.started_at_ns, certificate.finished_at_unix_ns, audit.authority)
        backoff = Backoff.seeded_by(self._clock)
        for _ in range(_PLACES_MAX):
            head = await read_head(self._store, self._keys.trusted)
            linked = link_after(certificate, head)
            body = sign_certificate(linked, self._keys.private)
            if await take_place(self._store, linked, body, backoff):
                return linked
        raise AuditIncomplete(AUDIT, "other audits took every place in the chain: run it again")


def _manifest_task(
    audit: Audit, settings: AuditSettings, prefix: str, start_after: str, end_at: str | None
) -> ManifestTask:
    carried = audit.before.certificate.files("manifests") if audit.before else ()
    return ManifestTask(
        folder=audit.folder,
        prefix=prefix,
        start_after=start_after,
        end_at=end_at,
        shards=settings.shards,
        reads_max=settings.reads_max,
        carried=tuple(one for one in carried if _overlaps(one, prefix, start_after, end_at)),
        reread=settings.deep > 0.0,
    )


def _overlaps(file: EvidenceFile, prefix: str, start_after: str, end_at: str | None) -> bool:
    inside = end_at is None or file.first_key <= end_at
    return file.prefix == prefix and file.rows > 0 and file.last_key > start_after and inside


def make_certificate(
    audit: Audit, settings: AuditSettings, facts: Iterable[TaskFacts]
) -> Certificate:
    """Gives the certificate of an audit's facts, not yet in the chain.

    Raises:
        AuditIncomplete: The ranges of a prefix do not cover it.
    """
    ranges: dict[str, list[KeyRange]] = defaultdict(list)
    files: list[EvidenceFile] = []
    counts = AuditCounts()
    for one in facts:
        for prefix, covered in one.ranges:
            ranges[prefix].append(covered)
        files += one.files
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
            shown.last_date_unix_ns for one in coverage for shown in one.ranges
        ),
        clock_skew_ns=audit.clock_skew_ns,
        deep=settings.deep,
        shards=settings.shards,
        coverage=coverage,
        merkle_root=merkle_root_of(coverage),
        counts=counts,
        evidence=tuple(sorted(files, key=lambda one: (one.kind, one.place, one.key))),
    )


def link_after(certificate: Certificate, head: Link | None) -> Certificate:
    """Gives the certificate with the place that follows `head`."""
    if head is None:
        return certificate
    return msgspec.structs.replace(
        certificate,
        chain_index=head.certificate.chain_index + 1,
        previous_audit_id=head.certificate.audit_id,
        previous_sha256=head.sha256,
    )
