"""The records that came in lately, agent by agent, bounded in bytes: the live state.

It is a hint for a live tail, never a source: it knows only what this process read, and says so
(`partial`) until it has watched for a whole window, and wherever it had to forget or pass over
something. Pure. Source: ADR 0048.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S

LINE_OVERHEAD_BYTES: Final = 100
"""What a remembered line costs beside its own bytes, in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """A page of the live state.

    Attributes:
        lines: Records as lines of JSON without line ends, in the order in which they were read.
        next: What to ask with for what comes after.
        more: Whether records after `next` are held already.
        reasons: Why something may be missing; empty when nothing is.
    """

    lines: tuple[bytes, ...]
    next: str
    more: bool
    reasons: tuple[str, ...]

    @property
    def partial(self) -> bool:
        """Whether something may be missing."""
        return bool(self.reasons)


@dataclass(slots=True, kw_only=True)
class _LiveBatch:
    """The lines of one batch; the oldest are cut off when room is needed.

    Attributes:
        agent_id: Whose.
        place: Where its first line was.
        first: Where the first line is that it still has.
        lines: Never empty while the batch is held.
    """

    agent_id: str
    place: int
    first: int
    lines: deque[bytes]

    def cut(self) -> int:
        """Drops the oldest line; gives what it cost."""
        self.first += 1
        return len(self.lines.popleft()) + LINE_OVERHEAD_BYTES


@dataclass(slots=True, kw_only=True)
class _LiveAgent:
    """What is held of one agent.

    Attributes:
        batches: Oldest first.
        size_bytes: What they cost.
        forgot: The highest place of a record that was forgotten.
    """

    batches: deque[_LiveBatch] = field(default_factory=deque)
    size_bytes: int = 0
    forgot: int = 0


class LiveWindow:
    """Remembers the newest records: so many bytes in all, and so many of each agent."""

    def __init__(
        self, *, process: str, bytes_max: int, agent_bytes_max: int, window_s: float = 300.0
    ) -> None:
        """Starts empty, and partial.

        Args:
            process: Fresh with every start; part of each cursor.
            bytes_max: Most bytes of all agents; 0 holds nothing.
            agent_bytes_max: Most bytes of one agent.
            window_s: How far back is whole once it has watched for so long, seconds.
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
        self._forgot = 0
        self._passed_over = 0

    @property
    def on(self) -> bool:
        """Whether anything is remembered at all."""
        return self.bytes_max > 0

    @property
    def place(self) -> int:
        """The place of the newest record; it grows with each one and with each one passed over."""
        return self._at

    def watch(self, now_ns: int) -> None:
        """Tells the store's time; the first call begins the window."""
        if self._since_ns is None:
            self._since_ns = now_ns

    def add(self, agent_id: str, lines: Sequence[bytes], *, cut: int = 0) -> None:
        """Takes in the records of one batch.

        Args:
            agent_id: Whose.
            lines: The newest of them, oldest first.
            cut: How many older ones of the same batch were left out.
        """
        self._at += cut
        if not lines:
            self._left_out(agent_id, cut)
            return
        place = self._at + 1
        batch = _LiveBatch(agent_id=agent_id, place=place, first=place, lines=deque(lines))
        self._at += len(lines)
        # What was forgotten of an agent that is not held any more is not known apart.
        agent = self._agents.setdefault(agent_id, _LiveAgent(forgot=self._forgot))
        if cut:
            agent.forgot = place - 1
        agent.batches.append(batch)
        self._order[place] = batch
        cost = sum(map(len, lines)) + LINE_OVERHEAD_BYTES * len(lines)
        agent.size_bytes += cost
        self.size_bytes += cost
        while agent.size_bytes > self.agent_bytes_max:
            self._forget(agent.batches[0])
        while self.size_bytes > self.bytes_max:
            self._forget(next(iter(self._order.values())))

    def _left_out(self, agent_id: str, cut: int) -> None:
        """Tells that nothing of a batch could be kept."""
        if cut:
            self._forgot = self._at
            if agent_id in self._agents:
                self._agents[agent_id].forgot = self._at

    def pass_over(self) -> None:
        """Tells that a batch was not read, whosever it was."""
        self._at += 1
        self._passed_over = self._at

    def _forget(self, batch: _LiveBatch) -> None:
        """Drops the oldest line of a batch that is the oldest of its agent."""
        agent = self._agents[batch.agent_id]
        cost = batch.cut()
        agent.size_bytes -= cost
        self.size_bytes -= cost
        agent.forgot = max(agent.forgot, batch.first - 1)
        if not batch.lines:
            agent.batches.popleft()
            del self._order[batch.place]
        if not agent.batches:
            self._forgot = max(self._forgot, agent.forgot)
            del self._agents[batch.agent_id]

    def view(
        self, now_ns: int, *, agent_id: str | None = None, after: str | None = None, limit: int
    ) -> LiveView:
        """Gives records of one agent or of all.

        Args:
            now_ns: The store's time.
            agent_id: Whose.
            after: The `next` of an earlier view; without it the newest records are given.
            limit: Most records.

        Raises:
            BadUsage: `after` is no cursor.
        """
        process, at = self._parse(after)
        known = process == self._process
        start = at if known else 0
        held = self._held(agent_id, start)
        taken = held[:limit] if known else held[-limit:]
        end = taken[-1][0] if known and len(taken) < len(held) else self._at
        first = start if known else (taken[0][0] - 1 if taken else 0)
        return LiveView(
            lines=tuple(line for _, line in taken),
            next=f"{self._process}.{end}",
            more=known and len(taken) < len(held),
            reasons=tuple(self._reasons(now_ns, agent_id, first, after, known=known)),
        )

    def _parse(self, after: str | None) -> tuple[str, int]:
        process, _, place = (after or ".0").rpartition(".")
        if not place.isdecimal() or not place.isascii() or len(place) > 20:  # noqa: PLR2004
            raise BadUsage(f"after must be the `next` of an earlier answer, after=`{after}`")
        return process, int(place)

    def _held(self, agent_id: str | None, after: int) -> list[tuple[int, bytes]]:
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

    def _reasons(
        self, now_ns: int, agent_id: str | None, after: int, asked: str | None, *, known: bool
    ) -> list[str]:
        found: list[str] = []
        if not self.on:
            return ["the live state is off: set live_bytes_max"]
        if asked is not None and not known:
            found.append("the reconciler was started anew since `after`")
        young = self._since_ns is None or self._since_ns > now_ns - self.window_ns
        if young and not known:
            found.append(f"it has not watched for {self.window_ns // NS_PER_S} s yet")
        if self._forgot_of(agent_id) > after:
            found.append("older records were forgotten: ask more often, or raise live_bytes_max")
        if self._passed_over > after:
            found.append("batches were passed over: more came than could be read")
        return found

    def _forgot_of(self, agent_id: str | None) -> int:
        """Gives the highest place that was forgotten of an agent, or of all."""
        if agent_id is None:
            return max([self._forgot, *(one.forgot for one in self._agents.values())])
        agent = self._agents.get(agent_id)
        return self._forgot if agent is None else agent.forgot
