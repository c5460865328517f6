"""Execution of a plan: check the plan and its basis, then delete shard by shard, batch by batch.

The digests of a batch share their first byte. For each batch, in this order: the task reads the
basis again (authority, versioning, clocks), proves every candidate, writes the proofs with a
conditional create, deletes exactly the proved object versions, and marks the batch as done. After a
crash the next run repeats the batch as a new attempt and reads all evidence again.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Final

import msgspec
import pyarrow as pa

from sluice_gc.certificate import names_by_shard, read_certificate
from sluice_gc.deletion_proof import (
    ALL_CLAUSES,
    CandidateCase,
    ClauseSets,
    DeletionProof,
    proof_key,
    proofs_table,
    prove_deletion,
)
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.evidence_files import (
    CANDIDATES,
    digest_from_bytes,
    encode_proofs,
    read_names,
    read_table,
)
from sluice_gc.plan import (
    PlanBasis,
    check_approved,
    check_certificate_for,
    check_clock_fall,
    check_clocks,
    check_grace,
    check_not_stopped,
    check_plan_for,
    finished_key,
    newest_plan_id,
    read_stored_plan,
    stopped_key,
)
from sluice_gc.settings import RunSettings
from sluice_gc.signing_keys import TrustedKeys, public_texts, trusted_of
from sluice_gc.task_engine import TaskEngine
from sluice_gc.tombstones import TrustedTombstones, read_expired_now
from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import AuditResult, Candidate, Clause, MayDelete, MustKeep
from sluice_protocol.clock import Clock
from sluice_protocol.collection_records import (
    BatchDone,
    EvidenceFile,
    Plan,
    PlanStopped,
    SweepFacts,
)
from sluice_protocol.errors import OutcomeUnknown
from sluice_protocol.keys import GC_PLANS, blob_key, digest_of, trash_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Deleted, Found, NotFound
from sluice_protocol.units import Digest, ObjectKey, ObjectVersion, UnixNs
from sluice_store.authority import read_authority, read_store_time
from sluice_store.port import ObjectStore, Versioning, run_concurrently
from sluice_store.retry import (
    Backoff,
    OtherBytes,
    RetryBudget,
    create_known,
    create_once,
    overwrite_known,
)

_ATTEMPTS_MAX: Final = 1000


class SweepTask(msgspec.Struct, frozen=True, kw_only=True):
    """The deletion task for the candidates of one shard.

    Attributes:
        highest_ns: The latest reading of the store's clock, which must not go back.
        trusted: The public keys whose tombstones count, base64.
        deletes_per_s_max: The part of the limit of the settings for this task; 0 means no limit.
    """

    plan_id: str
    authority: Authority
    audit_id: str
    audit_started_at_ns: int
    highest_ns: int
    candidates: EvidenceFile
    names: tuple[EvidenceFile, ...]
    deletes_per_s_max: float
    settings: RunSettings
    trusted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateBatch:
    """At most `batch` candidates of one shard whose digests share the first digit, in order."""

    first: Digest
    last: Digest
    number: int
    rows: list[dict[str, object]]

    def done_key(self, plan_id: str) -> ObjectKey:
        """Return the key that marks the batch as finished."""
        return ObjectKey(f"{GC_PLANS}{plan_id}/done/{self.first[:8]}-{self.number:06d}.json")


@dataclass(slots=True)
class SweepState:
    """The state of a sweep across its batches."""

    store: ObjectStore
    task: SweepTask
    clock: Clock
    clauses: ClauseSets
    names: frozenset[bytes]
    tombstones: TrustedTombstones
    highest_ns: int
    backoff: Backoff
    facts: SweepFacts = field(default_factory=SweepFacts)


async def sweep_shard(
    store: ObjectStore, task: SweepTask, *, clock: Clock, clauses: ClauseSets = ALL_CLAUSES
) -> SweepFacts:
    """Prove and delete the candidates of one shard; safe to repeat at any time.

    If a proof cannot be written, nothing of its batch is deleted.
    """
    sweep = SweepState(
        store=store,
        task=task,
        clock=clock,
        clauses=clauses,
        names=await read_names(store, task.names),
        tombstones=TrustedTombstones(store, trusted_of(task.trusted), task.authority.authority_id),
        highest_ns=task.highest_ns,
        backoff=Backoff.seeded_by(clock),
    )
    table = await read_table(store, task.candidates, CANDIDATES)
    try:
        for batch in _split_batches(table, task.settings.batch):
            sweep.facts = sweep.facts.plus(await _sweep_batch(sweep, batch))
    except GcRefused as refused:
        await _mark_stopped(sweep, refused)
        raise
    return sweep.facts


async def _mark_stopped(sweep: SweepState, refused: GcRefused) -> None:
    """Stop every other task of this plan before its next batch."""
    if sweep.task.settings.dry_run:
        return
    plan_id = sweep.task.plan_id
    mark = PlanStopped(plan_id=plan_id, rule=refused.rule.value, reason=refused.reason)
    await create_known(sweep.store, stopped_key(plan_id), encode_record(mark), sweep.backoff)


def _split_batches(table: pa.Table, size: int) -> Iterator[CandidateBatch]:
    """Split candidates into batches by the plan alone, so that a run can resume."""
    rows = sorted(table.to_pylist(), key=lambda row: (row["sha256"], row["last_modified_ns"]))
    for _, group in groupby(rows, key=lambda row: row["sha256"][0] >> 4):
        mine = list(group)
        for number, at in enumerate(range(0, len(mine), size)):
            part = mine[at : at + size]
            first, last = (digest_from_bytes(one["sha256"]) for one in (part[0], part[-1]))
            yield CandidateBatch(first=first, last=last, number=number, rows=part)


async def _sweep_batch(sweep: SweepState, batch: CandidateBatch) -> SweepFacts:
    store, task = sweep.store, sweep.task
    done = await store.head(batch.done_key(task.plan_id))
    if not isinstance(done, NotFound):
        return SweepFacts(skipped=1)
    versioning = await check_basis(sweep)
    cases = [_candidate_case(sweep, row, versioning) for row in batch.rows]
    proofs = await _prove_all(sweep, cases)
    going = [one for one in proofs if isinstance(one.verdict, MayDelete)]
    kept = Counter(one.verdict.clause.value for one in proofs if isinstance(one.verdict, MustKeep))
    if task.settings.dry_run:
        return SweepFacts(would_go=len(going), kept=dict(kept))
    stop_if_versioning_off(proofs)
    await _write_proofs(sweep, batch, proofs)
    unread = sum(one.evidence.now_ns is None for one in proofs)
    facts = SweepFacts(kept=dict(kept), unread=unread, batches=1)
    facts = facts.plus(await _delete_all(sweep, going))
    if facts.complete:
        mark = encode_record(BatchDone(plan_id=task.plan_id, facts=facts))
        await create_known(store, batch.done_key(task.plan_id), mark, sweep.backoff)
    return facts


async def check_basis(sweep: SweepState) -> bool:
    """Read and check the basis of the next batch again; return True if versioning is `Enabled`.

    Refuse if the plan was stopped, the authority changed, or a clock is wrong.
    """
    store, task = sweep.store, sweep.task
    await check_not_stopped(store, task.plan_id)
    now_ns = await read_store_time(store)
    check_clock_fall(sweep.highest_ns, now_ns, task.authority)
    sweep.highest_ns = max(sweep.highest_ns, now_ns)
    check_clocks(sweep.clock.now_ns(), now_ns, task.settings.clock_skew_s_max)
    if await read_authority(store) != task.authority:
        raise GcRefused(
            RefusalRule.OTHER_AUTHORITY, "the settings of the authority changed during the run"
        )
    return await store.read_versioning() is Versioning.ENABLED


def stop_if_versioning_off(proofs: list[DeletionProof]) -> None:
    """Refuse to continue if versioning is no longer `Enabled`."""
    for proof in proofs:
        if isinstance(proof.verdict, MustKeep) and proof.verdict.clause is Clause.VERSIONING:
            raise GcRefused(RefusalRule.VERSIONING, "versioning is no longer Enabled; enable it")


def _candidate_case(sweep: SweepState, row: dict[str, object], versioning: bool) -> CandidateCase:  # noqa: FBT001
    task = sweep.task
    sha256, stamp, size = row["sha256"], row["last_modified_ns"], row["size_bytes"]
    if not isinstance(sha256, bytes) or not isinstance(stamp, int) or not isinstance(size, int):
        raise GcRefused(
            RefusalRule.PLAN_INVALID, f"a candidate has the wrong form, plan_id={task.plan_id}"
        )
    digest = digest_from_bytes(sha256)
    return CandidateCase(
        candidate=Candidate(
            key=blob_key(digest),
            digest=digest,
            incarnation=ObjectVersion(str(row["incarnation"])),
            last_modified_ns=UnixNs(stamp),
            size_bytes=size,
        ),
        noncurrent=bool(row["superseded"]),
        audit=AuditResult(
            audit_id=task.audit_id,
            started_at_ns=UnixNs(task.audit_started_at_ns),
            complete=True,
            names_blob=sha256 in sweep.names,
        ),
        retry_horizon_ns=task.authority.retry_horizon_ns,
        versioning_enabled=versioning,
    )


async def _prove_all(sweep: SweepState, cases: list[CandidateCase]) -> list[DeletionProof]:
    proofs: dict[int, DeletionProof] = {}
    expired = await read_expired_now(sweep.store, sweep.tombstones)

    async def one(at: int) -> None:
        proofs[at] = await prove_deletion(sweep.store, cases[at], sweep.clauses, expired=expired)

    concurrency = sweep.task.settings.proofs_at_once
    await run_concurrently(range(len(cases)), one, concurrency=concurrency)
    return [proofs[at] for at in range(len(cases))]


async def _write_proofs(
    sweep: SweepState, batch: CandidateBatch, proofs: list[DeletionProof]
) -> None:
    """Write the proofs under the key of the next attempt; earlier attempts are not changed."""
    body = encode_proofs(proofs_table(sweep.task.plan_id, proofs))
    for attempt in range(_ATTEMPTS_MAX):
        key = proof_key(sweep.task.plan_id, batch.first, batch.last, batch.number, attempt)
        outcome = await create_once(sweep.store, key, body, sweep.backoff)
        if not isinstance(outcome, OtherBytes):
            return
    raise GcRefused(RefusalRule.PLAN_INVALID, f"too many attempts, batch={batch.first}")


async def _delete_all(sweep: SweepState, going: list[DeletionProof]) -> SweepFacts:
    facts = SweepFacts()
    rate = sweep.task.deletes_per_s_max
    for proof in going:
        candidate = proof.case.candidate
        undo = sweep.task.settings.undo
        if undo and not await copy_to_trash(sweep.store, candidate, sweep.backoff):
            facts = facts.plus(SweepFacts(kept={"undo": 1}))
            continue
        if await delete_version(sweep.store, candidate, sweep.backoff):
            facts = facts.plus(SweepFacts(deleted=1, deleted_bytes=candidate.size_bytes))
        else:
            facts = facts.plus(SweepFacts(unknown=1))
        if rate > 0:
            await sweep.clock.sleep(1 / rate)
    return facts


async def copy_to_trash(store: ObjectStore, candidate: Candidate, backoff: Backoff) -> bool:
    """Copy a blob to the trash before its deletion; an older copy is replaced.

    Return True if a correct copy exists. A blob whose bytes do not hash to its key is not copied.
    After `OutcomeUnknown`, nothing was deleted.
    """
    read = await store.get(candidate.key)
    if not isinstance(read, Found) or digest_of(read.body) != candidate.digest:
        return False
    await overwrite_known(store, trash_key(candidate.digest), read.body, backoff)
    return True


async def delete_version(store: ObjectStore, candidate: Candidate, backoff: Backoff) -> bool:
    """Delete one object version; retry while the outcome is unknown.

    Return True if the version is known to be deleted. A late or repeated delete affects no other
    version.
    """
    budget = RetryBudget("delete", candidate.key, backoff)
    try:
        while not isinstance(await store.delete(candidate.key, candidate.incarnation), Deleted):
            await budget.wait_or_raise()
    except OutcomeUnknown:
        return False
    return True


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; a dry run stopped after the proofs."""

    plan_id: str
    dry_run: bool
    facts: SweepFacts

    @property
    def found_wrong(self) -> bool:
        """Return True if the plan must be run again."""
        return not self.facts.complete


class PlanRunner:
    """The execution of plans on one store.

    Tests replace `clauses` to show what each clause prevents.
    """

    def __init__(
        self,
        store: ObjectStore,
        engine: TaskEngine,
        trusted: TrustedKeys,
        clock: Clock,
        clauses: ClauseSets = ALL_CLAUSES,
    ) -> None:
        self._store = store
        self._engine = engine
        self._trusted = trusted
        self._clock = clock
        self._clauses = clauses

    async def run(self, plan_id: str | None, settings: RunSettings) -> RunReport:
        """Delete the candidates of a plan that every clause still allows; safe to repeat.

        Without an id, the newest plan.
        """
        plan_id = plan_id or await newest_plan_id(self._store)
        stored = await read_stored_plan(self._store, self._trusted, plan_id)
        plan = stored.plan
        if not settings.dry_run:
            required = settings.require_approval
            await check_approved(self._store, plan_id, stored.sha256, required=required)
        basis = await self._read_basis(plan, settings)
        work = partial(sweep_shard, clock=self._clock, clauses=self._clauses)
        facts = SweepFacts()
        tasks = sweep_tasks(plan, basis, settings, self._engine.parallelism, self._trusted)
        for one in await self._engine.run(work, tasks):
            facts = facts.plus(one)
        if not settings.dry_run and facts.complete:
            backoff = Backoff.seeded_by(self._clock)
            await create_known(self._store, finished_key(plan_id), b"{}", backoff)
        return RunReport(plan_id=plan_id, dry_run=settings.dry_run, facts=facts)

    async def _read_basis(self, plan: Plan, settings: RunSettings) -> PlanBasis:
        authority = await read_authority(self._store)
        link = await read_certificate(self._store, plan.audit_id, self._trusted)
        check_certificate_for(authority, link.certificate)
        await check_not_stopped(self._store, plan.plan_id)
        check_plan_for(plan, link.certificate, link.sha256)
        now_ns = await read_store_time(self._store)
        check_clocks(self._clock.now_ns(), now_ns, settings.clock_skew_s_max)
        check_clock_fall(plan.made_at_unix_ns, now_ns, authority)
        versioning = await self._store.read_versioning()
        if not settings.dry_run:
            check_grace(plan, now_ns, settings.grace_s)
            if versioning is not Versioning.ENABLED:
                raise GcRefused(
                    RefusalRule.VERSIONING,
                    f"versioning is {versioning.value}; a run requires versioning Enabled",
                )
        return PlanBasis(authority=authority, link=link, now_ns=now_ns, versioning=versioning)


def sweep_tasks(
    plan: Plan,
    basis: PlanBasis,
    settings: RunSettings,
    parallelism: int,
    trusted: TrustedKeys,
) -> list[SweepTask]:
    """Return one task per shard with candidates; the tasks share the rate limit.

    Refuse candidates of a shard that the certificate does not have.
    """
    certificate = basis.link.certificate
    names = names_by_shard(certificate)
    if any(file.place not in names for file in plan.candidates):
        raise GcRefused(
            RefusalRule.PLAN_INVALID, "the plan has shards that its certificate does not have"
        )
    share = min(parallelism, max(len(plan.candidates), 1))
    return [
        SweepTask(
            plan_id=plan.plan_id,
            authority=basis.authority,
            audit_id=certificate.audit_id,
            audit_started_at_ns=certificate.started_at_unix_ns,
            highest_ns=basis.now_ns,
            candidates=file,
            names=names[file.place],
            deletes_per_s_max=settings.deletes_per_s_max / share,
            settings=settings,
            trusted=public_texts(trusted),
        )
        for file in plan.candidates
    ]
