"""Gathers what the inputs give, seals it, and holds the inputs back while the spool cannot take it.

Nothing here drops a record unless the settings say so: a full spool or a full disk makes `put`
wait, the inputs stop reading, and the files or the pipe hold what comes.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import structlog

from sluice_agent.batch import Batch, Sealed
from sluice_agent.clock import Clock
from sluice_agent.errors import SpoolUnwritable
from sluice_agent.metrics import AgentMetrics
from sluice_agent.parts import BatchLimits, Gathering, Part
from sluice_agent.spool import Spool
from sluice_protocol.columns import kind_of
from sluice_protocol.manifests import Kind

ROOM_POLL_S: Final = 0.05
TROUBLE_PAUSE_S: Final = 1.0
TICK_S: Final = 0.05
_LOG: Final = structlog.get_logger("sluice.agent.intake")


class WhenFull(StrEnum):
    """What happens to new records while the spool is full."""

    BLOCK = "block"
    DROP_NEWEST = "drop_newest"


class Intake:
    """The way from the inputs into the spool, one batch after the other."""

    def __init__(
        self,
        spool: Spool,
        limits: BatchLimits,
        *,
        clock: Clock,
        metrics: AgentMetrics,
        when_full: WhenFull = WhenFull.BLOCK,
    ) -> None:
        """Takes the spool and the limits; `on_sealed` is called with each durable batch."""
        self.on_sealed: Callable[[Batch], None] = _nobody
        self._spool = spool
        self._clock = clock
        self._metrics = metrics
        self._when_full = when_full
        self._limits = limits
        self._gatherings: dict[Kind, Gathering] = {}
        self._one_by_one = asyncio.Lock()

    async def put(self, part: Part) -> None:
        """Takes one part; returns at once while there is room, else when there is again."""
        async with self._one_by_one:
            kind = kind_of(part.columns)
            gathering = self._gatherings.setdefault(kind, Gathering(limits=self._limits))
            if not gathering.has_room_for(part):
                await self._seal(gathering)
            gathering.add(part, now_s=self._clock.monotonic_s())
            if gathering.is_due(now_s=self._clock.monotonic_s()):
                await self._seal(gathering)

    async def run(self) -> None:
        """Cuts batches that are old enough, for ever."""
        while True:
            await self._clock.sleep(TICK_S)
            async with self._one_by_one:
                for gathering in self._gatherings.values():
                    if gathering.is_due(now_s=self._clock.monotonic_s()):
                        await self._seal(gathering)

    async def flush(self) -> None:
        """Seals everything gathered; when it returns, all of it is in the spool."""
        async with self._one_by_one:
            for gathering in self._gatherings.values():
                await self._seal(gathering)

    async def _seal(self, gathering: Gathering) -> None:
        taken = gathering.take()
        if taken is None:
            return
        sealed = await asyncio.to_thread(
            self._spool.prepare, taken.columns, taken.marks, now_ns=self._clock.now_ns()
        )
        batch = await self._commit(sealed)
        for tell in taken.sealed:
            tell(batch is not None)
        if batch is not None:
            self._metrics.sealed(batch.note)
            self.on_sealed(batch)

    async def _commit(self, sealed: Sealed) -> Batch | None:
        """Commits the same bytes until they stand in the spool."""
        while True:
            if not await self._has_room(sealed):
                return None
            try:
                return await asyncio.to_thread(self._spool.commit, sealed)
            except SpoolUnwritable as error:
                self._metrics.spool_errors.inc()
                _LOG.error("spool_unwritable", path=error.path, reason=error.reason)
                await self._clock.sleep(TROUBLE_PAUSE_S)

    async def _has_room(self, sealed: Sealed) -> bool:
        if self._spool.fits(sealed):
            return True
        if self._when_full is WhenFull.DROP_NEWEST:
            self._metrics.dropped(sealed.note.identity.count)
            _LOG.error("records_dropped", count=sealed.note.identity.count, reason="spool_full")
            return False
        _LOG.warning("spool_full", spool_bytes=self._spool.size_bytes())
        with self._metrics.blocking():
            while not self._spool.fits(sealed):
                await self._clock.sleep(ROOM_POLL_S)
        return True


def _nobody(_: Batch) -> None:
    """Stands where nobody waits for batches."""
