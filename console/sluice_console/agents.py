"""Agents: which records of each agent were accepted, and which are missing.

The report of a reconciler is used if there is one. Otherwise `accepted/` is listed, up to a bound.
The report is kept in memory and sorted once, so a page of 10^6 agents costs no request.

Rates come from the batches that the samples of the overview read anyway. A sample reads the by-time
index of one span of time once, for all visitors. What it contains is added up by agent and by boot,
in two halves of a window:

    the current half     grows with each sample; after 150 s it becomes the earlier one
    the earlier half     is dropped then, with every boot that sent nothing in either

So a rate is of the last 150 to 300 s, and the memory depends on the boots that sent in this time,
up to a maximum. The window names which part of it was read: a sample may read a part of its span
only, and an index may be behind.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from sluice_console.reconcilers import ServiceClient, ServiceFailed, read_boots
from sluice_protocol.clock import Clock
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.batch_lists import BatchSpan
from sluice_reconciler.completeness import BootReport, read_completeness
from sluice_store.port import ObjectStore

HALF_S: Final = 150.0
"""Length of the half of a window, seconds."""
BOOTS_MAX: Final = 200_000
"""Boots and agents that are counted in a window, each."""

_Key = TypeVar("_Key", str, tuple[str, str])


class AcceptedRate(msgspec.Struct, frozen=True, kw_only=True):
    """What was accepted of one agent or boot, per second of the window that was read."""

    batches_per_s: float
    records_per_s: float
    bytes_per_s: float


class RateWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The time of rates, and how complete they are.

    Attributes:
        since_unix_ns: The start of the window; None before the first sample.
        window_s: Its length, seconds.
        read_s: How much of it was read, seconds. Rates are per second of this part.
        problem: Why batches of that part may be missing; empty if none are.
    """

    since_unix_ns: int | None
    until_unix_ns: int | None
    window_s: float
    read_s: float
    problem: str


@dataclass(slots=True)
class _Counts:
    """What one agent or boot sent, in the current half and in the earlier one."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    earlier_batches: int = 0
    earlier_records: int = 0
    earlier_bytes: int = 0

    def add(self, one: AcceptedManifest) -> None:
        self.batches += 1
        self.records += one.record_count
        self.size_bytes += one.frame_bytes

    def turn(self) -> bool:
        """Begin another half; return False if nothing was sent in the half that ended."""
        self.earlier_batches, self.batches = self.batches, 0
        self.earlier_records, self.records = self.records, 0
        self.earlier_bytes, self.size_bytes = self.size_bytes, 0
        return self.earlier_batches > 0

    def rate(self, read_s: float) -> AcceptedRate:
        return AcceptedRate(
            batches_per_s=(self.batches + self.earlier_batches) / read_s,
            records_per_s=(self.records + self.earlier_records) / read_s,
            bytes_per_s=(self.size_bytes + self.earlier_bytes) / read_s,
        )


@dataclass(slots=True)
class _Half:
    """One half of the window, which begins with its first sample, and how much of it was read.

    `is_behind` if the index was not known to be complete, and `uncounted` if more boots sent than
    are counted.
    """

    since_ns: int | None = None
    until_ns: int = 0
    read_ns: int = 0
    is_behind: bool = False
    unreadable: int = 0
    uncounted: bool = False


@dataclass(slots=True)
class AgentRates:
    """What each agent and boot sent in the last minutes."""

    _agents: dict[str, _Counts] = field(default_factory=dict)
    _boots: dict[tuple[str, str], _Counts] = field(default_factory=dict)
    _half: _Half = field(default_factory=_Half)
    _earlier: _Half = field(default_factory=_Half)

    def add(self, span: BatchSpan, indexed_until_ns: int | None) -> None:
        """Add what a sample read of a span that is not older than those before.

        Every batch that was accepted before `indexed_until_ns` was indexed or held when the span
        was read; None if that is not known.
        """
        half = self._half
        if half.since_ns is not None and half.until_ns - half.since_ns >= HALF_S * NS_PER_S:
            self._turn()
            half = self._half
        if half.since_ns is None:
            half.since_ns = span.since_unix_ns
        half.until_ns = span.before_unix_ns
        half.read_ns += max(0, span.before_unix_ns - span.complete_since_unix_ns)
        half.is_behind |= indexed_until_ns is None or indexed_until_ns < span.before_unix_ns
        half.unreadable += len(span.unreadable)
        self._count(
            one for one in span.batches if one.accepted_at_unix_ns >= span.complete_since_unix_ns
        )

    def _count(self, batches: Iterable[AcceptedManifest]) -> None:
        for one in batches:
            counted = _find(self._agents, one.agent_id)
            boot = _find(self._boots, (one.agent_id, one.boot_id))
            for found in (counted, boot):
                if found is None:
                    self._half.uncounted = True
                else:
                    found.add(one)

    def _turn(self) -> None:
        self._agents = {key: one for key, one in self._agents.items() if one.turn()}
        self._boots = {key: one for key, one in self._boots.items() if one.turn()}
        self._earlier, self._half = self._half, _Half()

    @property
    def _read_s(self) -> float:
        return (self._half.read_ns + self._earlier.read_ns) / NS_PER_S

    def window(self) -> RateWindow:
        """Return the time of the rates, and how complete they are."""
        halves = [one for one in (self._earlier, self._half) if one.since_ns is not None]
        if not halves:
            return RateWindow(
                since_unix_ns=None,
                until_unix_ns=None,
                window_s=0.0,
                read_s=0.0,
                problem="no sample was taken yet",
            )
        since_ns, until_ns = halves[0].since_ns or 0, halves[-1].until_ns
        return RateWindow(
            since_unix_ns=since_ns,
            until_unix_ns=until_ns,
            window_s=max(0, until_ns - since_ns) / NS_PER_S,
            read_s=self._read_s,
            problem="; ".join(_problems(halves)),
        )

    def of_agent(self, agent_id: str) -> AcceptedRate | None:
        """Return the rate of an agent with all of its boots; None if it is not known."""
        return self._rate(self._agents.get(agent_id))

    def of_boot(self, agent_id: str, boot_id: str) -> AcceptedRate | None:
        """Return the rate of a boot; None if it is not known."""
        return self._rate(self._boots.get((agent_id, boot_id)))

    def _rate(self, found: _Counts | None) -> AcceptedRate | None:
        if not self._read_s or (found is None and self._is_full):
            return None
        return (found or _Counts()).rate(self._read_s)

    @property
    def _is_full(self) -> bool:
        return self._half.uncounted or self._earlier.uncounted


def _find(counts: dict[_Key, _Counts], key: _Key) -> _Counts | None:
    """Return the counts of a key, new ones if there is space; None otherwise."""
    found = counts.get(key)
    if found is None and len(counts) < BOOTS_MAX:
        found = counts[key] = _Counts()
    return found


def _problems(halves: list[_Half]) -> list[str]:
    problems: list[str] = []
    if any(one.is_behind for one in halves):
        problems.append(
            "the index was not known to be complete when it was read, so rates may be too low: see"
            " Discovery on the Queue page"
        )
    unreadable = sum(one.unreadable for one in halves)
    if unreadable:
        problems.append(
            f"{unreadable} objects of the index cannot be read: run `sluice rebuild --verify`"
        )
    if any(one.uncounted for one in halves):
        problems.append(f"more than {BOOTS_MAX} boots sent something, and the others have no rate")
    return problems


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


def report_of_agents(
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
        """Return the report."""
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
                        report_of_agents,
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
        return report_of_agents(boots, as_of=as_of, source="store", partial=problem)
