"""A run of expiry: prove that batches may expire, and record it in signed tombstones.

The newest certificate names the manifests that are older than the rule and whose blob exists. A run
reads each of them itself, compares its blob with the tables in a Spark job, and creates one
tombstone for up to 10,000 batches that were accepted within a week. A tombstone deletes nothing; a
plan made after the next audit does. A run may be killed at any request: a batch is either named by
a tombstone, or the next run proves it again.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
import pyarrow as pa

from sluice_gc.certificate import ChainLink
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.evidence_files import EXPIRING, read_tables
from sluice_gc.plan import read_plan_basis
from sluice_gc.settings import ExpireSettings
from sluice_gc.signing_keys import AuditorKeys
from sluice_gc.tombstones import TrustedTombstones, read_commit, sign_tombstone
from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import MustKeep
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import InvalidRecord, InvariantViolated
from sluice_protocol.expiry import (
    ERASURE_CLAUSES,
    EXPIRY_CLAUSES,
    REFUSED_CLAUSES,
    TOMBSTONE_BATCHES_MAX,
    TOMBSTONE_HOURS_MAX,
    BatchCheck,
    BatchEvidence,
    Holds,
    RetentionDecision,
    RowTally,
    TableVersion,
    Tombstone,
    decide_expiry,
    encode_tombstone,
    group_by_boot,
    keep_s_least,
)
from sluice_protocol.fields import Kind
from sluice_protocol.identity import Identity
from sluice_protocol.keys import QUARANTINE_CONFLICTS, hour_of, parse_quarantine_key
from sluice_protocol.manifests import AcceptedManifest, ConflictManifest, decode_accepted
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_spark.read_back import BatchComparison, ComparedBatch, QueueFacts, read_queues
from sluice_store.authority import read_store_time
from sluice_store.port import ObjectStore, read_bodies
from sluice_store.retry import Backoff, OtherBytes, create_once
from sluice_store.stored_expiry import read_holds, read_retention

BATCHES_TOGETHER: Final = 10_000
"""Batches that one job compares: about 1 KiB each on the driver."""
QUARANTINED_MAX: Final = 1_000_000
"""Quarantine manifests that are listed; with more, nothing expires."""
_DAY_S: Final = 86_400

Compare = Callable[[Sequence[AcceptedManifest]], BatchComparison]
"""`compare_batches` of one session and store."""
Proved = tuple[AcceptedManifest, ComparedBatch]
"""A batch of which every clause is true, with what was compared."""


class ExpireReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run.

    Attributes:
        rule: The decision about retention; null if nothing was ever decided.
        candidates: Batches that are older than the rule, and whose blob exists.
        expired: Batches that were proved; with `dry_run`, those that would expire.
        expired_bytes: The size of their blobs.
        kept: Candidates that were kept, by clause.
    """

    run_id: str
    dry_run: bool
    rule: RetentionDecision | None
    candidates: int = 0
    expired: int = 0
    expired_bytes: int = 0
    tombstones: int = 0
    kept: dict[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryCause:
    """Why batches expire: a decision about retention, or the erasure with an id."""

    rule: int = 0
    keep_s: int = 0
    erasure: str = ""

    @property
    def clauses(self) -> tuple[BatchCheck, ...]:
        """What has to be proved."""
        return ERASURE_CLAUSES if self.erasure else EXPIRY_CLAUSES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Basis:
    """What a run rests on; all of it was read before the batches."""

    authority: Authority
    link: ChainLink
    cause: ExpiryCause
    now_ns: UnixNs

    @property
    def audit_found_wrong(self) -> bool:
        """Whether audits found more than missing blobs, whose manifests may have caused no 200."""
        counts = self.link.certificate.counts
        return msgspec.structs.replace(counts, missing_blobs=0).found_wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class _AcceptedBasis(_Basis):
    """The same for accepted batches. `quarantined` is read only for a rule."""

    queues: QueueFacts
    quarantined: frozenset[Identity] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryCandidate:
    """A manifest that was read, when it appeared, and how many records an erasure selects."""

    manifest: AcceptedManifest
    appeared_at_ns: UnixNs
    matches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCandidate:
    """Refused bytes of a conflict, when they appeared, and how many records an erasure selects."""

    conflict: ConflictManifest
    appeared_at_ns: UnixNs
    matches: int


class ExpiryRun:
    """One run over one store. `compare` is called outside of any event loop."""

    def __init__(
        self, store: ObjectStore, compare: Compare, keys: AuditorKeys, clock: Clock, ids: IdSource
    ) -> None:
        self._store = store
        self._compare = compare
        self._keys = keys
        self._clock = clock
        self._run_id = ids.ulid()
        self._parts = 0
        self._kept: Counter[str] = Counter()

    async def run(self, settings: ExpireSettings) -> ExpireReport:
        """Prove the candidates of the newest certificate, and create tombstones.

        Raises:
            GcRefused: A safety rule is violated; nothing more expires.
        """
        rule = await read_retention(self._store)
        if rule is None or rule.raw_keep_s is None:
            return ExpireReport(run_id=self._run_id, dry_run=settings.dry_run, rule=rule)
        cause = ExpiryCause(rule=rule.number, keep_s=rule.raw_keep_s)
        basis = await self._read_accepted_basis(cause, settings)
        rows = await read_tables(self._store, basis.link.certificate.files("expiring"), EXPIRING)
        _check_amount(basis, len(rows), settings.max_expire_ratio)
        report = ExpireReport(
            run_id=self._run_id, dry_run=settings.dry_run, rule=rule, candidates=len(rows)
        )
        for chunk in _chunks(rows):
            report = await self._expire(basis, settings, await self._read(chunk), report)
        return report

    async def erase(
        self, erasure_id: str, candidates: Sequence[ExpiryCandidate], settings: ExpireSettings
    ) -> ExpireReport:
        """Prove batches with records of an erasure, and create tombstones.

        A batch that its clauses keep is counted; a later run proves it again.
        """
        basis = await self._read_accepted_basis(ExpiryCause(erasure=erasure_id), settings)
        ordered = sorted(candidates, key=lambda one: one.manifest.accepted_at_unix_ns)
        report = ExpireReport(
            run_id=self._run_id, dry_run=settings.dry_run, rule=None, candidates=len(ordered)
        )
        for at in range(0, len(ordered), BATCHES_TOGETHER):
            some = ordered[at : at + BATCHES_TOGETHER]
            report = await self._expire(basis, settings, some, report)
        return report

    async def erase_refused(
        self, erasure_id: str, candidates: Sequence[RefusedCandidate], settings: ExpireSettings
    ) -> ExpireReport:
        """Create tombstones for refused bytes with records of an erasure."""
        basis = await self._read_basis(ExpiryCause(erasure=erasure_id), settings)
        holds = await read_holds(self._store)
        going: list[ConflictManifest] = []
        for one in candidates:
            verdict = decide_expiry(_refused_evidence(basis, one, holds), REFUSED_CLAUSES)
            if isinstance(verdict, MustKeep):
                self._kept[verdict.clause.value] += 1
            else:
                going.append(one.conflict)
        made = list(_split_tombstones(going, lambda one: one.observed_at_unix_ns))
        for some in made:
            hours = [hour_of(one.observed_at_unix_ns) for one in some]
            named = [(one.identity, Digest(one.submitted_frame_sha256)) for one in some]
            await self._create(basis, hours, named, refused=True)
        return ExpireReport(
            run_id=self._run_id,
            dry_run=False,
            rule=None,
            candidates=len(candidates),
            expired=len(going),
            tombstones=len(made),
            kept=dict(self._kept),
        )

    async def _expire(
        self,
        basis: _AcceptedBasis,
        settings: ExpireSettings,
        candidates: Sequence[ExpiryCandidate],
        report: ExpireReport,
    ) -> ExpireReport:
        """Prove some batches and record those that expire; return the report with them."""
        proved, comparison = await self._prove(basis, settings, candidates)
        created = 0
        if proved and not settings.dry_run:
            created = await self._record(basis, proved, comparison)
        return msgspec.structs.replace(
            report,
            expired=report.expired + len(proved),
            expired_bytes=report.expired_bytes + sum(one.frame_bytes for one, _ in proved),
            tombstones=report.tombstones + created,
            kept=dict(self._kept),
        )

    async def _read_basis(self, cause: ExpiryCause, settings: ExpireSettings) -> _Basis:
        basis = await read_plan_basis(
            self._store, self._keys.trusted, self._clock, settings.clock_skew_s_max, None
        )
        return _Basis(authority=basis.authority, link=basis.link, cause=cause, now_ns=basis.now_ns)

    async def _read_accepted_basis(
        self, cause: ExpiryCause, settings: ExpireSettings
    ) -> _AcceptedBasis:
        basis = await self._read_basis(cause, settings)
        # Discovery and the queues are read before the tables (see `read_back`).
        queues = await read_queues(self._store)
        return _AcceptedBasis(
            authority=basis.authority,
            link=basis.link,
            cause=cause,
            now_ns=basis.now_ns,
            queues=queues,
            quarantined=None if cause.erasure else await self._read_quarantined(),
        )

    async def _read_quarantined(self) -> frozenset[Identity] | None:
        found: set[Identity] = set()
        async for page in self._store.list(QUARANTINE_CONFLICTS):
            for one in page.objects:
                try:
                    found.add(parse_quarantine_key(one.key)[0])
                except InvalidRecord:
                    return None  # it is unknown which identity it is of
            if len(found) > QUARANTINED_MAX:
                return None
        return frozenset(found)

    async def _read(self, rows: pa.Table) -> list[ExpiryCandidate]:
        """Read the manifests; one that another tombstone of this certificate names is left out."""
        keys = [ObjectKey(key) for key in rows["key"].to_pylist()]
        bodies = await read_bodies(self._store, keys)
        named = zip(rows["sha256"].to_pylist(), rows["last_modified_ns"].to_pylist(), strict=True)
        found: list[ExpiryCandidate] = []
        for key, body, (sha256, appeared_ns) in zip(keys, bodies, named, strict=True):
            try:
                manifest = None if body is None else decode_accepted(key, body)
            except InvalidRecord:
                manifest = None
            if manifest is None or bytes.fromhex(manifest.digest) != sha256:
                self._kept["manifest"] += 1
                continue
            found.append(ExpiryCandidate(manifest=manifest, appeared_at_ns=UnixNs(appeared_ns)))
        return sorted(found, key=lambda one: one.manifest.accepted_at_unix_ns)

    async def _prove(
        self, basis: _AcceptedBasis, settings: ExpireSettings, candidates: Sequence[ExpiryCandidate]
    ) -> tuple[list[Proved], BatchComparison]:
        """Return the batches of which every clause is true, with what was compared."""
        certificate = basis.link.certificate
        authority_id = basis.authority.authority_id
        tombstones = TrustedTombstones(self._store, self._keys.trusted, authority_id)
        fresh: list[ExpiryCandidate] = []
        for one in candidates:
            found = await tombstones.find(one.manifest)
            if found is not None and found.made_at_unix_ns >= certificate.started_at_unix_ns:
                self._kept["expired"] += 1
            else:
                fresh.append(one)
        if not fresh:
            return [], BatchComparison(batches={}, versions={}, deletes=0)
        comparison = await asyncio.to_thread(self._compare, [one.manifest for one in fresh])
        holds = await read_holds(self._store)
        proved = []
        for one in fresh:
            compared = comparison.batches.get(one.manifest.identity, ComparedBatch())
            evidence = _evidence(basis, settings, one, compared, holds)
            verdict = decide_expiry(evidence, basis.cause.clauses)
            if isinstance(verdict, MustKeep):
                self._kept[verdict.clause.value] += 1
            else:
                proved.append((one.manifest, compared))
        return proved, comparison

    async def _record(
        self,
        basis: _Basis,
        proved: Sequence[Proved],
        comparison: BatchComparison,
    ) -> int:
        """Create the tombstones of proved batches; return their number."""
        states = await self._read_states(comparison.versions)
        count = 0
        for batches in _split_tombstones(proved, lambda one: one[0].accepted_at_unix_ns):
            compared: dict[Kind, RowTally] = {}
            for manifest, one in batches:
                if one.table_rows is None:
                    raise InvariantViolated("a batch expires only if its rows were compared")
                sum_ = compared.get(manifest.kind)
                compared[manifest.kind] = one.table_rows.plus(sum_) if sum_ else one.table_rows
            await self._create(
                basis,
                [hour_of(one.accepted_at_unix_ns) for one, _ in batches],
                [(one.identity, one.digest) for one, _ in batches],
                tables=states,
                deletes=comparison.deletes,
                compared=compared,
            )
            count += 1
        return count

    async def _create(  # noqa: PLR0913 - the fields of the tombstone
        self,
        basis: _Basis,
        hours: Sequence[int],
        named: Iterable[tuple[Identity, Digest]],
        *,
        tables: Mapping[str, TableVersion] | None = None,
        deletes: int = 0,
        compared: Mapping[Kind, RowTally] | None = None,
        refused: bool = False,
    ) -> None:
        """Create the next tombstone of the run."""
        tombstone = Tombstone(
            run_id=self._run_id,
            part=self._parts,
            first_hour=hours[0],
            last_hour=hours[-1],
            authority_id=basis.authority.authority_id,
            rule=basis.cause.rule,
            keep_s=basis.cause.keep_s,
            erasure=basis.cause.erasure,
            refused=refused or msgspec.UNSET,
            audit_id=basis.link.certificate.audit_id,
            certificate_sha256=basis.link.sha256,
            tables=dict(tables or {}),
            deletes=deletes,
            made_at_unix_ns=await read_store_time(self._store),
            compared=dict(compared or {}),
            boots=group_by_boot(named),
        )
        body = encode_tombstone(sign_tombstone(tombstone, self._keys.private))
        backoff = Backoff.seeded_by(self._clock)
        if isinstance(await create_once(self._store, tombstone.key, body, backoff), OtherBytes):
            raise InvariantViolated(
                f"another tombstone exists under a new id, key=`{tombstone.key}`"
            )
        self._parts += 1

    async def _read_states(self, versions: Mapping[str, int]) -> dict[str, TableVersion]:
        states = {}
        for name, version in versions.items():
            sha256 = await read_commit(self._store, name, version)
            if sha256 is None:
                raise GcRefused(
                    RefusalRule.TABLE_CHANGED,
                    f"the log of table {name} has no entry of version {version}; run it again",
                )
            states[name] = TableVersion(version=version, commit_sha256=Digest(sha256))
        return states


def _evidence(
    basis: _AcceptedBasis,
    settings: ExpireSettings,
    one: ExpiryCandidate,
    compared: ComparedBatch,
    holds: Holds,
) -> BatchEvidence:
    manifest, queues = one.manifest, basis.queues
    who = manifest.identity
    return BatchEvidence(
        named=manifest.digest,
        accepted_at_ns=manifest.accepted_at_ns,
        retry_horizon_ns=basis.authority.retry_horizon_ns,
        keep_ns=basis.cause.keep_s * NS_PER_S,
        vacuum_ns=basis.authority.retry_horizon_ns + settings.vacuum_hours * 3600 * NS_PER_S,
        now_ns=basis.now_ns,
        appeared_at_ns=one.appeared_at_ns,
        audit_started_at_ns=UnixNs(basis.link.certificate.started_at_unix_ns),
        audit_found_wrong=basis.audit_found_wrong,
        blob=compared.blob,
        ledger=compared.ledger,
        blob_rows=compared.blob_rows,
        table_rows=compared.table_rows,
        enqueued=queues.enqueued_before_ns > max(one.appeared_at_ns, manifest.accepted_at_ns),
        unacknowledged=None if queues.pending is None else who in queues.pending,
        dead_letter=compared.dead_letter,
        quarantined=None if basis.quarantined is None else who in basis.quarantined,
        held=holds.covers(manifest),
        matches=one.matches,
    )


def _refused_evidence(basis: _Basis, one: RefusedCandidate, holds: Holds) -> BatchEvidence:
    return BatchEvidence(
        named=Digest(one.conflict.submitted_frame_sha256),
        accepted_at_ns=UnixNs(one.conflict.observed_at_unix_ns),
        retry_horizon_ns=basis.authority.retry_horizon_ns,
        appeared_at_ns=one.appeared_at_ns,
        audit_started_at_ns=UnixNs(basis.link.certificate.started_at_unix_ns),
        audit_found_wrong=basis.audit_found_wrong,
        held=holds.covers(one.conflict),
        matches=one.matches,
    )


_Batch = TypeVar("_Batch")


def _split_tombstones(
    batches: Sequence[_Batch], at_ns: Callable[[_Batch], int]
) -> Iterator[Sequence[_Batch]]:
    """Yield the batches of each tombstone, in the order of their acceptance or refusal."""
    ordered = sorted(batches, key=at_ns)
    hours = [hour_of(at_ns(one)) for one in ordered]
    at = 0
    while at < len(ordered):
        end = bisect_left(hours, hours[at] + TOMBSTONE_HOURS_MAX, lo=at)
        end = min(end, at + TOMBSTONE_BATCHES_MAX)
        yield ordered[at:end]
        at = end


def _chunks(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the candidates in the order of their times, so that a chunk has few hours."""
    ordered = rows.sort_by("last_modified_ns")
    for at in range(0, len(ordered), BATCHES_TOGETHER):
        yield ordered.slice(at, BATCHES_TOGETHER)


def _check_amount(basis: _Basis, candidates: int, max_expire_ratio: float) -> None:
    """Refuse a run that would let too many of the batches expire that have not yet."""
    counts = basis.link.certificate.counts
    left = counts.accepted - (counts.expired or 0)
    if candidates > max_expire_ratio * max(left, 1):
        raise GcRefused(
            RefusalRule.EXPIRE_RATIO,
            f"{candidates} of {left} batches would expire, max_expire_ratio={max_expire_ratio:.0%};"
            f" the rule is {basis.cause.keep_s / _DAY_S:g} days and at least"
            f" {keep_s_least(basis.authority) / _DAY_S:g}: check it before you raise the limit",
        )
