"""`sluice delete`: hide records from queries; maintenance removes them from the tables."""

import asyncio
import re
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from sluice_cli.shell.operator import user_name
from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit
from sluice_protocol.clock import IdSource
from sluice_protocol.errors import ExitCode
from sluice_protocol.fields import Kind
from sluice_protocol.record_deletes import DeleteRecord, DeleteRequest
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import StoreMode, open_deployment
from sluice_store.retry import Backoff
from sluice_store.stored_deletes import submit_delete

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_query.deletes import DeleteReceipt

_RUNNING_MAX: Final = 4
_DAYS_AGO: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)d", re.ASCII)
"""An end that a repetition with the same id counts from the time of the first request."""


def delete(
    *,
    store: StoreUrl = STORE_DEFAULT,
    kind: Kind = "logs",
    where: str | None = None,
    from_: str | None = None,
    to: str | None = None,
    reason: str = "",
    delete_id: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Hide matching records of every batch accepted so far, including batches not ingested yet.

    Queries hide them immediately; `sluice spark compact` removes them. A delete is permanent: its
    record is never changed or withdrawn.

    Args:
        store: The store.
        kind: Kind of the records.
        where: Conditions joined by `and`: agent = 'a', body contains 'x', name = 'm',
            attributes['k'] = 'v'.
        from_: Only records at or after this time, RFC 3339.
        to: Only records before this time, RFC 3339, or before so many days ago, such as `30d`.
        reason: Why; kept in the record.
        delete_id: A ULID; repeating the command with the same one has no further effect.
        dry_run: Count the records, and write nothing.
        json: Print JSON for programs.
    """
    days = None if to is None else _DAYS_AGO.fullmatch(to)
    request = DeleteRequest(
        delete_id=delete_id,
        kind=kind,
        where=where,
        from_=from_,
        to=None if days else to,
        older_than_days=float(days[1]) if days else None,
        reason=reason,
        dry_run=dry_run,
    )
    if dry_run:
        receipt = asyncio.run(_count(store, request))
        emit(receipt, as_json=json, human=lambda console: _draw_counts(console, receipt))
        return ExitCode.DONE.value
    written = asyncio.run(_write(store, request, SystemIds()))

    def human(console: "Console") -> None:
        console.print(f"delete {written.delete_id} now hides matching {kind}")

    emit(written, as_json=json, human=human)
    return ExitCode.DONE.value


async def _write(url: str, request: DeleteRequest, ids: IdSource) -> DeleteRecord:
    async with open_deployment(url) as store:
        backoff = Backoff.seeded_by(SystemClock())
        return (await submit_delete(store, request, _principal(), backoff, ids)).record


async def _count(url: str, request: DeleteRequest) -> "DeleteReceipt":
    from sluice_query.deletes import Deletes  # noqa: PLC0415 - imports DuckDB
    from sluice_query.search import Searcher  # noqa: PLC0415 - imports DuckDB
    from sluice_query.settings import QuerySettings  # noqa: PLC0415

    clock = SystemClock()
    async with open_deployment(url, StoreMode.READ) as store:
        searcher = Searcher(store=store, store_url=url, settings=QuerySettings(), clock=clock)
        running = asyncio.Semaphore(_RUNNING_MAX)
        deletes = Deletes(
            searcher=searcher, run=searcher.search, running=running, clock=clock, ids=SystemIds()
        )
        return await deletes.submit(request, _principal())


def _principal() -> str:
    return f"cli:{user_name()}"


def _draw_counts(console: "Console", receipt: "DeleteReceipt") -> None:
    preview = receipt.preview
    if preview is None:
        return
    for one in preview.matches:
        batches = "" if one.batches is None else f" of {one.batches} batches"
        console.print(f"{one.source}: {one.records} records{batches}")
    console.print(f"accepted until {preview.accepted_until or 'unknown'}; nothing was written")
    for reason in preview.reasons:
        console.print(f"partial: {reason}", markup=False)
