"""The part of a plan that one task makes: the anti-join of one shard."""

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice_gc.candidates import PlanRule, Selection, Tally, select_candidates
from sluice_gc.certificate import EvidenceFile
from sluice_gc.evidence import BLOBS, NAMES
from sluice_gc.objects import put_table, read_tables
from sluice_gc.plan import AGE_DAYS, SIZE_LIMITS, Bucket, PlanSummary
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_store.port import ObjectStore

_NS_PER_DAY = 86_400 * NS_PER_S


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


async def plan_shards(store: ObjectStore, task: PlanTask) -> tuple[PlanFacts, ...]:
    """Makes the candidates of each shard of a task, one at a time, so that memory stays bounded.

    Raises:
        GcRefused: Evidence of the audit is missing or was altered.
        StoreError: No answer, or a refusal.
    """
    return tuple([await _plan_shard(store, task, *shard) for shard in task.shards])


async def _plan_shard(
    store: ObjectStore,
    task: PlanTask,
    name: str,
    names: tuple[EvidenceFile, ...],
    blobs: tuple[EvidenceFile, ...],
) -> PlanFacts:
    selection = select_candidates(
        await read_tables(store, blobs, BLOBS),
        (await read_tables(store, names, NAMES))["sha256"],
        task.rule,
    )
    file = None
    if len(selection.candidates):
        file = await put_table(store, task.folder, "candidates", name, selection.candidates)
    return facts_of(selection, file, task.rule)


def facts_of(selection: Selection, file: EvidenceFile | None, rule: PlanRule) -> PlanFacts:
    """Gives the facts of a selection."""
    rows = selection.candidates
    everything = Tally(incarnations=len(rows), bytes=pc.sum(rows["size_bytes"]).as_py() or 0)
    return PlanFacts(
        file=file,
        blobs=selection.blobs,
        orphans=selection.orphans,
        superseded=Tally(
            incarnations=everything.incarnations - selection.orphans.incarnations,
            bytes=everything.bytes - selection.orphans.bytes,
        ),
        kept={clause.value: tally for clause, tally in selection.kept.items()},
        by_size=_buckets(rows, rows["size_bytes"], SIZE_LIMITS, 1),
        by_age=_buckets(
            rows,
            pc.subtract(rule.now_ns, rows["last_modified_ns"]),
            AGE_DAYS,
            _NS_PER_DAY,
        ),
    )


def _buckets(
    rows: pa.Table, values: pa.ChunkedArray, limits: tuple[int, ...], unit: int
) -> tuple[Bucket, ...]:
    buckets = []
    below = pc.less(values, 0)
    for limit in (*limits, None):
        under = pc.is_valid(values) if limit is None else pc.less_equal(values, limit * unit)
        sizes = rows["size_bytes"].filter(pc.and_not(under, below))
        tally = Tally(incarnations=len(sizes), bytes=pc.sum(sizes).as_py() or 0)
        buckets.append(Bucket(up_to=limit, tally=tally))
        below = under
    return tuple(buckets)


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
