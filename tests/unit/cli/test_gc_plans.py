"""The rows of `sluice gc plans`."""

import pytest
from msgspec import structs

from sluice_cli.gc import describe_plan
from sluice_protocol.blob_deletion import PlanApproval
from sluice_protocol.units import Digest, UnixNs
from sluice_reconciler.audit_summaries import PlanOverview, UnreadableRecord

OPEN_SINCE = UnixNs(1_000)
APPROVAL = PlanApproval(
    plan_id="p", plan_sha256=Digest("a" * 64), by="operator:otto", note="", approved_at_unix_ns=1
)
PLAN = PlanOverview(
    key="gc/v1/plans/p/plan.json",
    plan_id="p",
    audit_id="a",
    made_at_unix_ns=OPEN_SINCE,
    blobs={"incarnations": 9, "bytes": 900},
    orphans={"incarnations": 2, "bytes": 200},
    superseded={"incarnations": 1, "bytes": 50},
    kept={},
    candidate_files=1,
    state="planned",
    key_id="k",
)


@pytest.mark.parametrize(
    ("changed", "state", "by", "note"),
    [
        ({}, "planned", "", ""),
        ({"approval": APPROVAL}, "approved", "operator:otto", ""),
        ({"approval": APPROVAL, "approval_problem": "why"}, "planned", "operator:otto", "why"),
        ({"approval_problem": "cannot be read"}, "planned", "", "cannot be read"),
        ({"approval": APPROVAL, "made_at_unix_ns": 999}, "expired", "operator:otto", ""),
        ({"approval": APPROVAL, "state": "finished"}, "finished", "operator:otto", ""),
        ({"state": "finished", "made_at_unix_ns": 1}, "finished", "", ""),
        ({"state": "stopped", "stopped": "found wrong"}, "stopped", "", "found wrong"),
    ],
)
def test_each_state_of_a_plan(changed: dict[str, object], state: str, by: str, note: str) -> None:
    row = describe_plan(structs.replace(PLAN, **changed), OPEN_SINCE)
    assert (row.state, row.approved_by, row.note) == (state, by, note)
    assert (row.plan_id, row.blobs, row.size_bytes) == ("p", 3, 250)


def test_a_plan_that_cannot_be_read_is_a_row() -> None:
    """A plan that was not completed has a folder and no record."""
    found = UnreadableRecord(key="gc/v1/plans/p2/plan.json", unreadable="no such object")
    row = describe_plan(found, OPEN_SINCE)
    assert (row.plan_id, row.state, row.note) == ("p2", "unreadable", "no such object")
    assert row.made_at_unix_ns is None
