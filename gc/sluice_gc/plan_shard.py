"""The part of a plan that one task makes: the anti-join of one shard."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice_gc.candidates import PlanRule, Selection, Tally, select_candidates, tally_of
from sluice_gc.certificate import EvidenceFile
from sluice_gc.evidence import BLOBS, NAMES
from sluice_gc.objects import put_table, read_tables
from sluice_gc.plan import AGE_DAYS, SIZE_LIMITS, Bucket, PlanSummary
from sluice_protocol.clock import Clock
from sluice_protocol.errors import SluiceError
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff

_NS_PER_DAY: Final = 86_400 * NS_PER_S
_WRITES_AT_ONCE: Final = 4

Column = npt.NDArray[np.int64]


class PlanTask(msgspec.Struct, frozen=True, kw_only=True):
    """One shard, or a few that are taken one after the other.

    Attributes:
        folder: Where candidates go.
        shards: For each shard its name, its files of names and its files of blobs.
        now_ns: See `PlanRule`.
        retry_horizon_ns: See `PlanRule`.
        versioning_enabled: See `PlanRule`.
        audit_id: See `PlanRule`.
        audit_started_at_ns: See `PlanRule`.
    """

    folder: str
    shards: tuple[tuple[str, tuple[EvidenceFile, ...], tuple[EvidenceFile, ...]], ...]
    now_ns: int
    retry_horizon_ns: int
    versioning_enabled: bool
    audit_id: str
    audit_started_at_ns: int

    @property
    def rule(self) -> PlanRule:
        """What holds for every row."""
        return PlanRule(
            now_ns=UnixNs(self.now_ns),
            retry_horizon_ns=self.retry_horizon_ns,
            versioning_enabled=self.versioning_enabled,
            audit_id=self.audit_id,
            audit_started_at_ns=UnixNs(self.audit_started_at_ns),
        )


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What comes back from one shard.

    Attributes:
        file: The candidates, or None when there are none.
        blobs: All current incarnations.
        orphans: Current incarnations that may go.
        superseded: Noncurrent ones that may go.
        kept: What stays, by the first clause that keeps it.
        by_size: What may go, by size.
        by_age: What may go, by age.
    """

    file: EvidenceFile | None
    blobs: Tally
    orphans: Tally
    superseded: Tally
    kept: dict[str, Tally]
    by_size: tuple[Bucket, ...]
    by_age: tuple[Bucket, ...]


async def plan_shards(store: ObjectStore, task: PlanTask, *, clock: Clock) -> tuple[PlanFacts, ...]:
    """Makes the candidates of each shard of a task, one at a time, so that memory stays bounded.

    The next shard is read and finished ones are written while one is joined.

    Raises:
        GcRefused: Evidence of the audit is missing or was altered.
        StoreError: No answer, or a refusal.
    """
    limit = asyncio.Semaphore(_WRITES_AT_ONCE)
    put = partial(put_table, backoff=Backoff.seeded_by(clock))
    writing: list[asyncio.Task[PlanFacts]] = []
    try:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(_read(store, *task.shards[0])) if task.shards else None
            for at in range(len(task.shards)):
                read = await following if following else None
                more = at + 1 < len(task.shards)
                following = group.create_task(_read(store, *task.shards[at + 1])) if more else None
                if read is not None:
                    await limit.acquire()
                    selection = select_candidates(read.blobs, read.names, task.rule)
                    work = _write(partial(put, store), task, read.name, selection, limit)
                    writing.append(group.create_task(work))
    except* SluiceError as failed:
        raise failed.exceptions[0] from failed
    return tuple(one.result() for one in writing)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The evidence of one shard."""

    name: str
    names: pa.ChunkedArray
    blobs: pa.Table


async def _read(
    store: ObjectStore,
    name: str,
    names: tuple[EvidenceFile, ...],
    blobs: tuple[EvidenceFile, ...],
) -> _Read:
    return _Read(
        name=name,
        names=(await read_tables(store, names, NAMES))["sha256"],
        blobs=await read_tables(store, blobs, BLOBS),
    )


async def _write(
    put: Callable[[str, str, str, pa.Table], Awaitable[EvidenceFile]],
    task: PlanTask,
    name: str,
    selection: Selection,
    limit: asyncio.Semaphore,
) -> PlanFacts:
    try:
        file = None
        if len(selection.candidates):
            file = await put(task.folder, "candidates", name, selection.candidates)
        return facts_of(selection, file, task.rule)
    finally:
        limit.release()


def facts_of(selection: Selection, file: EvidenceFile | None, rule: PlanRule) -> PlanFacts:
    """Gives the facts of a selection."""
    rows = selection.candidates
    sizes = rows["size_bytes"].to_numpy()
    ages = rule.now_ns - rows["last_modified_ns"].to_numpy()
    return PlanFacts(
        file=file,
        blobs=selection.blobs,
        orphans=selection.orphans,
        superseded=Tally(
            incarnations=len(rows) - selection.orphans.incarnations,
            bytes=int(sizes.sum()) - selection.orphans.bytes,
        ),
        kept={clause.value: tally for clause, tally in selection.kept.items()},
        by_size=_buckets(sizes, sizes, SIZE_LIMITS, 1),
        by_age=_buckets(sizes, ages, AGE_DAYS, _NS_PER_DAY),
    )


def _buckets(
    sizes: Column, values: Column, limits: tuple[int, ...], unit: int
) -> tuple[Bucket, ...]:
    """Sorts rows into buckets whose upper limit belongs to them."""
    places = np.searchsorted(np.array([limit * unit for limit in limits]), values, side="left")
    return tuple(
        Bucket(up_to=limit, tally=tally_of(sizes, places == at))
        for at, limit in enumerate((*limits, None))
    )


class FactsSum:
    """Adds the facts of shards up."""

    def __init__(self) -> None:
        """Starts with nothing."""
        self.files: list[EvidenceFile] = []
        self._blobs = Tally()
        self._orphans = Tally()
        self._superseded = Tally()
        self._kept: dict[str, Tally] = {}
        self._by_size: dict[int | None, Tally] = {}
        self._by_age: dict[int | None, Tally] = {}

    def add(self, facts: PlanFacts) -> None:
        """Adds one shard."""
        self._blobs = self._blobs.plus(facts.blobs)
        self._orphans = self._orphans.plus(facts.orphans)
        self._superseded = self._superseded.plus(facts.superseded)
        if facts.file is not None:
            self.files.append(facts.file)
        for clause, tally in facts.kept.items():
            self._kept[clause] = self._kept.get(clause, Tally()).plus(tally)
        for sums, buckets in ((self._by_size, facts.by_size), (self._by_age, facts.by_age)):
            for one in buckets:
                sums[one.up_to] = sums.get(one.up_to, Tally()).plus(one.tally)

    def summary(self) -> PlanSummary:
        """Gives the sums for people."""
        return PlanSummary(
            blobs=self._blobs,
            orphans=self._orphans,
            superseded=self._superseded,
            kept={name: tally for name, tally in self._kept.items() if tally.incarnations},
            by_size=_as_buckets(self._by_size),
            by_age=_as_buckets(self._by_age),
        )


def _as_buckets(sums: dict[int | None, Tally]) -> tuple[Bucket, ...]:
    return tuple(Bucket(up_to=limit, tally=tally) for limit, tally in sums.items())
