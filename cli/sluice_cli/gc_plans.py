"""`sluice gc plans`: the newest plans, their state, and who approved them."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit, format_size, format_time, print_columns
from sluice_protocol.blob_deletion import PlanState
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.units import UnixNs
from sluice_store import StoreMode, open_deployment

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_reconciler.audit_summaries import PlanOverview, UnreadableRecord

LIMIT_MAX: Final = 100
APPROVED: Final = "approved"
EXPIRED: Final = "expired"
UNREADABLE: Final = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPlan:
    """One plan.

    Attributes:
        made_at_unix_ns: The store's clock when it was made; None if the plan cannot be read.
        state: `planned`, `approved`, `finished`, `stopped`, `expired` (its evidence is no longer
            kept), or `unreadable` (damaged, or not completed).
        blobs: Object versions that it names.
        size_bytes: Their size.
        approved_by: Empty if no operator approved it.
        note: Why it was stopped, why its approval does not count, or why it cannot be read.
    """

    plan_id: str
    made_at_unix_ns: int | None
    state: str
    blobs: int
    size_bytes: int
    approved_by: str
    note: str


def plans(
    *,
    limit: Annotated[int, Parameter(help="Most plans to list, up to 100.")] = 20,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """List the newest plans: time, state, what each names, and who approved it.

    Signatures are not verified; a run verifies them.
    """
    if not 1 <= limit <= LIMIT_MAX:
        raise BadUsage(f"--limit must be 1 to {LIMIT_MAX}, limit=`{limit}`")
    found = asyncio.run(_read(store, limit))
    emit(found, as_json=json, human=lambda console: _draw(console, found))
    return ExitCode.DONE.value


async def _read(url: str, limit: int) -> tuple[ListedPlan, ...]:
    from sluice_gc.audit.evidence_retention import OPEN_PLAN_NS  # noqa: PLC0415 - quick help
    from sluice_gc.plan.plan_inputs import read_store_time  # noqa: PLC0415 - quick help
    from sluice_reconciler.audit_summaries import list_newest_plans  # noqa: PLC0415 - quick help

    async with open_deployment(url, StoreMode.READ) as store:
        found = await list_newest_plans(store, limit)
        open_since_ns = UnixNs(await read_store_time(store) - OPEN_PLAN_NS)
    return tuple(describe_plan(one, open_since_ns) for one in found)


def describe_plan(plan: "PlanOverview | UnreadableRecord", open_since_ns: UnixNs) -> ListedPlan:
    """Return the row of a plan; the evidence of plans made before `open_since_ns` is gone."""
    from sluice_reconciler.audit_summaries import UnreadableRecord  # noqa: PLC0415 - quick help

    if isinstance(plan, UnreadableRecord):
        return ListedPlan(
            plan_id=plan.key.split("/")[-2],
            made_at_unix_ns=None,
            state=UNREADABLE,
            blobs=0,
            size_bytes=0,
            approved_by="",
            note=plan.unreadable,
        )
    named = (plan.orphans, plan.superseded)
    return ListedPlan(
        plan_id=plan.plan_id,
        made_at_unix_ns=plan.made_at_unix_ns,
        state=_state(plan, open_since_ns),
        blobs=sum(one["incarnations"] for one in named),
        size_bytes=sum(one["bytes"] for one in named),
        approved_by="" if plan.approval is None else plan.approval.by,
        note=plan.stopped or plan.approval_problem,
    )


def _state(plan: "PlanOverview", open_since_ns: UnixNs) -> str:
    if plan.state != PlanState.PLANNED:
        return plan.state
    if plan.made_at_unix_ns < open_since_ns:
        return EXPIRED
    return APPROVED if plan.approval is not None and not plan.approval_problem else plan.state


def _draw(console: "Console", found: tuple[ListedPlan, ...]) -> None:
    if not found:
        console.print("no plans: `sluice gc plan` makes one")
        return
    rows = [("plan", "made", "state", "blobs", "size", "approved by", "note")]
    rows += [
        (
            one.plan_id,
            "" if one.made_at_unix_ns is None else format_time(one.made_at_unix_ns),
            one.state,
            str(one.blobs),
            format_size(one.size_bytes),
            one.approved_by,
            one.note,
        )
        for one in found
    ]
    print_columns(console, rows)
