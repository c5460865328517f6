"""A producer that collects batches into work lists and appends those to one lane.

`produce` returns immediately with a handle. The batches become durable with the next flush, which
starts after an interval, at a size, or on request. While a flush writes its list and waits for its
swap, the next flush collects. So one swap contains everything that was collected during the swap
before.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sluice_protocol.errors import OutcomeUnknown, SluiceError
from sluice_protocol.manifests import AcceptedManifest
from sluice_queue.appender import GROUP_MAX, Appender, ProducerSettings
from sluice_queue.lane import Lane
from sluice_queue.register import Draft
from sluice_queue.register_client import Runtime
from sluice_queue.worklists import too_old, write_work_list
from sluice_store.port import ObjectStore


class WriteHandle:
    """The outcome of one `produce`."""

    def __init__(self) -> None:
        self._done = asyncio.Event()
        self._sequence = 0
        self._error: SluiceError | None = None

    def settle(self, sequence: int, error: SluiceError | None = None) -> None:
        """Set the outcome; the producer calls this once."""
        self._sequence, self._error = sequence, error
        self._done.set()

    async def await_durable(self) -> None:
        """Wait until the batches are durable in the queue."""
        await self.result()

    async def result(self) -> int:
        """Wait, then return the sequence of the entry with the batches."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._sequence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Buffered:
    batches: tuple[AcceptedManifest, ...]
    metadata: bytes
    handle: WriteHandle
    size_bytes: int


class Producer:
    """A producer of one lane; open it with `Producer.open`."""

    def __init__(
        self,
        store: ObjectStore,
        lane: Lane,
        *,
        runtime: Runtime | None = None,
        settings: ProducerSettings | None = None,
    ) -> None:
        self._runtime = runtime if runtime is not None else Runtime()
        self._settings = settings if settings is not None else ProducerSettings()
        self._appender = Appender(store, lane, runtime=self._runtime, settings=self._settings)
        self._buffer: list[_Buffered] = []
        self._unflushed_bytes = 0
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._room = asyncio.Condition()
        self._closing = False

    @classmethod
    @asynccontextmanager
    async def open(  # noqa: PLR0913 - the parts of the lane's name
        cls,
        store: ObjectStore,
        *,
        queue: str,
        lane: int,
        layout: int = 0,
        after: int = 0,
        runtime: Runtime | None = None,
        settings: ProducerSettings | None = None,
    ) -> AsyncIterator["Producer"]:
        """Run a producer; the end of the block flushes what is left."""
        place = Lane(queue=queue, lane=lane, layout=layout, after=after)
        producer = cls(store, place, runtime=runtime, settings=settings)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(producer.run(tasks))
                try:
                    yield producer
                finally:
                    producer.close()
        except BaseExceptionGroup as group:
            # The caller's own error is raised without the group around it.
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise

    def close(self) -> None:
        """End the flusher after one last flush."""
        self._closing = True
        self._wake.set()
        self._urgent.set()

    async def produce(
        self, batches: Sequence[AcceptedManifest], metadata: bytes = b""
    ) -> WriteHandle:
        """Accept batches; wait while more than `max_unflushed_bytes` are not durable.

        The batches are of agents that map to this lane. `metadata` is at most 512 bytes of the
        entry; calls with equal metadata share one.
        """
        size_bytes = sum(batch.frame_bytes for batch in batches)
        async with self._room:
            await self._room.wait_for(lambda: self._fits(size_bytes))
            self._unflushed_bytes += size_bytes
        handle = WriteHandle()
        self._buffer.append(
            _Buffered(
                batches=tuple(batches), metadata=metadata, handle=handle, size_bytes=size_bytes
            )
        )
        self._wake.set()
        if sum(one.size_bytes for one in self._buffer) >= self._settings.flush_bytes:
            self._urgent.set()
        return handle

    def _fits(self, size_bytes: int) -> bool:
        # A single call above the whole bound proceeds alone, or it would wait permanently.
        unflushed = self._unflushed_bytes
        return unflushed == 0 or unflushed + size_bytes <= self._settings.max_unflushed_bytes

    def flush(self) -> None:
        """Start a flush now."""
        self._wake.set()
        self._urgent.set()

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Flush until `close`; each flush is a separate task, so that swaps group."""
        while True:
            await self._wake.wait()
            if not self._closing:
                await self._gather()
            taken, self._buffer = self._buffer, []
            self._wake.clear()
            self._urgent.clear()
            groups = _grouped(taken, self._settings.list_batches_max)
            # Each group becomes an entry, and one swap has `GROUP_MAX` of them at most.
            for first in range(0, len(groups), GROUP_MAX):
                tasks.create_task(self._flush(groups[first : first + GROUP_MAX]))
            if self._closing and not self._buffer:
                return

    async def _gather(self) -> None:
        """Wait for the interval to pass, or for enough bytes."""
        sleeping = asyncio.ensure_future(self._runtime.clock.sleep(self._settings.flush_interval_s))
        urgent = asyncio.ensure_future(self._urgent.wait())
        try:
            await asyncio.wait((sleeping, urgent), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            urgent.cancel()

    async def _flush(self, groups: list[list[_Buffered]]) -> None:
        """Write the lists, append their entries in one swap, and settle every caller."""
        taken = [one for group in groups for one in group]
        try:
            drafts = [await self._list(group) for group in groups]
            drafts = [
                await self._list(group) if self._stale(draft) else draft
                for group, draft in zip(groups, drafts, strict=True)
            ]
            first = await self._appender.append(drafts)
        except SluiceError as error:
            for one in taken:
                one.handle.settle(0, error)
        except asyncio.CancelledError:
            for one in taken:
                one.handle.settle(0, OutcomeUnknown("append", self._appender.client.lane.key, 1))
            raise
        else:
            for index, group in enumerate(groups):
                for one in group:
                    one.handle.settle(first + index)
        finally:
            async with self._room:
                self._unflushed_bytes -= sum(one.size_bytes for one in taken)
                self._room.notify_all()

    def _stale(self, draft: Draft) -> bool:
        return too_old(draft.ingested_at_ns, self._appender.client.store_now_ns)

    async def _list(self, group: list[_Buffered]) -> Draft:
        return await write_work_list(
            self._appender.client,
            [batch for one in group for batch in one.batches],
            retry=self._settings.retry,
            metadata=group[0].metadata,
        )


def _grouped(taken: list[_Buffered], batches_max: int) -> list[list[_Buffered]]:
    """Divide the batches into lists: equal metadata together, in order, bounded."""
    groups: list[list[_Buffered]] = []
    count = 0
    for one in taken:
        fits = groups and groups[-1][0].metadata == one.metadata
        if fits and count + len(one.batches) <= batches_max:
            groups[-1].append(one)
            count += len(one.batches)
        else:
            groups.append([one])
            count = len(one.batches)
    return groups
