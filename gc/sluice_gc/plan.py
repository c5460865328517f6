"""A plan: its record, the rules that refuse it, and its state and approval in the store.

A plan lists and deletes nothing. The run proves every clause again before it deletes. A plan is
signed, so that a plan that was edited manually is refused.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sluice_gc.certificate import ChainLink, read_certificate_or_newest
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.signing_keys import TrustedKeys, is_signed, sign_record
from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import (
    ApprovalRuling,
    Clause,
    ExecutionRuling,
    PlanApproval,
    PlanState,
    approval_key,
    clock_fell,
    decide_approval,
    decide_execution,
)
from sluice_protocol.clock import Clock
from sluice_protocol.collection_records import (
    Certificate,
    Plan,
    PlanStopped,
    PlanSummary,
    SignedPlan,
    VersionTally,
)
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import GC_PLANS, digest_of
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_store.authority import read_authority, read_store_time
from sluice_store.plan_folders import (
    is_plan_id,
    plan_folders,
    plan_folders_newest_first,
    read_approval,
)
from sluice_store.port import ObjectStore, Versioning
from sluice_store.retry import Backoff, create_known

_DOMAIN: Final = b"sluice.gc_plan.v1\n"
SIZE_LIMITS: Final = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
AGE_DAYS: Final = (7, 14, 30, 90)


def plan_key(plan_id: str) -> ObjectKey:
    """Return the key of a plan."""
    return ObjectKey(f"{GC_PLANS}{plan_id}/plan.json")


def sign_plan(plan: Plan, key: Ed25519PrivateKey) -> bytes:
    """Return the canonical bytes of the signed plan, as they are stored."""
    key_id, signature = sign_record(key, _DOMAIN, plan)
    return encode_record(SignedPlan(plan=plan, key_id=key_id, signature=signature))


def verify_plan(plan_id: str, body: bytes, trusted: Mapping[str, Ed25519PublicKey]) -> Plan:
    """Decode a plan and verify its signature."""
    try:
        signed = decode_record(plan_key(plan_id), body, SignedPlan)
    except InvalidRecord as error:
        raise GcRefused(RefusalRule.PLAN_INVALID, str(error)) from error
    if not is_signed(signed, trusted, _DOMAIN, signed.plan):
        raise GcRefused(
            RefusalRule.PLAN_INVALID,
            f"the plan was edited or its signer is not trusted, plan_id={plan_id}",
        )
    if signed.plan.plan_id != plan_id:
        raise GcRefused(
            RefusalRule.PLAN_INVALID,
            f"plan {signed.plan.plan_id} is stored under the key of plan {plan_id}",
        )
    return signed.plan


def check_clocks(local_ns: UnixNs, store_ns: UnixNs, skew_s_max: float) -> None:
    """Refuse if the clock of this machine and the clock of the store differ too much."""
    skew_s = (local_ns - store_ns) / NS_PER_S
    if abs(skew_s) > skew_s_max:
        raise GcRefused(
            RefusalRule.CLOCKS_DIFFER,
            f"the local clock and the clock of the store differ by {skew_s:.0f} s; correct them",
        )


def check_clock_fall(highest_ns: int, now_ns: int, authority: Authority) -> None:
    """Refuse if the store's clock went back: by more than half the safety margin."""
    if clock_fell(highest_ns, now_ns, authority.margin_ns):
        raise GcRefused(
            RefusalRule.CLOCK_FELL,
            f"the store's clock went back by {(highest_ns - now_ns) / NS_PER_S:.0f} s;"
            " find the cause",
        )


def check_certificate_for(authority: Authority, certificate: Certificate) -> None:
    """Refuse a certificate that cannot be the basis of a plan for this authority.

    It has another authority or retry horizon, or its audit found keys of unknown form or unreadable
    manifests.
    """
    if certificate.authority_id != authority.authority_id:
        raise GcRefused(
            RefusalRule.OTHER_AUTHORITY,
            f"the certificate is of authority {certificate.authority_id},"
            f" not of {authority.authority_id}",
        )
    if certificate.retry_horizon_s != authority.retry_horizon_s:
        raise GcRefused(
            RefusalRule.HORIZON_NOT_COVERED,
            "the certificate has another retry horizon; run a new audit",
        )
    counts = certificate.counts
    if counts.foreign:
        raise GcRefused(
            RefusalRule.FOREIGN_KEYS,
            f"{counts.foreign} keys under the audited prefixes have an unknown form;"
            " move the keys in the findings elsewhere and run a new audit",
        )
    if counts.unreadable_manifests:
        raise GcRefused(
            RefusalRule.UNREADABLE_MANIFESTS,
            f"{counts.unreadable_manifests} manifests are unreadable and may name any blob;"
            " restore the manifests in the findings and run a new audit",
        )


def check_horizon_covered(summary: PlanSummary) -> None:
    """Refuse if no old orphan is covered by the certificate.

    Then the audit started before the retry horizon of each of them ended.
    """
    uncovered = summary.kept.get(Clause.CERTIFICATE.value, VersionTally())
    if uncovered.incarnations and not summary.orphans.plus(summary.expired_tally).incarnations:
        raise GcRefused(
            RefusalRule.HORIZON_NOT_COVERED,
            f"no certificate covers the retry horizon of {uncovered.incarnations} orphans;"
            " run a new audit",
        )


def check_amount(summary: PlanSummary, max_delete_ratio: float) -> None:
    """Refuse a plan that would delete too much.

    That is every current blob, or more than `max_delete_ratio` of the blobs or of their bytes.
    Blobs of expired batches do not count: the run that let them expire has a limit.
    """
    gone, all_blobs = summary.orphans, summary.blobs
    if gone.incarnations and gone.incarnations == all_blobs.incarnations:
        raise GcRefused(
            RefusalRule.EVERY_BLOB,
            f"all {gone.incarnations} blobs would be deleted; check the store and the prefix",
        )
    shares = (
        gone.incarnations / max(all_blobs.incarnations, 1),
        gone.bytes / max(all_blobs.bytes, 1),
    )
    if max(shares) > max_delete_ratio:
        raise GcRefused(
            RefusalRule.DELETE_RATIO,
            f"{max(shares):.0%} would be deleted, max_delete_ratio={max_delete_ratio:.0%};"
            " inspect the orphans before you raise the limit",
        )


def check_plan_for(plan: Plan, certificate: Certificate, certificate_sha256: Digest) -> None:
    """Refuse a plan of another certificate, authority or retry horizon, or older than it."""
    if plan.audit_id != certificate.audit_id or plan.certificate_sha256 != certificate_sha256:
        raise GcRefused(RefusalRule.PLAN_INVALID, "the plan is based on another certificate")
    if plan.authority_id != certificate.authority_id:
        raise GcRefused(
            RefusalRule.OTHER_AUTHORITY, "plan and certificate have different authorities"
        )
    if plan.retry_horizon_s != certificate.retry_horizon_s:
        raise GcRefused(
            RefusalRule.PLAN_INVALID, "plan and certificate have different retry horizons"
        )
    if plan.made_at_unix_ns < certificate.finished_at_unix_ns:
        raise GcRefused(
            RefusalRule.PLAN_BEFORE_CERTIFICATE,
            "the plan is older than its certificate; make a new plan",
        )


def check_grace(plan: Plan, now_ns: UnixNs, grace_s: float) -> None:
    """Refuse to execute a plan before an operator had time to inspect it, the grace period."""
    age_s = (now_ns - plan.made_at_unix_ns) / NS_PER_S
    if age_s < grace_s:
        raise GcRefused(
            RefusalRule.GRACE,
            f"the grace period is not over, age_s={age_s:.0f} grace_s={grace_s:.0f}; run it later",
        )


OPERATOR_RULE: Final = "stopped_by_operator"
"""The rule in the record of a plan that an operator stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBasis:
    """The basis of a plan, a run or an expiry. All of it was just read and checked."""

    authority: Authority
    link: ChainLink
    now_ns: UnixNs
    versioning: Versioning


async def read_plan_basis(
    store: ObjectStore, trusted: TrustedKeys, clock: Clock, skew_s_max: float, audit_id: str | None
) -> PlanBasis:
    """Read a certificate, or the newest one, and check that it and the clocks may be relied on."""
    authority = await read_authority(store)
    link = await read_certificate_or_newest(store, trusted, audit_id)
    check_certificate_for(authority, link.certificate)
    now_ns = await read_store_time(store)
    check_clocks(clock.now_ns(), now_ns, skew_s_max)
    check_clock_fall(link.certificate.finished_at_unix_ns, now_ns, authority)
    versioning = await store.read_versioning()
    return PlanBasis(authority=authority, link=link, now_ns=now_ns, versioning=versioning)


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
