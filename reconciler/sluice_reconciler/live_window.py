"""The live window: the newest records of each agent, bounded in bytes.

It serves live tails and is never a source: it contains only what this process read. It reports
`partial` until it has watched for a whole window, and wherever it dropped, skipped or missed
records. A response without a cursor covers the whole window, or the newest records up to its limit;
a response with a cursor covers everything since that cursor.

Blobs of newly accepted batches are read one by one, concurrently to other work, which never waits
for this. If more arrive than can be read, the oldest are skipped, and the window reports it. A
batch that a full pass lists, but that no route of this process offers, was enqueued by another
reconciler or is held: the window reports it too. Source: ADR 29.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace as copy_with

from sluice_protocol.columns import slice_columns
from sluice_protocol.errors import (
    BadUsage,
    InvalidFrame,
    StoreError,
    TooLarge,
    UnsupportedVersion,
)
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.journals import LATE_S, Frontier, ProcessProgress
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import AcceptedManifest, joined_ranges, readable_parts
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.lanes.new_batches import RecentKeys
from sluice_reconciler.metrics import StoreClock
from sluice_store.port import ListedObject, ObjectStore

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


log = structlog.get_logger()

PENDING_MAX: Final = 1000
"""Batches queued to be read; about 1 KiB each."""

OFFERED_MAX: Final = 400_000
"""Batches that are remembered as offered. A forgotten one is reported as missing, never hidden."""

APPEARANCE_NS: Final = 60 * NS_PER_S
"""How much later than its Last-Modified an object may appear in a listing."""

_STALE: Final = "newer batches may be missing: this reconciler has not looked for them recently"

LISTED_MAX: Final = 100_000
"""Listed batches that a pass remembers until they are offered."""


class LiveReader:
    """Reads the blobs of newly accepted batches into a live window."""

    def __init__(
        self, store: ObjectStore, window: LiveWindow, clock: StoreClock, read_s: float = 0.0
    ) -> None:
        """Create the reader.

        `read_s` is the time between two reads of journals, by which records are later in any case.
        """
        self._stale_ns = int((LATE_S + read_s) * NS_PER_S)
        self._store = store
        self._window = window
        self._clock = clock
        self._pending: deque[AcceptedManifest] = deque()
        self._work = asyncio.Event()
        self._grew = asyncio.Condition()
        self._offered = RecentKeys(OFFERED_MAX)
        self._requests = RecentKeys(OFFERED_MAX)
        self._listed: dict[ObjectKey, int] = {}
        self._pass_began_ns = 0
        self._compared_ns = 0
        """When the last successful pass began: it listed every older batch."""
        self._relied_ns = 0
        """When the last pass of another process began that this window relies on."""
        self._covered_ns = 0
        """The time through which journals were read."""
        self._held_by: ProcessProgress | None = None
        self._looked_ns = 0
        """When journals were last read."""
        self._reading: tuple[AcceptedManifest, ...] = ()

    @property
    def on(self) -> bool:
        """Whether anything is kept in the window."""
        return self._window.on

    def watch(self) -> None:
        """Begin the window, now that the store has reported its time."""
        self._window.watch(self._clock.now_ns())

    def offer(self, batches: Sequence[AcceptedManifest]) -> None:
        """Queue verified batches; only those accepted within the window are read."""
        if not batches:
            return
        now_ns = self._clock.now_ns()
        self._window.watch(now_ns)
        if not self._window.on:
            return
        self._offered.add(accepted_key(one.identity) for one in batches)
        batches = [self._without_repeated(one) for one in batches]
        young = [one for one in batches if one.accepted_at_ns > now_ns - self._window.window_ns]
        self._pending.extend(sorted(young, key=lambda one: one.accepted_at_unix_ns))
        while len(self._pending) > PENDING_MAX:
            self._window.skip(self._pending.popleft().accepted_at_unix_ns)
        if young:
            self._work.set()

    def _without_repeated(self, one: AcceptedManifest) -> AcceptedManifest:
        """Return a combined batch without the requests that were offered lately."""
        parts = readable_parts(one)  # unreadable ones are reported where the batch is enqueued
        repeated = [part.records for part in parts if part.request.hex() in self._requests]
        self._requests.add(part.request.hex() for part in parts)
        return copy_with(one, repeated=joined_ranges(repeated)) if repeated else one

    def begin_pass(self) -> None:
        """Begin to compare what a full pass lists with what is offered."""
        self._pass_began_ns = self._clock.now_ns()
        self._listed.clear()

    def observe_listing(self, objects: Sequence[ListedObject]) -> None:
        """Remember batches that a full pass listed and the last one did not, until offered."""
        since_ns = self._window.since_ns
        if not self._window.on or since_ns is None:
            return
        edge_ns = max(since_ns, self._compared_ns - APPEARANCE_NS)
        for one in objects:
            if one.last_modified_ns > edge_ns and one.key not in self._offered:
                if len(self._listed) >= LISTED_MAX:
                    self._window.miss(one.last_modified_ns)
                    return
                self._listed[one.key] = one.last_modified_ns

    def observe_elsewhere(self, batches: Sequence[AcceptedManifest]) -> None:
        """Report batches that this process did not enqueue: their records are not here."""
        if not self._window.on:
            return
        edge_ns = self._clock.now_ns() - self._window.window_ns
        for one in batches:
            key = accepted_key(one.identity)
            if one.accepted_at_ns > edge_ns and key not in self._offered:
                self._window.miss(one.accepted_at_unix_ns)
                self._offered.add([key])  # each is reported once

    def end_pass(self, *, is_whole: bool = True) -> None:
        """Report the batches that a successful full pass listed and that were never offered.

        `is_whole` is set if this process listed everything itself.
        """
        missed = {key: at_ns for key, at_ns in self._listed.items() if key not in self._offered}
        if missed:
            self._window.miss(max(missed.values()))
            self._offered.add(missed)  # each is reported once
        self._listed.clear()
        if is_whole:
            self._compared_ns = self._pass_began_ns

    @property
    def passed_ns(self) -> UnixNs | None:
        """When the last full pass began that replaces journals here; None before the first."""
        passed_ns = max(self._compared_ns, self._relied_ns)
        return UnixNs(passed_ns) if passed_ns else None

    def rely_on_pass(self, began_ns: UnixNs) -> None:
        """Let a pass of another process replace journals, and report what it may have found.

        A pass that began before this window found only batches that are older than the window.
        """
        if began_ns <= self._relied_ns:
            return
        self._relied_ns = began_ns
        since_ns = self._window.since_ns
        if self._window.on and (since_ns is None or began_ns > since_ns):
            self._window.miss(began_ns)

    def cover(self, frontiers: Mapping[int, Frontier]) -> None:
        """Record through which time this process has read journals itself, by lane."""
        least = min(frontiers.values(), key=lambda one: one.complete_through_ns, default=None)
        if least is not None:
            self._covered_ns = max(self._covered_ns, least.complete_through_ns)
            self._held_by = least.held_by
            self._looked_ns = self._clock.now_ns()

    @property
    def accepted_until_ns(self) -> UnixNs | None:
        """The time before which every acknowledged batch is in the window or reported missing."""
        covered_ns = max(self._compared_ns, self._covered_ns)
        unread = [*self._reading, *self._pending]
        until_ns = min([covered_ns, *(one.accepted_at_unix_ns for one in unread)])
        return UnixNs(until_ns) if until_ns else None

    async def run(self) -> None:
        """Read queued batches until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._pending:
                self._reading = (self._pending.popleft(),)
                await self._read(*self._reading)
                self._reading = ()

    async def _read(self, manifest: AcceptedManifest) -> None:
        try:
            found = await self._store.get(ObjectKey(manifest.raw_blob_key))
            if not isinstance(found, Found):
                self._window.skip(manifest.accepted_at_unix_ns)
                return
            lines = await asyncio.to_thread(
                newest_lines, manifest, found.body, self._window.agent_bytes_max
            )
        except (StoreError, InvalidFrame, UnsupportedVersion, TooLarge) as error:
            log.warning("live_batch_skipped", key=manifest.raw_blob_key, reason=str(error))
            self._window.skip(manifest.accepted_at_unix_ns)
            return
        self._window.add(
            manifest.agent_id,
            lines,
            cut=sum(end - start for start, end in manifest.kept) - len(lines),
            accepted_at_ns=manifest.accepted_at_unix_ns,
        )
        async with self._grew:
            self._grew.notify_all()

    async def view(
        self, *, agent_id: str | None, after: str | None, limit: int, wait_s: float
    ) -> LiveView:
        """Return recent records; if there are none, wait for the next record of any agent.

        Without `after`, the `next` of an earlier view, the newest records are returned. Wait at
        most `wait_s`.
        """
        position = self._window.position
        found = self._view(agent_id, after, limit)
        if not wait_s or found.lines:
            return found
        # A record of another agent ends the wait too, so that `next` advances with it.
        await self.wait(position, wait_s)
        return self._view(agent_id, after, limit)

    def _view(self, agent_id: str | None, after: str | None, limit: int) -> LiveView:
        now_ns = self._clock.now_ns()
        found = self._window.view(now_ns, agent_id=agent_id, after=after, limit=limit)
        until_ns = self.accepted_until_ns
        reasons = found.reasons
        if self._window.on and (until_ns is None or until_ns < now_ns - self._stale_ns):
            reasons = (*reasons, self._late(now_ns))
        return replace(found, accepted_until_ns=until_ns, reasons=reasons)

    def _late(self, now_ns: int) -> str:
        """Return what holds newer batches back."""
        by = self._held_by
        if by is None or self._looked_ns < now_ns - self._stale_ns:
            return _STALE
        return (
            f"newer batches may be missing: gateway {by.collector_id} (process {by.process}) has"
            " not reported since; if it is gone, the next full pass replaces its report"
        )

    async def wait(self, position: int, seconds: float) -> None:
        """Wait until the window has a record behind a position, for `seconds` at most."""
        try:
            async with asyncio.timeout(seconds), self._grew:
                await self._grew.wait_for(lambda: self._window.position > position)
        except TimeoutError:
            return


def newest_lines(manifest: AcceptedManifest, blob: bytes, bytes_max: int) -> list[bytes]:
    """Return the newest records of a frame as lines of JSON, at most `bytes_max` of them.

    A line is an NDJSON record as in `docs/protocol.md`, with agent_id, boot_id, seq, kind,
    accepted_at_unix_ns and the frame's resource added.
    """
    frame = decode_frame(blob)
    count = len(frame.columns)
    # JSON is hardly ever smaller than the columns, so no more records than these can fit.
    few = min(count, 1 + count * bytes_max // max(1, frame.raw_bytes))
    start = count - few
    kept = manifest.kept

    def is_kept(number: int) -> bool:
        return any(first <= number < end for first, end in kept)

    texts = ndjson_from_columns(slice_columns(frame.columns, start, count))
    lines = [
        _line(manifest, frame, number, text)
        for number, text in enumerate(texts, start)
        if is_kept(number)
    ]
    room, first = bytes_max, len(lines)
    while first > 0 and room >= len(lines[first - 1]) + LINE_OVERHEAD_BYTES:
        first -= 1
        room -= len(lines[first]) + LINE_OVERHEAD_BYTES
    return lines[first:]


def _line(manifest: AcceptedManifest, frame: Frame, number: int, text: str) -> bytes:
    who = {
        "agent_id": manifest.agent_id,
        "boot_id": manifest.boot_id,
        "seq": manifest.seq_start + number,
        "kind": manifest.kind,
        "accepted_at_unix_ns": manifest.accepted_at_unix_ns,
    }
    if frame.envelope.shown_resource:
        who["resource"] = dict(frame.envelope.shown_resource)
    return msgspec.json.encode(who)[:-1] + b"," + text.encode()[1:]
