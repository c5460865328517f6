"""Collect the records of all inputs into batches and seal these into the spool.

    put ──> collected ──> sealed in a thread ──> committed in a thread ──> on_sealed

There is one batch at each step, and they leave each step in the order in which they were
collected. So reading, compression and the disk overlap, and memory stays bounded.

The batcher drops no record unless the settings say so. While the spool or its disk is full, `put`
blocks, the inputs stop reading, and new data remains in the files or the pipe.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from sluice_agent.metrics import AgentMetrics
from sluice_agent.settings import BatchLimits, WhenFull
from sluice_agent.spool.format import FileCheckpoint
from sluice_agent.spool.retries import until_done
from sluice_agent.spool.spool import SealedBatch, Spool, SpooledBatch
from sluice_protocol.clock import Clock
from sluice_protocol.columns import Columns, SignalColumns, join_columns, kind_of, text_bytes
from sluice_protocol.fields import Kind
from sluice_protocol.units import NS_PER_S, UnixNs

RECORD_COST_BYTES: Final = 28
"""The size of a record in addition to its text: time, offsets and the indexes of one attribute."""
ROOM_POLL_S: Final = 0.05
TICK_S: Final = 0.05
_log: Final = structlog.get_logger("sluice.agent.batching")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBlock:
    """Some records of one input.

    Attributes:
        cost_bytes: Their approximate size in a frame before compression.
        checkpoints: The positions of their files after these records; empty for inputs that cannot
            be read again.
        request: The digest of the request to a door; empty where there is none.
        sealed: Called with True once the records are durable, or with False if they were dropped;
            set by inputs that respond to a client.
        may_wait: Whether the records may stay in memory for `BatchLimits.freshness_s`: they can be
            read again after a crash, or are samples of the host.
        wait_s: How long they may stay there even if `freshness_s` is lower.
    """

    columns: SignalColumns
    cost_bytes: int
    checkpoints: tuple[FileCheckpoint, ...] = ()
    request: bytes = b""
    sealed: "SealedCallback | None" = None
    may_wait: bool = False
    wait_s: float = 0.0


SealedCallback = Callable[[bool], None]


def cost_bytes(columns: SignalColumns) -> int:
    """Return the approximate size of records in a frame before compression, bytes."""
    pairs = 0 if columns.attributes is None else len(columns.attributes.keys)
    return text_bytes(columns) + 8 * pairs + RECORD_COST_BYTES * len(columns)


@dataclass(slots=True, kw_only=True)
class BatchBuilder:
    """Collects record blocks of one kind until a batch is due."""

    limits: BatchLimits
    _blocks: list[RecordBlock] = field(default_factory=list)
    _cost_bytes: int = 0
    _records: int = 0
    _due_s: float = 0.0

    def add(self, block: RecordBlock, *, now_s: float) -> None:
        """Add a block."""
        age_s = max(self.limits.age_s_max, block.wait_s)
        if block.may_wait:
            age_s = max(age_s, self.limits.freshness_s)
        due_s = now_s + age_s
        self._due_s = min(self._due_s, due_s) if self._blocks else due_s
        self._blocks.append(block)
        self._cost_bytes += block.cost_bytes
        self._records += len(block.columns)

    def has_room_for(self, block: RecordBlock) -> bool:
        """Return True if a block fits within the limits; an empty builder accepts any block."""
        within = self._cost_bytes + block.cost_bytes <= self.limits.bytes_max
        return not self._blocks or (
            within and self._records + len(block.columns) <= self.limits.records_max
        )

    def is_empty(self) -> bool:
        """Return True if no block is collected."""
        return not self._blocks

    def is_due(self, *, now_s: float) -> bool:
        """Return True if the batch is full or has reached its maximum age."""
        if not self._blocks:
            return False
        full = self._cost_bytes >= self.limits.bytes_max or self._records >= self.limits.records_max
        return full or now_s >= self._due_s

    def take(self) -> list[RecordBlock]:
        """Return all collected blocks, which become one batch, and clear the builder."""
        blocks, self._blocks = self._blocks, []
        self._cost_bytes = self._records = 0
        return blocks


def join_blocks(blocks: Sequence[RecordBlock]) -> Columns:
    """Concatenate the records of blocks of one kind."""
    return join_columns([block.columns for block in blocks])


def join_checkpoints(blocks: Sequence[RecordBlock]) -> tuple[FileCheckpoint, ...]:
    """Return the last checkpoint of each file, with the start of its first block."""
    joined: dict[str, FileCheckpoint] = {}
    for checkpoint in (checkpoint for block in blocks for checkpoint in block.checkpoints):
        first = joined.get(checkpoint.source, checkpoint)
        joined[checkpoint.source] = msgspec.structs.replace(checkpoint, start=first.start)
    return tuple(joined.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uncommitted:
    """A sealed batch, and what its inputs wait for."""

    batch: SealedBatch
    callbacks: tuple[SealedCallback, ...]


class Batcher:
    """Collects records and seals them into the spool while `run` runs."""

    def __init__(
        self,
        spool: Spool,
        limits: BatchLimits,
        *,
        clock: Clock,
        metrics: AgentMetrics,
        when_full: WhenFull = WhenFull.BLOCK,
    ) -> None:
        self.on_sealed: Callable[[SpooledBatch, bytes], None] = _ignore
        self._spool = spool
        self._clock = clock
        self._metrics = metrics
        self._when_full = when_full
        self._limits = limits
        self._builders: dict[Kind, BatchBuilder] = {}
        self._collecting = asyncio.Event()  # set while a builder may have a block
        self._one_by_one = asyncio.Lock()
        self._to_seal: asyncio.Queue[list[RecordBlock]] = asyncio.Queue()
        self._to_commit: asyncio.Queue[_Uncommitted] = asyncio.Queue()
        self._sealing = asyncio.Semaphore(1)
        self._committing = asyncio.Semaphore(1)

    async def put(self, block: RecordBlock) -> None:
        """Add a block; wait while a full batch cannot be passed on to be sealed."""
        async with self._one_by_one:
            kind = kind_of(block.columns)
            builder = self._builders.setdefault(kind, BatchBuilder(limits=self._limits))
            if not builder.has_room_for(block):
                await self._pass_on(builder)
            builder.add(block, now_s=self._now_s())
            self._collecting.set()
            if builder.is_due(now_s=self._now_s()):
                await self._pass_on(builder)

    async def run(self) -> None:
        """Seal and commit batches until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._seal_batches())
            group.create_task(self._commit_batches())
            group.create_task(self._cut_old_batches())

    async def flush(self) -> None:
        """Return once all collected records are in the spool."""
        async with self._one_by_one:
            for builder in self._builders.values():
                await self._pass_on(builder)
            await self._to_seal.join()

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / NS_PER_S

    async def _pass_on(self, builder: BatchBuilder) -> None:
        """Wait until the batch before is sealed; a cancellation leaves the records collected."""
        await self._sealing.acquire()
        blocks = builder.take()
        if blocks:
            self._to_seal.put_nowait(blocks)
        else:
            self._sealing.release()

    async def _cut_old_batches(self) -> None:
        while True:
            await self._collecting.wait()
            await self._clock.sleep(TICK_S)
            async with self._one_by_one:
                for builder in self._builders.values():
                    if builder.is_due(now_s=self._now_s()):
                        await self._pass_on(builder)
                if all(builder.is_empty() for builder in self._builders.values()):
                    self._collecting.clear()

    async def _seal_batches(self) -> None:
        while True:
            sealed = await self._seal(await self._to_seal.get())
            await self._committing.acquire()
            self._to_commit.put_nowait(sealed)
            self._sealing.release()

    async def _seal(self, blocks: list[RecordBlock]) -> _Uncommitted:
        batch = await asyncio.to_thread(self._sealed, blocks, self._clock.now_ns())
        callbacks = tuple(block.sealed for block in blocks if block.sealed is not None)
        return _Uncommitted(batch=batch, callbacks=callbacks)

    async def _commit_batches(self) -> None:
        while True:
            sealed = await self._to_commit.get()
            batch = await self._commit(sealed.batch)
            self._committing.release()
            for callback in sealed.callbacks:
                callback(batch is not None)
            if batch is not None:
                self._metrics.sealed(batch.header)
                self.on_sealed(batch, sealed.batch.frame)
            self._to_seal.task_done()

    def _sealed(self, blocks: list[RecordBlock], now_ns: UnixNs) -> SealedBatch:
        return self._spool.seal(
            join_blocks(blocks),
            join_checkpoints(blocks),
            now_ns=now_ns,
            requests=b"".join(block.request for block in blocks),
        )

    async def _commit(self, sealed: SealedBatch) -> SpooledBatch | None:
        """Commit the same bytes until they are in the spool; return None if they were dropped."""
        if not await self._has_room(sealed):
            return None
        return await until_done(
            lambda: self._spool.commit(sealed),
            self._spool,
            clock=self._clock,
            metrics=self._metrics,
        )

    async def _has_room(self, sealed: SealedBatch) -> bool:
        if self._spool.fits(sealed):
            return True
        if self._when_full is WhenFull.DROP_NEWEST:
            self._metrics.dropped(sealed.header.identity.count)
            _log.error("records_dropped", count=sealed.header.identity.count, reason="spool_full")
            return False
        _log.warning("spool_full", spool_bytes=self._spool.size_bytes())
        with self._metrics.blocking():
            while not self._spool.fits(sealed):
                await self._clock.sleep(ROOM_POLL_S)
        return True


def _ignore(_: SpooledBatch, __: bytes) -> None: ...
