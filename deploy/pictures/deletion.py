"""The proof of a deletion: the clauses of `sluice_protocol.blob_deletion` in their order."""

from dataclasses import replace
from itertools import pairwise
from typing import Final

from deploy.pictures.drawing import Drawing, DrawnEdge, DrawnState, Step
from sluice_protocol.blob_deletion import (
    DELETION_CLAUSES,
    PLAN_CLAUSES,
    AuditResult,
    Candidate,
    Clause,
    ClauseCheck,
    EnvelopeLookup,
    Evidence,
    Keep,
    ListedNow,
    ManifestLookup,
    MayDelete,
    decide_deletion,
)
from sluice_protocol.errors import InvariantViolated
from sluice_protocol.units import NULL_VERSION, Digest, ObjectKey, ObjectVersion, UnixNs

_HORIZON_NS: Final = 100
_VERSION: Final = ObjectVersion("version")
_CANDIDATE: Final = Candidate(
    key=ObjectKey("key"),
    digest=Digest("a" * 64),
    incarnation=_VERSION,
    last_modified_ns=UnixNs(0),
    size_bytes=1,
)
_PROVED: Final = Evidence(
    candidate=_CANDIDATE,
    retry_horizon_ns=_HORIZON_NS,
    now_ns=UnixNs(4 * _HORIZON_NS),
    versioning_enabled=True,
    audit=AuditResult(
        audit_id="audit", started_at_ns=UnixNs(2 * _HORIZON_NS), complete=True, names_blob=False
    ),
    references=0,
    envelope=EnvelopeLookup(accepted=ManifestLookup.ABSENT, quarantine=ManifestLookup.ABSENT),
    listed=ListedNow(incarnation=_VERSION, last_modified_ns=UnixNs(0), current=True),
)
_BROKEN: Final = (
    replace(_PROVED, versioning_enabled=False),
    replace(_PROVED, candidate=replace(_CANDIDATE, incarnation=NULL_VERSION)),
    replace(_PROVED, now_ns=UnixNs(_HORIZON_NS)),
    replace(_PROVED, audit=None),
    replace(
        _PROVED,
        audit=AuditResult(
            audit_id="audit", started_at_ns=UnixNs(2 * _HORIZON_NS), complete=True, names_blob=True
        ),
    ),
    replace(_PROVED, references=1),
    replace(_PROVED, envelope=None),
    replace(_PROVED, listed=None),
)
"""Evidence that one clause each does not accept, and every clause before it accepts."""


def order_of_clauses() -> tuple[Clause, ...]:
    """Return the clauses of a deletion in the order in which they are checked.

    Raises:
        InvariantViolated: A clause keeps none of the broken evidence, or the proved evidence.
    """
    found: list[Clause] = []
    for check in DELETION_CLAUSES:
        kept = [verdict for one in _BROKEN if (verdict := check(one)) is not None]
        if not kept or check(_PROVED) is not None:
            raise InvariantViolated(f"no evidence shows what the clause decides, clause=`{check}`")
        found.append(kept[0].clause)
    return tuple(found)


def explore() -> frozenset[Step]:
    """Return what each clause leads to, by the decision over all clauses."""
    steps: set[Step] = set()
    order = order_of_clauses()
    for one in _BROKEN:
        verdict = decide_deletion(one, DELETION_CLAUSES)
        if isinstance(verdict, Keep):
            steps.add((verdict.clause.value, "keep", "keep"))
    for now, following in pairwise(order):
        steps.add((now.value, "satisfied", following.value))
    if isinstance(decide_deletion(_PROVED, DELETION_CLAUSES), MayDelete):
        steps.add((order[-1].value, "satisfied", "delete"))
    return frozenset(steps)


_TITLES: Final = {
    Clause.VERSIONING: ("versioning is Enabled", "not enabled, or not read"),
    Clause.INCARNATION: ("the version has an id", "the version is null"),
    Clause.AGE: ("older than the retry horizon", "younger, or the clock was not read"),
    Clause.CERTIFICATE: (
        "a complete audit began after the horizon",
        "no certificate, or it began before",
    ),
    Clause.AUDIT: ("that audit found no name of it", "named, or not read"),
    Clause.REFERENCES: ("no reverse reference exists now", "one exists, or not read"),
    Clause.ENVELOPE: ("the keys in its envelope name others", "named, or not readable"),
    Clause.LISTED: ("it is still the current version", "no longer listed, or another is current"),
}
"""What each clause of a deletion requires, and why it keeps."""


def _check_of(clause: Clause) -> ClauseCheck:
    return dict(zip(order_of_clauses(), DELETION_CLAUSES, strict=True))[clause]


def _state(clause: Clause, titles: dict[Clause, tuple[str, str]]) -> DrawnState:
    in_plan = _check_of(clause) in PLAN_CLAUSES
    note = "in the plan, and again at the deletion" if in_plan else "at the deletion"
    return DrawnState(name=clause.value, title=titles[clause][0], kind="action", note=note)


def _draw(titles: dict[Clause, tuple[str, str]]) -> Drawing:
    order = tuple(titles)
    followed = (*(one.value for one in order[1:]), "delete")
    edges: list[DrawnEdge] = []
    for clause, target in zip(order, followed, strict=True):
        go = frozenset({"satisfied"})
        edges.append(DrawnEdge(source=clause.value, target=target, label="yes", events=go))
        why = titles[clause][1]
        stay = frozenset({"keep"})
        edges.append(DrawnEdge(source=clause.value, target="keep", label=why, events=stay))
    return Drawing(
        name="deletion-proof",
        title="The proof of a deletion",
        summary=(
            "The clauses that an object version must satisfy before garbage collection deletes it,"
            " in the order in which they are checked. Evidence that was not read keeps it."
        ),
        states=(
            *(_state(one, titles) for one in order),
            DrawnState(
                name="delete",
                title="delete exactly this version",
                kind="good",
                note="after its proof is stored",
            ),
            DrawnState(name="keep", title="keep it", kind="bad", note="the clause is recorded"),
        ),
        edges=tuple(edges),
        explore=explore,
    )


DRAWING: Final = _draw(_TITLES)
