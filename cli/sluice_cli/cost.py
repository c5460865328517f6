"""`sluice cost`: what a deployment costs in a month at list prices, by `docs/cost.md`.

Defaults and limits of the components are repeated, so that the command imports none of them. Tests
compare them, and the requests of each row with counted ones: `tests/simulation/cost`, and
`tests/integration/spark/test_ingest_requests.py` for those of micro-batches.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from cyclopts import Parameter

from sluice_cli.price_files import read_prices
from sluice_cli.shell.options import Json
from sluice_cli.shell.output import emit, format_size
from sluice_protocol.errors import BadUsage
from sluice_protocol.journals import HEARTBEAT_S, JOURNAL_INTERVAL_S, JOURNAL_INTERVAL_S_MAX
from sluice_protocol.prices import (
    DAY_S,
    GIB_BYTES,
    MONTH_S,
    PriceTable,
    RequestCounts,
    request_dollars,
    storage_dollars_per_month,
)

if TYPE_CHECKING:
    from rich.console import Console

BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
AUDIT_EVERY_S: Final = float(DAY_S)
FRESHNESS_S_MAX: Final = 3600.0
RECONCILER_S_MAX: Final = 30.0
DOOR_FLUSH_S_MAX: Final = 5.0
DOOR_FRAME_S: Final = 0.25
DOOR_LANES: Final = 4
"""Sequences of batches that a worker makes of the small requests of one principal."""
EARLY_ENTRIES: Final = 64
"""Entries with which a journal is written before its time."""
LISTED_BATCHES: Final = 512
"""Batches of one flush at most, and about those of a lane between two parts of its state."""
PAGE_OBJECTS: Final = 1000
TRIGGER_BYTES: Final = 1024 * 1024 * 1024
TRIGGER_BATCHES: Final = 20_000
TABLES: Final = 5
"""Tables that each micro-batch commits to: four of records, and the ledger."""
TABLE_LISTS: Final = 4.0
TABLE_GETS: Final = 7.0
"""GET and HEAD of one table that is opened and committed to, without the commits since the
checkpoint, and with its share of writing a checkpoint."""
COMMIT_GETS: Final = 2.0
TABLE_CHECKPOINT_COMMITS: Final = 50
LEDGER_FILE_GETS: Final = 2.0
PART_BYTES: Final = 10 * 1024 * 1024
"""A larger file is written in parts of about this size, with two further requests."""
TASK_BYTES: Final = 256 * 1024 * 1024
FILE_BYTES: Final = 128 * 1024 * 1024
FILE_GETS: Final = 4.0
STORED_BATCH_BYTES: Final = 586 + 708 + 298
"""Manifest, and by-time entries of manifest and blob, as measured for `docs/operations.md`."""
REFERENCE_BYTES: Final = 200
_UNITS: Final = {
    name + unit: base**power
    for base, unit in ((1000, "B"), (1024, "iB"))
    for power, name in enumerate(("", "K", "M", "G", "T"))
    if name or unit == "B"
}
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)/([smhd])")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """A deployment, which is also the options of `sluice cost`.

    Attributes:
        rate: Records of all agents together, before compression, such as `30MiB/s` or `500GiB/d`.
        agents: Number of agents; with `--doors`, of principals.
        freshness_s: How old a record may be when its batch is cut; default 60, with `--doors` 2.
        doors: Gateways combine small requests of clients, instead of agents that send batches.
        gateway_workers: Worker processes of all gateways.
        journal_interval_s: Of gateways; by default a twelfth of the freshness.
        reconciler_freshness_s: `freshness_s` of the reconciler; by default a quarter of the
            freshness.
        lanes: Lanes of the queue.
        pack_references: Whether the reconciler packs reverse references.
        trigger_s: Of the ingestion; by default the freshness, and at least 10.
        history_days: Days for which the deployment has accepted batches.
        retention_days: Days for which tables keep records; 0 keeps them permanently.
        compression: How many bytes of records one stored byte contains.
        prices: TOML file with other prices; what it does not name keeps its default.
    """

    rate: str
    agents: int = 1000
    freshness_s: float | None = None
    doors: bool = False
    gateway_workers: int = 2
    journal_interval_s: float | None = None
    reconciler_freshness_s: float | None = None
    lanes: int = 4
    pack_references: bool = False
    trigger_s: float | None = None
    history_days: float = 30.0
    retention_days: float = 0.0
    compression: float = 5.0
    prices: Path | None = None


class CostRow(NamedTuple):
    """The requests per second of one activity, and the setting that decides them."""

    activity: str
    setting: str
    per_s: RequestCounts


class Load:
    """A plan with every setting, and what follows from them. Rates are per second."""

    def __init__(self, plan: CostPlan) -> None:
        """Check the options, and fill those that follow from the freshness.

        Each later step may take a part of what the batch takes. Micro-batches are not part of
        it, because queries read pending batches too.
        """
        found = _RATE.fullmatch(plan.rate.strip())
        if found is None or found[2] not in _UNITS:
            raise BadUsage(
                f"rate must be bytes per s, m, h or d, such as 30MiB/s or 500GiB/d; units are"
                f" {', '.join(_UNITS)}, rate=`{plan.rate}`"
            )
        self.plan = plan
        self.bytes_s = float(found[1]) * _UNITS[found[2]] / _SECONDS[found[3]]
        fresh_s = _or(plan.freshness_s, 2.0 if plan.doors else 60.0)
        self.freshness_s = fresh_s
        self.journal_s = _or(
            plan.journal_interval_s,
            min(max(fresh_s / 12, JOURNAL_INTERVAL_S), JOURNAL_INTERVAL_S_MAX),
        )
        self.flush_s = _or(plan.reconciler_freshness_s, min(fresh_s / 4, RECONCILER_S_MAX))
        self.trigger_s = _or(plan.trigger_s, min(max(10.0, fresh_s), 300.0))
        self._check()
        self.stored_bytes_s = self.bytes_s / plan.compression
        # A worker cuts each of four sequences of a principal.
        sequences = plan.agents * (DOOR_LANES if plan.doors else 1)
        cut = sequences * (plan.gateway_workers if plan.doors else 1)
        age_s = max(fresh_s, DOOR_FRAME_S) if plan.doors else fresh_s
        self.batches = max(cut / age_s, self.bytes_s / BATCH_BYTES_MAX)
        self.round_s = max(0.25, self.flush_s)
        self.visible_after_s = fresh_s + self.journal_s + self.round_s
        self.micro_batch_s = min(
            self.trigger_s, TRIGGER_BYTES / self.stored_bytes_s, TRIGGER_BATCHES / self.batches
        )
        self.used_lanes = hit_lanes(plan.lanes, sequences)
        self.micro_batch_lanes = hit_lanes(self.used_lanes, self.batches * self.micro_batch_s)
        month_days, days = MONTH_S / DAY_S, plan.history_days
        mean_days = days / 2 if days < month_days else days - month_days / 2
        self.listed_batches = self.batches * mean_days * DAY_S
        self._flushes()

    def _flushes(self) -> None:
        """Find the objects of journals, the flushes of the reconciler, and entries of the queue."""
        workers, each = self.plan.gateway_workers, self.batches / self.plan.gateway_workers
        # Each worker writes its journal after a time, or with a number of entries.
        written = (1 - math.exp(-each * self.journal_s)) / self.journal_s
        if each * self.journal_s > EARLY_ENTRIES:
            written = each / EARLY_ENTRIES
        self.journals = workers * max(written, 1 / HEARTBEAT_S)
        # A round flushes if it finds entries, and every 512 of them. The journals of several
        # workers are written at different moments.
        found = 1 - (1 - min(1.0, written * self.round_s)) ** workers
        rounds = min(found / self.round_s, self.batches)
        self.flushes = max(rounds, self.batches / LISTED_BATCHES)
        self.entries = self.flushes * hit_lanes(self.used_lanes, self.batches / self.flushes)

    def _check(self) -> None:
        fresh_s_max = DOOR_FLUSH_S_MAX if self.plan.doors else FRESHNESS_S_MAX
        for name, value, low, high in (
            ("rate", self.bytes_s, 1, math.inf),
            ("agents", self.plan.agents, 1, math.inf),
            ("freshness-s", self.freshness_s, 0.05, fresh_s_max),
            ("gateway-workers", self.plan.gateway_workers, 1, math.inf),
            ("journal-interval-s", self.journal_s, JOURNAL_INTERVAL_S, JOURNAL_INTERVAL_S_MAX),
            ("reconciler-freshness-s", self.flush_s, 0, RECONCILER_S_MAX),
            ("lanes", self.plan.lanes, 1, 1000),
            ("trigger-s", self.trigger_s, 1, math.inf),
            ("history-days", self.plan.history_days, 0, math.inf),
            ("retention-days", self.plan.retention_days, 0, math.inf),
            ("compression", self.plan.compression, 0.1, math.inf),
        ):
            if not low <= value <= high:
                most = "" if high == math.inf else f" and at most {high:.10g}"
                raise BadUsage(
                    f"cannot compute the cost: --{name} must be at least {low:.10g}{most},"
                    f" {name}=`{value:.10g}`"
                )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def hit_lanes(lanes: float, batches: float) -> float:
    """Return how many lanes a number of batches is in, on average."""
    return min(1.0, lanes) if lanes <= 1 else lanes * (1 - (1 - 1 / lanes) ** batches)


def cost_rows(load: Load) -> list[CostRow]:
    """Return the requests of the whole deployment by activity."""
    return [*_service_rows(load), *_lake_rows(load)]


def _row(activity: str, setting: str, **requests: float) -> CostRow:
    return CostRow(activity, setting, RequestCounts(**requests))


def _service_rows(load: Load) -> list[CostRow]:
    """Return the requests of gateways and the reconciler."""
    batches, workers, lanes = load.batches, load.plan.gateway_workers, load.plan.lanes
    flushes, entries, journals = load.flushes, load.entries, load.journals
    cut = "gateway door_flush_ms" if load.plan.doors else "agent freshness_s"
    fresh = "reconciler freshness_s"
    # After an acknowledgement the next append to the lane fails once: the register has changed.
    acked = min(load.micro_batch_lanes / load.micro_batch_s, entries)
    states = 3 * entries + batches / (LISTED_BATCHES + 1) + acked
    references = 0.0 if load.plan.pack_references else batches
    checks, doctor = workers / 5, workers / 60
    listing = 1 / max(1.0, load.flush_s)
    published = min(1.0, flushes, 1 / load.round_s)
    reads = journals + workers / load.round_s
    passes = 1 / min(float(DAY_S), max(60.0, 0.01 * load.listed_batches))
    pages = 6 + load.listed_batches / PAGE_OBJECTS
    return [
        _row("accept: blobs and manifests", cut, puts=2 * batches),
        _row("accept: acceptance journals", "journal_interval_s", puts=journals),
        _row("accept: checks", "workers", lists=checks + doctor, gets=2 * checks + doctor),
        _row("indexes: verification", cut, gets=2 * batches),
        _row("indexes: by-time entries", fresh, puts=2 * flushes),
        _row("indexes: reverse references", "pack_references", puts=references),
        _row("queue: lists, states, registers", f"{fresh}, lanes", puts=states, gets=acked),
        _row("queue: checks", "lanes", lists=(3 + lanes) / 60, gets=4 * lanes / 60),
        _row("queue: removal (estimate)", f"{fresh}, lanes", gets=entries, deletes=entries),
        _row("reconciler: journals", f"{fresh}, workers", gets=reads),
        _row("reconciler: gateways", fresh, puts=published, lists=listing, gets=listing),
        _row("reconciler: sharing lanes", "reconcilers", puts=1 / 3, lists=1 / 3),
        _row("reconciler: held, conflicts", "hold_interval_s", lists=4 / 60),
        CostRow(
            "reconciler: removal (estimate)",
            "workers",
            RequestCounts(lists=workers / 10, gets=journals, deletes=journals),
        ),
        CostRow(
            "reconciler: full passes (estimate)",
            "batches",
            RequestCounts(puts=passes, lists=passes * pages),
        ),
    ]


def _lake_rows(load: Load) -> list[CostRow]:
    """Return the requests of ingestion, audits and compaction."""
    lanes, rounds, used = load.plan.lanes, 1 / load.micro_batch_s, load.micro_batch_lanes
    # A micro-batch reads authority (three GETs) and lanes for its offset, its partitions and its
    # report, and the lanes for each of two checks of the fence.
    reads = 3 * 3 + 5 * lanes + used
    written_bytes = load.stored_bytes_s / rounds
    files = files_puts(max(used, written_bytes / TASK_BYTES), written_bytes)
    opened = TABLES * (TABLE_GETS + COMMIT_GETS * TABLE_CHECKPOINT_COMMITS / 2)
    ledger = LEDGER_FILE_GETS * 3600 * rounds / 2
    day_bytes, merged = load.stored_bytes_s * DAY_S, DAY_S * rounds * lanes
    pages = (2 if load.plan.pack_references else 3) * load.listed_batches / PAGE_OBJECTS
    return [
        _row("ingest: blobs", "batches", gets=load.batches),
        CostRow(
            "ingest: queue",
            "trigger_s, lanes",
            RequestCounts(puts=used * rounds, lists=3 * rounds, gets=reads * rounds + load.entries),
        ),
        CostRow(
            "ingest: data files and commits",
            "trigger_s",
            RequestCounts(
                puts=(TABLES + files + 1) * rounds,
                lists=TABLES * TABLE_LISTS * rounds,
                gets=(opened + ledger) * rounds,
            ),
        ),
        _row("audits: listing", "audit every_s", lists=pages / AUDIT_EVERY_S),
        _row("audits: new manifests", "batches", gets=load.batches),
        CostRow(
            "compaction (estimate)",
            "bytes",
            RequestCounts(
                puts=files_puts(max(1.0, day_bytes / FILE_BYTES), day_bytes) / DAY_S,
                gets=(merged * FILE_GETS + day_bytes / PART_BYTES) / DAY_S,
                deletes=merged / DAY_S,
            ),
        ),
    ]


def files_puts(files: float, total_bytes: float) -> float:
    """Return the PUTs that write some files: one each, or parts if they are large."""
    each_bytes = total_bytes / files
    return files if each_bytes <= PART_BYTES else files * (2 + math.ceil(each_bytes / PART_BYTES))


def stored_parts(load: Load) -> tuple[tuple[str, float], ...]:
    """Return the stored bytes at the end of the history."""
    plan = load.plan
    lake_days = min(plan.history_days, plan.retention_days or plan.history_days)
    each_bytes = STORED_BATCH_BYTES + (0 if plan.pack_references else REFERENCE_BYTES)
    return (
        ("raw blobs, permanent", load.stored_bytes_s * plan.history_days * DAY_S),
        ("manifests and indexes, permanent", each_bytes * load.batches * plan.history_days * DAY_S),
        ("tables of the lake", load.stored_bytes_s * lake_days * DAY_S),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedRow:
    """An activity with its price."""

    activity: str
    setting: str
    per_s: RequestCounts
    dollars_per_month: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """What is stored at the end of the history, and what a month of it costs."""

    what: str
    stored_bytes: float
    dollars_per_month: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """The cost of a month, as `--json` prints it.

    The most expensive requests come first; `settings` is the plan with the values that follow from
    the freshness.
    """

    prices: PriceTable
    settings: CostPlan
    bytes_per_s: float
    batches_per_s: float
    batch_bytes: float
    visible_after_s: float
    requests: tuple[PricedRow, ...]
    total: PricedRow
    request_dollars_per_gib: float
    storage: tuple[StoredPart, ...]
    storage_dollars_per_month: float


def compute_cost(plan: CostPlan, prices: PriceTable) -> CostReport:
    """Return the cost of a month."""
    load = Load(plan)
    rows = cost_rows(load)
    every = CostRow("all requests", "", sum((one.per_s for one in rows), RequestCounts()))
    *priced, total = (
        PricedRow(
            activity=one.activity,
            setting=one.setting,
            per_s=one.per_s,
            dollars_per_month=request_dollars(one.per_s.times(MONTH_S), prices),
        )
        for one in (*rows, every)
    )
    stored: list[StoredPart] = []
    below_bytes = 0.0
    for what, stored_bytes in stored_parts(load):  # later parts pay the higher tiers
        dollars = storage_dollars_per_month(below_bytes + stored_bytes, prices)
        dollars -= storage_dollars_per_month(below_bytes, prices)
        stored.append(StoredPart(what=what, stored_bytes=stored_bytes, dollars_per_month=dollars))
        below_bytes += stored_bytes
    return CostReport(
        prices=prices,
        settings=replace(
            plan,
            freshness_s=load.freshness_s,
            journal_interval_s=load.journal_s,
            reconciler_freshness_s=load.flush_s,
            trigger_s=load.trigger_s,
        ),
        bytes_per_s=load.bytes_s,
        batches_per_s=load.batches,
        batch_bytes=load.bytes_s / load.batches,
        visible_after_s=load.visible_after_s,
        requests=tuple(sorted(priced, key=lambda one: -one.dollars_per_month)),
        total=total,
        request_dollars_per_gib=total.dollars_per_month / (load.bytes_s * MONTH_S / GIB_BYTES),
        storage=tuple(stored),
        storage_dollars_per_month=sum(one.dollars_per_month for one in stored),
    )


def cost(*, options: Annotated[CostPlan, Parameter(name="*")], json: Json = False) -> None:
    """Compute the cost of a month: requests by activity, and storage."""
    report = compute_cost(options, read_prices(options.prices))
    emit(report, as_json=json, human=lambda console: _draw(console, report))


def _draw(console: "Console", report: CostReport) -> None:
    plan, who = report.settings, "principals" if report.settings.doors else "agents"
    console.print(f"{report.prices.name}; {report.prices.source}", markup=False)
    console.print(
        f"{who}: {plan.agents}, {format_size(int(report.bytes_per_s / plan.agents))}/s each\n"
        f"{report.batches_per_s:.2f} batches/s of {format_size(int(report.batch_bytes))},"
        f" visible to queries after about {report.visible_after_s:.0f} s\n"
        f"journal_interval_s {plan.journal_interval_s:g}, reconciler freshness_s"
        f" {plan.reconciler_freshness_s:g}, trigger_s {plan.trigger_s:g}\n"
    )
    console.print(
        f"{'requests per second':<38}{'PUT':>9}{'LIST':>9}{'GET':>9}{'$/month':>10}  setting"
    )
    for one in (*report.requests, report.total):
        counts = f"{one.per_s.puts:9.3f}{one.per_s.lists:9.3f}{one.per_s.gets:9.3f}"
        line = f"{one.activity:<38}{counts}{one.dollars_per_month:10.2f}  {one.setting}"
        console.print(line.rstrip())
    console.print(f"requests for 1 GiB of records: ${report.request_dollars_per_gib:.4f}\n")
    for part in report.storage:
        size = format_size(int(part.stored_bytes))
        name = f"{part.what}, after {plan.history_days:g} days: {size}"
        console.print(f"{name:<65}{part.dollars_per_month:10.2f}")
    console.print(f"{'all storage':<65}{report.storage_dollars_per_month:10.2f}")
