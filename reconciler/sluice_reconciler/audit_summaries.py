"""Summaries of audits and deletion plans, one page at a time, and what plans deleted and kept.

They contain the fields of the stored records and prove nothing: `sluice audit verify` and
`sluice gc` check the signature and the evidence of a record.
"""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec
from msgspec.structs import asdict

from sluice_protocol.blob_deletion import ExecutionRuling, PlanApproval, decide_execution
from sluice_protocol.collection_records import (
    WRONG_COUNTS,
    BatchDone,
    PlanStopped,
    SignedCertificate,
    SignedPlan,
)
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import (
    AUDIT_CHAIN,
    GC_PLANS,
    GC_PROOFS,
    GC_TRASH,
    digest_of,
    parse_trash_key,
)
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found, NotFound, ObjectInfo
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.plan_folders import (
    is_plan_id,
    list_newest_certificate_keys,
    plan_folders,
    plan_folders_newest_first,
    read_approval,
)
from sluice_store.port import ObjectStore, read_bodies
from sluice_web.parameters import Page

PAGE_MAX: Final = 100
PAGE_DEFAULT: Final = 20


class AuditOverview(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="audit"):
    """One complete audit, as recorded in its certificate.

    Attributes:
        audit_id: ULID of the audit.
        chain_index: Position of the certificate in the chain.
        started_at_unix_ns: The store's clock before any evidence was read.
        finished_at_unix_ns: The store's clock at the end.
        deep: Share of the blobs that were read and hashed.
        counts: What was found, by name.
        evidence_files: Number of files with the listed rows.
        key_id: The key that signed it; the signature is not checked here.
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

    @property
    def wrong(self) -> dict[str, int]:
        """What the audit found wrong, by name; empty if nothing."""
        return {name: self.counts[name] for name in WRONG_COUNTS if self.counts.get(name)}


class PlanOverview(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="plan"):
    """One deletion plan, as recorded in the plan.

    Attributes:
        plan_id: ULID of the plan.
        audit_id: The audit that it is based on.
        made_at_unix_ns: The store's clock when it was made.
        blobs: Object versions that the audit listed, and their bytes.
        orphans: Of these, the versions that may be deleted because no record names them.
        superseded: Noncurrent versions of named blobs that may be deleted.
        kept: Versions that are kept, by the clause that keeps them.
        state: `planned`, `stopped` by a finding or an operator, or `finished`.
        stopped: Why it was stopped; empty if it was not.
        key_id: The key that signed it; the signature is not checked here.
        sha256: The sha256 of its stored bytes, which an approval names.
        approval: The approval of an operator; None if there is none.
        approval_problem: Why the approval does not count; empty if it does.
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
    sha256: str = ""
    approval: PlanApproval | None = None
    approval_problem: str = ""
    stopped: str = ""


class UnreadableRecord(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="unreadable"
):
    """A record that cannot be decoded; `kind` distinguishes it from the others in JSON."""

    key: str
    unreadable: str


AuditPage = Page[AuditOverview | UnreadableRecord]
PlanPage = Page[PlanOverview | UnreadableRecord]


async def list_audits(store: ObjectStore, after: str, limit: int) -> AuditPage:
    """Return complete audits in the order of their chain, oldest first."""
    found: list[AuditOverview | UnreadableRecord] = []
    async for key in _keys(store, AUDIT_CHAIN, after):
        if len(found) == limit:
            return Page(items=tuple(found), next=found[-1].key)
        found.append(await _audit(store, key))
    return Page(items=tuple(found), next=None)


async def list_newest_audits(
    store: ObjectStore, limit: int, *, known: int = -1
) -> tuple[AuditOverview | UnreadableRecord, ...]:
    """Return the newest complete audits, the newest first.

    `known` is a position of the chain that was seen earlier; -1 for none.
    """
    keys = await list_newest_certificate_keys(store, limit, known=known)
    return tuple([await _audit(store, key) for key in keys])


async def list_newest_plans(
    store: ObjectStore, limit: int
) -> tuple[PlanOverview | UnreadableRecord, ...]:
    """Return the newest deletion plans, the newest first."""
    found: list[PlanOverview | UnreadableRecord] = []
    async for plan_id in plan_folders_newest_first(store):
        found.append(await _plan(store, plan_id))
        if len(found) >= limit:
            break
    return tuple(found)


async def read_newest_plan(store: ObjectStore, *, known: str = "") -> PlanOverview | None:
    """Return the newest deletion plan that can be read; None if there is none.

    Plans before `known`, the newest plan of an earlier call, are not listed.
    """
    async for plan_id in plan_folders_newest_first(store, since=known):
        plan = await _plan(store, plan_id)
        if isinstance(plan, PlanOverview):
            return plan
    return None


async def _keys(store: ObjectStore, prefix: str, after: str) -> AsyncIterator[ObjectKey]:
    async for page in store.list(prefix, start_after=after):
        for one in page.objects:
            yield one.key


async def _audit(store: ObjectStore, key: ObjectKey) -> AuditOverview | UnreadableRecord:
    try:
        signed = await _read(store, key, SignedCertificate)
    except InvalidRecord as error:
        return UnreadableRecord(key=key, unreadable=error.reason)
    certificate = signed.certificate
    return AuditOverview(
        key=key,
        audit_id=certificate.audit_id,
        chain_index=certificate.chain_index,
        started_at_unix_ns=certificate.started_at_unix_ns,
        finished_at_unix_ns=certificate.finished_at_unix_ns,
        deep=certificate.deep,
        counts=msgspec.to_builtins(certificate.counts),
        evidence_files=len(certificate.evidence),
        key_id=signed.key_id,
    )


_Stored = TypeVar("_Stored", bound=msgspec.Struct)


async def _read(store: ObjectStore, key: ObjectKey, kind: type[_Stored]) -> _Stored:
    return decode_record(key, await _body(store, key), kind)


async def _body(store: ObjectStore, key: ObjectKey) -> bytes:
    read = await store.get(key)
    if not isinstance(read, Found):
        raise InvalidRecord(key, "no such object")
    return read.body


async def list_plans(store: ObjectStore, after: str, limit: int) -> PlanPage:
    """Return deletion plans, oldest first; a folder without `plan.json` is an unfinished plan."""
    place = after.removeprefix(GC_PLANS).partition("/")[0] if after.startswith(GC_PLANS) else ""
    found: list[PlanOverview | UnreadableRecord] = []
    async for plan_id in plan_folders(store, after=f"{place}/~" if place else ""):
        if len(found) == limit:
            return Page(items=tuple(found), next=found[-1].key)
        found.append(await _plan(store, plan_id))
    return Page(items=tuple(found), next=None)


async def _plan(store: ObjectStore, plan_id: str) -> PlanOverview | UnreadableRecord:
    folder = f"{GC_PLANS}{plan_id}/"
    key = ObjectKey(f"{folder}plan.json")
    try:
        body = await _body(store, key)
        signed = decode_record(key, body, SignedPlan)
    except InvalidRecord as error:
        return UnreadableRecord(key=key, unreadable=error.reason)
    plan, sha256 = signed.plan, digest_of(body)
    approval, problem = await _approval(store, plan.plan_id, sha256)
    state, stopped = await _state(store, folder)
    return PlanOverview(
        key=key,
        plan_id=plan.plan_id,
        audit_id=plan.audit_id,
        made_at_unix_ns=plan.made_at_unix_ns,
        blobs=asdict(plan.summary.blobs),
        orphans=asdict(plan.summary.orphans),
        superseded=asdict(plan.summary.superseded),
        kept={clause: asdict(tally) for clause, tally in plan.summary.kept.items()},
        candidate_files=len(plan.candidates),
        state=state,
        key_id=signed.key_id,
        sha256=sha256,
        approval=approval,
        approval_problem=problem,
        stopped=stopped,
    )


async def _approval(
    store: ObjectStore, plan_id: str, sha256: Digest
) -> tuple[PlanApproval | None, str]:
    """Return the approval of a plan, and why a run that requires one would refuse it."""
    try:
        approval = await read_approval(store, plan_id)
    except InvalidRecord as error:
        return None, f"the approval cannot be read: {error.reason}"
    if approval is None:
        return None, ""
    ruling = decide_execution(required=True, plan_id=plan_id, plan_sha256=sha256, approval=approval)
    if ruling is ExecutionRuling.ALLOWED:
        return approval, ""
    return approval, "the approval is of other bytes than the plan"


async def _state(store: ObjectStore, folder: str) -> tuple[str, str]:
    """Return the state of a plan, and why it was stopped."""
    key = ObjectKey(f"{folder}stopped.json")
    read = await store.get(key)
    if isinstance(read, Found):
        try:
            return "stopped", decode_record(key, read.body, PlanStopped).reason
        except InvalidRecord as error:
            return "stopped", f"the reason cannot be read: {error.reason}"
    finished = await store.head(ObjectKey(f"{folder}finished.json"))
    return ("finished" if isinstance(finished, ObjectInfo) else "planned"), ""


BATCHES_MAX: Final = 1_000
"""Finished batches whose records are read."""
COPIES_MAX: Final = 100


class PlanResults(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the finished batches of a plan.

    Attributes:
        plan_id: ULID of the plan.
        more: Whether there are more than were read, so all numbers are too small.
        deleted: Deleted object versions.
        kept: Candidates that were kept although the plan named them, by the clause that kept them.
        unreadable: Keys of records that cannot be read.
        proofs: The prefix of the proofs of all plans; each was written before its deletions.
    """

    plan_id: str
    batches: int
    more: bool
    deleted: int
    deleted_bytes: int
    kept: dict[str, int]
    unreadable: tuple[str, ...]
    proofs: str = GC_PROOFS


class RestorableBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a deleted blob.

    Attributes:
        sha256: Of the blob.
        copied_at_unix_ns: When it was copied, immediately before its deletion.
    """

    sha256: str
    size_bytes: int
    copied_at_unix_ns: int


class RestorableBlobs(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of deleted blobs.

    Attributes:
        blobs: The first of them, by sha256.
        more: Whether there are more.
    """

    blobs: tuple[RestorableBlob, ...]
    more: bool


async def read_plan_results(store: ObjectStore, plan_id: str) -> PlanResults | None:
    """Return what the finished batches of a plan deleted; None if there is no such plan."""
    folder = f"{GC_PLANS}{plan_id}/"
    if not is_plan_id(plan_id):
        return None
    if isinstance(await store.head(ObjectKey(f"{folder}plan.json")), NotFound):
        return None
    keys: list[ObjectKey] = []
    more = False
    async for page in store.list(f"{folder}done/"):
        keys += [one.key for one in page.objects]
        more = len(keys) > BATCHES_MAX or not page.last
        if len(keys) >= BATCHES_MAX:
            break
    keys = keys[:BATCHES_MAX]
    bodies = await read_bodies(store, keys)
    kept: Counter[str] = Counter()
    deleted = deleted_bytes = 0
    broken: list[str] = []
    for key, body in zip(keys, bodies, strict=True):
        try:
            facts = decode_record(key, body or b"", BatchDone).facts
        except InvalidRecord:
            broken.append(key)
            continue
        deleted += facts.deleted
        deleted_bytes += facts.deleted_bytes
        kept.update(facts.kept)
    return PlanResults(
        plan_id=plan_id,
        batches=len(keys),
        more=more,
        deleted=deleted,
        deleted_bytes=deleted_bytes,
        kept=dict(kept),
        unreadable=tuple(broken),
    )


async def list_restorable(store: ObjectStore) -> RestorableBlobs:
    """Return the copies of deleted blobs that a run with `undo` kept."""
    found: list[RestorableBlob] = []
    async for page in store.list(GC_TRASH):
        for one in page.objects:
            if len(found) == COPIES_MAX:
                return RestorableBlobs(blobs=tuple(found), more=True)
            try:
                sha256 = parse_trash_key(one.key)
            except InvalidRecord:
                continue  # a foreign key, which `sluice gc purge` reports
            found.append(
                RestorableBlob(
                    sha256=sha256,
                    size_bytes=one.size_bytes,
                    copied_at_unix_ns=one.last_modified_ns,
                )
            )
    return RestorableBlobs(blobs=tuple(found), more=False)
