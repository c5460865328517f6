"""Removal of the index chunks of files that compaction replaced or retention removed.

A chunk is removed when the store no longer has any of its data files, and the table names none of
them. Vacuum removes a file when no reader can need it any more, so no reader can need the chunk
either. A data file never gets the name of an earlier one, so a removed chunk is never needed again.
If one were removed too early, searches would read its files without it.

A run compares the table with the state of the previous run. The dates of the files that left it
wait in the record of progress until the files have probably been removed, at most one entry a date.
Then the run reads the chunks of the date and decides. While files of a chunk exist, the date waits
again: for a day, or as long as it has waited before. So the checks of a date that is never vacuumed
become rare. Without the record, or if the log no longer contains the previous state, every date
that has chunks is checked once.

A run makes at most `STEPS_MAX` steps of `STEP_CHUNKS` chunks, and records each step. After a crash
the next run repeats at most one step.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec
import structlog

from sluice_lake.tables import LOGS
from sluice_protocol.keys import INDEX, LAKE, index_prefix
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_spark.index_progress import (
    IndexProgress,
    WaitingDate,
    read_paths,
    write_index_progress,
)
from sluice_spark.stopping import StopCheck
from sluice_store import ObjectStore
from sluice_store.concurrent_requests import run_concurrently
from sluice_store.deletion import CurrentDeletion, delete_current_version

STEPS_MAX: Final = 100
"""Steps of one run; each writes the record once."""
STEP_CHUNKS: Final = 100
"""Chunks that one step decides, all of one date."""
DAY_NS: Final = 86_400 * NS_PER_S
DELETES_CONCURRENT: Final = 16
_CHUNK: Final = re.compile(r"/[0-9a-f]{32}\.lmindex\.zst\Z")
_DATE: Final = re.compile(rf"{re.escape(INDEX)}date=(\d{{4}}-\d\d-\d\d)/")

_log = structlog.get_logger("sluice.index")


class ChunkFate(Enum):
    """What happens to a chunk."""

    NEEDED = "needed"
    """It covers a file of the table, or it is unreadable."""
    WAITS = "waits"
    """The table names none of its files, and at least one of them still exists."""
    GONE = "gone"
    """None of its files exists."""


def decide_fate(
    paths: Collection[str] | None, current: Collection[str], existing: Collection[str]
) -> ChunkFate:
    """Decide what happens to a chunk.

    Args:
        paths: The files that it covers; None if it is unreadable.
        current: The files of its date that the table names.
        existing: The files of its date in the store, listed after the chunk.
    """
    if not current and not existing:
        return ChunkFate.GONE
    if paths is None or any(path in current for path in paths):
        return ChunkFate.NEEDED
    return ChunkFate.WAITS if any(path in existing for path in paths) else ChunkFate.GONE


def add_waiting(
    waiting: Sequence[WaitingDate], dates: Iterable[str], now_ns: int, wait_ns: int
) -> tuple[WaitingDate, ...]:
    """Return the waiting dates with dates whose files left the table.

    A date that waits already keeps its time: its check finds what left later, and repeats. If its
    check has begun, it may have passed the chunk, so another check follows.
    """
    found = {entry.date: entry for entry in waiting}
    for date in dates:
        entry = found.get(date)
        if entry is None:
            found[date] = WaitingDate(date=date, since_unix_ns=now_ns, due_unix_ns=now_ns + wait_ns)
        elif entry.checked_through:
            found[date] = msgspec.structs.replace(entry, again=True)
    return tuple(found[date] for date in sorted(found))


def next_due(waiting: Sequence[WaitingDate], now_ns: int) -> WaitingDate | None:
    """Return the date to check now: the one that is due longest; None if none is due."""
    due = [entry for entry in waiting if entry.due_unix_ns <= now_ns]
    return min(due, key=lambda entry: (entry.due_unix_ns, entry.date), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStep:
    """The result of one step.

    Attributes:
        through: The last chunk that was decided.
        ended: Whether it was the last one of the date.
        again: Whether a chunk is left whose files the table no longer names.
        removed: Chunks that were removed.
    """

    through: str
    ended: bool
    again: bool
    removed: int


def after_step(
    waiting: Sequence[WaitingDate], entry: WaitingDate, step: CheckStep, now_ns: int
) -> tuple[WaitingDate, ...]:
    """Return the waiting dates after a step over the chunks of `entry`."""
    again = entry.again or step.again
    rest = tuple(one for one in waiting if one.date != entry.date)
    if not step.ended:
        going_on = msgspec.structs.replace(entry, checked_through=step.through, again=again)
        return tuple(sorted((*rest, going_on), key=lambda one: one.date))
    if not again:
        return rest
    pause_ns = max(DAY_NS, now_ns - entry.since_unix_ns)
    later = WaitingDate(
        date=entry.date, since_unix_ns=entry.since_unix_ns, due_unix_ns=now_ns + pause_ns
    )
    return tuple(sorted((*rest, later), key=lambda one: one.date))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRemoval:
    """The removal of one run.

    Attributes:
        store: The store.
        current: The files of the newest state of the table, by date.
        now_ns: The store's time at the start of the run.
        stop: Raises an error between two steps if the run must stop.
    """

    store: ObjectStore
    current: Mapping[str, Collection[str]]
    now_ns: int
    stop: StopCheck

    async def run(self, progress: IndexProgress) -> int:
        """Check the dates that are due; return the number of removed chunks.

        Args:
            progress: The record, as it is stored; the stored one is replaced after each step.

        Raises:
            JobStopped: `stop` raised it.
            OutcomeUnknown: No attempt to write the record had a known outcome.
            StoreError: The store is unreachable or refused a request.
        """
        removed = 0
        for _ in range(STEPS_MAX):
            self.stop()
            waiting = progress.waiting
            entry = next_due(waiting, self.now_ns)
            if entry is None:
                break
            step = await self._check(entry)
            removed += step.removed
            left = after_step(waiting, entry, step, self.now_ns)
            progress = msgspec.structs.replace(progress, waiting=left)
            await write_index_progress(self.store, progress)
        if removed:
            _log.info("index_chunks_removed", chunks=removed)
        return removed

    async def _check(self, entry: WaitingDate) -> CheckStep:
        """Decide the next chunks of a date, and remove those that are not needed."""
        keys, ended = await self._list_chunks(entry)
        # Listed after the chunks: the files of a chunk existed before it.
        existing = await self._list_files(entry.date) if keys else set()
        current = self.current.get(entry.date, ())
        gone: list[ObjectKey] = []
        again = False
        for key in keys:
            known = bool(current or existing)
            paths = await read_paths(self.store, key) if known else None
            fate = decide_fate(paths, current, existing)
            again = again or fate is ChunkFate.WAITS
            if fate is ChunkFate.GONE:
                gone.append(key)
        outcomes = await self._delete(gone)
        return CheckStep(
            through=keys[-1] if keys else entry.checked_through,
            ended=ended,
            again=again or CurrentDeletion.UNKNOWN in outcomes,
            removed=outcomes.count(CurrentDeletion.DELETED),
        )

    async def _list_chunks(self, entry: WaitingDate) -> tuple[list[ObjectKey], bool]:
        """Return the chunks of the next step, and whether they are the last ones of the date."""
        found: list[ObjectKey] = []
        after = entry.checked_through
        async for page in self.store.list(index_prefix(entry.date), start_after=after):
            found += [one.key for one in page.objects if _CHUNK.search(one.key)]
            if len(found) > STEP_CHUNKS:
                return found[:STEP_CHUNKS], False
        return found, True

    async def _list_files(self, date: str) -> set[str]:
        """Return the paths of the data files of a date that exist, whether or not committed."""
        table = f"{LAKE}{LOGS.name}/"
        pages = self.store.list(f"{table}{LOGS.partition_column}={date}/")
        return {one.key.removeprefix(table) async for page in pages for one in page.objects}

    async def _delete(self, keys: Sequence[ObjectKey]) -> list[CurrentDeletion]:
        outcomes: list[CurrentDeletion] = []

        async def delete(key: ObjectKey) -> None:
            outcomes.append(await delete_current_version(self.store, key))

        await run_concurrently(keys, delete, concurrency=DELETES_CONCURRENT)
        return outcomes


async def list_chunk_dates(store: ObjectStore) -> list[str]:
    """Return the dates that have chunks, with one request for each date.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    dates: list[str] = []
    after = ""
    while (key := await _first_key(store, after)) is not None:
        found = _DATE.match(key)
        if found is not None:
            dates.append(found[1])
        # The character after `/`, so after every key of the folder.
        after = f"{INDEX}{key.removeprefix(INDEX).partition('/')[0]}0"
    return dates


async def _first_key(store: ObjectStore, after: str) -> ObjectKey | None:
    async for page in store.list(f"{INDEX}date=", start_after=after):
        for one in page.objects:
            return one.key
    return None
