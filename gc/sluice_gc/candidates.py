"""Which incarnations a plan proposes: an anti-join of blobs with names, a shard at a time.

Whole columns are compared at once, in Arrow. A property test holds this to the clauses of
`sluice_protocol.blob_deletion`: both choose the same rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice_gc.evidence import CANDIDATES
from sluice_gc.joins import are_named
from sluice_protocol.blob_deletion import Clause
from sluice_protocol.units import NULL_VERSION, UnixNs

Mask = npt.NDArray[np.bool_]
"""Which rows of a table are meant."""


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
    named = are_named(blobs["sha256"], names)
    current, sizes = blobs["current"].to_numpy(), blobs["size_bytes"].to_numpy()
    kept: dict[Clause, Tally] = {}
    left = np.ones(len(blobs), bool)
    for clause, keep in _keeps(blobs, named, rule):
        kept[clause] = tally_of(sizes, left & keep)
        left &= ~keep
    return Selection(
        candidates=_rows(blobs.filter(pa.array(left)), named[left], rule),
        kept=kept,
        blobs=tally_of(sizes, current),
        orphans=tally_of(sizes, left & current),
    )


def _keeps(blobs: pa.Table, named: Mask, rule: PlanRule) -> Iterator[tuple[Clause, Mask]]:
    """Gives clause by clause which rows it keeps; names come first, people ask for them first.

    Versioning is only noted: without it there is a plan to look at, and no run. A noncurrent
    version goes only beneath a referenced current one that will be read whole; an unreferenced one
    waits until it is the current one.
    """
    stamp, current = blobs["last_modified_ns"].to_numpy(), blobs["current"].to_numpy()
    yield Clause.AUDIT, named & current
    yield Clause.LISTED, ~named & ~current
    yield Clause.INCARNATION, pc.is_in(blobs["incarnation"], value_set=_NULLS).to_numpy()
    yield Clause.AGE, stamp >= rule.now_ns - rule.retry_horizon_ns
    yield Clause.CERTIFICATE, stamp >= rule.audit_started_at_ns - rule.retry_horizon_ns


_NULLS = pa.array([NULL_VERSION, ""])


def tally_of(sizes: npt.NDArray[np.int64], mask: Mask) -> Tally:
    """Counts the rows under a mask, and their bytes."""
    return Tally(incarnations=int(np.count_nonzero(mask)), bytes=int(sizes[mask].sum()))


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
