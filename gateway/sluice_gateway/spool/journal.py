"""The acceptance journal of a spool, written into the authority when batches are transferred.

A spool accepts without the authority, so nothing fences it: its open registration alone keeps the
time of the journals back. A spool therefore accepts only while the authority has an open
registration of it, which its stored state shows, also offline. All processes of a spool continue
one journal until it is closed. After a kill the next process needs no network; after a clean stop,
which closes the journal, it needs the authority once. The stored state is one record:

    registering ── registered in the authority ──► open ── everything transferred ──► closing
        ▲                                                                           │
        └────────── next start ────────── closed ◄── closed object in the authority ┘

Each state is written before the step that it announces, so a killed process is continued:
`registering` repeats the registration under the same name, `open` continues the journal at the
stored number, `closing` repeats the closed object. The spool accepts only in `open`.

A batch is transferred when the authority has it and the acceptance journal names it. The clock of
the spool's machine plays no part: `TransferredTime.advance` binds a time of the authority to the
batches that were acknowledged before it was received, and the time is published once all are
transferred.
Source: ADR 22.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import structlog

from sluice_gateway.journal import AcceptanceJournal, ProcessStart
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import BadUsage, ErrorCode, SluiceError, StoreError
from sluice_protocol.journals import JOURNAL_INTERVAL_S, process_name, started_ns_of
from sluice_protocol.manifests import TRANSFER_MARKERS, decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, replace_version
from sluice_web.problems import HttpRefusal

RETRY_S: Final = 5.0
"""Pause after a write that failed, seconds: the authority may be unreachable for days."""
STATE: Final = ObjectKey(f"{TRANSFER_MARKERS}journal.json")
SpoolJournalStatus = Literal["registering", "open", "closing", "closed"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A time of the authority, and the number of batches that were added before it."""

    at_ns: UnixNs
    added: int


class TransferredTime:
    """The batches of one spool that are not transferred, in the order in which they were added.

    Every batch that was acknowledged before `through_ns` is transferred. The time is fixed until
    the batches of earlier processes were added (`scanned`).
    """

    def __init__(self) -> None:
        self.through_ns = UnixNs(0)
        self.scanned = False
        self._added = 0
        self._pending: dict[ObjectKey, int] = {}
        self._answer: _Answer | None = None

    def add(self, key: ObjectKey) -> None:
        """Add a batch; called before it is acknowledged."""
        if key not in self._pending:
            self._pending[key] = self._added
            self._added += 1

    def remove(self, key: ObjectKey) -> None:
        """Remove a batch that is transferred."""
        self._pending.pop(key, None)

    def advance(self, answered_ns: UnixNs) -> UnixNs:
        """Return the time through which every acknowledged batch is transferred.

        `answered_ns` is the authority's clock in a response that was received before this call.
        """
        if not self.scanned:
            return self.through_ns
        newest = _Answer(at_ns=answered_ns, added=self._added)
        bound = self._answer or newest
        if self._is_transferred(bound):
            self.through_ns, bound = bound.at_ns, newest
            if self._is_transferred(newest):
                self.through_ns = newest.at_ns
        self._answer = bound
        return self.through_ns

    def _is_transferred(self, bound: _Answer) -> bool:
        return next(iter(self._pending.values()), self._added) >= bound.added


class SpoolJournalState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the journal of a spool.

    `status` is the last step that may have begun, and `number` that of the last object that may
    exist. Every batch that the spool acknowledged before `complete_through_unix_ns`, a time of the
    authority, is transferred.
    """

    schema: Literal["sluice.spool_journal.v1"] = "sluice.spool_journal.v1"
    process: str
    status: SpoolJournalStatus
    started_at_unix_ns: int
    number: int = 0
    complete_through_unix_ns: int


class SpoolRules:
    """Names and times in the journal of a spool; no `state` before its first registration."""

    def __init__(
        self, local: ObjectStore, *, ids: IdSource, clock: Clock, created_ns: UnixNs
    ) -> None:
        """Bind a spool; nothing was acknowledged before `created_ns` of the authority."""
        self._local = local
        self._ids = ids
        self._backoff = Backoff.seeded_by(clock)
        self._created_ns = created_ns
        self._loaded = False
        self.transferred = TransferredTime()
        self.state: SpoolJournalState | None = None

    async def load(self) -> None:
        """Read the state, once."""
        if self._loaded:
            return
        found = await self._local.get(STATE)
        if isinstance(found, Found):
            self.state = decode_record(STATE, found.body, SpoolJournalState)
            self.transferred.through_ns = UnixNs(self.state.complete_through_unix_ns)
        self._loaded = True

    async def start(self, now_ns: UnixNs) -> ProcessStart:
        """Return the name and time of a registration, the same again after a kill."""
        state = self.state
        if state is None or state.status != "registering":
            # After a closed journal everything was transferred, and nothing was accepted since.
            started_ns = self._created_ns if state is None else now_ns
            last_ns = 0 if state is None else started_ns_of(state.process)
            name = process_name(UnixNs(max(now_ns, last_ns + 1)), self._ids.ulid())
            state = SpoolJournalState(
                process=name,
                status="registering",
                started_at_unix_ns=started_ns,
                complete_through_unix_ns=started_ns,
            )
            await self._save(state)
        self.transferred.through_ns = UnixNs(state.started_at_unix_ns)
        return ProcessStart(process=state.process, started_ns=UnixNs(state.started_at_unix_ns))

    def through_ns(self, answered_ns: UnixNs) -> UnixNs:
        """Return the time of a journal object."""
        return self.transferred.advance(answered_ns)

    async def begin_object(self, number: int) -> None:
        """Store the number of an object; only then may the object be written."""
        state = self.state
        if state is not None and state.number < number:
            through_ns = self.transferred.through_ns
            await self._save(
                msgspec.structs.replace(state, number=number, complete_through_unix_ns=through_ns)
            )

    async def advance_to(self, status: SpoolJournalStatus) -> None:
        """Store the next status."""
        if self.state is not None:
            await self._save(msgspec.structs.replace(self.state, status=status))

    async def _save(self, state: SpoolJournalState) -> None:
        await replace_version(self._local, STATE, encode_record(state), self._backoff)
        self.state = state


class SpoolJournal:
    """The journal of a spooling gateway."""

    def __init__(
        self,
        writer: AcceptanceJournal,
        rules: SpoolRules,
        *,
        clock: Clock,
        claim: Callable[[], Awaitable[None]],
    ) -> None:
        """Bind a spool; `writer` writes into the authority, which `claim` claims."""
        self._writer = writer
        self._clock = clock
        self._claim = claim
        self._registering = asyncio.Lock()
        self._claimed = False
        self._registered = False
        self._transferred_since_write = False
        self.rules = rules

    def problem(self) -> str:
        """Return why the spool cannot accept; empty if it can, with or without the authority."""
        state = self.rules.state
        if state is not None and state.status == "open":
            return ""
        return "the spool is not registered in the authority, which this start requires once"

    async def open(self) -> None:
        """Read the state of the spool and register; offline, the transfer registers later."""
        await self.rules.load()
        try:
            await self.prepare()
        except StoreError as error:
            log.warning("authority_unreachable", reason=str(error), batches="kept in the spool")

    async def prepare(self) -> None:
        """Claim the authority and register; without a registration, batches can be transferred."""
        await self._claim_once()
        try:
            await self.register()
        except BadUsage:
            raise
        except SluiceError as error:
            log.warning("journal_not_registered", reason=str(error))

    async def _claim_once(self) -> None:
        if not self._claimed:
            await self._claim()
            self._claimed = True

    async def register(self) -> None:
        """Claim the authority, then continue the stored journal or begin one.

        Raises:
            BadUsage: Another spool has claimed the authority: nothing may be transferred.
            SluiceError: The authority or the spool cannot be written; call again.
        """
        await self._claim_once()
        async with self._registering:
            if self._registered:
                return
            await self.rules.load()
            state = self.rules.state
            if state is not None and state.status in {"open", "closing"}:
                self._writer.resume(
                    state.process,
                    number=max(1, state.number),
                    through_ns=UnixNs(state.complete_through_unix_ns),
                )
            if state is not None and state.status == "closing":
                await self._writer.end()
                await self.rules.advance_to("closed")
            if state is None or state.status != "open":
                await self._writer.open()
                await self.rules.advance_to("open")
            self._registered = True

    def require_room(self) -> None:
        """Refuse uploads while the authority has no open registration of this spool."""
        if self.problem():
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, self.problem())

    def note(self, manifest: bytes) -> None:
        """Do nothing: a spooled batch is noted when it is transferred."""

    async def require_current(self) -> None:
        """Do nothing: a spool is not fenced, because it accepts without the authority."""

    def note_transferred(self, manifest: bytes) -> None:
        """Add a manifest that the authority has; `flush` makes it durable."""
        self._writer.note(manifest)

    async def flush(self) -> None:
        """Write every entry; only then may markers be written. Entries are kept on error."""
        await self.register()
        await self._writer.flush()
        self._transferred_since_write = True

    async def run(self) -> None:
        """Write the time while batches are transferred, and heartbeats, until cancelled."""
        while True:
            await self.write_due()
            failed = bool(self._writer.problem())
            await self._clock.sleep(RETRY_S if failed else JOURNAL_INTERVAL_S)

    async def write_due(self) -> None:
        """Write the time if batches were transferred since the last object, or a due heartbeat."""
        if self._registered:
            transferred, self._transferred_since_write = self._transferred_since_write, False
            await self._writer.write_due(also_time=transferred)
            if self._writer.problem():
                self._transferred_since_write |= transferred

    async def close(self, *, transferred: bool) -> None:
        """Close the journal if everything is transferred; else the next process continues it."""
        if not transferred or not self._registered:
            return
        try:
            await self.rules.advance_to("closing")
            await self._writer.close(transferred=transferred)
            if self._writer.is_closed:
                await self.rules.advance_to("closed")
        except SluiceError as error:
            log.warning("journal_not_closed", process=self._writer.process, reason=str(error))
