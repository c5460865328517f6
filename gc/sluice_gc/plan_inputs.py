"""The inputs of a plan or a run: the checked basis, the store's clock, and stored plans."""

from dataclasses import dataclass

import msgspec

from sluice_gc.certificate_chain import ChainLink
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.key_ranges import read_first_key
from sluice_gc.plan import Plan, plan_key, verify_plan
from sluice_gc.signing_keys import TrustedKeys
from sluice_protocol.authority import Authority
from sluice_protocol.keys import AUTHORITY_SETTINGS, GC_PLANS
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_store.port import ObjectStore, Versioning


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBasis:
    """What a plan or a run stands on, all of it just read and checked."""

    authority: Authority
    link: ChainLink
    now_ns: UnixNs
    versioning: Versioning


async def read_store_time(store: ObjectStore) -> UnixNs:
    """Return the store's clock: the Date of the response to one HEAD request.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    return (await store.head(AUTHORITY_SETTINGS)).date_ns


async def read_plan(store: ObjectStore, trusted: TrustedKeys, plan_id: str) -> Plan:
    """Gives a plan, checked.

    Raises:
        GcRefused: It is missing, was edited, or is not signed by a trusted key.
        StoreError: No answer, or a refusal.
    """
    read = await store.get(plan_key(plan_id))
    if not isinstance(read, Found):
        raise GcRefused(RefusalRule.PLAN_INVALID, f"there is no plan {plan_id}")
    return verify_plan(plan_id, read.body, trusted)


async def newest_plan_id(store: ObjectStore) -> str:
    """Gives the id of the newest plan.

    Raises:
        GcRefused: There is none.
        StoreError: No answer, or a refusal.
    """
    plan_ids = await read_plan_ids(store)
    if not plan_ids:
        raise GcRefused(RefusalRule.PLAN_INVALID, "there is no plan: run `sluice gc plan` first")
    return plan_ids[-1]


async def read_plan_ids(store: ObjectStore) -> list[str]:
    """Gives the ids of all complete plans, oldest first; a plan has its record last.

    Raises:
        StoreError: No answer, or a refusal.
    """
    plan_ids: list[str] = []
    key = await read_first_key(store, GC_PLANS, "")
    while key is not None:
        plan_id = key.removeprefix(GC_PLANS).partition("/")[0]
        if not isinstance(await store.head(plan_key(plan_id)), NotFound):
            plan_ids.append(plan_id)
        key = await read_first_key(store, GC_PLANS, f"{GC_PLANS}{plan_id}/~")
    return plan_ids


def finished_key(plan_id: str) -> ObjectKey:
    """Gives where the mark of a plan stands that needs no further run."""
    return ObjectKey(f"{GC_PLANS}{plan_id}/finished.json")


async def is_finished(store: ObjectStore, plan_id: str) -> bool:
    """Tells whether a run carried the whole plan out.

    Raises:
        StoreError: No answer, or a refusal.
    """
    return not isinstance(await store.head(finished_key(plan_id)), NotFound)


class PlanStopped(msgspec.Struct, frozen=True, kw_only=True):
    """The mark that a rule of safety broke under a plan: it never goes on, make a new one."""

    schema: str = "sluice.gc_stopped.v1"
    plan_id: str
    rule: str
    reason: str


def stopped_key(plan_id: str) -> ObjectKey:
    """Gives where the mark of a stopped plan stands."""
    return ObjectKey(f"{GC_PLANS}{plan_id}/stopped.json")


async def check_not_stopped(store: ObjectStore, plan_id: str) -> None:
    """Refuses a plan under which a rule of safety broke.

    Raises:
        GcRefused: It was stopped; the error says why.
    """
    found = await store.get(stopped_key(plan_id))
    if isinstance(found, Found):
        mark = decode_record(stopped_key(plan_id), found.body, PlanStopped)
        raise GcRefused(
            RefusalRule.PLAN_STOPPED, f"the plan was stopped, make a new one: {mark.reason}"
        )
