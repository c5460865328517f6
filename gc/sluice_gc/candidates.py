"""The object versions that a plan proposes: a join with the names and the clauses, shard by shard.

Whole columns are compared in Arrow. A property test compares the result with the clauses of
`sluice_protocol.blob_deletion`: both select the same rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice_gc.eligible_versions import LeftOut, Mask, join_names, tally_rows
from sluice_gc.evidence_files import CANDIDATES, EvidenceFile
from sluice_gc.plan import AGE_DAYS, SIZE_LIMITS, HistogramBucket, PlanSummary, VersionTally
from sluice_protocol.blob_deletion import Clause
from sluice_protocol.units import NS_PER_S, NULL_VERSION, UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRule:
    """The facts that apply to every row of a plan.

    Attributes:
        now_ns: The store's clock at the start of the plan.
        retry_horizon_ns: The retry horizon of the authority.
        versioning_enabled: Whether versioning is `Enabled`.
        audit_id: The certificate of the plan; it was verified and is complete.
        audit_started_at_ns: When that audit started.
    """

    now_ns: UnixNs
    retry_horizon_ns: int
    versioning_enabled: bool
    audit_id: str
    audit_started_at_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSelection:
    """The candidates of one shard, and what is kept.

    Attributes:
        candidates: Rows of `CANDIDATES`.
        kept: What is kept, by the first clause that keeps it.
        blobs: All current object versions.
        orphans: The current object versions among the candidates.
    """

    candidates: pa.Table
    kept: Mapping[Clause, VersionTally]
    blobs: VersionTally
    orphans: VersionTally


def select_candidates(
    blobs: pa.Table, names: pa.ChunkedArray, rule: PlanRule, left_out: LeftOut
) -> CandidateSelection:
    """Return the object versions of a shard that the clauses of a plan allow to delete.

    Args:
        blobs: Rows of `BLOBS`.
        names: Every sha256 of the shard that a manifest or reverse reference names.
        rule: The facts that apply to all of them.
        left_out: The object versions of the shard that an audit's own join left out of `blobs`.
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
    candidates = _rows(rest, superseded, rule)
    return CandidateSelection(
        candidates=candidates,
        kept=kept,
        blobs=left_out.audit.plus(unnamed),
        orphans=tally_rows(candidates["size_bytes"].to_numpy(), ~superseded),
    )


def _kept_rows(rest: pa.Table, rule: PlanRule) -> Iterator[tuple[Clause, Mask]]:
    """Yield, clause by clause, the rows that it keeps; the most informative clause is first.

    Versioning is only recorded: without it a plan can be made but not run.

    Args:
        rest: The rows that `AUDIT` and `LISTED` do not keep. A noncurrent version is deleted only
            if the current one is referenced; the run reads that one completely. Without a reference
            it is kept until it is the current version.
        rule: The facts that apply to all of them.
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


class ShardPlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a plan for one shard.

    Attributes:
        file: The file of candidates, or None if there are none.
        blobs: All current object versions.
        orphans: Deletable current versions.
        superseded: Deletable noncurrent versions.
        kept: What is kept, by the first clause that keeps it.
        by_size: What is deletable, by size.
        by_age: What is deletable, by age.
    """

    file: EvidenceFile | None
    blobs: VersionTally
    orphans: VersionTally
    superseded: VersionTally
    kept: dict[str, VersionTally]
    by_size: tuple[HistogramBucket, ...]
    by_age: tuple[HistogramBucket, ...]


def shard_facts(
    selection: CandidateSelection, file: EvidenceFile | None, rule: PlanRule
) -> ShardPlanFacts:
    """Return the part of a plan for one selection."""
    rows = selection.candidates
    sizes = rows["size_bytes"].to_numpy()
    ages = rule.now_ns - rows["last_modified_ns"].to_numpy()
    return ShardPlanFacts(
        file=file,
        blobs=selection.blobs,
        orphans=selection.orphans,
        superseded=VersionTally(
            incarnations=len(rows) - selection.orphans.incarnations,
            bytes=int(sizes.sum()) - selection.orphans.bytes,
        ),
        kept={clause.value: tally for clause, tally in selection.kept.items()},
        by_size=_buckets(sizes, sizes, SIZE_LIMITS, 1),
        by_age=_buckets(sizes, ages, AGE_DAYS, _NS_PER_DAY),
    )


def _buckets(
    sizes: Column, values: Column, limits: tuple[int, ...], unit: int
) -> tuple[HistogramBucket, ...]:
    """Return the histogram of the rows; each bucket includes its upper limit."""
    places = np.searchsorted(np.array([limit * unit for limit in limits]), values, side="left")
    return tuple(
        HistogramBucket(up_to=limit, tally=tally_rows(sizes, places == at))
        for at, limit in enumerate((*limits, None))
    )


class PlanTotals:
    """The sums over all shards of a plan."""

    def __init__(self) -> None:
        self.files: list[EvidenceFile] = []
        self._blobs = VersionTally()
        self._orphans = VersionTally()
        self._superseded = VersionTally()
        self._kept: dict[str, VersionTally] = {}
        self._by_size: dict[int | None, VersionTally] = {}
        self._by_age: dict[int | None, VersionTally] = {}

    def add(self, facts: ShardPlanFacts) -> None:
        """Add one shard."""
        self._blobs = self._blobs.plus(facts.blobs)
        self._orphans = self._orphans.plus(facts.orphans)
        self._superseded = self._superseded.plus(facts.superseded)
        if facts.file is not None:
            self.files.append(facts.file)
        for clause, tally in facts.kept.items():
            self._kept[clause] = self._kept.get(clause, VersionTally()).plus(tally)
        for sums, buckets in ((self._by_size, facts.by_size), (self._by_age, facts.by_age)):
            for one in buckets:
                sums[one.up_to] = sums.get(one.up_to, VersionTally()).plus(one.tally)

    def summary(self) -> PlanSummary:
        """Return the summary of the plan."""
        return PlanSummary(
            blobs=self._blobs,
            orphans=self._orphans,
            superseded=self._superseded,
            kept={name: tally for name, tally in self._kept.items() if tally.incarnations},
            by_size=_as_buckets(self._by_size),
            by_age=_as_buckets(self._by_age),
        )


def _as_buckets(sums: dict[int | None, VersionTally]) -> tuple[HistogramBucket, ...]:
    return tuple(HistogramBucket(up_to=limit, tally=tally) for limit, tally in sums.items())
