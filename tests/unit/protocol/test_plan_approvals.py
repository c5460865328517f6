"""Which plans may be approved, and which approvals allow a run."""

import itertools

import pytest

from sluice_protocol.blob_deletion import (
    ApprovalRuling,
    ExecutionRuling,
    PlanApproval,
    PlanState,
    decide_approval,
    decide_execution,
)
from sluice_protocol.keys import digest_of

MINE, OTHER = digest_of(b"plan"), digest_of(b"another plan")


def approval(plan_id: str = "P", sha256: str = MINE) -> PlanApproval:
    return PlanApproval(
        plan_id=plan_id,
        plan_sha256=digest_of(b"plan") if sha256 == MINE else OTHER,
        by="operator:otto",
        note="",
        approved_at_unix_ns=1,
    )


@pytest.mark.parametrize(
    ("state", "stored", "ruling"),
    [
        (None, None, ApprovalRuling.UNKNOWN),
        (PlanState.PLANNED, None, ApprovalRuling.UNKNOWN),
        (PlanState.STOPPED, MINE, ApprovalRuling.STOPPED),
        (PlanState.FINISHED, MINE, ApprovalRuling.FINISHED),
        (PlanState.PLANNED, OTHER, ApprovalRuling.OTHER_BYTES),
        (PlanState.PLANNED, MINE, ApprovalRuling.ALLOWED),
    ],
)
def test_only_an_open_plan_that_was_shown_may_be_approved(
    state: PlanState | None, stored: str | None, ruling: ApprovalRuling
) -> None:
    digest = None if stored is None else digest_of(b"plan" if stored == MINE else b"another plan")
    assert decide_approval(state=state, stored_sha256=digest, shown_sha256=MINE) is ruling


def test_a_run_that_requires_an_approval_accepts_only_that_of_its_bytes() -> None:
    for plan_id, sha256 in itertools.product(("P", "Q"), (MINE, OTHER)):
        found = approval(plan_id, sha256)
        ruling = decide_execution(required=True, plan_id="P", plan_sha256=MINE, approval=found)
        exact = (plan_id, sha256) == ("P", MINE)
        assert ruling is (ExecutionRuling.ALLOWED if exact else ExecutionRuling.OTHER_BYTES)
    missing = decide_execution(required=True, plan_id="P", plan_sha256=MINE, approval=None)
    assert missing is ExecutionRuling.NOT_APPROVED


@pytest.mark.parametrize("found", [None, approval(), approval("Q", OTHER)])
def test_without_the_requirement_every_plan_runs_as_before(found: PlanApproval | None) -> None:
    ruling = decide_execution(required=False, plan_id="P", plan_sha256=MINE, approval=found)
    assert ruling is ExecutionRuling.ALLOWED
