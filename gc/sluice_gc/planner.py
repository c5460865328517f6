"""Creation of a plan from a certificate: the candidates of each shard. Deletes nothing.

Candidates are a join of the object versions with the names, and of the clauses. Whole columns are
compared in Arrow. A property test compares the result with the clauses of
`sluice_protocol.blob_deletion`: both select the same rows.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice_gc.certificate import ShardFiles, shard_files
from sluice_gc.eligible_versions import (
    LeftOut,
    Mask,
    are_named,
    join_names,
    left_out_of,
    tally_rows,
)
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.evidence_files import BLOBS, CANDIDATES, NAMES, put_blobs, put_table, read_tables
from sluice_gc.plan import (
    AGE_DAYS,
    SIZE_LIMITS,
    PlanBasis,
    check_amount,
    check_horizon_covered,
    plan_key,
    read_plan_basis,
    sign_plan,
)
from sluice_gc.settings import PlanSettings
from sluice_gc.signing_keys import AuditorKeys
from sluice_gc.task_engine import TaskEngine
from sluice_protocol.blob_deletion import Clause
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.collection_records import (
    EvidenceFile,
    Plan,
    PlanSummary,
    TallyBucket,
    VersionTally,
)
from sluice_protocol.errors import InvariantViolated, SluiceError
from sluice_protocol.keys import GC_PLANS
from sluice_protocol.units import NS_PER_S, NULL_VERSION, UnixNs
from sluice_store.port import ObjectStore, Versioning
from sluice_store.retry import Backoff, OtherBytes, create_once


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRule:
    """The facts that apply to every row of a plan.

    The certificate was verified and is complete. All times are the store's.

    Attributes:
        versioning_enabled: Versioning is `Enabled`.
    """

    now_ns: UnixNs
    retry_horizon_ns: int
    versioning_enabled: bool
    audit_id: str
    audit_started_at_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSelection:
    """The candidates of one shard as rows of `CANDIDATES`, and what is kept.

    `kept` is by the first clause that keeps a version. `blobs` counts all current object versions,
    `orphans` those among the candidates.
    """

    candidates: pa.Table
    kept: Mapping[Clause, VersionTally]
    blobs: VersionTally
    orphans: VersionTally
    expired: VersionTally


def select_candidates(
    blobs: pa.Table,
    names: pa.ChunkedArray,
    rule: PlanRule,
    left_out: LeftOut,
    expired: pa.ChunkedArray | None = None,
) -> CandidateSelection:
    """Return the object versions of a shard that the clauses of a plan allow to delete.

    `names` has every sha256 of the shard that a manifest or reverse reference names. `left_out` are
    the versions that the audit's own join left out of `blobs`. `expired` are the sha256 of expired
    batches.
    """
    joined = join_names(blobs, names)
    left_out = joined.left_out.plus(left_out)
    kept = {Clause.AUDIT: left_out.audit, Clause.LISTED: left_out.listed}
    rest, superseded = joined.rows, joined.named
    rest_sizes, open_rows = rest["size_bytes"].to_numpy(), np.ones(len(rest), bool)
    for clause, keep in _kept_rows(rest, rule):
        kept[clause] = tally_rows(rest_sizes, open_rows & keep)
        open_rows &= ~keep
    unnamed = tally_rows(rest_sizes, ~superseded)
    if not open_rows.all():
        rest, superseded = rest.filter(pa.array(open_rows)), superseded[open_rows]
    of_batches = np.zeros(len(rest), bool)
    if expired is not None and len(expired):
        of_batches = are_named(rest["sha256"], expired) & ~superseded
    candidates = _rows(rest, superseded, rule)
    return CandidateSelection(
        candidates=candidates,
        kept=kept,
        blobs=left_out.audit.plus(unnamed),
        orphans=tally_rows(candidates["size_bytes"].to_numpy(), ~superseded & ~of_batches),
        expired=tally_rows(candidates["size_bytes"].to_numpy(), of_batches),
    )


def _kept_rows(rest: pa.Table, rule: PlanRule) -> Iterator[tuple[Clause, Mask]]:
    """Yield, clause by clause, the rows that it keeps; the most informative clause is first.

    Versioning is only recorded: without it a plan can be made but not run. `rest` has the rows that
    `AUDIT` and `LISTED` do not keep. A noncurrent version is deleted only if the current one is
    referenced, which the run reads completely; without a reference it is kept until it is the
    current version.
    """
    stamp = rest["last_modified_ns"].to_numpy()
    yield Clause.INCARNATION, pc.is_in(rest["incarnation"], value_set=_NULLS).to_numpy()
    yield Clause.AGE, stamp >= rule.now_ns - rule.retry_horizon_ns
    yield Clause.CERTIFICATE, stamp >= rule.audit_started_at_ns - rule.retry_horizon_ns


_NULLS = pa.array([NULL_VERSION, ""])


def _rows(chosen: pa.Table, named: Mask, rule: PlanRule) -> pa.Table:
    count = len(chosen)

    def same(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), count)

    is_named = pa.array(named)
    return pa.table(
        [
            *(chosen[name] for name in ("sha256", "incarnation", "last_modified_ns", "size_bytes")),
            is_named,
            same(rule.versioning_enabled, pa.bool_()),
            same(rule.now_ns, pa.int64()),
            same(rule.retry_horizon_ns, pa.int64()),
            same(rule.audit_id, pa.string()),
            same(rule.audit_started_at_ns, pa.int64()),
            is_named,
        ],
        schema=CANDIDATES,
    )


_NS_PER_DAY: Final = 86_400 * NS_PER_S

Column = npt.NDArray[np.int64]


class ShardPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a plan for one shard; `file` is None without candidates.

    Its summary has every clause that a plan checks.
    """

    file: EvidenceFile | None
    summary: PlanSummary


def summarize(selection: CandidateSelection, rule: PlanRule) -> PlanSummary:
    """Return the summary of the selection of one shard."""
    rows = selection.candidates
    sizes = rows["size_bytes"].to_numpy()
    ages = rule.now_ns - rows["last_modified_ns"].to_numpy()
    return PlanSummary(
        blobs=selection.blobs,
        orphans=selection.orphans,
        superseded=VersionTally(
            incarnations=len(rows)
            - selection.orphans.incarnations
            - selection.expired.incarnations,
            bytes=int(sizes.sum()) - selection.orphans.bytes - selection.expired.bytes,
        ),
        expired=selection.expired if selection.expired.incarnations else msgspec.UNSET,
        kept={clause.value: tally for clause, tally in selection.kept.items()},
        by_size=_buckets(sizes, sizes, SIZE_LIMITS, 1),
        by_age=_buckets(sizes, ages, AGE_DAYS, _NS_PER_DAY),
    )


def _buckets(
    sizes: Column, values: Column, limits: tuple[int, ...], unit: int
) -> tuple[TallyBucket, ...]:
    """Return the histogram of the rows; each bucket includes its upper limit."""
    places = np.searchsorted(np.array([limit * unit for limit in limits]), values, side="left")
    return tuple(
        TallyBucket(up_to=limit, tally=tally_rows(sizes, places == at))
        for at, limit in enumerate((*limits, None))
    )


_TASKS_PER_CORE: Final = 2
"""A task reads the next shard while it joins one; a task with one shard has nothing to overlap."""
_TASK_ROWS_LEAST: Final = 500_000
TASKS_TOGETHER: Final = 2
"""Tasks that one process runs concurrently: each has the tables of about two shards in memory."""

_WRITES_AT_ONCE: Final = 4


class PlanTask(msgspec.Struct, frozen=True, kw_only=True):
    """The plan task for one shard, or for several in sequence.

    Attributes:
        shards: Each has files of names, and files of blobs or of eligible versions.
        expired: The files with the sha256 of expired batches, of any shard.
    """

    folder: str
    shards: tuple[ShardFiles, ...]
    rule: PlanRule
    expired: tuple[EvidenceFile, ...] = ()


class Planner:
    """The creation of plans for one store."""

    def __init__(
        self, store: ObjectStore, engine: TaskEngine, keys: AuditorKeys, clock: Clock, ids: IdSource
    ) -> None:
        self._store = store
        self._engine = engine
        self._keys = keys
        self._clock = clock
        self._ids = ids

    async def plan(
        self,
        settings: PlanSettings,
        audit_id: str | None = None,
        inventory: pa.Table | None = None,
    ) -> Plan:
        """Make a plan and write it under `gc/v1/plans/`.

        Without an audit id, use the newest certificate; without an inventory (rows of `BLOBS`,
        verified), the object versions of the audit.
        """
        basis = await read_plan_basis(
            self._store, self._keys.trusted, self._clock, settings.clock_skew_s_max, audit_id
        )
        plan_id = self._ids.ulid()
        blobs = await self._blobs(basis, plan_id, inventory)
        tasks = tasks_of_plan(basis, plan_id, self._engine.parallelism, blobs)
        found = await self._engine.run(
            partial(plan_shards, clock=self._clock), tasks, together=TASKS_TOGETHER
        )
        plan = make_plan(plan_id, basis, [shard for group in found for shard in group])
        check_horizon_covered(plan.summary)
        check_amount(plan.summary, settings.max_delete_ratio)
        body = sign_plan(plan, self._keys.private)
        backoff = Backoff.seeded_by(self._clock)
        if isinstance(await create_once(self._store, plan_key(plan_id), body, backoff), OtherBytes):
            raise InvariantViolated(f"another plan exists under a new id, plan_id=`{plan_id}`")
        return plan

    async def _blobs(
        self, basis: PlanBasis, plan_id: str, inventory: pa.Table | None
    ) -> Iterable[EvidenceFile]:
        certificate = basis.link.certificate
        if inventory is not None:
            folder = f"{GC_PLANS}{plan_id}/"
            return await put_blobs(
                self._store,
                folder,
                certificate.shards,
                inventory,
                Backoff.seeded_by(self._clock),
            )
        files = certificate.files("eligible")
        if not files:
            raise GcRefused(
                RefusalRule.NO_CERTIFICATE,
                "the audit listed no blobs; use an inventory or run an audit that lists them",
            )
        return files


def task_count(shards: Sequence[ShardFiles], parallelism: int) -> int:
    """Return the number of tasks for these shards.

    Two tasks for each core balance the load. With few rows, the cost of starting a task would
    exceed its work.
    """
    rows = sum(one.rows for _, names, blobs in shards for one in (*names, *blobs))
    wanted = min(parallelism * _TASKS_PER_CORE, rows // _TASK_ROWS_LEAST)
    return max(1, min(max(parallelism, wanted), len(shards)))


def tasks_of_plan(
    basis: PlanBasis, plan_id: str, parallelism: int, blobs: Iterable[EvidenceFile]
) -> list[PlanTask]:
    """Return the tasks of a plan; each has some shards, which it processes in sequence."""
    certificate = basis.link.certificate
    shards = shard_files(certificate, blobs)
    rule = PlanRule(
        now_ns=basis.now_ns,
        retry_horizon_ns=basis.authority.retry_horizon_ns,
        versioning_enabled=basis.versioning is Versioning.ENABLED,
        audit_id=certificate.audit_id,
        audit_started_at_ns=UnixNs(certificate.started_at_unix_ns),
    )
    count = task_count(shards, parallelism)
    return [
        PlanTask(
            folder=f"{GC_PLANS}{plan_id}/",
            shards=tuple(shards[at::count]),
            rule=rule,
            expired=certificate.files("expired"),
        )
        for at in range(count)
    ]


def make_plan(plan_id: str, basis: PlanBasis, shards: Sequence[ShardPlan]) -> Plan:
    """Return the record of a plan; its summary names only the clauses that keep a version."""
    whole = functools.reduce(PlanSummary.plus, (one.summary for one in shards))
    kept = {clause: tally for clause, tally in whole.kept.items() if tally.incarnations}
    files = (one.file for one in shards if one.file is not None)
    return Plan(
        plan_id=plan_id,
        authority_id=basis.authority.authority_id,
        retry_horizon_s=basis.authority.retry_horizon_s,
        audit_id=basis.link.certificate.audit_id,
        certificate_sha256=basis.link.sha256,
        made_at_unix_ns=basis.now_ns,
        summary=msgspec.structs.replace(whole, kept=kept),
        candidates=tuple(sorted(files, key=lambda one: one.place)),
    )


async def plan_shards(store: ObjectStore, task: PlanTask, *, clock: Clock) -> tuple[ShardPlan, ...]:
    """Select and write the candidates of each shard, one shard at a time to bound memory.

    While one shard is joined, the next is read and previous ones are written. Hashes, joins and
    Parquet run in threads, because they need no lock of the interpreter.
    """
    limit = asyncio.Semaphore(_WRITES_AT_ONCE)
    put = partial(put_table, backoff=Backoff.seeded_by(clock))
    writing: list[asyncio.Task[ShardPlan]] = []
    try:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(_read(store, task, 0)) if task.shards else None
            for at in range(len(task.shards)):
                read = await following if following else None
                more = at + 1 < len(task.shards)
                following = group.create_task(_read(store, task, at + 1)) if more else None
                if read is not None:
                    await limit.acquire()
                    selection = await asyncio.to_thread(
                        select_candidates,
                        read.blobs,
                        read.names,
                        task.rule,
                        read.left_out,
                        read.expired,
                    )
                    work = _write(partial(put, store), task, read.name, selection, limit)
                    writing.append(group.create_task(work))
    except* SluiceError as failed:
        raise failed.exceptions[0] from failed
    return tuple(one.result() for one in writing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEvidence:
    """The names of one shard, and its object versions except those that were left out."""

    name: str
    names: pa.ChunkedArray
    blobs: pa.Table
    left_out: LeftOut
    expired: pa.ChunkedArray


async def _read(store: ObjectStore, task: PlanTask, at: int) -> ShardEvidence:
    name, names, blobs = task.shards[at]
    versions = await read_tables(store, blobs, BLOBS)
    expired = [one for one in task.expired if one.place == name]
    is_joined = any(one.kind == "eligible" for one in blobs)
    return ShardEvidence(
        name=name,
        names=(await read_tables(store, names, NAMES))["sha256"],
        blobs=versions,
        left_out=left_out_of(versions) if is_joined else LeftOut(),
        expired=(await read_tables(store, expired, NAMES))["sha256"],
    )


async def _write(
    put: Callable[[str, str, str, pa.Table], Awaitable[EvidenceFile]],
    task: PlanTask,
    name: str,
    selection: CandidateSelection,
    limit: asyncio.Semaphore,
) -> ShardPlan:
    try:
        file = None
        if len(selection.candidates):
            file = await put(task.folder, "candidates", name, selection.candidates)
        return ShardPlan(file=file, summary=summarize(selection, task.rule))
    finally:
        limit.release()
