"""The columns of a plan select exactly the rows that the clauses select row by row."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_gc.eligible_versions import LeftOut, eligible_table, join_names, left_out_of
from sluice_gc.errors import GcRefused
from sluice_gc.evidence_files import BLOBS, decode_table, digest_from_bytes, encode_table
from sluice_gc.planner import CandidateSelection, PlanRule, select_candidates
from sluice_protocol.blob_deletion import (
    PLAN_CLAUSES,
    AuditResult,
    Candidate,
    Clause,
    Evidence,
    MayDelete,
    decide_deletion,
)
from sluice_protocol.collection_records import VersionTally
from sluice_protocol.keys import blob_key
from sluice_protocol.units import ObjectVersion, UnixNs

HORIZON = 100
ROW = st.fixed_dictionaries(
    {
        "sha256": st.integers(0, 3).map(lambda value: bytes([value]) * 32),
        "incarnation": st.sampled_from(["v1", "v2", "null", ""]),
        "last_modified_ns": st.integers(0, 300),
        "size_bytes": st.integers(0, 1000),
        "current": st.booleans(),
    }
)

LISTINGS = given(
    rows=st.lists(ROW, max_size=30),
    names=st.sets(st.integers(0, 3)),
    started_at=st.integers(0, 500),
    later=st.integers(0, 100),
)


def rule_of(started_at: int, now: int) -> PlanRule:
    return PlanRule(
        now_ns=UnixNs(now),
        retry_horizon_ns=HORIZON,
        versioning_enabled=True,
        audit_id="A",
        audit_started_at_ns=UnixNs(started_at),
    )


def select(
    rows: list[dict[str, object]], names: set[int], rule: PlanRule
) -> tuple[list[bytes], CandidateSelection]:
    """Return the digests that are named, and what a plan selects of the rows.

    A plan selects the same of all rows and of those that the audit's own join left.
    """
    named = [bytes([value]) * 32 for value in sorted(names)]
    blobs, column = (
        pa.Table.from_pylist(rows, schema=BLOBS),
        pa.chunked_array([named], pa.binary(32)),
    )
    selection = select_candidates(blobs, column, rule, LeftOut())
    stored = decode_table(encode_table(eligible_table(join_names(blobs, column))), BLOBS)
    assert select_candidates(stored, column, rule, left_out_of(stored)) == selection
    return named, selection


def lets_go(row: dict[str, object], named: bool, rule: PlanRule) -> bool:
    """Return True if the clauses of the protocol allow the deletion of one row."""
    sha256 = row["sha256"]
    assert isinstance(sha256, bytes)
    digest = digest_from_bytes(sha256)
    evidence = Evidence(
        candidate=Candidate(
            key=blob_key(digest),
            digest=digest,
            incarnation=ObjectVersion(str(row["incarnation"])),
            last_modified_ns=UnixNs(int(str(row["last_modified_ns"]))),
            size_bytes=int(str(row["size_bytes"])),
        ),
        retry_horizon_ns=rule.retry_horizon_ns,
        now_ns=rule.now_ns,
        versioning_enabled=True,
        audit=AuditResult(
            audit_id="A",
            started_at_ns=rule.audit_started_at_ns,
            complete=True,
            names_blob=named and bool(row["current"]),
        ),
    )
    if not row["current"] and not named:
        return False
    return decide_deletion(evidence, PLAN_CLAUSES) == MayDelete()


@LISTINGS
def test_columns_and_clauses_select_the_same_rows(
    rows: list[dict[str, object]], names: set[int], started_at: int, later: int
) -> None:
    """For any listing, names and times, the anti-join equals the clauses."""
    rule = rule_of(started_at, started_at + later)
    named, selection = select(rows, names, rule)
    chosen = [
        (row["sha256"], row["incarnation"], row["last_modified_ns"], row["superseded"])
        for row in selection.candidates.to_pylist()
    ]
    wanted = [
        (row["sha256"], row["incarnation"], row["last_modified_ns"], not row["current"])
        for row in rows
        if lets_go(row, row["sha256"] in named, rule)
    ]
    assert chosen == wanted
    kept = sum(one.incarnations for one in selection.kept.values())
    assert kept + len(chosen) == len(rows)


def keeping_clause(row: dict[str, object], named: bool, rule: PlanRule) -> Clause | None:
    """Return the first clause that keeps a row, in the order in which a plan reports them."""
    current, stamp = row["current"], int(str(row["last_modified_ns"]))
    if named == current:
        return Clause.AUDIT if named else Clause.LISTED
    if row["incarnation"] in {"null", ""}:
        return Clause.INCARNATION
    if stamp >= rule.now_ns - HORIZON:
        return Clause.AGE
    return Clause.CERTIFICATE if stamp >= rule.audit_started_at_ns - HORIZON else None


def tally(rows: list[dict[str, object]]) -> VersionTally:
    size_bytes = sum(int(str(row["size_bytes"])) for row in rows)
    return VersionTally(incarnations=len(rows), bytes=size_bytes)


@LISTINGS
def test_each_row_is_counted_by_the_first_clause_that_keeps_it(
    rows: list[dict[str, object]], names: set[int], started_at: int, later: int
) -> None:
    rule = rule_of(started_at, started_at + later)
    named, selection = select(rows, names, rule)
    clauses = [keeping_clause(row, row["sha256"] in named, rule) for row in rows]
    for clause, counted in selection.kept.items():
        assert counted == tally([r for r, c in zip(rows, clauses, strict=True) if c is clause])
    current = [row["current"] for row in rows]
    assert selection.blobs == tally([r for r, c in zip(rows, current, strict=True) if c])
    left = [r for r, c in zip(rows, clauses, strict=True) if c is None]
    assert selection.orphans == tally([row for row in left if row["current"]])


@LISTINGS
def test_a_plan_joins_the_eligible_versions_with_the_names_again(
    rows: list[dict[str, object]], names: set[int], started_at: int, later: int
) -> None:
    """A row that an audit wrote wrongly is kept by the plan's own join."""
    rule = rule_of(started_at, started_at + later)
    _, selection = select(rows, names, rule)
    named = pa.chunked_array([[bytes([value]) * 32 for value in names]], pa.binary(32))
    wrong = join_names(pa.Table.from_pylist(rows, schema=BLOBS), named.slice(0, 0))
    stored = eligible_table(wrong)
    again = select_candidates(stored, named, rule, left_out_of(stored))
    assert again.orphans == selection.orphans
    assert not any(one["sha256"] in named.to_pylist() for one in again.candidates.to_pylist())


def test_a_file_without_tallies_is_not_one_of_eligible_versions() -> None:
    for metadata in (None, {b"sluice.gc_eligible.v1": b'{"other":1}'}):
        with pytest.raises(GcRefused, match="no tallies"):
            left_out_of(BLOBS.empty_table().replace_schema_metadata(metadata))
