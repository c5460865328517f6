"""The acceptance journal of a spool: it is written into the authority, when batches have landed.

A spool accepts without the authority, so nothing fences it: its open registration alone keeps the
time of the journals back. A spool therefore accepts only while the authority has an open
registration of it, which its stored state shows, also offline (`spool_journal_state`). All
processes of a spool continue one journal until it is closed. After a kill the next process needs no
network; after a clean stop, which closes the journal, it needs the authority once.
Source: ADR 22.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from sluice_gateway.journal_writer import AcceptanceJournal
from sluice_gateway.spool_journal_state import SpoolRules
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, ErrorCode, SluiceError, StoreError
from sluice_protocol.journals import JOURNAL_INTERVAL_S
from sluice_protocol.units import UnixNs
from sluice_web.problems import HttpRefusal

RETRY_S: Final = 5.0
"""Pause after a write that failed, seconds: the authority may be unreachable for days."""

log = structlog.get_logger()


class SpoolJournal:
    """The journal of a spooling gateway.

    Attributes:
        rules: The names and times in it, and its stored state.
    """

    def __init__(
        self,
        writer: AcceptanceJournal,
        rules: SpoolRules,
        *,
        clock: Clock,
        claim: Callable[[], Awaitable[None]],
    ) -> None:
        """Bind a spool.

        Args:
            writer: Writes into the authority.
            rules: The rules, also used by `writer`.
            clock: The clocks of this machine.
            claim: Claims the authority for this spool.
        """
        self._writer = writer
        self._clock = clock
        self._claim = claim
        self._registering = asyncio.Lock()
        self._claimed = False
        self._registered = False
        self._landed_since_write = False
        self.rules = rules

    def problem(self) -> str:
        """Return why the spool cannot accept; empty if it can, with or without the authority."""
        state = self.rules.state
        if state is not None and state.status == "open":
            return ""
        return "the spool is not registered in the authority, which this start requires once"

    async def open(self) -> None:
        """Read the state of the spool and register; offline, the transfer registers later.

        Raises:
            BadUsage: Another spool has claimed the authority.
            StoreError: The spool cannot be read.
        """
        await self.rules.load()
        try:
            await self.prepare()
        except StoreError as error:
            log.warning("authority_unreachable", reason=str(error), batches="kept in the spool")

    async def prepare(self) -> None:
        """Claim the authority and register; without a registration, batches can be transferred.

        Raises:
            BadUsage: Another spool has claimed the authority: nothing may be transferred.
            StoreError: The authority is unreachable; call again.
        """
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
        """Refuse uploads while the authority has no open registration of this spool.

        Raises:
            HttpRefusal: The authority was not reached since the last clean stop.
        """
        if self.problem():
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
        await self.register()
        await self._writer.flush()
        self._landed_since_write = True

    async def run(self) -> None:
        """Write the time while batches land, and heartbeats, until cancelled."""
        while True:
            await self.write_due()
            failed = bool(self._writer.problem())
            await self._clock.sleep(RETRY_S if failed else JOURNAL_INTERVAL_S)

    async def write_due(self) -> None:
        """Write the time if batches have landed since the last object, or a heartbeat if due."""
        if self._registered:
            landed, self._landed_since_write = self._landed_since_write, False
            await self._writer.write_due(also_time=landed)
            if self._writer.problem():
                self._landed_since_write |= landed

    async def close(self, *, landed: bool) -> None:
        """Close the journal if everything has landed; else the next process continues it."""
        if not landed or not self._registered:
            return
        try:
            await self.rules.advance_to("closing")
            await self._writer.close(landed=landed)
            if self._writer.is_closed:
                await self.rules.advance_to("closed")
        except SluiceError as error:
            log.warning("journal_not_closed", process=self._writer.process, reason=str(error))
