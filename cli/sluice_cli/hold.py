"""`sluice hold`: named cases that keep batches and records, whatever else would remove them."""

import asyncio
from typing import TYPE_CHECKING

import msgspec
from cyclopts import App

from sluice_cli.shell.operator import operator_name
from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit, print_columns
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.expiry import LegalHold, LegalHoldLifted
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.timestamps import format_rfc3339, parse_rfc3339
from sluice_store import StoreMode, open_deployment
from sluice_store.authority import read_store_time
from sluice_store.retry import Backoff
from sluice_store.stored_expiry import (
    RetentionState,
    add_hold,
    lift_hold,
    read_retention_state,
)

if TYPE_CHECKING:
    from rich.console import Console

app = App(name="hold", help="Keep batches and records of a case until the hold is lifted.")


@app.command
def add(
    *,
    store: StoreUrl = STORE_DEFAULT,
    case: str = "",
    reason: str = "",
    review: str = "",
    agent: str | None = None,
    principal: str | None = None,
    from_: str | None = None,
    to: str | None = None,
    json: Json = False,
) -> int:
    """Keep the batches of a case: they do not expire, and their records are not removed.

    Several holds may cover a batch; the last one that is lifted frees it. Deletes that may remove
    records of a covered batch are refused, and retention stops before it.

    Args:
        store: The store.
        case: The name of the case.
        reason: Why; kept in the record.
        review: The day on which an operator decides again, RFC 3339; the hold does not end then.
        agent: Only this agent.
        principal: Only batches that this principal sent.
        from_: Only batches that were accepted at or after this time, RFC 3339.
        to: Only batches that were accepted before this time, RFC 3339.
        json: Print JSON for programs.
    """
    if not review:
        raise BadUsage("a hold needs a review date: add one with `--review`, RFC 3339")
    placed = asyncio.run(
        _add(
            store,
            LegalHold(
                hold_id=SystemIds().ulid(),
                case=case,
                reason=reason,
                held_by=operator_name(),
                review_at_unix_ns=_time(review),
                held_at_unix_ns=0,
                agent_id=agent,
                principal=principal,
                from_unix_ns=None if from_ is None else _time(from_),
                to_unix_ns=None if to is None else _time(to),
            ),
        )
    )

    def human(console: "Console") -> None:
        console.print(f"hold {placed.hold_id} keeps {_range(placed)}", markup=False)

    emit(placed, as_json=json, human=human)
    return ExitCode.DONE.value


@app.command(name="list")
def list_command(*, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """List the holds; exit 1 if one cannot be read, or if the review of one is due."""
    shown = asyncio.run(_list(store))
    emit(shown, as_json=json, human=lambda console: _draw(console, shown))
    return int(bool(shown.unreadable or shown.due))


@app.command
def lift(
    hold_id: str, *, store: StoreUrl = STORE_DEFAULT, reason: str = "", json: Json = False
) -> int:
    """End a hold. Other holds over the same batches stay in effect.

    Args:
        hold_id: The id of the hold.
        store: The store.
        reason: Why; kept in the record.
        json: Print JSON for programs.
    """
    end = asyncio.run(_lift(store, hold_id, reason))
    emit(end, as_json=json, human=lambda console: console.print(f"hold {hold_id} is lifted"))
    return ExitCode.DONE.value


async def _add(url: str, wanted: LegalHold) -> LegalHold:
    async with open_deployment(url) as store:
        now_ns = await read_store_time(store)
        hold = msgspec.structs.replace(wanted, held_at_unix_ns=now_ns)
        return await add_hold(store, hold, Backoff.seeded_by(SystemClock()))


async def _list(url: str) -> RetentionState:
    async with open_deployment(url, StoreMode.READ) as store:
        return await read_retention_state(store)


async def _lift(url: str, hold_id: str, reason: str) -> LegalHoldLifted:
    async with open_deployment(url) as store:
        backoff = Backoff.seeded_by(SystemClock())
        by = operator_name()
        return await lift_hold(store, hold_id, by=by, reason=reason, backoff=backoff)


def _time(text: str) -> int:
    """Return an instant; of a date alone, its first one in UTC."""
    return parse_rfc3339(f"{text}T00:00:00Z" if len(text) == len("2026-01-01") else text)


def _range(hold: LegalHold) -> str:
    parts = [
        "" if hold.agent_id is None else f"agent {hold.agent_id}",
        "" if hold.principal is None else f"principal {hold.principal}",
        "" if hold.from_unix_ns is None else f"from {format_rfc3339(hold.from_unix_ns)}",
        "" if hold.to_unix_ns is None else f"to {format_rfc3339(hold.to_unix_ns)}",
    ]
    return ", ".join(filter(None, parts)) or "every batch"


def _draw(console: "Console", shown: RetentionState) -> None:
    for problem in shown.unreadable:
        console.print(f"unreadable, keeps everything: {problem}", markup=False)
    if not shown.holds:
        console.print("no holds")
        return
    rows = [("id", "case", "by", "since", "review", "covers", "reason")]
    rows += [
        (
            one.hold_id,
            one.case,
            one.held_by,
            format_rfc3339(one.held_at_unix_ns),
            format_rfc3339(one.review_at_unix_ns) + (" (due)" if one.hold_id in shown.due else ""),
            _range(one),
            one.reason,
        )
        for one in shown.holds
    ]
    print_columns(console, rows)
