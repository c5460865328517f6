"""The steps of one upload, in the order of the protocol (`docs/protocol.md`, Acceptance).

`AcceptedCache` remembers frames that this worker itself has accepted, so that a duplicate needs no
store call. The key is the digest: the same bytes were validated before and have the same identity,
so a duplicate is not decoded again either. The cache never contains what was only read, and never
the absence of a frame. Other bytes under the same identity have another digest, miss the cache and
go to the store. A frame in the cache was noted in the acceptance journal, so its duplicates need no
entry.

An entry ends with the proof of its blob, by the store's clock: after half the proof's window. The
store's time is its last response plus the time since then, by the monotonic clock or by the wall
clock, whichever ran further, because the monotonic clock can stop while a machine is suspended.

High-water marks are the highest sequences that agents report, stored for the reconciler. `note` is
called after an acceptance and only changes memory. `flush` runs every few seconds, in a separate
task, and writes the marks that accepted batches do not show. The marks are a hint: a lost mark is
reported again with the next upload of the agent. Source: ADR 29.
"""

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
from aiohttp import web

from sluice_gateway.journal import UploadJournal
from sluice_gateway.metrics import GatewayMetrics, UploadPhases
from sluice_gateway.spool.acceptor import SpoolAcceptor
from sluice_gateway.uploads.acceptor import (
    AcceptanceRun,
    AcceptedResponse,
    Acceptor,
    Upload,
    accepted_response,
    conflict_problem,
)
from sluice_gateway.uploads.admission import BodyBudget, ModeWatch, RunningUploads, check_head
from sluice_gateway.uploads.frame_reader import FrameReader, ReceivedBody
from sluice_gateway.uploads.principals import PrincipalsFile, VerifiedSender, authenticate
from sluice_protocol.acceptance import Accepted, Conflict, Corrupt, RetriesExhausted
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.conflicts import ConflictName, Decisions
from sluice_protocol.errors import ErrorCode, InvalidRecord, InvariantViolated, StoreError
from sluice_protocol.identity import Identity, format_identity, is_door_agent
from sluice_protocol.keys import high_water_key
from sluice_protocol.manifests import HighWaterMark, decode_record, encode_record
from sluice_protocol.outcomes import Applied, Found
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, Digest, UnixNs
from sluice_store.conflicts import DecisionsReader
from sluice_store.port import ObjectStore
from sluice_web.problems import HttpRefusal, Problem
from sluice_web.rare_warnings import RareWarnings
from sluice_web.refused_clients import RefusedClients

FLUSH_INTERVAL_S: Final = 5.0
"""Between two flushes, and so between two writes of one (agent, boot) by one worker."""
BOOTS_MAX: Final = 10_000
"""Boots with a mark that is not written yet; above this the oldest is dropped."""
WRITES_MAX: Final = 64
"""Marks written in one flush; the next flush writes further ones."""

_OUTAGES_LOGGED: Final = RareWarnings(SystemClock())

log = structlog.get_logger()


class HighWaterMarks:
    """The marks of one worker that are not written yet."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._unwritten: OrderedDict[tuple[str, str], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._unwritten)

    def note(self, who: Identity, high_water: int | None) -> None:
        """Note the mark of an accepted upload, unless the batch itself reaches it."""
        boot = (who.agent_id, who.boot_id)
        high = max(self._unwritten.get(boot, -1), -1 if high_water is None else high_water)
        if high <= who.seq_end:
            self._unwritten.pop(boot, None)
            return
        self._unwritten[boot] = high
        if len(self._unwritten) > BOOTS_MAX:
            self._unwritten.popitem(last=False)

    async def flush(self) -> int:
        """Write the oldest marks; return how many the store has. An error drops one mark."""
        done = 0
        for agent_id, boot_id in list(itertools.islice(self._unwritten, WRITES_MAX)):
            high = self._unwritten.pop((agent_id, boot_id), None)
            if high is None:
                continue  # a batch that reaches the mark was accepted during the write before
            mark = HighWaterMark(agent_id=agent_id, boot_id=boot_id, seq_end=high)
            done += await self._raise_to(mark)
        return done

    async def _raise_to(self, mark: HighWaterMark) -> bool:
        """Write a mark unless the store has a higher one; a concurrent write ends the attempt.

        Values under one key only rise, so bytes never recur and an ETag is sufficient proof.
        """
        key, body = high_water_key(mark.agent_id, mark.boot_id), encode_record(mark)
        read = await self._store.get(key)
        if not isinstance(read, Found):
            return isinstance(await self._store.create(key, body), Applied)
        try:
            if decode_record(key, read.body, HighWaterMark).seq_end >= mark.seq_end:
                return True
        except InvalidRecord as error:
            log.warning("high_water_mark_unreadable", key=key, reason=error.reason)
        return isinstance(await self._store.replace(key, body, if_match=read.info.etag), Applied)


async def flush_guarded(marks: HighWaterMarks) -> None:
    """Flush once; an error of the store is logged, and a later flush tries again."""
    try:
        await marks.flush()
    except StoreError as error:
        log.warning("high_water_mark_not_written", reason=str(error))


class AcceptedFrame(msgspec.Struct, frozen=True, kw_only=True):
    """The identity that a frame owns, and how long this worker may respond for it.

    `accepted_at_ns` is the time in its manifest. The entry is valid for `lasts_ns` after it was
    added.
    """

    identity: Identity
    accepted_at_ns: UnixNs
    lasts_ns: int


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    frame: AcceptedFrame
    wall_ns: int
    monotonic_ns: int


class AcceptedCache:
    """A bounded map that drops the entry that was unused for the longest time."""

    def __init__(self, entries_max: int, clock: Clock) -> None:
        """Create an empty cache; with `entries_max` 0 it stays empty."""
        self._entries_max = entries_max
        self._clock = clock
        self._entries: OrderedDict[Digest, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, digest: Digest) -> AcceptedFrame | None:
        """Return what exactly these bytes own, while it is proved; None proves nothing."""
        entry = self._entries.get(digest)
        if entry is None:
            return None
        wall_ns = self._clock.now_ns() - entry.wall_ns
        if max(wall_ns, self._clock.monotonic_ns() - entry.monotonic_ns) >= entry.frame.lasts_ns:
            del self._entries[digest]
            return None
        self._entries.move_to_end(digest)
        return entry.frame

    def remember(self, digest: Digest, frame: AcceptedFrame) -> None:
        """Add an upload whose response was 200, unless its proof is too old already."""
        if self._entries_max == 0 or frame.lasts_ns <= 0:
            return
        self._entries[digest] = _Entry(
            frame=frame,
            wall_ns=self._clock.now_ns(),
            monotonic_ns=self._clock.monotonic_ns(),
        )
        self._entries.move_to_end(digest)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def forget_all(self) -> None:
        """Remove every entry, as a restart does."""
        self._entries.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadService:
    """Receives, validates and accepts uploads."""

    frame_bytes_max: int
    collector_id: str
    clock: Clock
    ids: IdSource
    metrics: GatewayMetrics
    principals: PrincipalsFile
    refused: RefusedClients
    running: RunningUploads
    budget: BodyBudget
    frames: FrameReader
    cache: AcceptedCache
    mode: ModeWatch
    acceptor: Acceptor | SpoolAcceptor
    decisions: DecisionsReader
    high_water: HighWaterMarks
    journal: UploadJournal

    def sender_of(self, request: web.Request) -> VerifiedSender:
        """Return the sender of a request."""
        now_s = self.clock.now_ns() // NS_PER_S
        return authenticate(request, self.principals.current, now_s)

    async def accept(
        self, request: web.Request, phases: UploadPhases
    ) -> AcceptedResponse | Problem:
        """Accept one upload, from its head to the body of its response."""
        with self.running:
            sender = self.sender_of(request)
            length_bytes = check_head(request, self.frame_bytes_max)
            with self.budget.take(length_bytes):
                with phases.phase("receive"):
                    received = await self.frames.read_body(request, length_bytes)
                prepared = await self.prepare(sender, received, phases)
                return await self.finish(received, prepared, phases)

    async def prepare(
        self, sender: VerifiedSender, received: ReceivedBody, phases: UploadPhases
    ) -> Upload | AcceptedFrame:
        """Validate a frame, or find it among the frames that this worker has accepted."""
        known = self.cache.find(received.digest)
        if known is not None:
            self._check_owner(sender, known.identity.agent_id, known.identity.boot_id)
            return known
        with phases.phase("validate"):
            envelope = await self.frames.decode(received.body)
        self._check_owner(sender, envelope.agent_id, envelope.boot_id)
        return Upload(
            frame=received.body,
            digest=received.digest,
            identity=envelope.identity,
            envelope=envelope,
            principal=sender.principal,
            attempt_id=self.ids.ulid(),
            sent_before=received.sent_before,
        )

    async def finish(
        self, received: ReceivedBody, prepared: Upload | AcceptedFrame, phases: UploadPhases
    ) -> AcceptedResponse | Problem:
        """Store a frame that `prepare` returned, and note the mark that its sender reports."""
        result: AcceptedResponse | Problem
        if isinstance(prepared, AcceptedFrame):
            result = self._respond_known(received.digest, prepared)
            await self.journal.require_current()
        else:
            result = await self._store(prepared, phases)
        if isinstance(result, AcceptedResponse):
            self.high_water.note(prepared.identity, received.high_water)
        return result

    async def accept_made(self, upload: Upload, phases: UploadPhases) -> AcceptedResponse | Problem:
        """Accept a frame that this gateway made from a request; the caller counts the request."""
        self._check_quarantine(upload.identity.agent_id, upload.identity.boot_id)
        known = self.cache.find(upload.digest)
        if known is None:
            return await self._store(upload, phases)
        response = self._respond_known(upload.digest, known)
        await self.journal.require_current()
        return response

    def _respond_known(self, digest: Digest, known: AcceptedFrame) -> AcceptedResponse:
        self.metrics.cache_hits.inc()
        verdict = Accepted(duplicate=True, accepted_at_ns=known.accepted_at_ns)
        return accepted_response(known.identity, digest, verdict, self.collector_id)

    def _check_owner(self, sender: VerifiedSender, agent_id: str, boot_id: str) -> None:
        """Check that the sender may send for the agent; called before every store call."""
        if agent_id not in sender.agents or is_door_agent(agent_id):
            raise HttpRefusal(
                ErrorCode.FORBIDDEN_AGENT,
                "the principal may not send for this agent: see `agents` in the principals file,"
                f" principal=`{sender.principal}`, agent_id=`{agent_id}`",
            )
        self._check_quarantine(agent_id, boot_id)

    def _check_quarantine(self, agent_id: str, boot_id: str) -> None:
        if (agent_id, boot_id) in self.decisions.current.quarantined:
            raise HttpRefusal(ErrorCode.IDENTITY_QUARANTINED, "")

    async def _store(self, upload: Upload, phases: UploadPhases) -> AcceptedResponse | Problem:
        self.mode.require_known()  # here, because the body may have begun before a switch
        self.journal.require_room()
        run = await self.acceptor.accept(upload)
        phases.add(run.phases_s)
        if run.own_write_met:
            self.metrics.own_write_412.inc()
        if run.healed:
            self.metrics.healed.inc()
        result = self._result(upload, run)
        if isinstance(result, AcceptedResponse):
            await self.journal.require_current()  # its manifest exists, and its entry was noted
            self.mode.require_unsettled()
        return result

    def _result(self, upload: Upload, run: AcceptanceRun) -> AcceptedResponse | Problem:
        match run.verdict:
            case Accepted() as verdict:
                self.journal.note(run.manifest)  # before the cache: a frame in it was noted
                entry = AcceptedFrame(
                    identity=upload.identity,
                    accepted_at_ns=verdict.accepted_at_ns,
                    lasts_ns=run.cacheable_ns,
                )
                self.cache.remember(upload.digest, entry)
                if not verdict.duplicate:
                    self.metrics.accepted_bytes.inc(len(upload.frame))
                return accepted_response(upload.identity, upload.digest, verdict, self.collector_id)
            case Conflict():
                return _conflict(upload, run, self.decisions.current)
            case Corrupt(reason=reason):
                identity = format_identity(upload.identity)
                log.error("stored_object_corrupt", identity=identity, reason=reason)
                raise HttpRefusal(
                    ErrorCode.CORRUPT_OBJECT, "a stored object is damaged: see the log"
                )
            case RetriesExhausted():
                raise unfinished_refusal(run)


def _conflict(upload: Upload, run: AcceptanceRun, decisions: Decisions) -> Problem:
    if run.conflict is None:
        raise InvariantViolated("a conflict has a quarantine manifest")
    name = ConflictName(identity=upload.identity, submitted=upload.digest)
    problem = conflict_problem(run.conflict, name, decisions)
    if problem.resolution is None:
        identity = format_identity(upload.identity)
        log.warning("identity_conflict", identity=identity, conflict=name.id)
    else:
        log.info("decided_conflict_uploaded", conflict=name.id, resolution=problem.resolution)
    return problem


def unfinished_refusal(run: AcceptanceRun) -> HttpRefusal:
    """Return the 503 of an upload whose tries or time are exhausted."""
    if run.unsure or run.failure is None:
        return HttpRefusal(
            ErrorCode.OUTCOME_UNKNOWN,
            "the outcome of a write is unknown: send the same bytes again",
        )
    left_out = _OUTAGES_LOGGED.left_out("store_unavailable")
    if left_out is not None:
        log.warning("store_unavailable", reason=str(run.failure), left_out=left_out)
    return HttpRefusal(
        ErrorCode.STORE_UNAVAILABLE, "the store is unreachable: send the same bytes again"
    )
