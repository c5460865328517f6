"""`sluice cost`: compute what a deployment costs in a month at list prices."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from sluice_cli.options import Json
from sluice_cli.output import emit, format_size
from sluice_cli.price_files import read_prices
from sluice_protocol.errors import BadUsage

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_cli.costs.plan import CostPlan
    from sluice_cli.costs.report import CostReport

_BYTES: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """The options of `sluice cost`. A duration has a unit: `500ms`, `60s`, `10m`, `1d`.

    Attributes:
        rate: Records of all agents together, before compression, such as `30MiB/s` or `500GiB/d`.
        agents: Number of agents; with `--doors`, of principals.
        freshness: How old a record may be when its batch is cut; default 60s, with `--doors` 2s.
        doors: Gateways combine small requests of clients, instead of agents that send batches.
        kinds: Kinds of records that each agent sends; host metrics are a second kind.
        batch: Largest batch before compression, at most 8MiB.
        gateway_workers: Worker processes of all gateways.
        journal_interval: `journal_interval_s` of gateways; by default a twelfth of the freshness.
        reconcilers: Number of reconcilers.
        reconciler_freshness: `freshness_s` of reconcilers; by default a quarter of the freshness.
        lanes: Lanes of a queue.
        queues: Queues that every batch is appended to.
        pack_by_time: Pack by-time entries.
        pack_references: Pack reverse references.
        list_every: `journaled_pass_interval_s` of reconcilers: the time between two full passes.
        audit_every: Time between two audits.
        trigger: `trigger_s` of the ingestion; by default the freshness, and at least 10s.
        ingest_files: Data files that one micro-batch writes for each lane.
        queries_per_day: Searches over an hour, as an estimate.
        history_days: Days for which the deployment has accepted batches.
        retention_days: Days for which tables keep records; 0 keeps them permanently.
        compression: How many bytes of records one stored byte contains.
        prices: TOML file with other prices; what it does not name keeps its default.
    """

    rate: str
    agents: int = 1000
    freshness: str = ""
    doors: bool = False
    kinds: int = 1
    batch: str = "8MiB"
    gateway_workers: int = 2
    journal_interval: str = ""
    reconcilers: int = 1
    reconciler_freshness: str = ""
    lanes: int = 4
    queues: int = 1
    pack_by_time: bool = True
    pack_references: bool = False
    list_every: str = "1d"
    audit_every: str = "1d"
    trigger: str = ""
    ingest_files: int = 1
    queries_per_day: float = 0.0
    history_days: float = 30.0
    retention_days: float = 0.0
    compression: float = 5.0
    prices: Path | None = None


def cost(*, options: Annotated[CostOptions, Parameter(name="*")], json: Json = False) -> None:
    """Compute the cost of a month: requests by component, storage, and what to change."""
    from sluice_cli.costs.report import compute_cost  # noqa: PLC0415 - quick help

    prices = read_prices(options.prices)
    report = compute_cost(plan_of(options), prices)
    emit(_plain(report), as_json=json, human=lambda console: _draw(console, report))


def plan_of(options: CostOptions) -> "CostPlan":
    """Return the plan that the options describe.

    Raises:
        BadUsage: A value is malformed or out of range.
    """
    from sluice_cli.costs.plan import CostPlan  # noqa: PLC0415 - quick help

    default_s = "2s" if options.doors else "60s"
    return CostPlan(
        rate_bytes_per_s=parse_rate(options.rate),
        senders=options.agents,
        freshness_s=parse_duration("freshness", options.freshness or default_s),
        doors=options.doors,
        kinds=options.kinds,
        batch_bytes=int(parse_bytes("batch", options.batch)),
        gateway_workers=options.gateway_workers,
        journal_interval_s=_optional("journal_interval", options.journal_interval),
        reconcilers=options.reconcilers,
        reconciler_freshness_s=_optional("reconciler_freshness", options.reconciler_freshness),
        lanes=options.lanes,
        queues=options.queues,
        pack_by_time=options.pack_by_time,
        pack_references=options.pack_references,
        pass_every_s=parse_duration("list_every", options.list_every),
        audit_every_s=parse_duration("audit_every", options.audit_every),
        trigger_s=_optional("trigger", options.trigger),
        ingest_files=options.ingest_files,
        queries_per_day=options.queries_per_day,
        history_days=options.history_days,
        lake_days=options.retention_days,
        compression=options.compression,
    )


def parse_rate(text: str) -> float:
    """Return the bytes per second of a rate such as `30MiB/s` or `500GiB/d`.

    Raises:
        BadUsage: It has another form.
    """
    amount, _, per = text.partition("/")
    if per not in _RATE_SECONDS:
        raise BadUsage(
            f"rate must be bytes per s, m, h or d, such as 30MiB/s or 500GiB/d, rate=`{text}`"
        )
    return parse_bytes("rate", amount) / _RATE_SECONDS[per]


def parse_bytes(name: str, text: str) -> float:
    """Return a size such as `8MiB` in bytes.

    Raises:
        BadUsage: It has another form.
    """
    return _parse(name, text, {**_BYTES, **_BINARY}, "a size such as 8MiB")


def parse_duration(name: str, text: str) -> float:
    """Return a duration such as `60s` in seconds.

    Raises:
        BadUsage: It has another form.
    """
    return _parse(name, text, _SECONDS, "a duration such as 60s")


def _optional(name: str, text: str) -> float | None:
    return parse_duration(name, text) if text else None


def _parse(name: str, text: str, units: dict[str, float] | dict[str, int], form: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2] not in units:
        known = ", ".join(units)
        raise BadUsage(f"{name} must be {form}; units are {known}, {name}=`{text}`")
    return float(found[1]) * units[found[2]]


# --- output --------------------------------------------------------------------------------------


def _plain(report: "CostReport") -> dict[str, object]:
    full = report.full
    setting, share = report.dominant
    return {
        "prices": report.prices,
        "settings": {
            **asdict(full.plan),
            "journal_interval_s": full.journal_interval_s,
            "reconciler_freshness_s": full.reconciler_freshness_s,
            "trigger_s": full.trigger_s,
        },
        "batches_per_s": full.batches_per_s,
        "batch_bytes": full.plan.rate_bytes_per_s / full.batches_per_s,
        "visible_after_s": full.visible_after_s,
        "requests": [
            {**asdict(one.line), "dollars_per_month": one.dollars_per_month} for one in report.lines
        ],
        "request_dollars_per_month": report.request_dollars_per_month,
        "request_dollars_per_gib": report.request_dollars_per_gib,
        "storage": [asdict(one) for one in report.stored],
        "storage_dollars_per_month": report.storage_dollars_per_month,
        "dominant": {"setting": setting, "share": share},
        "changes": [asdict(one) for one in report.changes],
    }


def _draw(console: "Console", report: "CostReport") -> None:
    full = report.full
    size = format_size(int(full.plan.rate_bytes_per_s / full.batches_per_s))
    console.print(f"{report.prices.name}; {report.prices.source}", markup=False)
    who = "principals" if full.plan.doors else "agents"
    each = format_size(int(full.plan.rate_bytes_per_s / full.plan.senders))
    console.print(f"{who}: {full.plan.senders}, {each}/s each")
    console.print(
        f"{full.batches_per_s:.2f} batches/s of {size}, visible to queries after about"
        f" {full.visible_after_s:.0f} s"
    )
    console.print(
        f"journal_interval_s {full.journal_interval_s:g}, reconciler freshness_s"
        f" {full.reconciler_freshness_s:g}, trigger_s {full.trigger_s:g}\n"
    )
    _draw_requests(console, report)
    _draw_storage(console, report)
    setting, share = report.dominant
    console.print(f"\nlargest share of the requests: {setting}, {share:.0%}")
    for one in report.changes:
        console.print(f"  save ${one.saved_dollars_per_month:,.0f}: {one.advice}")


def _draw_requests(console: "Console", report: "CostReport") -> None:
    head = f"{'requests per second':<52}{'PUT':>9}{'LIST':>9}{'GET':>9}{'$/month':>10}"
    console.print(f"{head}  setting")
    for one in report.lines:
        line = one.line
        mark = " (estimate)" if line.is_estimate else ""
        name = f"{line.component}: {line.activity}{mark}"
        counts = f"{line.per_s.puts:9.3f}{line.per_s.lists:9.3f}{line.per_s.gets:9.3f}"
        console.print(f"{name:<52}{counts}{one.dollars_per_month:10.2f}  {line.setting}")
    total = report.request_dollars_per_month
    each = report.request_dollars_per_gib
    console.print(f"{f'all requests, ${each:.4f} per GiB of records':<79}{total:10.2f}\n")


def _draw_storage(console: "Console", report: "CostReport") -> None:
    days = report.full.plan.history_days
    for one in report.stored:
        name = f"{one.what}, after {days:g} days: {format_size(int(one.stored_bytes))}"
        console.print(f"{name:<79}{one.dollars_per_month:10.2f}")
    console.print(f"{'all storage':<79}{report.storage_dollars_per_month:10.2f}")
