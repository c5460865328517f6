"""Audits and deletion plans: the newest of each, decisions about plans, and their candidates."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import structlog
from aiohttp import web

from sluice_console.access import check_operator
from sluice_gc.candidate_views import CandidateDetail, CandidatePage
from sluice_gc.errors import GcRefused
from sluice_maintain.status import MaintenanceStatus, read_stored_status
from sluice_protocol.blob_deletion import ApprovalRuling, PlanApproval
from sluice_protocol.clock import Clock
from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import BadUsage, ErrorCode, SluiceError
from sluice_protocol.keys import parse_digest
from sluice_protocol.units import Digest
from sluice_reconciler.audit_summaries import (
    AuditOverview,
    PlanOverview,
    PlanResults,
    RestorableBlobs,
    UnreadableRecord,
    list_newest_audits,
    list_newest_plans,
    list_restorable,
    read_plan_results,
)
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_expiry import RetentionState, read_retention_state
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import check_json_type, decode_json_body, json_response
from sluice_web.parameters import IntegerParameter, TextParameter
from sluice_web.problems import HttpRefusal

if TYPE_CHECKING:
    from sluice_gc.signing_keys import TrustedKeys

READS_MAX: Final = 2
"""Requests that read plans concurrently: each has row groups of a plan in memory."""
_AFTER: Final = IntegerParameter(name="after", default=0, minimum=0, maximum=10**15)
_LIMIT: Final = IntegerParameter(name="limit", default=100, maximum=500)
_PREFIX: Final = TextParameter(name="prefix", chars_max=64)

_Found = TypeVar("_Found", CandidatePage, CandidateDetail)


class CandidatePages:
    """The endpoints about the candidates of a plan."""

    def __init__(self, store: ObjectStore, trusted_keys: tuple[str, ...]) -> None:
        self._store = store
        self._trusted_keys = trusted_keys
        self._reads = asyncio.Semaphore(READS_MAX)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/v1/gc/plans/{id}/candidates",
                handler=self._list,
                summary="List candidates of a deletion plan, each with the clauses of the plan",
                parameters=(_PREFIX, _AFTER, _LIMIT),
                result=CandidatePage,
            ),
            Endpoint(
                method="GET",
                path="/v1/gc/plans/{id}/candidates/{sha256}",
                handler=self._show,
                summary="Return why a plan names a blob, what its runs proved, or why it is kept",
                result=CandidateDetail,
            ),
        )

    async def _list(self, request: web.Request) -> web.Response:
        plan_id = request.match_info["id"]
        async with self._reading() as trusted:
            # The package of garbage collection imports pyarrow: only these requests need it.
            from sluice_gc.plan_candidates import read_candidates  # noqa: PLC0415

            page = await read_candidates(
                self._store,
                plan_id,
                after=_AFTER.read(request.query),
                limit=_LIMIT.read(request.query),
                prefix=_PREFIX.read(request.query) or "",
                trusted=trusted,
            )
        return json_response(_existing(page, plan_id))

    async def _show(self, request: web.Request) -> web.Response:
        plan_id, text = request.match_info["id"], request.match_info["sha256"]
        try:
            digest = parse_digest(text)
        except ValueError as error:
            raise BadUsage(
                f"a SHA-256 has 64 lower-case hex digits, sha256=`{text[:80]}`"
            ) from error
        async with self._reading() as trusted:
            from sluice_gc.plan_candidates import read_candidate  # noqa: PLC0415 - as above

            detail = await read_candidate(self._store, plan_id, digest, trusted=trusted)
        return json_response(_existing(detail, plan_id))

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator["TrustedKeys | None"]:
        """Yield the trusted keys, or None; an altered plan or evidence is a corrupt object."""
        from sluice_gc.signing_keys import key_id_of, parse_public_key  # noqa: PLC0415 - as above

        keys = [parse_public_key(text) for text in self._trusted_keys]
        async with self._reads:
            try:
                yield {key_id_of(one): one for one in keys} or None
            except GcRefused as error:
                raise HttpRefusal(ErrorCode.CORRUPT_OBJECT, error.reason) from error
            except ModuleNotFoundError as error:
                detail = describe_missing_package("query", error.name)
                raise HttpRefusal(ErrorCode.NOT_FOUND, detail) from error


def _existing(found: _Found | None, plan_id: str) -> _Found:
    if found is None:
        raise HttpRefusal(
            ErrorCode.NOT_FOUND, f"no such plan: it was removed or never made, id=`{plan_id[:40]}`"
        )
    return found


if TYPE_CHECKING:
    from sluice_gc.store_verification import ChainReport

_RECORDS_LIMIT: Final = IntegerParameter(name="limit", default=20, maximum=100)
_REASON_CHARS_MAX: Final = 1000

log = structlog.get_logger()


class AuditList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest audits and plans, the newest first.

    Attributes:
        audits: What the certificates state; signatures are not checked.
        plans: What the plans state; signatures are not checked.
        can_verify: Whether the console knows keys with which certificates are verified.
        restorable: Copies of deleted blobs, which `sluice gc undo` restores.
        retention: How long raw batches are kept, and the holds.
    """

    audits: tuple[AuditOverview | UnreadableRecord, ...]
    plans: tuple[PlanOverview | UnreadableRecord, ...]
    can_verify: bool
    maintenance: MaintenanceStatus
    restorable: RestorableBlobs
    retention: RetentionState


class VerifiedChain(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification of all certificates.

    Attributes:
        valid: Whether every certificate is valid.
        problem: The first certificate that is missing, altered or moved; empty if there is none.
    """

    valid: bool
    certificates: int = 0
    head_audit_id: str | None = None
    problem: str = ""


class StopPlanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a plan is stopped."""

    reason: str


class StoppedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that is stopped."""

    plan_id: str


class ApproveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The approval of a plan.

    Attributes:
        plan_sha256: The sha256 of the plan that was shown.
        note: Why.
    """

    typed_plan_id: str
    plan_sha256: str
    note: str = ""


class AuditPages:
    """The endpoints of the page about audits and garbage collection."""

    def __init__(self, store: ObjectStore, clock: Clock, trusted_keys: tuple[str, ...]) -> None:
        self._store = store
        self._clock = clock
        self._trusted_keys = trusted_keys

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/v1/audits",
                handler=self._list,
                summary="Return the newest audits and deletion plans, and the maintenance tasks",
                parameters=(_RECORDS_LIMIT,),
                result=AuditList,
            ),
            Endpoint(
                method="GET",
                path="/v1/audits/verification",
                handler=self._verify,
                summary="Verify the signature and the position of every certificate",
                result=VerifiedChain,
            ),
            Endpoint(
                method="GET",
                path="/v1/gc/plans/{id}/results",
                handler=self._results,
                summary="Return what the finished batches of a plan deleted, and what they kept",
                result=PlanResults,
            ),
            Endpoint(
                method="POST",
                path="/v1/gc/plans/{id}/stop",
                handler=self._stop,
                summary="Stop a deletion plan permanently, as an operator",
                body=StopPlanRequest,
                result=StoppedPlan,
            ),
            Endpoint(
                method="POST",
                path="/v1/gc/plans/{id}/approve",
                handler=self._approve,
                summary="Approve a deletion plan, as an operator",
                body=ApproveRequest,
                result=PlanApproval,
            ),
        )

    async def _list(self, request: web.Request) -> web.Response:
        limit = _RECORDS_LIMIT.read(request.query)
        found = AuditList(
            audits=await list_newest_audits(self._store, limit),
            plans=await list_newest_plans(self._store, limit),
            can_verify=bool(self._trusted_keys),
            maintenance=await read_stored_status(self._store),
            restorable=await list_restorable(self._store),
            retention=await read_retention_state(self._store),
        )
        return json_response(found)

    async def _verify(self, request: web.Request) -> web.Response:
        del request
        if not self._trusted_keys:
            raise BadUsage(
                "no key to verify with: set trusted_keys of the console to the public key that"
                " `sluice audit key` printed"
            )
        return json_response(await self._verified())

    async def _verified(self) -> VerifiedChain:
        # The package of garbage collection imports pyarrow: only this request needs it.
        from sluice_gc.errors import CertificateInvalid  # noqa: PLC0415
        from sluice_gc.signing_keys import key_id_of, parse_public_key  # noqa: PLC0415
        from sluice_gc.store_verification import verify_store  # noqa: PLC0415

        keys = [parse_public_key(text) for text in self._trusted_keys]
        try:
            report: ChainReport = await verify_store(
                self._store, {key_id_of(one): one for one in keys}, evidence=False
            )
        except CertificateInvalid as error:
            return VerifiedChain(valid=False, problem=str(error))
        return VerifiedChain(
            valid=True, certificates=report.certificates, head_audit_id=report.head_audit_id
        )

    async def _results(self, request: web.Request) -> web.Response:
        plan_id = request.match_info["id"]
        found = await read_plan_results(self._store, plan_id)
        if found is None:
            raise HttpRefusal(ErrorCode.NOT_FOUND, f"no such plan, id=`{plan_id[:40]}`")
        return json_response(found)

    async def _stop(self, request: web.Request) -> web.Response:
        from sluice_gc.plan import stop_plan  # noqa: PLC0415 - as above

        visitor = check_operator(request)
        check_json_type(request)
        wanted = decode_json_body(await request.read(), StopPlanRequest)
        plan_id = request.match_info["id"]
        if not wanted.reason.strip() or len(wanted.reason) > _REASON_CHARS_MAX:
            raise BadUsage(f"reason must have 1 to {_REASON_CHARS_MAX} characters")
        try:
            stopped = await stop_plan(
                self._store,
                plan_id,
                by=f"operator:{visitor.name}",
                reason=wanted.reason.strip(),
                backoff=Backoff.seeded_by(self._clock),
            )
        except SluiceError as error:
            log.info("console_write", what="stop_plan", plan=plan_id[:40], by=visitor.name,
                     outcome="failed", reason=str(error))  # fmt: skip
            raise
        if not stopped:
            raise HttpRefusal(
                ErrorCode.NOT_FOUND, f"no such open plan: it is unknown or finished, id=`{plan_id}`"
            )
        log.info("console_write", what="stop_plan", plan=plan_id, by=visitor.name, outcome="done")
        return json_response(StoppedPlan(plan_id=plan_id))

    async def _approve(self, request: web.Request) -> web.Response:
        from sluice_gc.plan import approve_plan  # noqa: PLC0415 - as above

        visitor = check_operator(request)
        check_json_type(request)
        wanted = decode_json_body(await request.read(), ApproveRequest)
        plan_id = request.match_info["id"]
        if wanted.typed_plan_id != plan_id:
            raise BadUsage("typed_plan_id must be the id of the plan")
        if len(wanted.note) > _REASON_CHARS_MAX:
            raise BadUsage(f"note must have at most {_REASON_CHARS_MAX} characters")
        written = {"what": "approve_plan", "plan": plan_id[:40], "by": visitor.name}
        try:
            result = await approve_plan(
                self._store,
                plan_id,
                shown_sha256=_digest(wanted.plan_sha256),
                by=f"operator:{visitor.name}",
                note=wanted.note.strip(),
                backoff=Backoff.seeded_by(self._clock),
            )
        except SluiceError as error:
            log.info("console_write", **written, outcome="failed", reason=str(error))
            raise
        if isinstance(result, ApprovalRuling):
            log.info("console_write", **written, outcome="refused", reason=result.value)
            raise _refusal(result, plan_id)
        log.info("console_write", **written, outcome="done")
        return json_response(result)


def _digest(text: str) -> Digest:
    try:
        return parse_digest(text)
    except ValueError as error:
        raise BadUsage("plan_sha256 must have 64 lower-case hexadecimal digits") from error


def _refusal(ruling: ApprovalRuling, plan_id: str) -> SluiceError | HttpRefusal:
    match ruling:
        case ApprovalRuling.STOPPED:
            return BadUsage(f"the plan is stopped: make a new plan, id=`{plan_id}`")
        case ApprovalRuling.OTHER_BYTES:
            return BadUsage(f"the plan is not the one that was shown: reload, id=`{plan_id}`")
        case _:
            return HttpRefusal(
                ErrorCode.NOT_FOUND, f"no such open plan: it is unknown or finished, id=`{plan_id}`"
            )
