"""Agents: which records of each agent were accepted, and which are missing.

The report of a reconciler is used if there is one. Otherwise `accepted/` is listed, up to a bound.
The report is kept in memory and sorted once, so a page of 10^6 agents costs no request.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from sluice_console.agent_rates import AcceptedRate, AgentRates, RateWindow
from sluice_console.reconcilers import ServiceClient, ServiceFailed, read_boots
from sluice_protocol.clock import Clock
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.completeness import BootReport, read_completeness
from sluice_store.port import ObjectStore

AgentOrder = Literal["gaps", "seen", "name"]
KEPT_S: Final = 30.0
"""Age from which the report is read again."""
BOOTS_SHOWN_MAX: Final = 200
_FOUND_MAX: Final = 8
"""Texts whose agents are remembered."""
YOUNG_TAIL_S: Final = 600.0
"""Age up to which a gap at the end is records in transit: the agent has a backlog."""


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    """One agent.

    Attributes:
        agent_id: The agent.
        boots: Number of its boots.
        batches: Number of accepted batches.
        gaps: Number of gaps.
        missing: Number of missing records.
        oldest_gap_s: Age of the oldest gap, 0 for none, seconds.
        overlaps: Number of batches that share sequence numbers with earlier ones.
        last_accepted_s: Time since its latest batch was accepted, seconds.
        in_transit: Whether all of its gaps are young and at the end of a boot.
        bars: Accepted parts of its latest boot, each as two shares of the whole, 0 to 1.
        rate: What it sent in the window of the page; None if that is not known.
    """

    agent_id: str
    boots: int
    batches: int
    gaps: int
    missing: int
    oldest_gap_s: float
    overlaps: int
    last_accepted_s: float
    in_transit: bool
    bars: tuple[tuple[float, float], ...]
    rate: AcceptedRate | None = None


class AgentPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of agents.

    Attributes:
        agents: The agents.
        total: Number of agents that match.
        with_gaps: Number of all agents with gaps.
        as_of: When the report was made, RFC 3339.
        source: `reconciler` or `store`.
        window: The time of the rates, and how complete they are.
        partial: Why agents may be missing; empty if none are.
        next: `after` of the next page; None on the last page.
    """

    agents: tuple[AgentRow, ...]
    total: int
    with_gaps: int
    as_of: str
    source: str
    window: RateWindow
    partial: str = ""
    next: str | None = None


class AgentDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One agent with its boots, the latest first.

    Attributes:
        agent_id: The agent.
        boots: Its boots; at most 200.
        boots_more: Number of boots that are not listed.
        as_of: When the report was made, RFC 3339.
        source: `reconciler` or `store`.
        window: The time of the rates, and how complete they are.
        rate: What all of its boots sent in that time, also those that began after the report; None
            if that is not known.
        boot_rates: The same for each listed boot, in the same order.
        partial: Why batches may be missing; empty if none are.
    """

    agent_id: str
    boots: tuple[BootReport, ...]
    boots_more: int
    as_of: str
    source: str
    window: RateWindow
    rate: AcceptedRate | None
    boot_rates: tuple[AcceptedRate | None, ...]
    partial: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """Every agent at one time, with the orders and the texts that were requested lately."""

    rows: tuple[AgentRow, ...]
    boots: Mapping[str, tuple[BootReport, ...]]
    as_of: str
    source: str
    partial: str = ""
    sorted_rows: dict[str, tuple[AgentRow, ...]] = field(default_factory=dict)
    found_rows: dict[tuple[str, str], tuple[AgentRow, ...]] = field(default_factory=dict)

    @property
    def oldest_gap_s(self) -> float:
        """The age of the oldest gap that is not in transit, seconds; 0 for none."""
        return max((row.oldest_gap_s for row in self.rows if _is_faulty(row)), default=0.0)

    @property
    def with_gaps(self) -> int:
        """Number of agents with a gap that is not in transit."""
        return sum(1 for row in self.rows if _is_faulty(row))

    def page(
        self, rates: AgentRates, *, order: AgentOrder, text: str, after: int, limit: int
    ) -> AgentPage:
        """Return a page with rates; `after` is the number of rows before it."""
        if order not in self.sorted_rows:
            self.sorted_rows[order] = tuple(sorted(self.rows, key=_ORDERS[order]))
        rows = self._matching(order, text.lower())
        end = after + limit
        return AgentPage(
            agents=tuple(
                replace(row, rate=rates.of_agent(row.agent_id)) for row in rows[after:end]
            ),
            total=len(rows),
            with_gaps=self.with_gaps,
            as_of=self.as_of,
            source=self.source,
            window=rates.window(),
            partial=self.partial,
            next=str(end) if end < len(rows) else None,
        )

    def _matching(self, order: AgentOrder, text: str) -> tuple[AgentRow, ...]:
        """Return the rows whose agent id contains a text; a list is scrolled by many requests."""
        rows = self.sorted_rows[order]
        if not text:
            return rows
        found = self.found_rows.get((order, text))
        if found is None:
            found = tuple(row for row in rows if text in row.agent_id.lower())
            while len(self.found_rows) >= _FOUND_MAX:
                self.found_rows.pop(next(iter(self.found_rows)))
            self.found_rows[order, text] = found
        return found

    def detail(self, agent_id: str, rates: AgentRates) -> AgentDetail | None:
        """Return one agent with rates, or None if the report does not contain it."""
        boots = self.boots.get(agent_id)
        if boots is None:
            return None
        ordered = sorted(boots, key=lambda one: one.last_accepted_s)
        shown = tuple(ordered[:BOOTS_SHOWN_MAX])
        return AgentDetail(
            agent_id=agent_id,
            boots=shown,
            boots_more=max(0, len(ordered) - BOOTS_SHOWN_MAX),
            as_of=self.as_of,
            source=self.source,
            window=rates.window(),
            rate=rates.of_agent(agent_id),
            boot_rates=tuple(rates.of_boot(agent_id, one.boot_id) for one in shown),
            partial=self.partial,
        )


_ORDERS: Final[Mapping[AgentOrder, Callable[[AgentRow], tuple[float | str, ...]]]] = {
    "gaps": lambda row: (-_faulty_age(row), -row.oldest_gap_s, row.agent_id),
    "seen": lambda row: (row.last_accepted_s, row.agent_id),
    "name": lambda row: (row.agent_id,),
}


def _is_faulty(row: AgentRow) -> bool:
    return row.gaps > 0 and not row.in_transit


def _faulty_age(row: AgentRow) -> float:
    return row.oldest_gap_s if _is_faulty(row) else 0.0


def make_report(
    boots: Iterable[BootReport], *, as_of: str, source: str, partial: str = ""
) -> AgentReport:
    """Return the report of all agents from the reports of their boots."""
    by_agent: dict[str, list[BootReport]] = {}
    for boot in boots:
        by_agent.setdefault(boot.agent_id, []).append(boot)
    return AgentReport(
        rows=tuple(_row(agent, some) for agent, some in by_agent.items()),
        boots={agent: tuple(some) for agent, some in by_agent.items()},
        as_of=as_of,
        source=source,
        partial=partial,
    )


def _row(agent_id: str, boots: list[BootReport]) -> AgentRow:
    latest = min(boots, key=lambda one: one.last_accepted_s)
    gaps = [gap for boot in boots for gap in boot.gaps]
    more = sum(boot.gaps_more for boot in boots)
    return AgentRow(
        agent_id=agent_id,
        boots=len(boots),
        batches=sum(boot.batches for boot in boots),
        gaps=len(gaps) + more,
        missing=sum(gap.seq_end - gap.seq_start + 1 for gap in gaps),
        oldest_gap_s=max(boot.oldest_gap_s for boot in boots),
        overlaps=sum(boot.overlaps for boot in boots),
        last_accepted_s=latest.last_accepted_s,
        in_transit=not more and all(gap.tail and gap.age_s < YOUNG_TAIL_S for gap in gaps),
        bars=range_bars(latest),
    )


def _left_out(boots: int) -> str:
    if not boots:
        return ""
    return f"{boots} boots without gaps are left out; `sluice gaps --agent` lists those of an agent"


_BARS_MAX: Final = 60


def range_bars(boot: BootReport) -> tuple[tuple[float, float], ...]:
    """Return the accepted parts of a boot as shares of its sequence numbers, at most 60."""
    whole = boot.high_water + 1
    bars = [(start / whole, (end + 1) / whole) for start, end in boot.ranges if whole > 0]
    return tuple((round(start, 4), round(end, 4)) for start, end in bars[:_BARS_MAX])


class AgentReports:
    """Reads the report when it is requested and too old, once for all visitors."""

    def __init__(
        self,
        store: ObjectStore,
        clients: tuple[ServiceClient, ...],
        clock: Clock,
        list_batches_max: int,
    ) -> None:
        self._store = store
        self._clients = clients
        self._clock = clock
        self._list_batches_max = list_batches_max
        self._reading = asyncio.Lock()
        self._report: AgentReport | None = None
        self._read_ns = 0

    async def read(self) -> AgentReport:
        """Return the report.

        Raises:
            StoreError: The store is unreachable or refused a request.
        """
        async with self._reading:
            now_ns = self._clock.monotonic_ns()
            if self._report is None or now_ns - self._read_ns > KEPT_S * NS_PER_S:
                self._report = await self._read()
                self._read_ns = self._clock.monotonic_ns()
            return self._report

    async def _read(self) -> AgentReport:
        problem = ""
        if self._clients:
            try:
                boots = await read_boots(self._clients)
            except ServiceFailed as error:
                problem = f"no reconciler sent its report: {error}"
            else:
                if boots is not None:
                    return await asyncio.to_thread(
                        make_report,
                        boots.boots,
                        as_of=boots.complete_through or "",
                        source="reconciler",
                        partial=_left_out(boots.more),
                    )
        return await self._list(problem)

    async def _list(self, problem: str) -> AgentReport:
        boots: list[BootReport] = []
        batches = 0
        async for boot in read_completeness(self._store):
            boots.append(boot)
            batches += boot.batches
            if batches >= self._list_batches_max:
                problem = (
                    f"only the first {batches} batches were listed: set the URL of a reconciler,"
                    " which knows all of them"
                )
                break
        as_of = format_rfc3339(self._clock.now_ns())
        return make_report(boots, as_of=as_of, source="store", partial=problem)
