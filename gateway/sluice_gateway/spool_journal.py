"""The acceptance journal of a spool: it is written into the authority, when batches have landed.

A spool accepts without the authority, so nothing fences it: its open registration alone keeps the
time of the journals back. A spool therefore accepts only while the authority has an open
registration of it. The record `landed/v1/journal.json` in the spool states that, in this order:

    registered in the authority ──► `open` in the spool ──► the spool accepts, also offline
    everything landed, stopping ──► not `open` in the spool ──► closed object in the authority

After a kill the record is open, so the next process starts without a network. After a clean stop it
is not: the next process needs the authority once. The next process takes over the batches of the
last one: `sluice_protocol.journals` replaces the older registration. So its first time is one
that the last process had reached, until every batch that it found has landed.
Source: ADR 0029.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec
import structlog

from sluice_gateway.journal_writer import AcceptanceJournal
from sluice_gateway.landed_time import LandedTime
from sluice_protocol.clock import Clock
from sluice_protocol.errors import ErrorCode, SluiceError, StoreError
from sluice_protocol.journals import (
    HEARTBEAT_S,
    JOURNAL_INTERVAL_S,
    ProcessStart,
    started_ns_of,
)
from sluice_protocol.manifests import TRANSFER_MARKERS, decode_record, encode_record
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, overwrite_known
from sluice_web.problems import HttpRefusal

STATE: Final = ObjectKey(f"{TRANSFER_MARKERS}journal.json")
SAVE_INTERVAL_S: Final = 60.0
"""Time between two writes of the record in the spool; an older time in it is only more careful."""

log = structlog.get_logger()


class SpoolJournalState(msgspec.Struct, frozen=True, kw_only=True):
    """What a spool knows about its registration in the authority.

    Attributes:
        process: The name of its last process.
        open: Whether the authority has an open registration of this spool.
        complete_through_unix_ns: Every batch that the spool acknowledged before this time of the
            authority has landed.
    """

    schema: Literal["sluice.spool_journal.v1"] = "sluice.spool_journal.v1"
    process: str
    open: bool
    complete_through_unix_ns: int


class SpoolTimes:
    """The times in the journal of a spool.

    Attributes:
        landed: The batches that have not landed.
        state: The record of the last process; None in a spool without one.
    """

    def __init__(self, created_ns: UnixNs) -> None:
        """Start with the creation of the authority: nothing was acknowledged before."""
        self._created_ns = created_ns
        self.landed = LandedTime()
        self.state: SpoolJournalState | None = None

    def start(self, now_ns: UnixNs) -> ProcessStart:
        """Return the times of a registration: the name is above that of the last process."""
        state = self.state
        if state is None:
            started_ns = self._created_ns
        elif state.open:
            started_ns = UnixNs(state.complete_through_unix_ns)
        else:  # everything had landed, and nothing was accepted since
            started_ns = now_ns
        self.landed.through_ns = started_ns
        named_ns = now_ns if state is None else max(now_ns, started_ns_of(state.process) + 1)
        return ProcessStart(named_ns=UnixNs(named_ns), started_ns=started_ns)

    def through_ns(self, answered_ns: UnixNs) -> UnixNs:
        """Return the time of a journal object."""
        return self.landed.advance(answered_ns)


class SpoolJournal:
    """The journal of a spooling gateway.

    Attributes:
        times: The times in it.
    """

    def __init__(
        self,
        local: ObjectStore,
        writer: AcceptanceJournal,
        times: SpoolTimes,
        *,
        clock: Clock,
        claim: Callable[[], Awaitable[None]],
    ) -> None:
        """Bind a spool.

        Args:
            local: The spool.
            writer: Writes into the authority.
            times: The times, also used by `writer`.
            clock: The clocks of this machine.
            claim: Claims the authority for this spool.
        """
        self._local = local
        self._writer = writer
        self._clock = clock
        self._claim = claim
        self._backoff = Backoff.seeded_by(clock)
        self._registering = asyncio.Lock()
        self._loaded = False
        self._saved_ns = 0
        self._landed_since_write = False
        self.times = times

    @property
    def _accepts(self) -> bool:
        state = self.times.state
        return state is not None and state.open

    def problem(self) -> str:
        """Return why the spool cannot accept; empty if it can, with or without the authority."""
        if self._accepts:
            return ""
        return "the spool is not registered in the authority, which this start requires once"

    async def open(self) -> None:
        """Read the state of the spool and register; offline, the transfer registers later.

        Raises:
            BadUsage: Another spool has claimed the authority.
            StoreError: The spool cannot be read.
        """
        await self._load()
        try:
            await self.ensure_registered()
        except StoreError as error:
            log.warning("authority_unreachable", reason=str(error), batches="kept in the spool")

    async def ensure_registered(self) -> None:
        """Claim the authority and register, once; the spool accepts when it has recorded that.

        Without space for the record the transfer continues, which frees space; later calls retry.

        Raises:
            BadUsage: Another spool has claimed the authority.
            SluiceError: The authority is unreachable; call again.
        """
        async with self._registering:
            if not self._writer.process:
                await self._load()
                await self._claim()
                await self._writer.open()
            if not self._accepts:
                await self._save_guarded()

    def require_room(self) -> None:
        """Refuse uploads while the authority has no open registration of this spool.

        Raises:
            HttpRefusal: The authority was not reached since the last clean stop.
        """
        if not self._accepts:
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, self.problem())

    def note(self, manifest: bytes) -> None:
        """Do nothing: a spooled batch is noted when it has landed."""

    async def require_current(self) -> None:
        """Do nothing: a spool is not fenced, because it accepts without the authority."""

    def note_landed(self, manifest: bytes) -> None:
        """Add a manifest that the authority has; `flush` makes it durable."""
        self._writer.note(manifest)

    async def flush(self) -> None:
        """Write every entry; only then the markers of their records may be written.

        Raises:
            SluiceError: The authority is unreachable; the entries are kept.
        """
        await self._writer.flush()
        self._landed_since_write = True

    async def run(self) -> None:
        """Write the time while batches land, and heartbeats, until cancelled."""
        while True:
            await self.write_due()
            failed = bool(self._writer.problem())
            await self._clock.sleep(HEARTBEAT_S if failed else JOURNAL_INTERVAL_S)

    async def write_due(self) -> None:
        """Write the time if batches have landed since the last object, or a heartbeat if due."""
        if self._writer.process:
            landed, self._landed_since_write = self._landed_since_write, False
            await self._writer.write_due(also_time=landed)
            await self._save_due()

    async def close(self, *, landed: bool) -> None:
        """Close the journal if everything has landed; else it stays open for the next process."""
        if not self._writer.process:
            return
        if not landed:
            await self._save_guarded()
            return
        try:
            await self._save(opened=False)
        except SluiceError as error:
            log.warning("journal_not_closed", process=self._writer.process, reason=str(error))
            return
        await self._writer.close(landed=landed)

    async def _load(self) -> None:
        if self._loaded:
            return
        found = await self._local.get(STATE)
        if isinstance(found, Found):
            self.times.state = decode_record(STATE, found.body, SpoolJournalState)
        self._loaded = True

    async def _save_due(self) -> None:
        if self._clock.monotonic_ns() - self._saved_ns >= SAVE_INTERVAL_S * NS_PER_S:
            await self._save_guarded()

    async def _save_guarded(self) -> None:
        """Save the state; without it the next start is more careful, for example on a full disk."""
        try:
            await self._save(opened=True)
        except SluiceError as error:
            log.warning("spool_journal_not_saved", reason=str(error))

    async def _save(self, *, opened: bool) -> None:
        self._saved_ns = self._clock.monotonic_ns()
        state = SpoolJournalState(
            process=self._writer.process,
            open=opened,
            complete_through_unix_ns=self.times.landed.through_ns,
        )
        if state == self.times.state:
            return
        old = await self._local.head(STATE)
        await overwrite_known(self._local, STATE, encode_record(state), self._backoff)
        self.times.state = state
        if isinstance(old, ObjectInfo) and old.incarnation is not None:
            await self._local.delete(STATE, old.incarnation)
