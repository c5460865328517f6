"""The cost of a plan: dollars of each line and of storage, and what to change. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sluice_cli.costs.lake_requests import ingest_lines, maintenance_lines, query_lines
from sluice_cli.costs.plan import (
    BATCH_BYTES,
    DOOR_FLUSH_S_MAX,
    FRESHNESS_S_MAX,
    RECONCILER_S_MAX,
    CostPlan,
    FullPlan,
)
from sluice_cli.costs.service_requests import (
    CostLine,
    accept_lines,
    index_lines,
    queue_lines,
    reconciler_lines,
)
from sluice_protocol.journals import JOURNAL_INTERVAL_S_MAX
from sluice_protocol.prices import (
    DAY_S,
    GIB_BYTES,
    MONTH_S,
    PriceTable,
    RequestCounts,
    request_dollars,
    storage_dollars_per_month,
)

CHANGES_SHOWN: Final = 3
SAVING_DOLLARS_MIN: Final = 1.0
"""A change that saves less per month is not worth naming."""
WORKERS_LEAST: Final = 2
"""So that one remains when the other is restarted."""
WEEK_S: Final = 7.0 * DAY_S
TRIGGER_S_ADVISED: Final = 60.0
MANIFEST_BYTES: Final = 586
BY_TIME_BYTES: Final = 708 + 298
REFERENCE_BYTES: Final = 200
"""Stored bytes for each batch: measured in `docs/operations.md`; a reference by its key and body.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLine:
    """One activity with its cost.

    Attributes:
        line: The requests per second.
        dollars_per_month: Their price.
    """

    line: CostLine
    dollars_per_month: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """What is stored at the end of the history, and what a month of it costs."""

    what: str
    stored_bytes: float
    dollars_per_month: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostChange:
    """One change of the settings.

    Attributes:
        advice: What to set, and what it costs otherwise.
        settings: The changed fields of the plan.
        saved_dollars_per_month: Dollars for requests that it saves, alone.
    """

    advice: str
    settings: dict[str, Any]
    saved_dollars_per_month: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """The cost of a deployment in a month.

    Attributes:
        full: The plan with every setting.
        prices: The prices.
        lines: The requests, the most expensive first.
        stored: The stored bytes.
        changes: The changes that save most.
    """

    full: FullPlan
    prices: PriceTable
    lines: tuple[PricedLine, ...]
    stored: tuple[StoredPart, ...]
    changes: tuple[CostChange, ...]

    @property
    def request_dollars_per_month(self) -> float:
        """The price of all requests of a month."""
        return sum(one.dollars_per_month for one in self.lines)

    @property
    def storage_dollars_per_month(self) -> float:
        """The price of what is stored at the end of the history, for a month."""
        return sum(one.dollars_per_month for one in self.stored)

    @property
    def request_dollars_per_gib(self) -> float:
        """The price of the requests for each GiB of records, before compression."""
        gib = self.full.plan.rate_bytes_per_s * MONTH_S / GIB_BYTES
        return self.request_dollars_per_month / gib

    @property
    def dominant(self) -> tuple[str, float]:
        """The setting that decides the largest share of the requests, and that share."""
        dollars: dict[str, float] = {}
        for one in self.lines:
            name = one.line.setting.partition(", ")[0]
            dollars[name] = dollars.get(name, 0.0) + one.dollars_per_month
        name = max(dollars, key=lambda one: dollars[one])
        return name, dollars[name] / max(self.request_dollars_per_month, 1e-9)


def compute_cost(plan: CostPlan, prices: PriceTable) -> CostReport:
    """Return the cost of a plan.

    Raises:
        BadUsage: A setting is out of range.
    """
    full = plan.filled()
    lines = priced_lines(full, prices)
    return CostReport(
        full=full,
        prices=prices,
        lines=tuple(sorted(lines, key=lambda one: -one.dollars_per_month)),
        stored=stored_parts(full, prices),
        changes=plan_changes(plan, prices),
    )


def all_lines(full: FullPlan) -> tuple[CostLine, ...]:
    """Return the requests of the whole deployment."""
    return (
        *accept_lines(full),
        *index_lines(full),
        *queue_lines(full),
        *reconciler_lines(full),
        *ingest_lines(full),
        *maintenance_lines(full),
        *query_lines(full),
    )


def priced_lines(full: FullPlan, prices: PriceTable) -> list[PricedLine]:
    """Return each activity with its price for a month."""
    return [
        PricedLine(line=one, dollars_per_month=request_dollars(one.per_s.times(MONTH_S), prices))
        for one in all_lines(full)
    ]


def total_requests(full: FullPlan) -> RequestCounts:
    """Return the requests per second of the whole deployment."""
    total = RequestCounts()
    for one in all_lines(full):
        total += one.per_s
    return total


def stored_parts(full: FullPlan, prices: PriceTable) -> tuple[StoredPart, ...]:
    """Return what is stored at the end of the history; later parts pay the higher tiers."""
    plan = full.plan
    bytes_s = plan.rate_bytes_per_s / plan.compression
    lake_days = min(plan.history_days, plan.lake_days or plan.history_days)
    each_bytes = MANIFEST_BYTES + BY_TIME_BYTES
    if not (plan.pack_by_time and plan.pack_references):
        each_bytes += REFERENCE_BYTES
    parts = (
        ("raw blobs, permanent", bytes_s * plan.history_days * DAY_S),
        ("manifests and indexes, permanent", each_bytes * full.batches),
        ("tables of the lake", bytes_s * lake_days * DAY_S),
    )
    found: list[StoredPart] = []
    below_bytes = 0.0
    for what, stored_bytes in parts:
        dollars = storage_dollars_per_month(below_bytes + stored_bytes, prices)
        dollars -= storage_dollars_per_month(below_bytes, prices)
        found.append(StoredPart(what=what, stored_bytes=stored_bytes, dollars_per_month=dollars))
        below_bytes += stored_bytes
    return tuple(found)


def plan_changes(plan: CostPlan, prices: PriceTable) -> tuple[CostChange, ...]:
    """Return the changes that save most, each computed alone."""
    before = request_dollars(total_requests(plan.filled()).times(MONTH_S), prices)
    found: list[CostChange] = []
    for advice, settings in _candidates(plan):
        changed = plan.with_changes(**settings).filled()
        after = request_dollars(total_requests(changed).times(MONTH_S), prices)
        if before - after >= SAVING_DOLLARS_MIN:
            found.append(
                CostChange(advice=advice, settings=settings, saved_dollars_per_month=before - after)
            )
    found.sort(key=lambda one: -one.saved_dollars_per_month)
    return tuple(found[:CHANGES_SHOWN])


def _candidates(plan: CostPlan) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what may be changed, whether or not it saves anything."""
    yield "pack by-time entries: reconciler pack_by_time = true", {"pack_by_time": True}
    packed = "pack reverse references: reconciler pack_references = true"
    yield packed, {"pack_references": True}
    if not plan.doors:
        yield "send one kind of records: agent host_metrics_s = 0", {"kinds": 1}
    yield "use one lane, in a new store: sluice init --lanes 1", {"lanes": 1}
    fewer = min(plan.gateway_workers, WORKERS_LEAST)
    yield f"run {fewer} gateway workers", {"gateway_workers": fewer}
    yield "audit once a week: audit or gc every_s = 604800", {"audit_every_s": WEEK_S}
    weekly = "list everything once a week: reconciler journaled_pass_interval_s = 604800"
    yield weekly, {"pass_every_s": WEEK_S}
    yield from _later(plan, plan.filled())


def _later(plan: CostPlan, full: FullPlan) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield intervals that may be longer; settings that follow from the freshness are kept."""
    kept = {
        "journal_interval_s": full.journal_interval_s,
        "reconciler_freshness_s": full.reconciler_freshness_s,
        "trigger_s": full.trigger_s,
    }
    fresh_s = min(2 * plan.freshness_s, DOOR_FLUSH_S_MAX if plan.doors else FRESHNESS_S_MAX)
    what = f"agent freshness_s = {fresh_s:g}"
    if plan.doors:
        what = f"gateway door_flush_ms = {1000 * fresh_s:g}"
    yield f"cut batches later: {what}", {**kept, "freshness_s": fresh_s}
    name = "gateway door_flush_bytes" if plan.doors else "agent batch_bytes"
    yield f"cut larger batches: {name} = {BATCH_BYTES}", {"batch_bytes": BATCH_BYTES}
    flush_s = min(RECONCILER_S_MAX, max(1.0, 2 * full.reconciler_freshness_s))
    yield (
        f"flush less often: reconciler freshness_s = {flush_s:g}",
        {"reconciler_freshness_s": flush_s},
    )
    yield (
        f"write journals less often: gateway journal_interval_s = {JOURNAL_INTERVAL_S_MAX:g}",
        {"journal_interval_s": JOURNAL_INTERVAL_S_MAX},
    )
    trigger_s = max(full.trigger_s, TRIGGER_S_ADVISED)
    yield (
        f"ingest less often: trigger_s = {trigger_s:g} (queries also read pending batches)",
        {"trigger_s": trigger_s},
    )
