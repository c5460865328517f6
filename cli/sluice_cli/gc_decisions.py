"""`sluice gc approve` and `sluice gc stop`: the decisions of an operator about a plan."""

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit
from sluice_cli.user_name import user_name
from sluice_protocol.blob_deletion import ApprovalRuling, PlanApproval
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import Digest
from sluice_store import open_deployment
from sluice_store.retry import Backoff

if TYPE_CHECKING:
    from sluice_store.port import ObjectStore

REASON_CHARS_MAX = 1000


def approve(
    plan_id: str,
    /,
    *,
    note: Annotated[str, Parameter(help="Why the plan may be executed.")] = "",
    sha256: Annotated[
        str | None, Parameter(help="Approve only the plan of these bytes, in hex.")
    ] = None,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Approve a plan, as `require_approval` of a run demands.

    An approval names the exact bytes of the plan. It is permanent; stop the plan to withdraw it.
    """
    result = asyncio.run(_approve(store, plan_id, note, sha256))
    if isinstance(result, ApprovalRuling):
        emit(
            {"plan_id": plan_id, "refused": result.value},
            as_json=json,
            human=lambda console: console.print(f"plan {plan_id} not approved: {result.value}"),
        )
        return int(ExitCode.FOUND_WRONG.value)
    text = f"plan {plan_id} approved by {result.by}"
    emit(result, as_json=json, human=lambda console: console.print(text))
    return int(ExitCode.DONE.value)


def stop(
    plan_id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Why; it is shown by every later run.")],
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Stop a plan permanently; a running one ends before its next batch."""
    stopped = asyncio.run(_stop(store, plan_id, reason))
    text = "stopped" if stopped else "unknown or finished"
    emit(
        {"plan_id": plan_id, "stopped": stopped},
        as_json=json,
        human=lambda console: console.print(f"plan {plan_id}: {text}"),
    )
    return int((ExitCode.DONE if stopped else ExitCode.FOUND_WRONG).value)


async def _approve(
    url: str, plan_id: str, note: str, sha256: str | None
) -> PlanApproval | ApprovalRuling:
    from sluice_gc.plan.plan_inputs import approve_plan  # noqa: PLC0415 - quick help

    _check_text("note", note)
    async with open_deployment(url) as store:
        return await approve_plan(
            store,
            plan_id,
            shown_sha256=Digest(sha256) if sha256 else await _stored_sha256(store, plan_id),
            by=f"operator:{user_name()}",
            note=note,
            backoff=Backoff.seeded_by(SystemClock()),
        )


async def _stored_sha256(store: "ObjectStore", plan_id: str) -> Digest:
    from sluice_gc.plan.plan import plan_key  # noqa: PLC0415 - quick help
    from sluice_gc.plan.plan_inputs import check_plan_id  # noqa: PLC0415 - quick help
    from sluice_protocol.keys import digest_of  # noqa: PLC0415 - quick help
    from sluice_protocol.outcomes import Found  # noqa: PLC0415 - quick help

    check_plan_id(plan_id)
    found = await store.get(plan_key(plan_id))
    return digest_of(found.body if isinstance(found, Found) else b"")


async def _stop(url: str, plan_id: str, reason: str) -> bool:
    from sluice_gc.plan.plan_inputs import stop_plan  # noqa: PLC0415 - quick help

    if not reason.strip():
        raise BadUsage("reason must not be empty")
    _check_text("reason", reason)
    async with open_deployment(url) as store:
        by, backoff = f"operator:{user_name()}", Backoff.seeded_by(SystemClock())
        return await stop_plan(store, plan_id, by=by, reason=reason.strip(), backoff=backoff)


def _check_text(name: str, text: str) -> None:
    if len(text) > REASON_CHARS_MAX:
        raise BadUsage(f"{name} must have at most {REASON_CHARS_MAX} characters")
