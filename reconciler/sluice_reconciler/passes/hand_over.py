"""Batches of a full pass in lanes of other reconcilers: they are handed over to their owners.

A pass enqueues the batches of the lanes that its process works on. What it finds in other lanes is
named in `reconciler/v1/full-pass-left.json`, and the progress of the pass shows that the object has
changed. The owners process what it names, and the pass reads their ledgers until all of it is done.
So one pass is enough, however many reconcilers share the lanes.

The object is a hint, replaced with each hand-over, with at most `LEFT_MAX` keys. If it is lost, the
pass leaves these batches behind and is repeated.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import structlog

from sluice_protocol.clock import Clock
from sluice_protocol.errors import InvalidRecord, StoreError
from sluice_protocol.keys import RECONCILER
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_reconciler.lanes.worker import LaneWorkers
from sluice_reconciler.passes.progress import PassRecord
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_store.port import ObjectStore

log = structlog.get_logger()

LEFT: Final = ObjectKey(f"{RECONCILER}full-pass-left.json")
LEFT_MAX: Final = 10_000
"""Keys of one hand-over, and keys that one span collects before it hands them over."""
LEFT_TRIES: Final = 5
LEFT_PAUSE_S: Final = 2.0


class LeftBatches(msgspec.Struct, frozen=True, kw_only=True):
    """The accepted keys that a full pass hands over."""

    schema: Literal["sluice.reconciler_pass_left.v1"] = "sluice.reconciler_pass_left.v1"
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """The two sides of a hand-over."""

    store: ObjectStore
    pipeline: BatchPipeline
    workers: LaneWorkers
    clock: Clock

    async def give(
        self, keys: Sequence[ObjectKey], announce: Callable[[], Awaitable[None]]
    ) -> PipelineResult:
        """Name batches for their owners, and wait a bounded time until these have enqueued them.

        At most `LEFT_MAX` keys; `announce` stores that the object has changed. Return what this
        process enqueued itself, with `left_keys` that no process enqueued.
        """
        if self.workers.shared is not None:
            await self.store.overwrite(LEFT, encode_record(LeftBatches(keys=tuple(keys))))
            await announce()
        total, rest = PipelineResult(), list(keys)
        for _ in range(LEFT_TRIES):
            await self.clock.sleep(LEFT_PAUSE_S)
            await self.workers.refresh()
            try:
                done = await self.pipeline.process_new_in_steps(rest)
            except StoreError:
                # None of them can be read, but the lanes could: the batches are left.
                done = PipelineResult(left_keys=frozenset(rest))
            rest = sorted(done.left_keys)
            total = PipelineResult(
                enqueued=total.enqueued + done.enqueued,
                left=len(rest),
                left_keys=done.left_keys,
            )
            if not rest:
                break
        return total

    async def take(self) -> PipelineResult:
        """Process what another reconciler named, in the lanes of this process."""
        read = await self.store.get(LEFT)
        if not isinstance(read, Found):
            return PipelineResult()
        try:
            named = decode_record(LEFT, read.body, LeftBatches)
        except InvalidRecord as error:
            log.warning("pass_record_unreadable", key=LEFT, reason=error.reason)
            return PipelineResult()
        keys = [ObjectKey(key) for key in named.keys]
        mine = [key for key in keys if self.workers.works_on(key)]
        return await self.pipeline.process_new_in_steps(mine)


def hand_over_of(record: PassRecord | None) -> tuple[str, int, int] | None:
    """Return what identifies the last hand-over of a pass; None if there was none."""
    if record is None or not record.handed_over:
        return None
    return record.writer, record.began_unix_ns, record.handed_over
