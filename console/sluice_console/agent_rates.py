"""The rates of agents and boots, from the batches that the samples of the overview read anyway.

A sample reads the by-time index of one span of time once, for all visitors. What it contains is
added up by agent and by boot, in two halves of a window:

    the current half     grows with each sample; after 150 s it becomes the earlier one
    the earlier half     is dropped then, with every boot that sent nothing in either

So a rate is of the last 150 to 300 s, a page of agents costs no request, and the memory depends on
the boots that sent in this time, up to a maximum. The window names which part of it was read: a
sample may read a part of its span only, and an index may be behind. Pure: no I/O or clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.batch_lists import BatchSpan

HALF_S: Final = 150.0
"""Length of the half of a window, seconds."""
BOOTS_MAX: Final = 200_000
"""Boots and agents that are counted in a window, each."""

_Key = TypeVar("_Key", str, tuple[str, str])


class AcceptedRate(msgspec.Struct, frozen=True, kw_only=True):
    """What was accepted of one agent or boot, per second of the window that was read.

    Attributes:
        batches_per_s: Batches.
        records_per_s: Records.
        bytes_per_s: Bytes of frames.
    """

    batches_per_s: float
    records_per_s: float
    bytes_per_s: float


class RateWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The time of rates, and how complete they are.

    Attributes:
        since_unix_ns: The start of the window; None before the first sample.
        until_unix_ns: Its end.
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
        """Begin another half; return False if nothing was sent in the one that ended."""
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
    """One half of the window.

    Attributes:
        since_ns: Its start; None before its first sample.
        until_ns: Its end.
        read_ns: How much of it was read.
        is_behind: Whether the index was not known to be complete.
        unreadable: Number of index objects that could not be read.
        uncounted: Whether more boots sent than are counted.
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
        """Add what a sample read.

        Args:
            span: The batches of one span of time, which is not older than those before.
            indexed_until_ns: Before the span was read, every batch that was accepted earlier than
                this was indexed or held; None if that is not known.
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
