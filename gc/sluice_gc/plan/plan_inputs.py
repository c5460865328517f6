"""The inputs of a plan or a run: the checked basis, the store's clock, stored plans, approvals."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from sluice_gc.audit.certificate_chain import ChainLink
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan.plan import Plan, plan_key, verify_plan
from sluice_gc.signing_keys import TrustedKeys
from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import (
    ApprovalRuling,
    ExecutionRuling,
    PlanApproval,
    PlanState,
    approval_key,
    decide_approval,
    decide_execution,
)
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import AUTHORITY_SETTINGS, GC_PLANS, digest_of
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_store.plan_folders import (
    is_plan_id,
    plan_folders,
    plan_folders_newest_first,
    read_approval,
)
from sluice_store.port import ObjectStore, Versioning
from sluice_store.retry import Backoff, create_known

OPERATOR_RULE: Final = "stopped_by_operator"
"""The rule in the record of a plan that an operator stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBasis:
    """The basis of a plan or a run. All of it was just read and checked."""

    authority: Authority
    link: ChainLink
    now_ns: UnixNs
    versioning: Versioning


async def read_store_time(store: ObjectStore) -> UnixNs:
    """Return the store's clock: the Date of the response to one HEAD request."""
    return (await store.head(AUTHORITY_SETTINGS)).date_ns


async def read_plan(store: ObjectStore, trusted: TrustedKeys, plan_id: str) -> Plan:
    """Return a verified plan."""
    return (await read_stored_plan(store, trusted, plan_id)).plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """A verified plan and the sha256 of its stored bytes."""

    plan: Plan
    sha256: Digest


async def read_stored_plan(store: ObjectStore, trusted: TrustedKeys, plan_id: str) -> StoredPlan:
    """Return a verified plan with the sha256 of its bytes."""
    read = await store.get(plan_key(plan_id))
    if not isinstance(read, Found):
        raise GcRefused(RefusalRule.PLAN_INVALID, f"the plan does not exist, plan_id={plan_id}")
    return StoredPlan(plan=verify_plan(plan_id, read.body, trusted), sha256=digest_of(read.body))


async def newest_plan_id(store: ObjectStore) -> str:
    """Return the id of the newest plan; refuse if there is none."""
    async for plan_id in plan_ids_newest_first(store):
        return plan_id
    raise GcRefused(RefusalRule.PLAN_INVALID, 'there is no plan; run "sluice gc plan" first')


async def plan_ids_newest_first(store: ObjectStore) -> AsyncIterator[str]:
    """Yield the ids of all complete plans, newest first."""
    async for plan_id in plan_folders_newest_first(store):
        if await _is_complete(store, plan_id):
            yield plan_id


async def read_plan_ids(store: ObjectStore, *, after: str = "") -> list[str]:
    """Return the ids of all complete plans, oldest first.

    `after` as in `plan_folders`.
    """
    folders = plan_folders(store, after=after)
    return [plan_id async for plan_id in folders if await _is_complete(store, plan_id)]


async def _is_complete(store: ObjectStore, plan_id: str) -> bool:
    """Return True if the record exists, which is written last."""
    return not isinstance(await store.head(plan_key(plan_id)), NotFound)


def finished_key(plan_id: str) -> ObjectKey:
    """Return the key that marks a plan as finished."""
    return ObjectKey(f"{GC_PLANS}{plan_id}/finished.json")


async def is_finished(store: ObjectStore, plan_id: str) -> bool:
    """Return True if the plan was executed completely."""
    return not isinstance(await store.head(finished_key(plan_id)), NotFound)


class PlanStopped(msgspec.Struct, frozen=True, kw_only=True):
    """The record that a safety rule was violated: the plan is stopped permanently."""

    schema: Literal["sluice.gc_stopped.v1"] = "sluice.gc_stopped.v1"
    plan_id: str
    rule: str
    reason: str


def stopped_key(plan_id: str) -> ObjectKey:
    """Return the key that marks a plan as stopped."""
    return ObjectKey(f"{GC_PLANS}{plan_id}/stopped.json")


def check_plan_id(plan_id: str) -> None:
    """Raise `BadUsage` if a text is not the id of a plan."""
    if not is_plan_id(plan_id):
        raise BadUsage(
            "a plan is named by its ULID: `sluice gc plans` and the console list the newest,"
            f" plan=`{plan_id[:80]}`"
        )


async def stop_plan(
    store: ObjectStore, plan_id: str, *, by: str, reason: str, backoff: Backoff
) -> bool:
    """Stop a plan permanently, as an operator; a task of a running plan ends before its next batch.

    Return False if there is no such plan, or if it has finished. After `OutcomeUnknown`, call
    again.
    """
    check_plan_id(plan_id)
    if isinstance(await store.head(plan_key(plan_id)), NotFound):
        return False
    if await is_finished(store, plan_id):
        return False
    mark = PlanStopped(plan_id=plan_id, rule=OPERATOR_RULE, reason=f"{by}: {reason}")
    # If it was stopped before, the first reason is kept.
    await create_known(store, stopped_key(plan_id), encode_record(mark), backoff)
    return True


async def check_not_stopped(store: ObjectStore, plan_id: str) -> None:
    """Refuse a plan that was stopped; the error contains the reason."""
    found = await store.get(stopped_key(plan_id))
    if isinstance(found, Found):
        mark = decode_record(stopped_key(plan_id), found.body, PlanStopped)
        raise GcRefused(
            RefusalRule.PLAN_STOPPED,
            f"the plan was stopped: {mark.reason}; remove the cause and make a new plan with"
            f' "sluice gc plan": nothing is deleted before, plan_id={plan_id}',
        )


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
