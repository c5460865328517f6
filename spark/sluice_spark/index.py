"""The index job: executors index new data files of logs and spans into immutable chunks.

A run finds the data files that no chunk covers, groups them by date, and creates a chunk for each
group. Data files never change, and neither do chunks. Two concurrent runs create the same chunks or
chunks over different groups of files; both are correct. The run records the version of the table
that it read. The next run considers only files that this version does not contain, and reads only
the chunks of their dates. Without the record, or if the log of the table no longer contains the
version, it reads the chunks of every date. A wrong record would cost searches their speed and no
results.

Then the run removes chunks when the store no longer has any of their data files, and the table
names none of them. Vacuum removes a file when no reader can need it any more, so no reader can need
the chunk either. A data file never gets the name of an earlier one, so a removed chunk is never
needed again. If one were removed too early, searches would read its files without it.

The dates of the files that left the table wait in the record until the files have probably been
removed, at most one entry a date. Then the run reads the chunks of the date and decides. While
files of a chunk exist, the date waits again: for a day, or as long as it has waited before. So the
checks of a date that is never vacuumed become rare. Without the record every date that has chunks
is checked once. A run makes at most `STEPS_MAX` steps of `STEP_CHUNKS` chunks, and records each
step. After a crash the next run repeats at most one step.
"""

import asyncio
import pickle
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog

from sluice_lake.data_files import DataFile, list_files, partitions_of
from sluice_lake.delta import find_table, list_paths_at
from sluice_lake.durable_files import require_durable
from sluice_lake.locations import lake_location, open_filesystem
from sluice_lake.tables import RECORD_TABLES, Table
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.fields import KINDS, RecordKind
from sluice_protocol.index_chunk import (
    HEAD_BYTES_MAX,
    FileTerms,
    GroupTerms,
    IndexedFile,
    chunk_id,
    decode_chunk_head,
    encode_chunk,
    hash_texts,
    label_place,
    text_terms,
    value_terms,
)
from sluice_protocol.keys import INDEX, LAKE, index_key, index_prefix, index_progress_key
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Applied, Found
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_spark.errors import StopCheck, never_stop
from sluice_spark.failpoints import read_failpoint
from sluice_spark.session import Session
from sluice_store import ObjectStore, open_store, read_authority
from sluice_store.port import run_concurrently
from sluice_store.retry import (
    Backoff,
    CurrentDeletion,
    create_known,
    delete_current_version,
    delete_versions,
    overwrite_known,
)

INDEXED: Final = tuple(RECORD_TABLES[name] for name, kind in KINDS.items() if kind.indexed)
"""The tables whose files have chunks."""

_log = structlog.get_logger("sluice.index")


class WaitingDate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A date that may have chunks of files that left the table.

    Attributes:
        due_unix_ns: When its chunks are checked next.
        checked_through: The last chunk that the current check has decided; empty before its start.
        again: Whether another check must follow the current one.
    """

    date: str
    since_unix_ns: int
    due_unix_ns: int
    checked_through: str = ""
    again: bool = False


class IndexProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a table in which every file has an index chunk.

    Without it, or with another `table_id`, the job reads every chunk and checks every date.

    Attributes:
        table_id: The id of the table in its log; a table that was created again has another one.
        table_version: The version of the state.
        waiting: The dates that may have chunks of files that left the table before this version, at
            most one entry a date.
    """

    schema: Literal["sluice.index_progress.v3"] = "sluice.index_progress.v3"
    table_id: str
    table_version: int
    waiting: tuple[WaitingDate, ...] = ()


async def read_index_progress(store: ObjectStore, table: str) -> IndexProgress | None:
    """Read the record of a table; return None if it is missing or cannot be decoded."""
    key = index_progress_key(table)
    read = await store.get(key)
    if not isinstance(read, Found):
        return None
    try:
        return decode_record(key, read.body, IndexProgress)
    except InvalidRecord as error:
        _log.info("index_progress_ignored", reason=error.reason)
        return None


async def write_index_progress(store: ObjectStore, table: str, progress: IndexProgress) -> None:
    """Write the record; if another run overwrites it, the next run only reads more."""
    backoff = Backoff.seeded_by(SystemClock())
    await overwrite_known(store, index_progress_key(table), encode_record(progress), backoff)


async def find_new_files(
    store: ObjectStore, table: str, files: Sequence[DataFile], indexed: Collection[str]
) -> list[DataFile]:
    """Return the files without a chunk; read only chunks of dates with files not in `indexed`."""
    unsure = [file for file in files if file.path not in indexed]
    covered: set[str] = set()
    for day in sorted({file.partition for file in unsure}):
        covered |= await _read_covered(store, table, day)
    return [file for file in unsure if file.path not in covered]


async def _read_covered(store: ObjectStore, table: str, day: str) -> set[str]:
    """Return the paths of the files that chunks of a date cover; skip unreadable chunks."""
    paths: set[str] = set()
    async for page in store.list(index_prefix(table, day)):
        for listed in page.objects:
            paths |= await read_paths(store, listed.key) or set()
    return paths


async def read_paths(store: ObjectStore, key: ObjectKey) -> set[str] | None:
    """Return the paths of the files that a chunk covers; None if it is missing or unreadable."""
    read = await store.get(key, last=HEAD_BYTES_MAX)
    if not isinstance(read, Found):
        return None
    try:
        return {one.path for one in decode_chunk_head(key, read.body).files}
    except InvalidRecord as error:
        _log.warning("index_chunk_unreadable", reason=str(error))
        return None


STEPS_MAX: Final = 100
"""Steps of one run; each writes the record once."""
STEP_CHUNKS: Final = 100
"""Chunks that one step decides, all of one date."""
DAY_NS: Final = 86_400 * NS_PER_S
DELETES_CONCURRENT: Final = 16
_SUFFIX: Final = ".lmindex"
_CHUNK: Final = re.compile(r"/[0-9a-f]{32}\.lmindex(?:\.zst)?\Z")
_DATE: Final = re.compile(rf"{re.escape(INDEX)}[a-z]+/date=(\d{{4}}-\d\d-\d\d)/")


class ChunkFate(Enum):
    """Whether a chunk is needed."""

    NEEDED = "needed"
    """It covers a file of the table."""
    WAITS = "waits"
    """The table names none of its files, and at least one of them still exists."""
    GONE = "gone"
    """None of its files exists, or it is damaged or of another version."""


def decide_fate(
    paths: Collection[str] | None, current: Collection[str], existing: Collection[str]
) -> ChunkFate:
    """Decide what happens to a chunk.

    `current` are the files of the chunk's date that the table names; `existing` are those in the
    store, listed after the chunk. `paths` is None if the chunk is unreadable.
    """
    if paths is None:
        return ChunkFate.GONE
    if any(path in current for path in paths):
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
    for day in dates:
        entry = found.get(day)
        if entry is None:
            found[day] = WaitingDate(date=day, since_unix_ns=now_ns, due_unix_ns=now_ns + wait_ns)
        elif entry.checked_through:
            found[day] = msgspec.structs.replace(entry, again=True)
    return tuple(found[day] for day in sorted(found))


def next_due(waiting: Sequence[WaitingDate], now_ns: int) -> WaitingDate | None:
    """Return the date that is due longest; None if none is due."""
    due = [entry for entry in waiting if entry.due_unix_ns <= now_ns]
    return min(due, key=lambda entry: (entry.due_unix_ns, entry.date), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStep:
    """The result of one step: the last decided chunk, and whether it ended the date.

    With `again`, a chunk is left whose files the table no longer names. With `damaged`, one was
    removed whose files it may name.
    """

    through: str
    ended: bool
    again: bool
    removed: int
    damaged: bool = False


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
    """The removal of one run, based on the store's time at its start.

    `current` has the files of the newest state of the table, by date.
    """

    store: ObjectStore
    table: Table
    current: Mapping[str, Collection[str]]
    now_ns: int
    stop: StopCheck

    async def run(self, progress: IndexProgress) -> int:
        """Check the dates that are due; return the number of removed chunks.

        The stored `progress` is replaced after each step.
        """
        removed, damaged = 0, False
        for _ in range(STEPS_MAX):
            self.stop()
            waiting = progress.waiting
            entry = next_due(waiting, self.now_ns)
            if entry is None:
                break
            step = await self._check(entry)
            removed += step.removed
            damaged = damaged or step.damaged
            left = after_step(waiting, entry, step, self.now_ns)
            progress = msgspec.structs.replace(progress, waiting=left)
            await write_index_progress(self.store, self.table.name, progress)
        if damaged:  # the next run considers every file
            progress = msgspec.structs.replace(progress, table_id="")
            await write_index_progress(self.store, self.table.name, progress)
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
        again = damaged = False
        for key in keys:
            known = bool(current or existing)
            paths = await read_paths(self.store, key) if known else None
            damaged = damaged or (known and paths is None and key.endswith(_SUFFIX))
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
            damaged=damaged,
        )

    async def _list_chunks(self, entry: WaitingDate) -> tuple[list[ObjectKey], bool]:
        """Return the chunks of the next step, and whether they are the last ones of the date."""
        found: list[ObjectKey] = []
        after = entry.checked_through
        prefix = index_prefix(self.table.name, entry.date)
        async for page in self.store.list(prefix, start_after=after):
            found += [one.key for one in page.objects if _CHUNK.search(one.key)]
            if len(found) > STEP_CHUNKS:
                return found[:STEP_CHUNKS], False
        return found, True

    async def _list_files(self, date: str) -> set[str]:
        """Return the paths of the data files of a date that exist, whether or not committed."""
        table = f"{LAKE}{self.table.name}/"
        pages = self.store.list(f"{table}{self.table.partition_column}={date}/")
        return {one.key.removeprefix(table) async for page in pages for one in page.objects}

    async def _delete(self, keys: Sequence[ObjectKey]) -> list[CurrentDeletion]:
        outcomes: list[CurrentDeletion] = []

        async def delete(key: ObjectKey) -> None:
            outcomes.append(await delete_current_version(self.store, key))

        await run_concurrently(keys, delete, concurrency=DELETES_CONCURRENT)
        return outcomes


async def remove_chunks_of(store_url: str, table: Table, current: Collection[str]) -> int:
    """Delete every chunk that covers a file that the table no longer has; return their number.

    The next run makes new chunks for the other files of such a chunk; until then searches read
    them without one. Every version of a chunk is deleted.
    """
    removed = 0
    async with open_store(store_url) as store:
        progress = await read_index_progress(store, table.name)
        async for page in store.list(f"{INDEX}{table.name}/date="):
            for one in page.objects:
                paths = await read_paths(store, one.key)
                if paths is not None and paths <= set(current):
                    continue
                if not removed and progress is not None:
                    # Before the first deletion: the next run then considers every file.
                    unknown = msgspec.structs.replace(progress, table_id="")
                    await write_index_progress(store, table.name, unknown)
                await delete_versions(store, one.key)
                removed += 1
    return removed


async def list_chunk_dates(store: ObjectStore, table: str) -> list[str]:
    """Return the dates on which a table has chunks, with one request for each date."""
    dates: list[str] = []
    folder = f"{INDEX}{table}/"
    after = ""
    while (key := await _first_key(store, folder, after)) is not None:
        found = _DATE.match(key)
        if found is not None:
            dates.append(found[1])
        # The character after `/`, so after every key of the folder.
        after = f"{folder}{key.removeprefix(folder).partition('/')[0]}0"
    return dates


async def _first_key(store: ObjectStore, folder: str, after: str) -> ObjectKey | None:
    async for page in store.list(f"{folder}date=", start_after=after):
        for one in page.objects:
            return one.key
    return None


CHUNK_FILES_MAX: Final = 16
"""Maximum number of files of a chunk."""
CHUNK_FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""The terms of a chunk's files are in memory together, about as many bytes as the files."""


@dataclass(slots=True, kw_only=True)
class IndexReport:
    """The result of an index run."""

    files: int = 0
    indexed: int = 0
    chunks: int = 0
    chunks_removed: int = 0


def group_files(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Group files, in order, by chunk; all files of a group have the same date."""
    groups: list[list[DataFile]] = []
    size_bytes = 0
    for file in sorted(files, key=lambda one: (one.partition, one.path)):
        other = not groups or groups[-1][0].partition != file.partition
        full = len(groups[-1]) >= CHUNK_FILES_MAX if groups else True
        if other or full or size_bytes + file.size_bytes > CHUNK_FILE_BYTES_MAX:
            groups.append([])
            size_bytes = 0
        groups[-1].append(file)
        size_bytes += file.size_bytes
    return groups


def index_chunk_key(table: str, files: Sequence[DataFile]) -> ObjectKey:
    """Return the key of the chunk over files of one date, under the first hour of that date."""
    day = datetime.combine(date.fromisoformat(files[0].partition), datetime.min.time(), UTC)
    at_ns = UnixNs(int(day.timestamp()) * NS_PER_S)
    return index_key(table, at_ns, chunk_id(file.path for file in files))


def index_file(store_url: str, kind: RecordKind, path: str, size_bytes: int) -> FileTerms:
    """Read a data file, one row group after another, and return their terms."""
    filesystem, root = open_filesystem(lake_location(store_url, kind.name))
    with filesystem.open_input_file(f"{root}/{path}") as source:
        opened = pq.ParquetFile(source, pre_buffer=True)
        # An older file may do without a derived column: its rows have null, and match nothing.
        names = set(opened.schema_arrow.names).intersection((*kind.indexed, *_maps(kind)))
        groups = [
            _group_terms(kind, opened.read_row_group(number, columns=sorted(names)))
            for number in range(opened.num_row_groups)
        ]
        rows = [opened.metadata.row_group(number).num_rows for number in range(len(groups))]
    entry = IndexedFile(path=path, size_bytes=size_bytes, groups=tuple(rows))
    return FileTerms(file=entry, groups=tuple(groups))


def _maps(kind: RecordKind) -> tuple[str, ...]:
    return ("attributes", "resource") if kind.has_attributes else ("resource",)


def _group_terms(kind: RecordKind, rows: pa.Table) -> GroupTerms:
    texts: list[memoryview] = []
    values: list[np.ndarray] = []
    for name in rows.column_names:
        for chunk in rows.column(name).chunks:
            if name == kind.searched:
                texts.append(_text(chunk))
            elif pa.types.is_map(chunk.type):
                values += _map_terms(chunk)
            else:
                values.append(value_terms(name, _hashes(pc.unique(chunk).drop_null())))
    found = [one.ravel() for one in values]
    return GroupTerms(
        texts=text_terms(texts),
        values=np.unique(np.concatenate(found)) if found else np.zeros(0, np.int32),
        text_bytes=sum(map(len, texts)),
    )


def _map_terms(maps: pa.MapArray) -> Iterator[Any]:
    """Yield the terms of the distinct pairs of maps, those of one key after another."""
    keys = maps.keys.dictionary_encode()
    items = maps.items.dictionary_encode()
    codes = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    places = items.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    if not len(codes):
        return
    hashes = _hashes(items.dictionary)
    pairs = np.unique(codes * (len(hashes) + 1) + places + 1)
    of_key, of_item = np.divmod(pairs, len(hashes) + 1)
    edges = np.searchsorted(of_key, np.arange(len(keys.dictionary) + 1))
    for number, key in enumerate(keys.dictionary.to_pylist()):
        own = of_item[edges[number] : edges[number + 1]]
        yield value_terms(label_place(key), hashes[own[own > 0] - 1])


def _hashes(texts: pa.Array) -> Any:  # noqa: ANN401 - pyarrow is untyped
    whole = texts.cast(pa.large_binary())
    _, offsets, data = whole.buffers()
    ends = np.frombuffer(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    return hash_texts(np.frombuffer(data or b"", np.uint8), ends)


def _text(chunk: pa.Array) -> memoryview:
    """Return the bytes of all strings of a chunk without copying them."""
    _, offsets, data = chunk.buffers()
    if data is None:
        return memoryview(b"")
    edges = memoryview(offsets).cast("i")
    return memoryview(data)[edges[chunk.offset] : edges[chunk.offset + len(chunk)]]


def make_chunk(store_url: str, kind: RecordKind, files: Sequence[DataFile]) -> bool:
    """Index files and create their chunk; return True if it did not exist before."""
    entries = [index_file(store_url, kind, file.path, file.size_bytes) for file in files]
    body = encode_chunk(kind.name, entries)
    return asyncio.run(_create(store_url, index_chunk_key(kind.name, files), body))


async def _create(store_url: str, key: ObjectKey, body: bytes) -> bool:
    async with open_store(store_url) as store:
        outcome = await create_known(store, key, body, Backoff.seeded_by(SystemClock()))
        return isinstance(outcome, Applied)


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexPlan:
    """What a run does.

    `before` is None without a usable record; `after` is recorded when the chunks of the `new` files
    exist. A date waits `wait_ns` before its chunks are checked.
    """

    before: IndexProgress | None
    after: IndexProgress
    new: Sequence[DataFile]
    now_ns: int
    wait_ns: int

    def interrupted(self, dates: Iterable[str]) -> IndexProgress | None:
        """Return what to record before chunks of `dates` are made; None if nothing is to record.

        If the run ends before it records the new state, and their files leave the table before the
        next run, no comparison of states finds these chunks.
        """
        if self.before is None:
            return None
        waiting = add_waiting(self.after.waiting, dates, self.now_ns, self.wait_ns)
        return msgspec.structs.replace(self.before, waiting=waiting)


def run_index(spark: Session, store_url: str, *, stop: StopCheck = never_stop) -> IndexReport:
    """Create missing chunks for files of indexed tables, and remove the chunks of removed files.

    Repeating it is safe.
    """
    report = IndexReport()
    for table in INDEXED:
        _index_table(spark, store_url, table, report, stop)
    return report


def _index_table(
    spark: Session, store_url: str, table: Table, report: IndexReport, stop: StopCheck
) -> None:
    opened = find_table(store_url, table, for_writing=True)
    if opened is None:
        return
    require_durable(opened)
    files = list_files(opened, table)
    now = IndexProgress(table_id=str(opened.metadata().id), table_version=opened.version())
    plan = asyncio.run(_plan(store_url, table, files, now))
    stop()
    groups = group_files(plan.new)
    interrupted = plan.interrupted(group[0].partition for group in groups)
    if groups and interrupted is not None:
        asyncio.run(_write_progress(store_url, table, interrupted))
    made = _make_chunks(spark, store_url, table, groups)
    if groups:
        read_failpoint().reach("index_after_chunks")
    if groups or plan.after != plan.before:
        asyncio.run(_write_progress(store_url, table, plan.after))
    report.chunks_removed += asyncio.run(_remove_chunks(store_url, table, files, plan, stop))
    report.files += len(files)
    report.indexed += len(plan.new)
    report.chunks += sum(made)


async def _plan(
    store_url: str, table: Table, files: Sequence[DataFile], now: IndexProgress
) -> _IndexPlan:
    async with open_store(store_url) as store:
        now_ns = (await store.head(index_progress_key(table.name))).date_ns
        wait_ns = (await read_authority(store)).retry_horizon_s * NS_PER_S + 2 * DAY_NS
        before = await read_index_progress(store, table.name)
        indexed: set[str] | None = None
        if before is not None and before.table_id == now.table_id:
            version = before.table_version
            indexed = await asyncio.to_thread(list_paths_at, store_url, table, version, {})
        if before is None or indexed is None:
            usable = None
            dates = await list_chunk_dates(store, table.name)
            waiting = add_waiting((), dates, now_ns, 0)
        else:
            usable = before
            left = partitions_of(indexed.difference(file.path for file in files))
            waiting = add_waiting(before.waiting, left, now_ns, wait_ns)
        return _IndexPlan(
            before=usable,
            after=msgspec.structs.replace(now, waiting=waiting),
            new=await find_new_files(store, table.name, files, indexed or set()),
            now_ns=now_ns,
            wait_ns=wait_ns,
        )


async def _remove_chunks(
    store_url: str, table: Table, files: Sequence[DataFile], plan: _IndexPlan, stop: StopCheck
) -> int:
    current: dict[str, set[str]] = {}
    for file in files:
        current.setdefault(file.partition, set()).add(file.path)
    async with open_store(store_url) as store:
        removal = IndexRemoval(
            store=store, table=table, current=current, now_ns=plan.now_ns, stop=stop
        )
        return await removal.run(plan.after)


async def _write_progress(store_url: str, table: Table, progress: IndexProgress) -> None:
    async with open_store(store_url) as store:
        await write_index_progress(store, table.name, progress)


def _make_chunks(
    spark: Session, store_url: str, table: Table, groups: Sequence[Sequence[DataFile]]
) -> list[int]:
    if not groups:
        return []
    bodies = [pickle.dumps(tuple(group)) for group in groups]
    kind = next(one for one in KINDS.values() if one.name == table.name)

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            made = [int(make_chunk(store_url, kind, pickle.loads(bodies[n]))) for n in numbers]  # noqa: S301 - bytes from the driver
            yield pa.RecordBatch.from_arrays([pa.array(made, pa.int64())], names=["made"])

    found: Any = spark.range(0, len(bodies), 1, len(bodies)).mapInArrow(make, "made bigint")
    return [int(made) for made in found.toArrow().column("made").to_pylist()]
