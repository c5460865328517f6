"""Fetches blobs ahead of whoever decodes them: several at once, in order, with bounded memory."""

import asyncio
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_protocol.clock import Clock
from sluice_protocol.errors import StoreError, StoreUnavailable
from sluice_protocol.outcomes import Found
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import ObjectKey
from sluice_spark.descriptors import Waiting
from sluice_store import open_store
from sluice_store.port import ObjectStore

GROUP_BYTES: Final = 8 * 1024 * 1024
"""Frames are fetched in groups of about this size; a larger frame is a group of its own."""
GROUP_FRAMES: Final = 64
"""At most this many requests are in flight."""
GROUPS_AHEAD: Final = 2
"""So many groups wait while one is decoded: at most three groups, or 48 MiB, are in memory."""
TRIES_MAX: Final = 5
BACKOFF_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A descriptor and the bytes of its blob; None when the store has no such blob."""

    row: Waiting
    body: bytes | None


def plan_groups(rows: Sequence[Waiting]) -> list[list[Waiting]]:
    """Cuts rows, in their order, into groups that are fetched at once."""
    groups: list[list[Waiting]] = []
    size_bytes = 0
    for row in rows:
        full = size_bytes + row.manifest.frame_bytes > GROUP_BYTES
        if not groups or full or len(groups[-1]) >= GROUP_FRAMES:
            groups.append([])
            size_bytes = 0
        groups[-1].append(row)
        size_bytes += row.manifest.frame_bytes
    return groups


async def _fetch(store: ObjectStore, row: Waiting, clock: Clock) -> Fetched:
    for last in (*(False,) * (TRIES_MAX - 1), True):
        try:
            answer = await store.get(ObjectKey(row.manifest.raw_blob_key))
        except StoreUnavailable:
            if last:
                raise
            await clock.sleep(BACKOFF_S)
        else:
            body = answer.body if isinstance(answer, Found) else None
            return Fetched(row=row, body=body)
    raise StoreError("get", row.manifest.raw_blob_key, "no try was made")


class ReadAhead:
    """Iterates over fetched blobs in the order of their rows; a thread runs ahead of it."""

    def __init__(self, store_url: str, rows: Sequence[Waiting]) -> None:
        """Starts nothing yet."""
        self._url = store_url
        self._groups = plan_groups(rows)
        self._clock = SystemClock()
        self._ready: queue.Queue[list[Fetched] | BaseException | None] = queue.Queue(GROUPS_AHEAD)
        self._stopped = threading.Event()

    def __iter__(self) -> Iterator[Fetched]:
        """Runs the thread and gives what it fetched.

        Raises:
            StoreError: The store did not answer; nothing is skipped.
        """
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
        except Exception as error:  # noqa: BLE001 - handed to the thread that iterates
            self._ready.put(error)
        else:
            self._ready.put(None)

    async def _fetch_all(self) -> None:
        async with open_store(self._url) as store:
            for group in self._groups:
                if self._stopped.is_set():
                    return
                asked = (_fetch(store, row, self._clock) for row in group)
                self._ready.put(list(await asyncio.gather(*asked)))
