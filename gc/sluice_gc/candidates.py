"""Which incarnations a plan proposes: an anti-join of blobs with names, a shard at a time.

Whole columns are compared at once, in Arrow. A property test holds this to the clauses of
`sluice_protocol.deletion`: both choose the same rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice_gc.evidence import CANDIDATES
from sluice_gc.joins import are_named
from sluice_protocol.deletion import Clause
from sluice_protocol.units import NULL_INCARNATION, UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRule:
    """What holds for every row of a plan.

    Attributes:
        now_ns: The store's clock when the plan was begun.
        retry_horizon_ns: The authority's.
        versioning_enabled: Whether versioning read `Enabled`.
        audit_id: The certificate that the plan rests on; it was verified and is complete.
        audit_started_at_ns: When that audit started.
    """

    now_ns: UnixNs
    retry_horizon_ns: int
    versioning_enabled: bool
    audit_id: str
    audit_started_at_ns: UnixNs


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """A number of incarnations and their bytes."""

    incarnations: int = 0
    bytes: int = 0

    def plus(self, other: "Tally") -> "Tally":
        """Gives the sum."""
        return Tally(
            incarnations=self.incarnations + other.incarnations, bytes=self.bytes + other.bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The candidates of one shard and what was kept.

    Attributes:
        candidates: Rows of `CANDIDATES`.
        kept: How many stay, by the first clause that keeps them.
        blobs: All current incarnations.
        orphans: The current incarnations among the candidates.
    """

    candidates: pa.Table
    kept: Mapping[Clause, Tally]
    blobs: Tally
    orphans: Tally


def select_candidates(blobs: pa.Table, names: pa.ChunkedArray, rule: PlanRule) -> Selection:
    """Gives the incarnations of a shard that the clauses of a plan let go.

    Args:
        blobs: Rows of `BLOBS`.
        names: Every sha256 of the shard that a manifest or reverse reference names.
        rule: What holds for all of them.
    """
    sha256, current = blobs["sha256"], blobs["current"]
    named = are_named(sha256, names)
    keeps = _keeps(blobs, named, rule)
    kept: dict[Clause, Tally] = {}
    left = pa.chunked_array([pa.repeat(pa.scalar(value=True), len(blobs))])
    for clause, keep in keeps:
        stays = pc.and_(left, keep)
        kept[clause] = tally_of(blobs, stays)
        left = pc.and_not(left, keep)
    chosen = blobs.filter(left)
    return Selection(
        candidates=_rows(chosen, named.filter(left), rule),
        kept=kept,
        blobs=tally_of(blobs, current),
        orphans=tally_of(blobs, pc.and_(left, current)),
    )


def _keeps(
    blobs: pa.Table, named: pa.ChunkedArray, rule: PlanRule
) -> list[tuple[Clause, pa.ChunkedArray]]:
    """Gives clause by clause which rows it keeps; names come first, people ask for them first."""
    stamp, current = blobs["last_modified_ns"], blobs["current"]
    covered_before = rule.audit_started_at_ns - rule.retry_horizon_ns
    # A noncurrent version goes only beneath a referenced current one that will be read whole; an
    # unreferenced one waits until it is the current one.
    superseded = pc.and_not(named, current)
    orphan = pc.and_not(current, named)
    # Versioning is only noted: without it there is a plan to look at, and no run.
    return [
        (Clause.AUDIT, pc.and_(named, current)),
        (Clause.INCARNATION, pc.is_in(blobs["incarnation"], value_set=_NULLS)),
        (Clause.AGE, pc.greater_equal(stamp, rule.now_ns - rule.retry_horizon_ns)),
        (Clause.CERTIFICATE, pc.greater_equal(stamp, covered_before)),
        (Clause.LISTED, pc.invert(pc.or_(orphan, superseded))),
    ]


_NULLS = pa.array([NULL_INCARNATION, ""])


def tally_of(blobs: pa.Table, mask: pa.ChunkedArray) -> Tally:
    """Counts the rows under a mask."""
    sizes = blobs["size_bytes"].filter(mask)
    return Tally(incarnations=len(sizes), bytes=pc.sum(sizes).as_py() or 0)


def _rows(chosen: pa.Table, named: pa.ChunkedArray, rule: PlanRule) -> pa.Table:
    count = len(chosen)

    def same(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), count)

    return pa.table(
        [
            *(chosen[name] for name in ("sha256", "incarnation", "last_modified_ns", "size_bytes")),
            named,
            same(rule.versioning_enabled, pa.bool_()),
            same(rule.now_ns, pa.int64()),
            same(rule.retry_horizon_ns, pa.int64()),
            same(rule.audit_id, pa.string()),
            same(rule.audit_started_at_ns, pa.int64()),
            named,
        ],
        schema=CANDIDATES,
    )
