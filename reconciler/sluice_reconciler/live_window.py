"""The live window: the newest records of each agent, bounded in bytes.

It serves live tails and is never a source: it contains only what this process read. It reports
`partial` until it has watched for a whole window, and wherever it dropped, skipped or missed
records. A response without a cursor covers the whole window, or the newest records up to its limit;
a response with a cursor covers everything since that cursor. Pure. Source: ADR 29.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S, UnixNs

LINE_OVERHEAD_BYTES: Final = 100
"""Memory that a stored line needs in addition to its bytes."""

_DROPPED: Final = "older records were dropped: query more often, or raise live_bytes_max"
_SKIPPED: Final = "batches were skipped: more arrived than could be read"
_MISSED: Final = (
    "batches were not received: another reconciler enqueued them, or they are held; query its"
    " live records too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """A page of the live window.

    Attributes:
        lines: Records as lines of JSON without line ends, in the order in which they were read.
        reasons: Why records may be missing; empty if none are.
        accepted_until_ns: Every batch acknowledged before this time of the store's clock is or was
            in the window, except those that `reasons` name; None if no such time is known.
    """

    lines: tuple[bytes, ...]
    next: str
    more: bool
    reasons: tuple[str, ...]
    enabled: bool = True
    accepted_until_ns: UnixNs | None = None

    @property
    def partial(self) -> bool:
        """Whether records may be missing."""
        return bool(self.reasons)


@dataclass(slots=True, kw_only=True)
class _LiveBatch:
    """The lines of one batch; the oldest are dropped when space is needed.

    Attributes:
        place: Position of its first line.
        first: Position of the first line that was not dropped.
        lines: Never empty while the batch is in the window.
    """

    agent_id: str
    accepted_at_ns: int
    place: int
    first: int
    lines: deque[bytes]

    def cut(self) -> int:
        """Drop the oldest line; return the memory that it used."""
        self.first += 1
        return len(self.lines.popleft()) + LINE_OVERHEAD_BYTES


@dataclass(slots=True, kw_only=True)
class _Absence:
    """The latest absence of one kind.

    `place` is the highest position of absent records, `accepted_at_ns` the latest acceptance.
    """

    place: int = 0
    accepted_at_ns: int = 0

    def note(self, place: int, accepted_at_ns: int) -> None:
        self.place = max(self.place, place)
        self.accepted_at_ns = max(self.accepted_at_ns, accepted_at_ns)


@dataclass(slots=True, kw_only=True)
class _LiveAgent:
    """The records of one agent, oldest first, and those that were dropped."""

    batches: deque[_LiveBatch] = field(default_factory=deque)
    size_bytes: int = 0
    dropped: _Absence = field(default_factory=_Absence)


class LiveWindow:
    """The newest records, bounded in bytes in total and per agent."""

    def __init__(
        self, *, process: str, bytes_max: int, agent_bytes_max: int, window_s: float = 300.0
    ) -> None:
        """Create an empty window that is partial.

        `process` is fresh with every start and part of each cursor. `bytes_max` of 0 turns the
        window off. Once it has watched for `window_s`, it is complete that far back.
        """
        self.bytes_max = bytes_max
        self.agent_bytes_max = min(agent_bytes_max, bytes_max)
        self.window_ns = int(window_s * NS_PER_S)
        self.size_bytes = 0
        self._process = process
        self._agents: dict[str, _LiveAgent] = {}
        self._order: OrderedDict[int, _LiveBatch] = OrderedDict()
        self._at = 0
        self._since_ns: int | None = None
        self._dropped = _Absence()
        self._skipped = _Absence()
        self._missed = _Absence()

    @property
    def on(self) -> bool:
        """Whether the window keeps any records."""
        return self.bytes_max > 0

    @property
    def position(self) -> int:
        """The position of the newest record; each record and each skipped batch advances it."""
        return self._at

    @property
    def since_ns(self) -> int | None:
        """The store's time at which the window began; None before that."""
        return self._since_ns

    def watch(self, now_ns: int) -> None:
        """Begin the window at the store's time, unless it has begun."""
        if self._since_ns is None:
            self._since_ns = now_ns

    def add(
        self, agent_id: str, lines: Sequence[bytes], *, cut: int = 0, accepted_at_ns: int = 0
    ) -> None:
        """Add the newest records of one batch, oldest first; `cut` older ones were left out."""
        self._at += cut
        if not lines:
            self._left_out(agent_id, cut, accepted_at_ns)
            return
        place = self._at + 1
        batch = _LiveBatch(
            agent_id=agent_id,
            accepted_at_ns=accepted_at_ns,
            place=place,
            first=place,
            lines=deque(lines),
        )
        self._at += len(lines)
        # What was dropped of an agent without records in the window is not known per agent.
        agent = self._agents.setdefault(agent_id, _LiveAgent(dropped=replace(self._dropped)))
        if cut:
            agent.dropped.note(place - 1, accepted_at_ns)
        agent.batches.append(batch)
        self._order[place] = batch
        cost = sum(map(len, lines)) + LINE_OVERHEAD_BYTES * len(lines)
        agent.size_bytes += cost
        self.size_bytes += cost
        while agent.size_bytes > self.agent_bytes_max:
            self._drop(agent.batches[0])
        while self.size_bytes > self.bytes_max:
            self._drop(next(iter(self._order.values())))

    def _left_out(self, agent_id: str, cut: int, accepted_at_ns: int) -> None:
        """Record that nothing of a batch could be kept."""
        if cut:
            self._dropped.note(self._at, accepted_at_ns)
            if agent_id in self._agents:
                self._agents[agent_id].dropped.note(self._at, accepted_at_ns)

    def skip(self, accepted_at_ns: int = 0) -> None:
        """Record that a batch of some agent could not be read."""
        self._at += 1
        self._skipped.note(self._at, accepted_at_ns)

    def miss(self, accepted_at_ns: int) -> None:
        """Record that this process never received a batch of some agent."""
        self._at += 1
        self._missed.note(self._at, accepted_at_ns)

    def _drop(self, batch: _LiveBatch) -> None:
        """Drop the oldest line of a batch that is the oldest of its agent."""
        agent = self._agents[batch.agent_id]
        cost = batch.cut()
        agent.size_bytes -= cost
        self.size_bytes -= cost
        agent.dropped.note(batch.first - 1, batch.accepted_at_ns)
        if not batch.lines:
            agent.batches.popleft()
            del self._order[batch.place]
        if not agent.batches:
            self._dropped.note(agent.dropped.place, agent.dropped.accepted_at_ns)
            del self._agents[batch.agent_id]

    def view(
        self, now_ns: int, *, agent_id: str | None = None, after: str | None = None, limit: int
    ) -> LiveView:
        """Return records of one agent or of all.

        `now_ns` is the store's time. Without `after`, the `next` of an earlier view, the newest
        records are returned.
        """
        process, at = self._parse(after)
        known = process == self._process
        start = at if known else 0
        available = self._available(agent_id, start)
        taken = available[:limit] if known else available[-limit:]
        cut = len(taken) < len(available)
        end = taken[-1][0] if known and cut else self._at
        if not self.on:
            reasons = ["the live state is off: set live_bytes_max"]
        elif known:
            reasons = self._reasons_since(agent_id, start)
        else:
            first = taken[0][0] - 1 if taken else self._at
            reasons = self._reasons_of_window(now_ns, agent_id, first, cut=cut)
            if after is not None:
                reasons.insert(0, "the reconciler was restarted since `after`")
        return LiveView(
            lines=tuple(line for _, line in taken),
            next=f"{self._process}.{end}",
            more=known and cut,
            reasons=tuple(reasons),
            enabled=self.on,
        )

    def _parse(self, after: str | None) -> tuple[str, int]:
        process, _, position = (after or ".0").rpartition(".")
        if not position.isdecimal() or not position.isascii() or len(position) > 20:  # noqa: PLR2004
            raise BadUsage(f"after must be the `next` of an earlier response, after=`{after}`")
        return process, int(position)

    def _available(self, agent_id: str | None, after: int) -> list[tuple[int, bytes]]:
        if agent_id is None:
            batches = list(self._order.values())
        else:
            batches = list(self._agents.get(agent_id, _LiveAgent()).batches)
        return [
            (batch.first + number, line)
            for batch in batches
            if batch.first + len(batch.lines) - 1 > after
            for number, line in enumerate(batch.lines)
            if batch.first + number > after
        ]

    def _reasons_since(self, agent_id: str | None, after: int) -> list[str]:
        """Return why records behind a cursor of this process may be missing."""
        return [
            reason
            for reason, absence in self._absences(agent_id)
            if any(one.place > after for one in absence)
        ]

    def _reasons_of_window(
        self, now_ns: int, agent_id: str | None, first: int, *, cut: bool
    ) -> list[str]:
        """Return why records of the window may be missing, or newer ones than the first."""
        edge_ns = now_ns - self.window_ns
        found: list[str] = []
        if self._since_ns is None or self._since_ns > edge_ns:
            found.append(f"the reconciler has not watched for {self.window_ns // NS_PER_S} s yet")
        for reason, absence in self._absences(agent_id):
            # The limit left older records out anyway; only dropped ones are always older.
            in_window = not (cut and reason is _DROPPED)
            if any(
                one.place > first or (in_window and one.accepted_at_ns > edge_ns) for one in absence
            ):
                found.append(reason)
        return found

    def _absences(self, agent_id: str | None) -> list[tuple[str, list[_Absence]]]:
        if agent_id is None:
            dropped = [self._dropped, *(one.dropped for one in self._agents.values())]
        else:
            agent = self._agents.get(agent_id)
            dropped = [self._dropped if agent is None else agent.dropped]
        return [(_DROPPED, dropped), (_SKIPPED, [self._skipped]), (_MISSED, [self._missed])]
