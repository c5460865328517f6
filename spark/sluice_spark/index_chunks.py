"""The index job: executors index the text of new data files of `logs` into immutable chunks.

A run finds the data files that no chunk covers (`index_progress`), groups them by date, and creates
a chunk for each group. Data files never change, and neither do chunks. Two concurrent runs create
the same chunks or chunks over different groups of files; both are correct. Then the run removes the
chunks of files that no longer exist (`index_removal`).
"""

import asyncio
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice_lake.data_files import DataFile, list_files, partitions_of
from sluice_lake.delta import find_table, list_paths_at
from sluice_lake.durable_files import require_durable
from sluice_lake.locations import lake_location, open_filesystem
from sluice_lake.tables import LOGS
from sluice_protocol.index_chunk import (
    AGENTS_MAX,
    FileIndex,
    IndexedFile,
    build_filter,
    chunk_id,
    encode_chunk,
)
from sluice_protocol.keys import index_key
from sluice_protocol.outcomes import Applied
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_spark.failpoints import read_failpoint
from sluice_spark.index_progress import (
    INDEX_PROGRESS,
    IndexProgress,
    find_new_files,
    read_index_progress,
    write_index_progress,
)
from sluice_spark.index_removal import (
    DAY_NS,
    IndexRemoval,
    add_waiting,
    list_chunk_dates,
)
from sluice_spark.session import Session
from sluice_spark.stopping import StopCheck, never_stop
from sluice_store import open_store, read_authority
from sluice_store.retry import Backoff, create_known

CHUNK_FILES_MAX: Final = 16
"""Maximum number of files of a chunk; a search reads whole chunks."""
CHUNK_FILE_BYTES_MAX: Final = 1024 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class IndexReport:
    """The result of an index run.

    Attributes:
        files: Data files of the table.
        indexed: Files that this run indexed.
        chunks: Chunks that this run created.
        chunks_removed: Chunks of files that no longer exist, which this run removed.
    """

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


def index_chunk_key(files: Sequence[DataFile]) -> ObjectKey:
    """Return the key of the chunk over files of one date, under the first hour of that date."""
    day = datetime.combine(date.fromisoformat(files[0].partition), datetime.min.time(), UTC)
    at_ns = UnixNs(int(day.timestamp()) * NS_PER_S)
    return index_key(at_ns, chunk_id(file.path for file in files))


def index_file(store_url: str, path: str, size_bytes: int) -> FileIndex:
    """Read a data file of logs and return its index entry and text filter."""
    filesystem, root = open_filesystem(lake_location(store_url, LOGS.name))
    columns = ["body", "ts_ns", "agent_id"]
    rows = pq.read_table(f"{root}/{path}", columns=columns, filesystem=filesystem)
    bits_log2, bits = build_filter([_text(chunk) for chunk in rows.column("body").chunks])
    times = pc.min_max(rows.column("ts_ns")).as_py()
    agents = sorted(pc.unique(rows.column("agent_id")).to_pylist())
    entry = IndexedFile(
        path=path,
        size_bytes=size_bytes,
        records=rows.num_rows,
        min_ts_ns=times["min"],
        max_ts_ns=times["max"],
        agents=tuple(agents) if len(agents) <= AGENTS_MAX else None,
        bits_log2=bits_log2,
    )
    return FileIndex(file=entry, filter=bits)


def _text(chunk: pa.Array) -> memoryview:
    """Return the bytes of all strings of a chunk without copying them."""
    _, offsets, data = chunk.buffers()
    if data is None:
        return memoryview(b"")
    edges = memoryview(offsets).cast("i")
    return memoryview(data)[edges[chunk.offset] : edges[chunk.offset + len(chunk)]]


def make_chunk(store_url: str, files: Sequence[DataFile]) -> bool:
    """Index files and create their chunk; return True if it did not exist before."""
    entries = [index_file(store_url, file.path, file.size_bytes) for file in files]
    body = encode_chunk(LOGS.name, entries)
    return asyncio.run(_create(store_url, index_chunk_key(files), body))


async def _create(store_url: str, key: ObjectKey, body: bytes) -> bool:
    async with open_store(store_url) as store:
        outcome = await create_known(store, key, body, Backoff.seeded_by(SystemClock()))
        return isinstance(outcome, Applied)


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexPlan:
    """What a run does.

    Attributes:
        before: The recorded state; None if none is usable.
        after: The state to record when the chunks exist.
        new: The files without a chunk.
        now_ns: The store's time.
        wait_ns: How long a date waits before its chunks are checked.
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
    """Create chunks for files of `logs` that have none, remove those of files that are gone.

    Repeating it is safe.

    Raises:
        JobStopped: `stop` raised it before the first chunk, or between two steps of the removal.
        TableRefused: The table has another schema or a refused feature.
        OutcomeUnknown: No attempt to write the record of progress had a known outcome.
        StoreError: The store is unreachable.
    """
    opened = find_table(store_url, LOGS, for_writing=True)
    if opened is None:
        return IndexReport()
    require_durable(opened)
    files = list_files(opened, LOGS)
    now = IndexProgress(table_id=str(opened.metadata().id), table_version=opened.version())
    plan = asyncio.run(_plan(store_url, files, now))
    stop()
    groups = group_files(plan.new)
    interrupted = plan.interrupted(group[0].partition for group in groups)
    if groups and interrupted is not None:
        asyncio.run(_write_progress(store_url, interrupted))
    made = _make_chunks(spark, store_url, groups)
    if groups:
        read_failpoint().reach("index_after_chunks")
    if groups or plan.after != plan.before:
        asyncio.run(_write_progress(store_url, plan.after))
    removed = asyncio.run(_remove_chunks(store_url, files, plan, stop))
    return IndexReport(
        files=len(files), indexed=len(plan.new), chunks=sum(made), chunks_removed=removed
    )


async def _plan(store_url: str, files: Sequence[DataFile], now: IndexProgress) -> _IndexPlan:
    async with open_store(store_url) as store:
        now_ns = (await store.head(INDEX_PROGRESS)).date_ns
        wait_ns = (await read_authority(store)).retry_horizon_s * NS_PER_S + 2 * DAY_NS
        before = await read_index_progress(store)
        indexed: set[str] | None = None
        if before is not None and before.table_id == now.table_id:
            version = before.table_version
            indexed = await asyncio.to_thread(list_paths_at, store_url, LOGS, version, {})
        if before is None or indexed is None:
            usable = None
            waiting = add_waiting((), await list_chunk_dates(store), now_ns, 0)
        else:
            usable = before
            left = partitions_of(indexed.difference(file.path for file in files))
            waiting = add_waiting(before.waiting, left, now_ns, wait_ns)
        return _IndexPlan(
            before=usable,
            after=msgspec.structs.replace(now, waiting=waiting),
            new=await find_new_files(store, files, indexed or set()),
            now_ns=now_ns,
            wait_ns=wait_ns,
        )


async def _remove_chunks(
    store_url: str, files: Sequence[DataFile], plan: _IndexPlan, stop: StopCheck
) -> int:
    current: dict[str, set[str]] = {}
    for file in files:
        current.setdefault(file.partition, set()).add(file.path)
    async with open_store(store_url) as store:
        removal = IndexRemoval(store=store, current=current, now_ns=plan.now_ns, stop=stop)
        return await removal.run(plan.after)


async def _write_progress(store_url: str, progress: IndexProgress) -> None:
    async with open_store(store_url) as store:
        await write_index_progress(store, progress)


def _make_chunks(spark: Session, store_url: str, groups: Sequence[Sequence[DataFile]]) -> list[int]:
    if not groups:
        return []
    bodies = [pickle.dumps(tuple(group)) for group in groups]

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            made = [int(make_chunk(store_url, pickle.loads(bodies[n]))) for n in numbers]  # noqa: S301 - bytes from the driver
            yield pa.RecordBatch.from_arrays([pa.array(made, pa.int64())], names=["made"])

    found: Any = spark.range(0, len(bodies), 1, len(bodies)).mapInArrow(make, "made bigint")
    return [int(made) for made in found.toArrow().column("made").to_pylist()]
