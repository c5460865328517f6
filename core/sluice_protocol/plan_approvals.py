"""Approvals of deletion plans by operators, as pure decisions and one stored record.

An approval names the exact bytes of a plan, so it does not extend to another plan under the same
key. It is created once. An operator who changes his mind stops the plan, and a stopped plan is
never executed. Where a run requires an approval, a missing, unreadable or different one refuses
the plan. The role that deletes blobs cannot write approvals (ADR 39).
"""

from enum import StrEnum
from typing import Literal

import msgspec

from sluice_protocol.keys import GC_APPROVALS
from sluice_protocol.units import Digest, ObjectKey


class PlanApproval(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of an operator that a plan may be executed.

    Attributes:
        plan_id: ULID of the plan.
        plan_sha256: The sha256 of the stored bytes of the plan.
        by: The operator.
        note: Why.
        approved_at_unix_ns: The store's clock at the approval.
    """

    schema: Literal["sluice.gc_approval.v1"] = "sluice.gc_approval.v1"
    plan_id: str
    plan_sha256: Digest
    by: str
    note: str
    approved_at_unix_ns: int


class PlanState(StrEnum):
    """The state of a stored plan."""

    PLANNED = "planned"
    STOPPED = "stopped"
    FINISHED = "finished"


class ApprovalRuling(StrEnum):
    """Whether a plan may be approved, or why not."""

    ALLOWED = "allowed"
    UNKNOWN = "unknown"
    """There is no such plan."""
    STOPPED = "stopped"
    FINISHED = "finished"
    OTHER_BYTES = "other_bytes"
    """The stored plan is not the one that the operator saw."""


class ExecutionRuling(StrEnum):
    """Whether the approval of a plan allows its execution, or why not."""

    ALLOWED = "allowed"
    NOT_APPROVED = "not_approved"
    OTHER_BYTES = "other_bytes"
    """The approval is of other bytes, or of another plan."""


def approval_key(plan_id: str) -> ObjectKey:
    """Return the key of the approval of a plan."""
    return ObjectKey(f"{GC_APPROVALS}{plan_id}.json")


def decide_approval(
    *, state: PlanState | None, stored_sha256: Digest | None, shown_sha256: Digest
) -> ApprovalRuling:
    """Decide whether an operator may approve a plan.

    Args:
        state: The state of the plan; None if there is no such plan.
        stored_sha256: The sha256 of its stored bytes; None if there is no such plan.
        shown_sha256: The sha256 of the plan that the operator saw.
    """
    if state is None or stored_sha256 is None:
        return ApprovalRuling.UNKNOWN
    if state is PlanState.STOPPED:
        return ApprovalRuling.STOPPED
    if state is PlanState.FINISHED:
        return ApprovalRuling.FINISHED
    if stored_sha256 != shown_sha256:
        return ApprovalRuling.OTHER_BYTES
    return ApprovalRuling.ALLOWED


def decide_execution(
    *, required: bool, plan_id: str, plan_sha256: Digest, approval: PlanApproval | None
) -> ExecutionRuling:
    """Decide whether a plan may be executed as far as its approval is concerned.

    Args:
        required: Whether the settings of the run require an approval.
        plan_id: The plan.
        plan_sha256: The sha256 of the bytes that would be executed.
        approval: The stored approval; None if there is none.
    """
    if not required:
        return ExecutionRuling.ALLOWED
    if approval is None:
        return ExecutionRuling.NOT_APPROVED
    if (approval.plan_id, approval.plan_sha256) != (plan_id, plan_sha256):
        return ExecutionRuling.OTHER_BYTES
    return ExecutionRuling.ALLOWED
