"""`sluice erase`: make matching records vanish from every copy, and report each of them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
from cyclopts import App, Parameter

from sluice_cli.shell.operator import operator_name
from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl, VerificationKeys
from sluice_cli.shell.output import emit, format_size, print_columns
from sluice_cli.spark import spark_session
from sluice_gc.settings import EraseSettings
from sluice_protocol.erasure import (
    ErasureDecision,
    ErasureReport,
    SignedErasureReport,
    decide_erasure,
)
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.manifests import decode_record
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.timestamps import format_rfc3339
from sluice_store import StoreMode, open_deployment
from sluice_store.authority import read_store_time
from sluice_store.port import ObjectStore
from sluice_store.stored_erasures import (
    StoredErasure,
    check_erasable,
    read_erasure,
    read_erasures,
)

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_gc.erasure_run import ErasurePlan
    from sluice_spark.erasure import ErasureLake

app = App(name="erase", help="Make matching records vanish from every copy, with a signed report.")

_ERASE: Final = EraseSettings()
_Result = TypeVar("_Result")


class ErasurePreview(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure would remove.

    Attributes:
        unsearched: Kinds of records that do not have the fields of the filter.
        records: Matching records in the blobs of accepted batches.
        batches: Those batches, whose blobs would be deleted; their other records stay.
        refused: Refused batches of conflicts with matching records. They were never accepted, so
            their other records would be deleted too.
        other_blobs: Further blobs with matching records: without a manifest, or in the trash.
        rows: By table, matching rows that readers do not hide yet or that are not removed yet.
        replaced_files: Data files with matching rows that their table does not contain.
    """

    where: str
    kinds: tuple[Kind, ...]
    unsearched: tuple[Kind, ...]
    records: int
    batches: int
    blob_bytes: int
    refused: int
    other_blobs: int
    rows: dict[str, int]
    replaced_files: int
    unreadable_blobs: int


class ErasureEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One erasure in a list; it is late if it has not ended when it is due."""

    erasure_id: str
    where: str
    reason: str
    decided_by: str
    decided_at_unix_ns: int
    due_at_unix_ns: int
    ended: bool
    late: bool
    reports: int
    next_at_unix_ns: int | None


Where = Annotated[
    str,
    Parameter(
        help="Conditions joined by `and`: agent = 'a', body contains 'x', name = 'm',"
        " attributes['k'] = 'v'."
    ),
]
Kinds = Annotated[
    tuple[Kind, ...],
    Parameter(name="--kind", help="Only this kind of record; repeatable. By default all."),
]
From = Annotated[
    str | None, Parameter(help="Only records at or after this time, RFC 3339.", name="--from")
]
To = Annotated[str | None, Parameter(help="Only records before this time, RFC 3339.")]


@app.command
def plan(
    *,
    store: StoreUrl = STORE_DEFAULT,
    where: Where = "",
    kind: Kinds = (),
    from_: From = None,
    to: To = None,
    json: Json = False,
) -> int:
    """Show which batches, rows, files and copies contain matching records. Write nothing."""
    asyncio.run(_check(store, where, kind, (from_, to), "a dry run"))

    async def work(opened: ObjectStore, lake: "ErasureLake") -> "ErasurePlan":
        from sluice_gc.erasure_run import ErasureSearch  # noqa: PLC0415 - takes a second

        decision = await _decision(opened, where, kind, (from_, to), "a dry run")
        return await ErasureSearch(opened, lake).plan(decision)

    planned = _with_spark(store, StoreMode.READ, work)
    decision = planned.decision
    shown = ErasurePreview(
        where=where,
        kinds=tuple(one.kind for one in decision.deletes),
        unsearched=decision.unsearched,
        records=planned.blobs.records,
        batches=planned.blobs.batches,
        blob_bytes=planned.blobs.batch_bytes,
        refused=planned.blobs.refused,
        other_blobs=len(planned.blobs.found)
        + planned.blobs.more
        - planned.blobs.batches
        - planned.blobs.refused,
        rows={name: one.rows for name, one in planned.tables.items()},
        replaced_files=sum(
            len(one.replaced) + len(one.unfinished) for one in planned.tables.values()
        ),
        unreadable_blobs=len(planned.blobs.unreadable),
    )
    emit(shown, as_json=json, human=lambda console: _draw_plan(console, shown))
    return ExitCode.DONE.value


@app.command
def run(
    erasure_id: Annotated[
        str, Parameter(help="An erasure to continue; without it, `--where` decides a new one.")
    ] = "",
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    where: Where = "",
    kind: Kinds = (),
    from_: From = None,
    to: To = None,
    reason: Annotated[str, Parameter(help="Why; kept in the record.")] = "",
    settings: Annotated[EraseSettings, Parameter(name="*")] = _ERASE,
    json: Json = False,
) -> int:
    """Decide an erasure or continue one, remove what can be removed now, and report the rest.

    Queries hide the records immediately. Blobs are deleted by garbage collection after the retry
    horizon and its grace period, so most erasures need several runs: the report names the next
    date. The command may be killed and repeated at any time. It exits with 1 until the erasure has
    ended.
    """
    if erasure_id and where:
        raise BadUsage("an erasure is continued without a filter: omit `--where`, or the id")
    from sluice_gc.signing_keys import load_keys  # noqa: PLC0415 - the import takes a second

    keys = load_keys(settings.key_file, settings.trusted_keys)

    async def work(opened: ObjectStore, lake: "ErasureLake") -> ErasureReport:
        from sluice_gc.erasure_run import ErasureRun  # noqa: PLC0415 - takes a second

        erasure = ErasureRun(opened, lake, keys, SystemClock(), SystemIds())
        continued = erasure_id
        if not continued:
            decided = await _decision(opened, where, kind, (from_, to), reason)
            continued = (await erasure.decide(decided)).signed.decision.erasure_id
        return await erasure.run(continued, settings)

    if erasure_id:
        asyncio.run(_read(store, erasure_id))  # refuse before the JVM starts
    else:
        asyncio.run(_check(store, where, kind, (from_, to), reason))
    report = _with_spark(store, StoreMode.WRITE, work)
    emit(report, as_json=json, human=lambda console: _draw_report(console, report))
    return int((ExitCode.DONE if report.ended else ExitCode.FOUND_WRONG).value)


@app.command(name="list")
def list_command(*, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """List the erasures and whether they have ended; exit 1 if one is late."""
    found, now_ns = asyncio.run(_list(store))
    entries = [_entry(one, now_ns) for one in found]
    emit(entries, as_json=json, human=lambda console: _draw_list(console, entries))
    return int(any(one.late for one in entries))


@app.command
def report(
    erasure_id: str,
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    key_file: VerificationKeys = _ERASE.key_file,
    json: Json = False,
) -> int:
    """Show the newest report of an erasure, and verify its signature and that of the decision."""
    from sluice_gc.erasure_run import check_signatures  # noqa: PLC0415 - the import takes a second
    from sluice_gc.signing_keys import load_trusted  # noqa: PLC0415

    stored = asyncio.run(_read(store, erasure_id))
    check_signatures(stored, load_trusted(key_file))
    if stored.report is None:
        raise BadUsage(f"no run of this erasure has ended: run `sluice erase run {erasure_id}`")
    found = stored.report
    emit(found, as_json=json, human=lambda console: _draw_signed(console, found))
    return ExitCode.DONE.value


@app.command
def verify(
    file: Path,
    /,
    *,
    key_file: VerificationKeys = _ERASE.key_file,
    json: Json = False,
) -> int:
    """Show a report in a file, as `sluice erase report --json` prints it, and verify it offline."""
    from sluice_gc.erasure_run import check_report  # noqa: PLC0415 - the import takes a second
    from sluice_gc.signing_keys import load_trusted  # noqa: PLC0415

    try:
        body = file.read_bytes()
    except OSError as error:
        raise BadUsage(f"cannot read the report: {error.strerror}, path=`{file}`") from error
    found = decode_record(str(file), body, SignedErasureReport)
    check_report(found, load_trusted(key_file))
    emit(found, as_json=json, human=lambda console: _draw_signed(console, found))
    return ExitCode.DONE.value


def _with_spark(
    store: str, mode: StoreMode, work: Callable[[ObjectStore, "ErasureLake"], Awaitable[_Result]]
) -> _Result:
    from sluice_spark.erasure import ErasureLake  # noqa: PLC0415 - the import takes a second

    with spark_session(store) as session:

        async def erase() -> _Result:
            async with open_deployment(store, mode) as opened:
                return await work(opened, ErasureLake(spark=session, store_url=store))

        return asyncio.run(erase())


async def _check(
    url: str,
    where: str,
    kinds: tuple[Kind, ...],
    span: tuple[str | None, str | None],
    reason: str,
) -> None:
    """Refuse what is no erasure before the JVM starts."""
    async with open_deployment(url, StoreMode.READ) as store:
        await check_erasable(store, await _decision(store, where, kinds, span, reason))


async def _decision(
    store: ObjectStore,
    where: str,
    kinds: tuple[Kind, ...],
    span: tuple[str | None, str | None],
    reason: str,
) -> ErasureDecision:
    ids = SystemIds()
    return decide_erasure(
        where,
        kinds,
        span,
        reason,
        erasure_id=ids.ulid(),
        delete_ids=[ids.ulid() for _ in KINDS],
        now_ns=await read_store_time(store),
        decided_by=operator_name(),
    )


async def _read(url: str, erasure_id: str) -> StoredErasure:
    async with open_deployment(url, StoreMode.READ) as store:
        return await read_erasure(store, erasure_id)


async def _list(url: str) -> tuple[list[StoredErasure], int]:
    async with open_deployment(url, StoreMode.READ) as store:
        return await read_erasures(store), await read_store_time(store)


def _entry(one: StoredErasure, now_ns: int) -> ErasureEntry:
    decision, last = one.signed.decision, one.last
    return ErasureEntry(
        erasure_id=decision.erasure_id,
        where=decision.where,
        reason=decision.reason,
        decided_by=decision.decided_by,
        decided_at_unix_ns=decision.decided_at_unix_ns,
        due_at_unix_ns=decision.due_at_unix_ns,
        ended=one.ended,
        late=one.is_late(now_ns),
        reports=0 if last is None else last.number,
        next_at_unix_ns=None if last is None else last.next_at_unix_ns,
    )


def _draw_plan(console: "Console", shown: ErasurePreview) -> None:
    console.print(
        f"{shown.records} matching records in {shown.batches} batches"
        f" ({format_size(shown.blob_bytes)}), whose other records stay in the tables"
    )
    console.print(
        f"{shown.refused} refused batches of conflicts, whose other records would be deleted too"
    )
    console.print(f"{shown.other_blobs} further blobs: without a manifest, or in the trash")
    for name, rows in sorted(shown.rows.items()):
        if name in shown.kinds:
            console.print(f"table {name}: {rows} rows")
    console.print(f"{shown.replaced_files} replaced data files with such rows")
    if shown.unsearched:
        console.print(f"not searched, without such fields: {', '.join(shown.unsearched)}")
    if shown.unreadable_blobs:
        console.print(f"{shown.unreadable_blobs} blobs cannot be read")
    console.print("nothing was written")


def _draw_signed(console: "Console", signed: SignedErasureReport) -> None:
    decision = signed.report.decision
    at = format_rfc3339(decision.decided_at_unix_ns)
    console.print(f"decided by {decision.decided_by} at {at}: {decision.reason}", markup=False)
    console.print(f"records where {decision.where}", markup=False)
    _draw_report(console, signed.report)


def _draw_report(console: "Console", found: ErasureReport) -> None:
    console.print(
        f"erasure {found.erasure_id}, report {found.number} of"
        f" {format_rfc3339(found.made_at_unix_ns)}: {found.records} records in"
        f" {found.batches} batches"
    )
    rows = [("copy", "state", "left", "note")]
    for one in found.copies:
        state = one.state.replace("_", " ")
        if one.at_unix_ns is not None:
            verb = "done at" if one.state == "done" else "gone by a run after"
            state = f"{verb} {format_rfc3339(one.at_unix_ns)}"
        rows.append((one.name, state, str(one.found or ""), one.detail))
    print_columns(console, rows)
    for key in found.refused:
        console.print(f"refused batch: {key}", markup=False)
    searched = ", ".join(f"{count} {name}" for name, count in sorted(found.searched.items()))
    console.print(f"verified: {str(found.verified).lower()}; searched: {searched}")
    if found.ended:
        console.print("the erasure has ended")
        return
    at_ns = found.next_at_unix_ns
    when = "" if at_ns is None else f" after {format_rfc3339(at_ns)}"
    console.print(f"it has not ended: run `sluice erase run {found.erasure_id}` again{when}")


def _draw_list(console: "Console", entries: list[ErasureEntry]) -> None:
    if not entries:
        console.print("no erasures")
        return
    rows = [("id", "decided", "due", "state", "next run", "filter", "reason")]
    for one in entries:
        state = "ended" if one.ended else "late" if one.late else "open"
        next_at = one.next_at_unix_ns
        rows.append(
            (
                one.erasure_id,
                format_rfc3339(one.decided_at_unix_ns),
                format_rfc3339(one.due_at_unix_ns),
                state,
                "" if next_at is None or one.ended else format_rfc3339(next_at),
                one.where,
                one.reason,
            )
        )
    print_columns(console, rows)
