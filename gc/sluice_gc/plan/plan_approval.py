"""The approval of a plan by an operator, and the check of it before a run."""

from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan.plan import plan_key
from sluice_gc.plan.plan_inputs import check_plan_id, is_finished, read_store_time, stopped_key
from sluice_protocol.blob_deletion import (
    ApprovalRuling,
    ExecutionRuling,
    PlanApproval,
    PlanState,
    approval_key,
    decide_approval,
    decide_execution,
)
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest
from sluice_store.plan_folders import read_approval
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, create_known


async def approve_plan(
    store: ObjectStore,
    plan_id: str,
    *,
    shown_sha256: Digest,
    by: str,
    note: str,
    backoff: Backoff,
) -> PlanApproval | ApprovalRuling:
    """Approve a plan, as an operator; the same call may be repeated.

    `shown_sha256` is that of the plan that the operator saw. Return the stored approval, which may
    be an earlier one, or why the plan cannot be approved. After `OutcomeUnknown`, call again.
    """
    check_plan_id(plan_id)
    read = await store.get(plan_key(plan_id))
    stored = digest_of(read.body) if isinstance(read, Found) else None
    state = None if stored is None else await read_state(store, plan_id)
    ruling = decide_approval(state=state, stored_sha256=stored, shown_sha256=shown_sha256)
    if ruling is not ApprovalRuling.ALLOWED:
        return ruling
    approval = PlanApproval(
        plan_id=plan_id,
        plan_sha256=shown_sha256,
        by=by,
        note=note,
        approved_at_unix_ns=await read_store_time(store),
    )
    await create_known(store, approval_key(plan_id), encode_record(approval), backoff)
    # If it was approved before, the first record is kept.
    kept = await read_approval(store, plan_id)
    if kept is None or kept.plan_sha256 != shown_sha256:
        return ApprovalRuling.OTHER_BYTES
    return kept


async def read_state(store: ObjectStore, plan_id: str) -> PlanState:
    """Return the state of a plan that exists."""
    if isinstance(await store.get(stopped_key(plan_id)), Found):
        return PlanState.STOPPED
    return PlanState.FINISHED if await is_finished(store, plan_id) else PlanState.PLANNED


async def rule_execution(
    store: ObjectStore, plan_id: str, plan_sha256: Digest, *, required: bool
) -> ExecutionRuling:
    """Read the approval of a plan, if one is required, and decide whether it may be executed.

    An approval that cannot be decoded counts as one of other bytes.
    """
    try:
        approval = await read_approval(store, plan_id) if required else None
    except InvalidRecord:
        return ExecutionRuling.OTHER_BYTES
    return decide_execution(
        required=required, plan_id=plan_id, plan_sha256=plan_sha256, approval=approval
    )


async def check_approved(
    store: ObjectStore, plan_id: str, plan_sha256: Digest, *, required: bool
) -> None:
    """Refuse a plan without the approval that a run requires."""
    match await rule_execution(store, plan_id, plan_sha256, required=required):
        case ExecutionRuling.ALLOWED:
            return
        case ExecutionRuling.NOT_APPROVED:
            reason = f'no operator has approved the plan; run "sluice gc approve {plan_id}"'
        case ExecutionRuling.OTHER_BYTES:
            reason = "the approval is of other bytes than the plan; make a new plan"
    raise GcRefused(RefusalRule.NOT_APPROVED, reason)
