"""Requests per second of gateways and reconcilers, as functions of a plan. Pure.

Each line names the setting that decides it and the code whose requests it counts. The coefficients
are compared with the requests of the components by `tests/simulation/cost`.
"""

import math
from dataclasses import dataclass
from typing import Final

from sluice_cli.costs.plan import FullPlan
from sluice_protocol.journals import HEARTBEAT_S
from sluice_protocol.prices import RequestCounts

PAGE_OBJECTS: Final = 1000
LISTED_BATCHES: Final = 512
"""`list_batches_max`, and about the batches of a lane between two parts of its state."""
EARLY_ENTRIES: Final = 64

ACCEPT_PUTS: Final = 2.0
"""Blob and manifest."""
VERIFY_GETS: Final = 2.0
"""HEAD of the manifest and of the blob."""
INDEX_PUTS: Final = 2.0
"""Packed by-time entries of manifests and of blobs, for each flush."""
REFERENCE_PUTS: Final = 1.0
LANE_PUTS: Final = 3.0
"""Work list, lane state and register, for each lane in a flush."""
GATEWAY_CHECK_S: Final = 5.0
DOCTOR_CHECK_S: Final = 60.0
PASS_LISTS: Final = 6
"""Listings of a full pass other than that of manifests: held batches, conflicts, marks."""
MEMBER_S: Final = 3.0
UPKEEP_S: Final = 60.0
HOLDS_S: Final = 60.0
HOLD_LISTS: Final = 4.0
REMOVAL_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """The requests of one activity.

    Attributes:
        component: The component that makes them.
        activity: What it does.
        per_s: Requests per second.
        setting: The setting that decides them.
        code: The module whose requests are counted.
        is_estimate: Whether no test compares the line with counted requests.
    """

    component: str
    activity: str
    per_s: RequestCounts
    setting: str
    code: str
    is_estimate: bool = False


# --- gateways ------------------------------------------------------------------------------------


def accept_lines(full: FullPlan) -> tuple[CostLine, ...]:
    """Return the requests of the gateways."""
    workers = full.plan.gateway_workers
    checks = RequestCounts(
        lists=workers * (1 / GATEWAY_CHECK_S + 1 / DOCTOR_CHECK_S),
        gets=workers * (2 / GATEWAY_CHECK_S + 1 / DOCTOR_CHECK_S),
    )
    return (
        CostLine(
            component="accept",
            activity="blobs and manifests",
            per_s=RequestCounts(puts=ACCEPT_PUTS * full.batches_per_s),
            setting=full.cut_setting,
            code="sluice_gateway.acceptor",
        ),
        CostLine(
            component="accept",
            activity="acceptance journals",
            per_s=RequestCounts(puts=workers * _journal_objects(full).per_worker_s),
            setting="journal_interval_s",
            code="sluice_gateway.journal_writer",
        ),
        CostLine(
            component="accept",
            activity="decisions, mode, authority, doctor",
            per_s=checks,
            setting="gateway workers",
            code="sluice_gateway.background",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _JournalObjects:
    """Objects per second of one worker: all, and those with entries."""

    per_worker_s: float
    with_entries_s: float


def _journal_objects(full: FullPlan) -> _JournalObjects:
    """Return how often a worker writes its journal: `AcceptanceJournal.run`."""
    entries_per_s = full.batches_per_s / full.plan.gateway_workers
    interval_s = full.journal_interval_s
    if entries_per_s * interval_s > EARLY_ENTRIES:
        rate = entries_per_s / EARLY_ENTRIES
        return _JournalObjects(per_worker_s=rate, with_entries_s=rate)
    rate = (1 - math.exp(-entries_per_s * interval_s)) / interval_s
    return _JournalObjects(per_worker_s=max(rate, 1 / HEARTBEAT_S), with_entries_s=rate)


# --- reconcilers ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRate:
    """The flushes of one reconciler.

    Attributes:
        per_s: Flushes per second.
        batches: Batches of one, on average.
        lanes: Lanes of one, on average.
    """

    per_s: float
    batches: float
    lanes: float


def flush_rate(full: FullPlan) -> FlushRate:
    """Return how often a reconciler flushes: each round that finds entries, and every 512 of them.

    The journals of several workers are written at different moments. A round finds those of its
    interval.
    """
    objects_s, workers = _journal_objects(full).with_entries_s, full.plan.gateway_workers
    found = 1 - (1 - min(1.0, objects_s * full.round_s)) ** workers
    rounds_s = found / full.round_s
    batches_s = full.batches_per_s / full.plan.reconcilers
    rounds_s = min(rounds_s, batches_s)
    flushes_s = rounds_s * max(1.0, batches_s / rounds_s / LISTED_BATCHES)
    batches = batches_s / flushes_s
    lanes = used_lanes(full.plan.lanes, full.agents) / full.plan.reconcilers
    return FlushRate(per_s=flushes_s, batches=batches, lanes=hit_lanes(lanes, batches))


def entries_per_s(full: FullPlan) -> float:
    """Return how many entries are appended to one queue per second."""
    flushes = flush_rate(full)
    return flushes.per_s * flushes.lanes * full.plan.reconcilers


def used_lanes(lanes: float, agents: float) -> float:
    """Return how many lanes have an agent, on average: the hash of its name selects one."""
    return hit_lanes(float(lanes), agents)


def hit_lanes(lanes: float, batches: float) -> float:
    """Return how many lanes some batches are in, on average."""
    if lanes <= 1:
        return min(1.0, lanes)
    return float(lanes * (1 - (1 - 1 / lanes) ** batches))


def micro_batch_lanes(full: FullPlan) -> float:
    """Return how many lanes have a batch in one micro-batch, on average."""
    lanes = used_lanes(full.plan.lanes, full.agents)
    return hit_lanes(lanes, full.batches_per_s * full.micro_batch_s)


def index_lines(full: FullPlan) -> tuple[CostLine, ...]:
    """Return the requests for verification and the indexes."""
    flushes, plan = flush_rate(full), full.plan
    flushes_s = flushes.per_s * plan.reconcilers
    batches_s = full.batches_per_s
    packed = RequestCounts(
        puts=INDEX_PUTS * (flushes_s if plan.pack_by_time else batches_s),
    )
    references_s = batches_s
    if plan.pack_by_time and plan.pack_references:
        # An entry that is alone in its flush is not packed, so it has a reference.
        alone = flushes.batches / math.expm1(flushes.batches) if flushes.batches < 50 else 0.0  # noqa: PLR2004 - exp overflows
        references_s = flushes_s * alone
    return (
        CostLine(
            component="indexes",
            activity="verification of manifests and blobs",
            per_s=RequestCounts(gets=VERIFY_GETS * batches_s),
            setting=full.cut_setting,
            code="sluice_reconciler.verify",
        ),
        CostLine(
            component="indexes",
            activity="by-time entries",
            per_s=packed,
            setting="reconciler freshness_s" if plan.pack_by_time else "pack_by_time",
            code="sluice_reconciler.indexes",
        ),
        CostLine(
            component="indexes",
            activity="reverse references",
            per_s=RequestCounts(puts=REFERENCE_PUTS * references_s),
            setting="pack_references",
            code="sluice_reconciler.indexes",
        ),
    )


def queue_lines(full: FullPlan) -> tuple[CostLine, ...]:
    """Return the requests of the reconcilers to the queues."""
    plan = full.plan
    entries_s = entries_per_s(full) * plan.queues
    parts_s = full.batches_per_s * plan.queues / (LISTED_BATCHES + 1)
    lanes = plan.lanes * plan.queues
    # After an acknowledgement the next append to the lane fails once: the register has changed.
    acked = micro_batch_lanes(full)
    acked_s = min(acked * plan.queues / full.micro_batch_s, entries_s)
    upkeep = RequestCounts(
        lists=(2 + lanes + 1) / UPKEEP_S * plan.reconcilers,
        gets=4 * lanes / UPKEEP_S * plan.reconcilers,
    )
    return (
        CostLine(
            component="queue",
            activity="work lists, lane states, registers",
            per_s=RequestCounts(puts=LANE_PUTS * entries_s + parts_s + acked_s, gets=acked_s),
            setting="reconciler freshness_s, lanes",
            code="sluice_reconciler.lanes.owner",
        ),
        CostLine(
            component="queue",
            activity="checks of the lanes",
            per_s=upkeep,
            setting="collect_interval_s, lanes",
            code="sluice_reconciler.queue_upkeep",
        ),
        CostLine(
            component="queue",
            activity="removal of work lists",
            per_s=RequestCounts(gets=entries_s, deletes=entries_s),
            setting="reconciler freshness_s, lanes",
            code="sluice_queue.collector",
            is_estimate=True,
        ),
    )


def reconciler_lines(full: FullPlan) -> tuple[CostLine, ...]:
    """Return the requests of the reconcilers that do not depend on the number of batches."""
    plan, objects = full.plan, _journal_objects(full)
    workers, count = plan.gateway_workers, plan.reconcilers
    reads_s = workers * (objects.per_worker_s + 1 / full.round_s)
    published_s = min(1.0, flush_rate(full).per_s, 1 / full.round_s)
    return (
        CostLine(
            component="reconciler",
            activity="reading journals",
            per_s=RequestCounts(gets=count * reads_s),
            setting="reconciler freshness_s, gateway workers",
            code="sluice_reconciler.journals.reader",
        ),
        CostLine(
            component="reconciler",
            activity="listing gateways, publishing the time",
            per_s=RequestCounts(
                puts=count * published_s,
                lists=count / full.listing_s,
                gets=count / full.listing_s,
            ),
            setting="reconciler freshness_s",
            code="sluice_reconciler.journals.route",
        ),
        CostLine(
            component="reconciler",
            activity="sharing lanes",
            per_s=RequestCounts(puts=count / MEMBER_S, lists=count / MEMBER_S),
            setting="reconcilers",
            code="sluice_reconciler.lanes.share",
        ),
        CostLine(
            component="reconciler",
            activity="held batches and conflicts",
            per_s=RequestCounts(lists=count * HOLD_LISTS / HOLDS_S),
            setting="hold_interval_s",
            code="sluice_reconciler.journals.loop",
        ),
        CostLine(
            component="reconciler",
            activity="removal of journals",
            per_s=RequestCounts(
                lists=count * workers / REMOVAL_S,
                gets=workers * objects.per_worker_s,
                deletes=workers * objects.per_worker_s,
            ),
            setting="gateway workers",
            code="sluice_reconciler.journals.removal",
            is_estimate=True,
        ),
        CostLine(
            component="reconciler",
            activity="full passes",
            per_s=RequestCounts(
                puts=1 / full.pass_s,
                lists=(full.listed_batches / PAGE_OBJECTS + PASS_LISTS) / full.pass_s,
            ),
            setting="journaled_pass_interval_s",
            code="sluice_reconciler.passes.full_pass",
            is_estimate=True,
        ),
    )
