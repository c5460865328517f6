"""Reading the blobs of newly accepted batches for the live window, concurrently to other work.

Batches are read one by one. If more arrive than can be read, the oldest are skipped, and the live
window reports it. A batch that a full pass lists, but that no route of this process offers, was
enqueued by another reconciler or is held: the live window reports it too. No other work waits for
this. Source: ADR 29.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace as copy_with

from sluice_protocol.column_slices import slice_columns
from sluice_protocol.errors import (
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
from sluice_reconciler.live_window import LINE_OVERHEAD_BYTES, LiveView, LiveWindow
from sluice_reconciler.metrics import StoreClock
from sluice_store.port import ListedObject, ObjectStore

log = structlog.get_logger()

BACKLOG_MAX: Final = 1000
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
        self, store: ObjectStore, window: LiveWindow, clock: StoreClock, round_s: float = 0.0
    ) -> None:
        """Create the reader.

        `round_s` is the time between two reads of journals, by which records are later in any case.
        """
        self._stale_ns = int((LATE_S + round_s) * NS_PER_S)
        self._store = store
        self._window = window
        self._clock = clock
        self._backlog: deque[AcceptedManifest] = deque()
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
        self._backlog.extend(sorted(young, key=lambda one: one.accepted_at_unix_ns))
        while len(self._backlog) > BACKLOG_MAX:
            self._window.skip(self._backlog.popleft().accepted_at_unix_ns)
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
        unread = [*self._reading, *self._backlog]
        until_ns = min([covered_ns, *(one.accepted_at_unix_ns for one in unread)])
        return UnixNs(until_ns) if until_ns else None

    async def run(self) -> None:
        """Read queued batches until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._backlog:
                self._reading = (self._backlog.popleft(),)
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
