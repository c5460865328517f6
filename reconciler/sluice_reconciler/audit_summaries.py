"""What audits and deletion plans say of themselves, a page at a time, for operators.

Read from the stored records alone, field by field; that a record is signed and that its evidence
holds is for `sluice audit verify` and `sluice gc` to prove, not for this page.
"""

from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import AUDIT, GC_PLANS
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore
from sluice_web.paging import Page

CHAIN: Final = f"{AUDIT}chain/"
PAGE_MAX: Final = 100
PAGE_DEFAULT: Final = 20


class AuditOverview(msgspec.Struct, frozen=True, kw_only=True):
    """One complete audit, as its certificate says.

    Attributes:
        key: The certificate, at its place in the chain.
        audit_id: ULID.
        chain_index: Its place in the chain.
        started_at_unix_ns: The store's clock before any evidence was asked.
        finished_at_unix_ns: The store's clock at the end.
        deep: The share of blobs that were read again whole.
        counts: What was found, by name.
        evidence_files: How many files hold the listed rows.
        key_id: Whose signature it carries; not checked here.
    """

    key: str
    audit_id: str
    chain_index: int
    started_at_unix_ns: int
    finished_at_unix_ns: int
    deep: float
    counts: dict[str, int]
    evidence_files: int
    key_id: str


class PlanOverview(msgspec.Struct, frozen=True, kw_only=True):
    """One deletion plan, as it says.

    Attributes:
        key: The plan.
        plan_id: ULID.
        audit_id: The certificate that it rests on.
        made_at_unix_ns: The store's clock.
        blobs: Incarnations that the audit listed, with their bytes.
        orphans: Of them those that may go because nothing names them.
        superseded: Old versions of named blobs that may go.
        kept: What stays, by the clause that keeps it.
        candidate_files: How many files hold the candidates.
        state: `planned`, `stopped` by a finding, or `finished`.
        key_id: Whose signature it carries; not checked here.
    """

    key: str
    plan_id: str
    audit_id: str
    made_at_unix_ns: int
    blobs: dict[str, int]
    orphans: dict[str, int]
    superseded: dict[str, int]
    kept: dict[str, dict[str, int]]
    candidate_files: int
    state: str
    key_id: str


class UnreadableRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that is not what its key says."""

    key: str
    unreadable: str


AuditPage = Page[AuditOverview | UnreadableRecord]
PlanPage = Page[PlanOverview | UnreadableRecord]


class _Certificate(msgspec.Struct, frozen=True):
    audit_id: str
    chain_index: int
    started_at_unix_ns: int
    finished_at_unix_ns: int
    deep: float
    counts: dict[str, int]
    evidence: tuple[msgspec.Raw, ...]


class _SignedCertificate(msgspec.Struct, frozen=True):
    certificate: _Certificate
    key_id: str


class _PlanTotals(msgspec.Struct, frozen=True):
    blobs: dict[str, int]
    orphans: dict[str, int]
    superseded: dict[str, int]
    kept: dict[str, dict[str, int]]


class _Plan(msgspec.Struct, frozen=True):
    plan_id: str
    audit_id: str
    made_at_unix_ns: int
    summary: _PlanTotals
    candidates: tuple[msgspec.Raw, ...]


class _SignedPlan(msgspec.Struct, frozen=True):
    plan: _Plan
    key_id: str


async def list_audits(store: ObjectStore, after: str, limit: int) -> AuditPage:
    """Gives complete audits in the order of their chain, oldest first.

    Raises:
        StoreError: The store did not answer.
    """
    found: list[AuditOverview | UnreadableRecord] = []
    async for key in _keys(store, CHAIN, after):
        if len(found) == limit:
            return Page(items=tuple(found), next=found[-1].key)
        found.append(await _audit(store, key))
    return Page(items=tuple(found), next=None)


async def _keys(store: ObjectStore, prefix: str, after: str) -> AsyncIterator[ObjectKey]:
    async for page in store.list(prefix, start_after=after):
        for one in page.objects:
            yield one.key


async def _audit(store: ObjectStore, key: ObjectKey) -> AuditOverview | UnreadableRecord:
    try:
        signed = await _read(store, key, _SignedCertificate)
    except InvalidRecord as error:
        return UnreadableRecord(key=key, unreadable=error.reason)
    said = signed.certificate
    return AuditOverview(
        key=key,
        audit_id=said.audit_id,
        chain_index=said.chain_index,
        started_at_unix_ns=said.started_at_unix_ns,
        finished_at_unix_ns=said.finished_at_unix_ns,
        deep=said.deep,
        counts=said.counts,
        evidence_files=len(said.evidence),
        key_id=signed.key_id,
    )


_Stored = TypeVar("_Stored", bound=msgspec.Struct)


async def _read(store: ObjectStore, key: ObjectKey, kind: type[_Stored]) -> _Stored:
    read = await store.get(key)
    if not isinstance(read, Found):
        raise InvalidRecord(key, "it is not there")
    return decode_record(key, read.body, kind)


async def list_plans(store: ObjectStore, after: str, limit: int) -> PlanPage:
    """Gives deletion plans, oldest first; a folder without a plan is one that was not finished.

    Raises:
        StoreError: The store did not answer.
    """
    found: list[PlanOverview | UnreadableRecord] = []
    folder = await _next_folder(store, after)
    while folder is not None and len(found) < limit:
        found.append(await _plan(store, folder))
        folder = await _next_folder(store, found[-1].key)
    more = folder is not None and bool(found)
    return Page(items=tuple(found), next=found[-1].key if more else None)


async def _next_folder(store: ObjectStore, after: str) -> str | None:
    """Gives the folder of the first plan behind the one that a key belongs to."""
    place = after.removeprefix(GC_PLANS).partition("/")[0] if after.startswith(GC_PLANS) else ""
    # A plan's folder holds thousands of files: skip to behind the last that it can have.
    start_after = f"{GC_PLANS}{place}/~" if place else ""
    async for page in store.list(GC_PLANS, start_after=start_after):
        for one in page.objects:
            return GC_PLANS + one.key.removeprefix(GC_PLANS).partition("/")[0] + "/"
    return None


async def _plan(store: ObjectStore, folder: str) -> PlanOverview | UnreadableRecord:
    key = ObjectKey(f"{folder}plan.json")
    try:
        signed = await _read(store, key, _SignedPlan)
    except InvalidRecord as error:
        return UnreadableRecord(key=key, unreadable=error.reason)
    said = signed.plan
    return PlanOverview(
        key=key,
        plan_id=said.plan_id,
        audit_id=said.audit_id,
        made_at_unix_ns=said.made_at_unix_ns,
        blobs=said.summary.blobs,
        orphans=said.summary.orphans,
        superseded=said.summary.superseded,
        kept=said.summary.kept,
        candidate_files=len(said.candidates),
        state=await _state(store, folder),
        key_id=signed.key_id,
    )


async def _state(store: ObjectStore, folder: str) -> str:
    for state in ("stopped", "finished"):
        if isinstance(await store.head(ObjectKey(f"{folder}{state}.json")), ObjectInfo):
            return state
    return "planned"
