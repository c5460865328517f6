"""The objects that the rollup job creates: source ranges and chunks.

A source range (`sluice_lake.source_ranges`) decides which points a set of rollup chunks is made of.
The writer that creates it first decides the ends; every other owner then creates the same chunks.
So each point is counted exactly once. Late data is part of a later range; chunks are never changed.
A source range also names the deletes that rollups apply from this range on. Its keys and column are
called `cover`.

A chunk contains the rows of one range, window length, hour and metric:

    <number>.lmrollup.zst        the rows of the points of this range
    <number>-all.lmrollup.zst    all rows of the hour up to this range; replaces older chunks

A reader uses the last `-all` chunk of an hour and the chunks with higher numbers, or all chunks if
there is no `-all`. The owner that completes the range removes the replaced chunks (ADR 35).
Compaction removes all chunks at an age, because the table contains the same rows (ADR 34).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sluice_lake.schemas import arrow_schema
from sluice_lake.source_ranges import (
    HONOURED_DELETES_PREFIX,
    SOURCE_RANGES_PREFIX,
    DeleteIdsReader,
    SourceRange,
    add_honoured,
    read_source_range,
    remove_old_parts,
    source_range_key,
)
from sluice_lake.tables import ROLLUPS
from sluice_protocol.compression import compress_zstd
from sluice_protocol.keys import ROLLUP, hour_path, rollup_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Applied, Exists
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_spark.errors import StopCheck
from sluice_store import ObjectStore, open_store
from sluice_store.port import ListedIncarnation, run_concurrently
from sluice_store.retry import Backoff, create_known


async def next_source_range(
    reader: DeleteIdsReader,
    previous: SourceRange | None,
    ends: Mapping[int, int],
    deletes: Collection[str] = (),
    metrics_version: int | None = None,
) -> SourceRange | None:
    """Return the range after `previous`: the existing one, or a new one that ends at `ends`.

    A range honours at most `NEW_DELETES_MAX` deletes more than the one before, so that the hours
    that it aggregates again are found by a bounded condition. The next range honours the others.
    `ends` maps a lane to the last sequence of a new range; `deletes` are those that exist.
    `metrics_version` is a version of the table `metrics` without rows later than `ends`; if it is
    None, that of the previous range is used, whose end is not later. Return None if there is
    nothing to roll up: no points and, except for the first range, no deletes.
    """
    number = previous.number + 1 if previous is not None else 1
    existing = await read_source_range(reader.store, number)
    if existing is not None:
        return existing
    after = dict(previous.through) if previous is not None else {}
    through = after | {
        str(lane): end for lane, end in ends.items() if end > after.get(str(lane), 0)
    }
    new = await _new_deletes(reader, previous, deletes)
    if through == after and (previous is None or not new):
        return None
    backoff = Backoff.seeded_by(SystemClock())
    inherited = previous.metrics_version if previous is not None else None
    wanted = SourceRange(
        number=number,
        after=after,
        through=through,
        deletes=await add_honoured(reader, previous, new, SystemIds(), backoff),
        metrics_version=inherited if metrics_version is None else metrics_version,
    )
    body = encode_record(wanted)
    match await create_known(reader.store, source_range_key(number), body, backoff):
        case Applied():
            return wanted
        case Exists():
            return await read_source_range(reader.store, number)


async def _new_deletes(
    reader: DeleteIdsReader, previous: SourceRange | None, deletes: Collection[str]
) -> list[str]:
    """Return the ids of the deletes that a new range honours and the previous range does not.

    The first range aggregates no hour again, so it honours all of them.
    """
    if previous is None:
        return sorted(deletes)
    known = await reader.read(previous.deletes, deletes)
    return sorted(one for one in deletes if one not in known)[:NEW_DELETES_MAX]


async def remove_old_source_ranges(store: ObjectStore, done: int, before_ns: int) -> int:
    """Delete the source ranges that were written before a time and that no job or query needs.

    A job needs range `done` and the one before it. A query needs the range of the state of the
    table that it has just opened. Both are kept if the time is before the start of every running
    process. No older process may find a decided number free, so the time is that of a vacuum, which
    removes the files of such a process too. `done` is the last range that the table contains.
    Return the number of deleted objects.
    """
    if done <= RANGES_NEEDED:
        return 0
    removed = 0
    last = source_range_key(done - RANGES_NEEDED)
    async for page in store.list_incarnations(SOURCE_RANGES_PREFIX, end_at=last):
        old = [one for one in page.incarnations if one.current and one.last_modified_ns < before_ns]
        removed += await _delete_all(store, old)
    return removed


async def remove_old_honoured(store: ObjectStore, done: int, before_ns: int) -> int:
    """Delete old parts of the deletes of source ranges that no range names; return their number.

    Ranges that follow each other name a part, until one of them merges it. A part that only ranges
    between the oldest and the last ones name is younger than the oldest range, so it is kept. A
    part of an owner that stopped before it created its range is named by none. `done` is the last
    range that the table contains; old ranges were removed from the store before.
    """
    numbers = {done - 1, done, done + 1}
    async for page in store.list(SOURCE_RANGES_PREFIX):
        if page.objects:
            numbers.add(_range_number(page.objects[0].key))
        break
    named: set[str] = set()
    for number in sorted(numbers):
        source = await read_source_range(store, number)
        named |= {one.key for one in source.deletes.parts} if source is not None else set()
    return await remove_old_parts(store, HONOURED_DELETES_PREFIX, named, before_ns)


async def remove_old_chunks(
    store: ObjectStore, window: str, done: int, before_ns: int, stop: StopCheck
) -> int:
    """Delete chunks of earlier dates that were written before a time, every version of them.

    No job and no query reads a chunk. A chunk is removed only if the table contains its source
    range, so its rows are never only in the chunk. Only dates before the time are listed: what was
    removed costs later runs nothing. One run removes at most `CHUNKS_MAX`; the next continues.
    `done` is the last range that the table contains. Return the number of deleted objects.
    """
    prefix, removed = f"{ROLLUP}window={window}/", 0
    end_at = prefix + hour_path(before_ns).partition("/")[0]
    async for page in store.list_incarnations(prefix, end_at=end_at):
        stop()
        old = [
            one
            for one in page.incarnations
            if not one.marker
            and one.last_modified_ns < before_ns
            and _CHUNK.search(one.key) is not None
            and _range_number(one.key) <= done
        ]
        removed += await _delete_all(store, old)
        if removed >= CHUNKS_MAX:
            break
    return removed


async def _delete_all(store: ObjectStore, old: Sequence[ListedIncarnation]) -> int:
    await run_concurrently(
        old,
        lambda one: store.delete(one.key, one.incarnation),
        concurrency=CONCURRENT_UNITS,
    )
    return len(old)


NEW_DELETES_MAX: Final = 500
"""Deletes that a source range honours and the one before does not."""
CHUNKS_MAX: Final = 200_000
"""Old chunks that one run removes, in whole pages."""
_CHUNK: Final = re.compile(r"/[0-9]{20}(-all)?\.lmrollup\.zst\Z")
RANGES_NEEDED: Final = 2
"""The source range of the table's newest state, and the one before it."""
WHOLE: Final = "whole"
"""Column of rows for chunks: whether every row of the hour is written."""
HOUR_S: Final = 3600
_DIGITS: Final = 20
CONCURRENT_UNITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupUnit:
    """What a chunk contains: a window length, a metric and an hour."""

    window: str
    name: str
    hour_ns: UnixNs

    def key(self, chunk_id: str) -> ObjectKey:
        """Return the key of one of its chunks."""
        return rollup_key(self.window, self.name, self.hour_ns, chunk_id)


def chunk_name(source: SourceRange, *, whole: bool) -> str:
    """Return the id of a source range's chunks; its first 20 characters are the range's number."""
    return f"{source.number:0{_DIGITS}d}{'-all' if whole else ''}"


async def put_chunks(store_url: str, source: SourceRange, rows: pa.Table) -> None:
    """Create a chunk for each window, hour and metric; an existing chunk has the same content."""
    backoff = Backoff.seeded_by(SystemClock())
    async with open_store(store_url) as store:
        for key, body in encode_chunks(source, rows):
            await create_known(store, key, body, backoff)


def encode_chunks(source: SourceRange, rows: pa.Table) -> Iterator[tuple[ObjectKey, bytes]]:
    """Yield the chunks of rows: each is the zstd of an Arrow IPC stream of the table's columns.

    Rows of older source ranges are included only in chunks of whole hours, because they already
    have chunks elsewhere.
    """
    own = pc.equal(rows.column("cover"), source.number)
    rows = rows.filter(pc.or_(rows.column(WHOLE), own))
    wholes = rows.column(WHOLE).to_pylist()
    stored = rows.select([column.name for column in ROLLUPS.stored_columns])
    plain = stored.cast(arrow_schema(ROLLUPS, partition=False))
    places: dict[tuple[RollupUnit, bool], list[int]] = {}
    names = plain.column("name").to_pylist()
    windows = plain.column("window").to_pylist()
    for number, start in enumerate(plain.column("window_start").to_pylist()):
        unit = RollupUnit(window=windows[number], name=names[number], hour_ns=_hour_ns(start))
        places.setdefault((unit, wholes[number]), []).append(number)
    for (unit, whole), numbers in places.items():
        yield unit.key(chunk_name(source, whole=whole)), _ipc(plain.take(numbers))


def _hour_ns(start: datetime) -> UnixNs:
    seconds = int(start.astimezone(UTC).timestamp())
    return UnixNs((seconds - seconds % HOUR_S) * NS_PER_S)


def _ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return compress_zstd(sink.getvalue().to_pybytes(), level=3)


async def delete_superseded_chunks(
    store: ObjectStore, source: SourceRange, units: Iterable[RollupUnit]
) -> int:
    """Delete the older chunks of hours that a source range wrote whole; return their number.

    Every version of them is deleted, because they contain values of deleted points. Repeating it is
    safe.
    """
    dropped = 0

    async def drop(unit: RollupUnit) -> None:
        nonlocal dropped
        count = await _drop_older(store, source, unit)
        dropped += count

    await run_concurrently(units, drop, concurrency=CONCURRENT_UNITS)
    return dropped


async def _drop_older(store: ObjectStore, source: SourceRange, unit: RollupUnit) -> int:
    dropped = 0
    async for page in store.list_incarnations(unit.key("").rpartition("/")[0] + "/"):
        for found in page.incarnations:
            if not found.marker and _range_number(found.key) < source.number:
                await store.delete(found.key, found.incarnation)
                dropped += 1
    return dropped


def _range_number(key: str) -> int:
    return int(key.rpartition("/")[2][:_DIGITS])
