"""Read blobs ahead of their decoding: concurrently, in order, with bounded memory."""

import asyncio
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_protocol.clock import Clock
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.outcomes import Found
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import ObjectKey
from sluice_queue.worklists import PendingBatch
from sluice_store import open_store
from sluice_store.port import ObjectStore, run_together

GROUP_BYTES: Final = 8 * 1024 * 1024
"""Approximate frame bytes of a group of blobs that is fetched concurrently.

A larger frame forms a separate group.
"""
GROUP_FRAMES: Final = 64
"""Maximum number of blobs of a group, and so of requests in flight."""
GROUPS_AHEAD: Final = 2
"""Groups that are buffered while another is decoded: at most three, or 48 MiB, are in memory."""
ATTEMPTS_MAX: Final = 5
BACKOFF_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBlob:
    """A descriptor and the bytes of its blob; None if the store has no such blob."""

    row: PendingBatch
    body: bytes | None


def plan_groups(rows: Sequence[PendingBatch]) -> list[list[PendingBatch]]:
    """Split rows, in their order, into groups of blobs that are fetched concurrently."""
    groups: list[list[PendingBatch]] = []
    size_bytes = 0
    for row in rows:
        full = size_bytes + row.manifest.frame_bytes > GROUP_BYTES
        if not groups or full or len(groups[-1]) >= GROUP_FRAMES:
            groups.append([])
            size_bytes = 0
        groups[-1].append(row)
        size_bytes += row.manifest.frame_bytes
    return groups


async def _fetch(store: ObjectStore, row: PendingBatch, clock: Clock) -> FetchedBlob:
    attempts = 0
    while True:
        attempts += 1
        try:
            read = await store.get(ObjectKey(row.manifest.raw_blob_key))
        except StoreUnavailable:
            if attempts == ATTEMPTS_MAX:
                raise
            await clock.sleep(BACKOFF_S)
        else:
            return FetchedBlob(row=row, body=read.body if isinstance(read, Found) else None)


class BlobReader:
    """An iterator over blobs in the order of their rows, which a thread fetches ahead."""

    def __init__(self, store_url: str, rows: Sequence[PendingBatch]) -> None:
        self._url = store_url
        self._groups = plan_groups(rows)
        self._clock = SystemClock()
        self._ready: queue.Queue[list[FetchedBlob] | BaseException | None] = queue.Queue(
            GROUPS_AHEAD
        )
        self._stopped = threading.Event()

    def __iter__(self) -> Iterator[FetchedBlob]:
        """Start the thread and yield the blobs that it fetches; an error skips no row."""
        thread = threading.Thread(target=self._run, name="sluice-fetch", daemon=True)
        thread.start()
        try:
            while (group := self._ready.get()) is not None:
                if isinstance(group, BaseException):
                    raise group
                yield from group
        finally:
            self._stopped.set()
            self._drain()
            thread.join()

    def _drain(self) -> None:
        while not self._ready.empty():
            self._ready.get_nowait()

    def _run(self) -> None:
        try:
            asyncio.run(self._fetch_all())
        except Exception as error:  # noqa: BLE001 - the iterating thread raises it
            self._ready.put(error)
        else:
            self._ready.put(None)

    async def _fetch_all(self) -> None:
        async with open_store(self._url) as store:
            for group in self._groups:
                if self._stopped.is_set():
                    return
                fetches = (_fetch(store, row, self._clock) for row in group)
                self._ready.put(list(await run_together(*fetches)))
