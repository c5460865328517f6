"""The overview: one sample of the whole deployment, and the last hour of samples in memory."""

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from sluice_console.attention import OverviewFacts, list_attention
from sluice_console.attention_items import AttentionItem, ServiceState
from sluice_console.costs import DailyCost
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.discovery import ProcessStatus

HISTORY_S: Final = 3600.0
SAMPLES_MAX: Final = 720
"""Samples that are kept, whatever their interval."""
ROWS_MAX: Final = 20
"""Agents of the activity that are listed; the others are summed."""
PROCESSES_MAX: Final = 100


class ActivityRow(msgspec.Struct, frozen=True, kw_only=True):
    """What was accepted of one agent and kind, per second.

    Attributes:
        agent_id: The agent; empty for all agents that are not listed.
        kind: The kind of its records, such as `logs`.
    """

    agent_id: str
    kind: str
    batches_per_s: float
    records_per_s: float
    bytes_per_s: float


class ActivityTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What was accepted in one span of time.

    The rows are by agent and kind, the most bytes first; `at_least` if more was accepted than could
    be read.
    """

    rows: tuple[ActivityRow, ...]
    batches_per_s: float
    records_per_s: float
    bytes_per_s: float
    at_least: bool


def sum_activity(
    batches: Iterable[AcceptedManifest], span_s: float, *, at_least: bool
) -> ActivityTotals:
    """Return what a span of time contains, per second."""
    sums: dict[tuple[str, str], list[int]] = {}
    for one in batches:
        numbers = sums.setdefault((one.agent_id, one.kind), [0, 0, 0])
        numbers[0] += 1
        numbers[1] += one.record_count
        numbers[2] += one.frame_bytes
    ranked = sorted(sums.items(), key=lambda item: (-item[1][2], item[0]))
    rest: dict[tuple[str, str], list[int]] = {}
    for (_, kind), numbers in ranked[ROWS_MAX:]:
        total = rest.setdefault(("", kind), [0, 0, 0])
        for place, number in enumerate(numbers):
            total[place] += number
    totals = [sum(numbers[place] for numbers in sums.values()) / span_s for place in range(3)]
    return ActivityTotals(
        rows=tuple(
            ActivityRow(
                agent_id=agent,
                kind=kind,
                batches_per_s=numbers[0] / span_s,
                records_per_s=numbers[1] / span_s,
                bytes_per_s=numbers[2] / span_s,
            )
            for (agent, kind), numbers in [*ranked[:ROWS_MAX], *rest.items()]
        ),
        batches_per_s=totals[0],
        records_per_s=totals[1],
        bytes_per_s=totals[2],
        at_least=at_least,
    )


class OverviewNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one sample; None where a number could not be read.

    Attributes:
        index_lag_s: Age of the oldest accepted batch that is not indexed.
        enqueue_lag_s: Age of the time through which every accepted batch is enqueued or held.
        lake_lag_s: Age of the oldest batch in Spark's queue that is not in the lake.
        waiting_batches: Batches in Spark's queue that are not in the lake.
        store_ms: Duration of the slowest request of the sample to the store.
        store_errors_per_s: Store calls of gateways that failed; None without their URLs.
        cost_usd_per_day: The estimated cost of a day; None for a directory.
    """

    batches_per_s: float | None = None
    records_per_s: float | None = None
    bytes_per_s: float | None = None
    index_lag_s: float | None = None
    enqueue_lag_s: float | None = None
    lake_lag_s: float | None = None
    waiting_batches: float | None = None
    conflicts_open: float | None = None
    held: float | None = None
    oldest_gap_s: float | None = None
    store_ms: float | None = None
    store_errors_per_s: float | None = None
    cost_usd_per_day: float | None = None


class OverviewHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of the last hour, by number.

    Attributes:
        at_unix_ns: When each sample was taken.
        series: The values of each number of `OverviewNumbers`, as many as times.
    """

    at_unix_ns: tuple[int, ...]
    series: dict[str, tuple[float | None, ...]]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The whole deployment at one time.

    Attributes:
        at_unix_ns: When it was sampled.
        accepted_until_unix_ns: Every batch that was acknowledged before is enqueued or held; None
            if no such time is known.
        held_by: The gateway and process that hold this time back.
        attention: What needs attention, errors first.
        history: The numbers of the last hour.
        activity: What was accepted, by agent and kind.
        activity_at_least: Whether more was accepted, because only some index objects were read.
        cost: The estimated cost of a day; None for a directory, and before it is known.
    """

    at_unix_ns: int
    store: str
    accepted_until_unix_ns: int | None
    held_by: str | None
    attention: tuple[AttentionItem, ...]
    numbers: OverviewNumbers
    history: OverviewHistory
    activity: tuple[ActivityRow, ...]
    activity_at_least: bool
    gateways: tuple[ProcessStatus, ...]
    services: tuple[ServiceState, ...]
    cost: DailyCost | None = None


class SampleHistory:
    """The numbers of the last hour, in bounded memory."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, OverviewNumbers]] = deque(maxlen=SAMPLES_MAX)

    def add(self, at_ns: int, numbers: OverviewNumbers) -> None:
        """Add a sample, and drop those older than an hour."""
        self._samples.append((at_ns, numbers))
        oldest_ns = at_ns - int(HISTORY_S * NS_PER_S)
        while self._samples[0][0] < oldest_ns:
            self._samples.popleft()

    def view(self) -> OverviewHistory:
        """Return the samples, the oldest first."""
        names = OverviewNumbers.__struct_fields__
        return OverviewHistory(
            at_unix_ns=tuple(at for at, _ in self._samples),
            series={
                name: tuple(getattr(numbers, name) for _, numbers in self._samples)
                for name in names
            },
        )


def make_numbers(
    facts: OverviewFacts,
    activity: ActivityTotals | None,
    *,
    index_lag_s: float | None,
    store_ms: float | None,
    cost: DailyCost | None,
    queue: str,
) -> OverviewNumbers:
    """Return the numbers of one sample."""
    lanes = None if facts.lanes is None else [one for one in facts.lanes if one.queue == queue]
    return OverviewNumbers(
        batches_per_s=None if activity is None else activity.batches_per_s,
        records_per_s=None if activity is None else activity.records_per_s,
        bytes_per_s=None if activity is None else activity.bytes_per_s,
        index_lag_s=index_lag_s,
        enqueue_lag_s=None if facts.discovery is None else facts.discovery.behind_s,
        lake_lag_s=None
        if lanes is None
        else max((one.oldest_waiting_s or 0.0 for one in lanes), default=0.0),
        waiting_batches=None if lanes is None else sum(one.waiting_batches for one in lanes),
        conflicts_open=facts.conflicts_open,
        held=facts.held,
        oldest_gap_s=None if facts.gaps is None else facts.gaps.oldest_s,
        store_ms=store_ms,
        store_errors_per_s=_sum_known(one.errors_per_s for one in facts.gateways),
        cost_usd_per_day=None if cost is None else cost.usd_per_day,
    )


def _sum_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def make_overview(  # noqa: PLR0913 - one keyword for each part of a sample
    facts: OverviewFacts,
    numbers: OverviewNumbers,
    *,
    at_ns: int,
    store: str,
    activity: ActivityTotals | None,
    history: OverviewHistory,
    cost: DailyCost | None,
) -> Overview:
    """Return the overview of one sample."""
    discovery = facts.discovery
    return Overview(
        at_unix_ns=at_ns,
        store=store,
        accepted_until_unix_ns=None if discovery is None else discovery.accepted_until_unix_ns,
        held_by=None if discovery is None or discovery.is_caught_up else discovery.held_by,
        attention=list_attention(facts),
        numbers=numbers,
        history=history,
        activity=() if activity is None else activity.rows,
        activity_at_least=activity is not None and activity.at_least,
        gateways=() if discovery is None else discovery.processes[:PROCESSES_MAX],
        services=facts.services,
        cost=cost,
    )
