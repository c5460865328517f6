"""Operations on the spool that are repeated while the disk fails.

A full or failing disk does not end an upload: the operation is repeated until it succeeds. The
frame of a batch for which a worker is free is kept in memory, so it is not read again.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from sluice_agent.errors import CorruptEntry, SpoolUnwritable
from sluice_agent.metrics import AgentMetrics
from sluice_agent.spool.format import ParkedReason
from sluice_agent.spool.spool import Spool, SpooledBatch
from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S

Result = TypeVar("Result")

SPOOL_RETRY_S: Final = 1.0
_log: Final = structlog.get_logger("sluice.agent.spool")


async def until_done(
    operation: Callable[[], Result], spool: Spool, *, clock: Clock, metrics: AgentMetrics
) -> Result:
    """Perform an operation on the spool in a thread; repeat it while the disk fails.

    Raise `SpoolUnwritable` after the time that the settings of the spool allow.
    """
    failing_since_s: float | None = None
    key = object()
    try:
        while True:
            try:
                return await asyncio.to_thread(operation)
            except SpoolUnwritable as error:
                now_s = clock.monotonic_ns() / NS_PER_S
                failing_since_s = now_s if failing_since_s is None else failing_since_s
                give_up_s = spool.settings.give_up_s
                if give_up_s and now_s - failing_since_s >= give_up_s:
                    raise
                metrics.spool_errors.inc()
                metrics.failing[key] = str(error)
                _log.error("spool_unwritable", path=error.path, reason=error.reason)
                await clock.sleep(SPOOL_RETRY_S)
    finally:
        metrics.failing.pop(key, None)


class RetriedSpool:
    """Reads, forgets and parks the batches of one spool."""

    def __init__(self, spool: Spool, *, clock: Clock, metrics: AgentMetrics) -> None:
        self._spool = spool
        self._clock = clock
        self._metrics = metrics
        self._frames: dict[int, bytes] = {}
        self.parked = 0

    def keep(self, batch: SpooledBatch, frame: bytes) -> None:
        """Keep the frame of a batch until it is read once."""
        self._frames[batch.header.order] = frame

    async def read(self, *batches: SpooledBatch) -> list[bytes | None]:
        """Read batches in one thread; None is a damaged one, which was moved away."""
        kept = [self._frames.pop(batch.header.order, None) for batch in batches]
        if None not in kept:
            return kept
        found = await self._until_done(lambda: self._spool.read_all(batches))
        return [self._undamaged(batch, one) for batch, one in zip(batches, found, strict=True)]

    async def _until_done(self, operation: Callable[[], Result]) -> Result:
        return await until_done(operation, self._spool, clock=self._clock, metrics=self._metrics)

    async def forget(self, *batches: SpooledBatch) -> None:
        """Remove batches; files that could not be removed are removed by a later sweep."""
        try:
            await asyncio.to_thread(self._spool.forget, *batches)
        except SpoolUnwritable as error:
            self._metrics.spool_errors.inc()
            _log.error("spool_unwritable", path=error.path, reason=error.reason)
            await self._clock.sleep(SPOOL_RETRY_S)

    async def forget_accepted(self, *batches: SpooledBatch) -> None:
        """Count batches as accepted and remove them."""
        if batches:
            self._metrics.accepted_bytes.inc(sum(batch.header.frame_bytes for batch in batches))
            await self.forget(*batches)

    async def park(self, batch: SpooledBatch, reason: ParkedReason) -> None:
        """Park a batch with the response that rejected it."""
        await self._until_done(lambda: self._spool.park(batch, reason))
        self.parked += 1
        self._metrics.parked.inc()
        _log.error(
            "batch_parked",
            name=batch.header.name,
            reason=reason.reason,
            status=reason.status,
            gateway=reason.gateway,
        )

    def _undamaged(self, batch: SpooledBatch, found: bytes | CorruptEntry) -> bytes | None:
        if isinstance(found, bytes):
            return found
        self._metrics.corrupt.inc()
        _log.error("spool_file_corrupt", name=batch.header.name, reason=found.reason)
        return None
