"""The stored approvals of deletion plans."""

from sluice_protocol.blob_deletion import PlanApproval, approval_key
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_store.port import ObjectStore


async def read_approval(store: ObjectStore, plan_id: str) -> PlanApproval | None:
    """Return the approval of a plan, or None if there is none.

    Raises:
        InvalidRecord: It cannot be decoded.
        StoreError: The store is unreachable or refused the request.
    """
    key = approval_key(plan_id)
    found = await store.get(key)
    return decode_record(key, found.body, PlanApproval) if isinstance(found, Found) else None
