"""The deployment whose cost is computed: load, freshness and the settings that decide requests.

A field that is None follows from the freshness, see `CostPlan.filled`. Limits and defaults of the
components are repeated here, so that the command imports none of them. A test compares them
(`tests/unit/cli/test_cost.py`).
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.journals import JOURNAL_INTERVAL_S, JOURNAL_INTERVAL_S_MAX
from sluice_protocol.prices import DAY_S, MONTH_S

FRESHNESS_S_MAX: Final = 3600.0
RECONCILER_S_MAX: Final = 30.0
DOOR_FLUSH_S_MAX: Final = 5.0
DOOR_FRAME_S: Final = 0.25
DOOR_LANES: Final = 4
SAMPLES_S: Final = 60.0
"""Samples of a host share a batch for at least this time."""
PASS_S: Final = 60.0
PASS_S_PER_BATCH: Final = 0.01
ROUND_S: Final = 0.25
LISTING_S: Final = 1.0
TRIGGER_S, TRIGGER_S_MAX = 10.0, 300.0
TRIGGER_BYTES: Final = 1024 * 1024 * 1024
TRIGGER_BATCHES: Final = 20_000
BATCH_BYTES: Final = 8 * 1024 * 1024
MONTH_DAYS: Final = MONTH_S / DAY_S
_OPTIONS: Final = {
    "rate_bytes_per_s": ("rate", " B/s"),
    "senders": ("agents", ""),
    "batch_bytes": ("batch", " B"),
    "freshness_s": ("freshness", " s"),
    "journal_interval_s": ("journal-interval", " s"),
    "reconciler_freshness_s": ("reconciler-freshness", " s"),
    "pass_every_s": ("list-every", " s"),
    "audit_every_s": ("audit-every", " s"),
    "trigger_s": ("trigger", " s"),
    "lake_days": ("retention-days", ""),
}
"""The options of `sluice cost` for fields with another name, and their units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """A deployment.

    Attributes:
        rate_bytes_per_s: Bytes of records per second, before compression.
        senders: Agents; with `doors`, principals.
        freshness_s: How old a record may be when its batch is cut, seconds.
        doors: Whether gateways combine small requests of clients, instead of agents that send
            batches.
        kinds: Kinds of records that each sender sends; each kind is cut separately. The
            second of an agent are samples of its host.
        batch_bytes: Largest batch, before compression.
        gateway_workers: Worker processes of all gateways.
        journal_interval_s: `journal_interval_s` of the gateways.
        reconcilers: Reconciler processes, which share the lanes.
        reconciler_freshness_s: `freshness_s` of the reconcilers.
        lanes: Lanes of a queue, as `sluice init` set them.
        queues: Queues that every batch is appended to.
        pack_by_time: Whether the reconciler packs by-time entries.
        pack_references: Whether a packed entry is also the reverse reference.
        pass_every_s: `journaled_pass_interval_s` of the reconcilers, the longest such time.
        audit_every_s: Time between two audits.
        trigger_s: `trigger_s` of the ingestion.
        ingest_files: Data files that one micro-batch writes for each lane.
        queries_per_day: Searches of the lake and the pending batches.
        history_days: Days for which the deployment has accepted batches.
        lake_days: Days for which tables keep records; 0 keeps them permanently.
        compression: How many bytes of records one stored byte contains.
    """

    rate_bytes_per_s: float
    senders: int = 1000
    freshness_s: float = 60.0
    doors: bool = False
    kinds: int = 1
    batch_bytes: int = BATCH_BYTES
    gateway_workers: int = 2
    journal_interval_s: float | None = None
    reconcilers: int = 1
    reconciler_freshness_s: float | None = None
    lanes: int = 4
    queues: int = 1
    pack_by_time: bool = True
    pack_references: bool = False
    pass_every_s: float = float(DAY_S)
    audit_every_s: float = float(DAY_S)
    trigger_s: float | None = None
    ingest_files: int = 1
    queries_per_day: float = 0.0
    history_days: float = 30.0
    lake_days: float = 0.0
    compression: float = 5.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BadUsage: A number is out of range.
        """
        counts = ("senders", "kinds", "batch_bytes", "gateway_workers", "reconcilers", "lanes")
        for name in (*counts, "queues", "ingest_files"):
            self._check(name, 1)
        for name in ("queries_per_day", "history_days", "lake_days"):
            self._check(name, 0)
        for name in ("pass_every_s", "audit_every_s", "trigger_s"):
            self._check(name, 1)
        self._check("rate_bytes_per_s", 1)
        self._check("compression", 0.1)
        self._check("kinds", 1, 3)
        self._check("lanes", 1, 1000)
        self._check("batch_bytes", 1, BATCH_BYTES)
        self._check("freshness_s", 0.05, DOOR_FLUSH_S_MAX if self.doors else FRESHNESS_S_MAX)
        self._check("journal_interval_s", JOURNAL_INTERVAL_S, JOURNAL_INTERVAL_S_MAX)
        self._check("reconciler_freshness_s", 0, RECONCILER_S_MAX)

    def _check(self, name: str, low: float, high: float = math.inf) -> None:
        value = getattr(self, name)
        if value is not None and not low <= value <= high:
            option, unit = _OPTIONS.get(name, (name.replace("_", "-"), ""))
            most = "" if high == math.inf else f" and at most {high:.10g}{unit}"
            where = " with --doors" if self.doors and name == "freshness_s" else ""
            raise BadUsage(
                f"cannot compute the cost: --{option} must be at least {low:.10g}{unit}{most}"
                f"{where}, {option}=`{value:.10g}{unit}`"
            )

    def filled(self) -> "FullPlan":
        """Return the plan with the settings that follow from the freshness.

        Each later step may take a part of what the batch takes: a twelfth in the journal, a
        quarter in the reconciler. Micro-batches of the ingestion are not part of it, because
        queries read pending batches too.
        """
        fresh = self.freshness_s
        journal_s = min(max(fresh / 12, JOURNAL_INTERVAL_S), JOURNAL_INTERVAL_S_MAX)
        reconciler_s = min(fresh / 4, RECONCILER_S_MAX)
        return FullPlan(
            plan=self,
            journal_interval_s=_given(self.journal_interval_s, journal_s),
            reconciler_freshness_s=_given(self.reconciler_freshness_s, reconciler_s),
            trigger_s=_given(self.trigger_s, min(max(TRIGGER_S, fresh), TRIGGER_S_MAX)),
        )

    def with_changes(self, **changes: object) -> "CostPlan":
        """Return the plan with other settings.

        Raises:
            BadUsage: A number is out of range.
        """
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullPlan:
    """A plan without open settings."""

    plan: CostPlan
    journal_interval_s: float
    reconciler_freshness_s: float
    trigger_s: float

    @property
    def round_s(self) -> float:
        """Time between two rounds of the reconciler over the journals."""
        return max(ROUND_S, self.reconciler_freshness_s)

    @property
    def listing_s(self) -> float:
        """Time between two listings of gateway processes."""
        return max(LISTING_S, self.reconciler_freshness_s)

    @property
    def pass_s(self) -> float:
        """Time between two full passes of the reconciler."""
        return min(self.plan.pass_every_s, max(PASS_S, PASS_S_PER_BATCH * self.listed_batches))

    @property
    def micro_batch_s(self) -> float:
        """Time between two micro-batches: the trigger, or less at the limits of a micro-batch."""
        stored_bytes_s = self.plan.rate_bytes_per_s / self.plan.compression
        return min(
            self.trigger_s, TRIGGER_BYTES / stored_bytes_s, TRIGGER_BATCHES / self.batches_per_s
        )

    @property
    def cut_setting(self) -> str:
        """The setting that decides how often a batch is cut by age."""
        return "gateway door_flush_ms" if self.plan.doors else "agent freshness_s"

    @property
    def batches_per_s(self) -> float:
        """Batches per second of all senders, cut by age or by size."""
        plan, fresh_s = self.plan, self.plan.freshness_s
        if plan.doors:
            # A worker cuts each of four lanes of a principal, see `DoorLane`.
            cut = plan.senders * plan.kinds * DOOR_LANES * plan.gateway_workers
            by_age = cut / max(fresh_s, DOOR_FRAME_S)
        else:
            samples = int(plan.kinds > 1)
            each = (plan.kinds - samples) / fresh_s + samples / max(fresh_s, SAMPLES_S)
            by_age = plan.senders * each
        return max(by_age, plan.rate_bytes_per_s / plan.batch_bytes)

    @property
    def batches(self) -> float:
        """Batches that the deployment has accepted in its history."""
        return self.batches_per_s * self.plan.history_days * DAY_S

    @property
    def listed_batches(self) -> float:
        """Batches that a listing meets on average, in the last month of the history."""
        days = self.plan.history_days
        mean_days = days / 2 if days < MONTH_DAYS else days - MONTH_DAYS / 2
        return self.batches_per_s * mean_days * DAY_S

    @property
    def agents(self) -> int:
        """The names under which batches are accepted; a name always has the same lane."""
        return self.plan.senders * (DOOR_LANES if self.plan.doors else 1)

    @property
    def visible_after_s(self) -> float:
        """About the longest time from a record to a query that finds it, without the ingestion."""
        return self.plan.freshness_s + self.journal_interval_s + self.round_s


def _given(value: float | None, follows: float) -> float:
    return follows if value is None else value
