"""`sluice retention`: how long batches and records are kept, and the proof before an expiry."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from sluice_cli.shell.operator import operator_name
from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit, format_size
from sluice_cli.spark import spark_session
from sluice_gc.settings import ExpireSettings
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.expiry import RetentionDecision, parse_keep
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.timestamps import format_rfc3339
from sluice_reconciler.audit_summaries import (
    AuditOverview,
    UnreadableRecord,
    list_newest_audits,
)
from sluice_store import StoreMode, open_deployment
from sluice_store.retry import Backoff
from sluice_store.stored_expiry import (
    RetentionState,
    Unchanged,
    read_retention_state,
    set_retention,
)

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_gc.expiry_run import ExpireReport

app = App(name="retention", help="Decide how long raw batches and records are kept.")

_DAY_S: Final = 86_400
_EXPIRE = ExpireSettings()


@app.command(name="set")
def set_command(
    *,
    store: StoreUrl = STORE_DEFAULT,
    raw: str | None = None,
    tables: str | None = None,
    note: str = "",
    json: Json = False,
) -> int:
    """Decide how long raw batches and the records of tables are kept; the decision is recorded.

    By default both are kept permanently. A batch expires only when the tables are proved to
    contain its records; its manifest stays. A value that is not given stays as it is.

    Args:
        store: The store.
        raw: Days, such as `30d`, after which raw batches may expire: at least the retry horizon
            plus 7 days. `never` withdraws the rule for batches that have not expired.
        tables: Days after which `sluice maintain` deletes records of every kind from the tables,
            or `never`. Its setting `retention_days` has priority.
        note: Why; kept in the record.
        json: Print JSON for programs.
    """
    if raw is None and tables is None:
        raise BadUsage("choose what ends, and when: add `--raw` or `--tables`, as `--raw 30d`")
    wanted: list[int | Unchanged | None] = [
        "unchanged" if text is None else parse_keep(option, text)
        for option, text in (("raw", raw), ("tables", tables))
    ]
    rule = asyncio.run(_set(store, wanted, note))
    emit(rule, as_json=json, human=lambda console: console.print(describe_rule(rule)))
    return ExitCode.DONE.value


@app.command
def show(*, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Show the decision in effect, the bytes that it concerns, and how many holds there are."""
    state, audit = asyncio.run(read_decision(store))
    emit(state, as_json=json, human=lambda console: _draw(console, state, audit))
    return ExitCode.DONE.value


@app.command
def run(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[ExpireSettings, Parameter(name="*")] = _EXPIRE,
    json: Json = False,
) -> int:
    """Prove which batches may expire, and record it in signed tombstones. Delete nothing.

    The candidates are those of the newest certificate. A Spark job compares each blob with the
    tables. After the next audit, `sluice gc plan` lists the blobs of expired batches. The command
    may be killed and repeated at any time; `--dry-run` shows the bytes that it would free.
    """
    from sluice_gc.expiry_run import ExpiryRun  # noqa: PLC0415 - the import takes a second
    from sluice_gc.signing_keys import load_keys  # noqa: PLC0415
    from sluice_spark.read_back import compare_batches  # noqa: PLC0415

    keys = load_keys(settings.key_file, settings.trusted_keys)
    with spark_session(store) as session:

        async def prove() -> "ExpireReport":
            mode = StoreMode.READ if settings.dry_run else StoreMode.WRITE
            async with open_deployment(store, mode) as opened:
                expiry = ExpiryRun(
                    opened,
                    partial(compare_batches, session, store),
                    keys,
                    SystemClock(),
                    SystemIds(),
                )
                return await expiry.run(settings)

        report = asyncio.run(prove())
    emit(report, as_json=json, human=lambda console: _draw_report(console, report))
    return ExitCode.DONE.value


async def _set(url: str, wanted: Sequence[int | Unchanged | None], note: str) -> RetentionDecision:
    raw, tables = wanted
    async with open_deployment(url) as store:
        return await set_retention(
            store,
            raw,
            tables_keep_s=tables,
            by=operator_name(),
            note=note,
            backoff=Backoff.seeded_by(SystemClock()),
        )


async def read_decision(
    url: str,
) -> tuple[RetentionState, AuditOverview | UnreadableRecord | None]:
    """Return what is in effect, and the newest audit, which has the number of older batches."""
    async with open_deployment(url, StoreMode.READ) as store:
        audits = await list_newest_audits(store, 1)
        return await read_retention_state(store), audits[0] if audits else None


def describe_rule(rule: RetentionDecision | None) -> str:
    """Return a decision about retention as a phrase."""
    if rule is None:
        return "raw batches never expire: nothing was decided"
    raw = "raw batches never expire"
    if rule.raw_keep_s is not None:
        raw = f"raw batches may expire after {rule.raw_keep_s / _DAY_S:g} days"
    tables = ""
    if rule.tables_keep_s is not None:
        tables = f", records of tables are deleted after {rule.tables_keep_s / _DAY_S:g} days"
    at = format_rfc3339(rule.decided_at_unix_ns)
    return f"{raw}{tables}, decided by {rule.decided_by} at {at}"


def describe_expiring(
    rule: RetentionDecision | None, audit: AuditOverview | UnreadableRecord | None
) -> tuple[str, ...]:
    """Return how many batches and bytes are older than a rule, by the newest audit."""
    if rule is None or rule.raw_keep_s is None:
        return ()
    if not isinstance(audit, AuditOverview) or audit.started_at_unix_ns <= rule.decided_at_unix_ns:
        return ("the next audit counts the older batches",)
    old, soon = audit.counts.get("expiring", 0), audit.counts.get("expiring_soon", 0)
    old_bytes = format_size(audit.counts.get("expiring_bytes", 0))
    soon_bytes = format_size(audit.counts.get("expiring_soon_bytes", 0))
    return (
        f"{old} of the newest audit are older ({old_bytes})",
        f"{soon} will be within a week ({soon_bytes})",
    )


def _draw_report(console: "Console", report: "ExpireReport") -> None:
    console.print(describe_rule(report.rule), markup=False)
    done = "would expire" if report.dry_run else "expired"
    console.print(
        f"{report.expired} of {report.candidates} candidates {done},"
        f" {format_size(report.expired_bytes)} in {report.tombstones} tombstones"
    )
    for clause, count in sorted(report.kept.items()):
        console.print(f"  kept by {clause}: {count}")


def _draw(
    console: "Console", state: RetentionState, audit: AuditOverview | UnreadableRecord | None
) -> None:
    console.print(describe_rule(state.rule), markup=False)
    for text in describe_expiring(state.rule, audit):
        console.print(f"  {text}")
    console.print(f"  shortest possible: {state.least_s / _DAY_S:g} days")
    console.print(f"  holds: {len(state.holds)} in effect, {len(state.unreadable)} unreadable")
