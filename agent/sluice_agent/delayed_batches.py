"""Batches that are tried later, because all gateways refuse them although they accept others.

No gateway reads their version, a proxy refuses them, or what the store contains for their identity
is damaged. They are kept apart, because they would occupy every worker until an operator acts, and
other batches would not be sent. One of them is tried again after a pause. When a gateway accepts
it, all of them are sent. Source: ADR 3 and 18.
"""

import asyncio
from collections import deque
from dataclasses import replace
from typing import Final

from sluice_agent.spool import SpooledBatch
from sluice_agent.upload_decisions import Reaction, SendAgain
from sluice_protocol.clock import Clock
from sluice_protocol.errors import ErrorCode

RETRY_S: Final = 30.0


_OF_THE_BATCH: Final = frozenset(
    {
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.CORRUPT_OBJECT,
        ErrorCode.INTERNAL,
        ErrorCode.DIGEST_MISMATCH,
    }
)
"""Codes after which other batches may well be accepted, and this one not before someone acts."""


def concerns_batch(reaction: Reaction) -> bool:
    """Return True if the last gateway of a round refused this batch, and not every upload."""
    return isinstance(reaction, SendAgain) and reaction.reason in _OF_THE_BATCH


class DelayedBatches:
    """The batches, oldest first."""

    def __init__(self, clock: Clock, retry_s: float) -> None:
        self._clock = clock
        self._retry_s = retry_s
        self._batches: deque[SpooledBatch] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: SpooledBatch) -> None:
        """Keep a batch apart; it was sent before, which its next upload states."""
        self._batches.append(replace(batch, recovered=True))
        self._filled.set()

    async def next(self) -> SpooledBatch:
        """Wait for a batch and the pause, and remove the batch."""
        await self._filled.wait()
        await self._clock.sleep(self._retry_s)
        return self._remove()

    def remove_all(self) -> list[SpooledBatch]:
        """Remove and return every batch."""
        return [self._remove() for _ in range(len(self._batches))]

    def _remove(self) -> SpooledBatch:
        batch = self._batches.popleft()
        if not self._batches:
            self._filled.clear()
        return batch
