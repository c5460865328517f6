"""The data source `sluice`: the queue of accepted batches as a Spark table, batch or streaming.

| option | default | meaning |
|---|---|---|
| `store` | none | store URL |
| `queue` | `spark` | name of the queue |
| `face` | `descriptors` | `descriptors`: a row per accepted batch; `records`: a row per record |
| `kind` | none | with `records`: `logs`, `metrics` or `entries` |
| `columns` | all | with `records`: comma-separated columns to read, also promoted ones |
| `maxBytesPerTrigger` | 536870912 | maximum frame bytes of a micro-batch |
| `maxBatchesPerTrigger` | 20000 | maximum number of accepted batches of a micro-batch |
| `partitionBytes` | 67108864 | frame bytes of one partition |

Nothing depends on `commit()`: Spark calls it one micro-batch late, and never for the last one.

Its offsets are positions in the lanes of a queue.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final, TypeVar, get_args

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from sluice_lake.blobs import RejectedBlob, decode_blob
from sluice_lake.promoted import promoted_column, with_promoted_values
from sluice_lake.records import kept_batches, records_table
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import ACCEPTED_DATE, RECORD_TABLES, Column, Table, accepted_date
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.fields import Kind
from sluice_protocol.keys import INGEST_QUEUE
from sluice_protocol.promotions import is_promoted_name
from sluice_queue.inspection import LaneSnapshot, read_lane
from sluice_queue.lane import Lane, list_lanes
from sluice_queue.register import Descriptor
from sluice_queue.worklists import PendingBatch, read_pending_batches
from sluice_spark.errors import CheckpointAhead
from sluice_spark.ingest.blob_reader import BlobReader
from sluice_spark.ingest.descriptors import DESCRIPTORS, encode_descriptors
from sluice_spark.session import spark_schema
from sluice_store import open_store, read_authority
from sluice_store.port import ObjectStore, run_together
from sluice_store.stored_promotions import read_promotions

Offset = dict[str, int | str]
"""`{"authority": …, "queue": …, "<lane>": sequence, …}`: JSON as in Spark's checkpoint."""

_NAMES: Final = ("authority", "queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneEntry:
    """One queue entry and its lane; small enough to be pickled to a worker."""

    lane: int
    descriptor: Descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePositions:
    """A position in every lane of one queue of one authority.

    Attributes:
        lanes: Lane to a sequence, inclusive; a lane that is not named is at 0.
    """

    authority_id: str
    queue: str
    lanes: Mapping[int, int]

    def at(self, lane: int) -> int:
        """Return the position in a lane."""
        return self.lanes.get(lane, 0)

    def offset(self) -> Offset:
        """Return the positions as a Spark offset."""
        lanes = {str(lane): end for lane, end in sorted(self.lanes.items())}
        return {"authority": self.authority_id, "queue": self.queue} | lanes


def parse_offset(
    offset: Mapping[str, int | str], *, authority_id: str, queue: str
) -> LanePositions:
    """Read positions from a Spark offset; refuse those of another queue or deployment."""
    found = {name: offset.get(name) for name in _NAMES}
    if found != {"authority": authority_id, "queue": queue}:
        raise BadUsage(
            f"cannot resume: the checkpoint belongs to another queue; choose another checkpoint "
            f"folder or delete it, checkpoint=`{found['queue']} of {found['authority']}`, "
            f"queue=`{queue} of {authority_id}`"
        )
    lanes = {int(lane): int(end) for lane, end in offset.items() if lane not in _NAMES}
    return LanePositions(authority_id=authority_id, queue=queue, lanes=lanes)


def check_reachable(views: Sequence[LaneSnapshot], start: LanePositions) -> None:
    """Check that the queue has assigned every position after which a query continues.

    Without this check a query of a rebuilt queue would find nothing to read until each lane has
    passed the old position, and would then skip what came before.
    """
    latest = {view.lane.lane: view.latest for view in views}
    for lane, end in sorted(start.lanes.items()):
        if end > latest.get(lane, 0):
            raise CheckpointAhead(
                "cannot resume: the checkpoint is ahead of the queue, which was rebuilt; delete "
                f"the checkpoint, or choose another folder, lane=`{lane}`, checkpoint=`{end}`, "
                f"newest=`{latest.get(lane, 0)}`"
            )


async def read_lanes(
    store: ObjectStore, queue: str, after: Mapping[int, int] | None = None
) -> list[LaneSnapshot]:
    """Read every lane of a queue, with its pending entries after the positions in `after`."""
    lanes = await list_lanes(store, queue)
    starts = after or {}
    return [await read_lane(store, queue, one.lane, after=starts.get(one.lane)) for one in lanes]


async def read_start(store: ObjectStore, queue: str) -> LanePositions:
    """Return where a consumer without a checkpoint starts: after the acknowledged entries."""
    authority = await read_authority(store)
    lanes = {view.lane.lane: view.state.acked_through for view in await read_lanes(store, queue)}
    return LanePositions(authority_id=authority.authority_id, queue=queue, lanes=lanes)


async def read_latest(store: ObjectStore, queue: str) -> LanePositions:
    """Return the newest position of every lane."""
    authority = await read_authority(store)
    lanes = {view.lane.lane: view.latest for view in await read_lanes(store, queue)}
    return LanePositions(authority_id=authority.authority_id, queue=queue, lanes=lanes)


def _entries(view: LaneSnapshot, end: int | None) -> Iterator[LaneEntry]:
    for descriptor in view.descriptors:
        if end is None or descriptor.sequence <= end:
            yield LaneEntry(lane=view.lane.lane, descriptor=descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimit:
    """The size limit of a micro-batch; an entry is never split, and None is no limit."""

    frame_bytes: int | None
    batches: int | None

    def passed(self, frame_bytes: int, batches: int) -> bool:
        """Return True if the limit is exceeded."""
        over_bytes = self.frame_bytes is not None and frame_bytes > self.frame_bytes
        return over_bytes or (self.batches is not None and batches > self.batches)


def plan_micro_batch(
    views: Sequence[LaneSnapshot],
    start: LanePositions,
    limit: AdmissionLimit,
    target: LanePositions | None,
) -> LanePositions:
    """Return the end of the next micro-batch after `start`, at most `target`.

    `views` has every lane with its entries after `start`. The oldest entries come first, and at
    least one entry is read if any is pending.
    """
    lanes = {
        view.lane.lane: max(start.at(view.lane.lane), view.state.acked_through) for view in views
    }
    lanes = dict(start.lanes) | lanes
    ends = [target.at(view.lane.lane) if target is not None else None for view in views]
    queues = [_entries(view, end) for view, end in zip(views, ends, strict=True)]
    taken_bytes = taken = 0
    for entry in heapq.merge(*queues, key=lambda one: one.descriptor.ingested_at_ns):
        taken_bytes += entry.descriptor.frame_bytes
        taken += entry.descriptor.batches
        if taken > entry.descriptor.batches and limit.passed(taken_bytes, taken):
            break
        lanes[entry.lane] = entry.descriptor.sequence
    return LanePositions(authority_id=start.authority_id, queue=start.queue, lanes=lanes)


def entries_between(
    views: Sequence[LaneSnapshot], start: LanePositions, end: LanePositions
) -> list[LaneEntry]:
    """Return the pending entries after `start` up to `end`, in order and without gaps.

    Entries that were acknowledged meanwhile are in the lake and are omitted; if others are missing,
    raise `InvalidRecord`.
    """
    found: list[LaneEntry] = []
    for view in views:
        lane = view.lane.lane
        here = list(_entries(view, end.at(lane)))
        first = max(start.at(lane), view.state.acked_through) + 1
        expected = list(range(first, end.at(lane) + 1))
        if [entry.descriptor.sequence for entry in here] != expected:
            raise InvalidRecord(
                view.lane.key, f"some of the entries {first} to {end.at(lane)} are missing"
            )
        found += here
    return found


def pack_entries(entries: Iterable[LaneEntry], target_bytes: int) -> list[tuple[LaneEntry, ...]]:
    """Split entries, in order, into partitions of about `target_bytes` of frames."""
    packed: list[list[LaneEntry]] = []
    size_bytes = 0
    for entry in entries:
        if not packed or size_bytes + entry.descriptor.frame_bytes > target_bytes:
            packed.append([])
            size_bytes = 0
        packed[-1].append(entry)
        size_bytes += entry.descriptor.frame_bytes
    return [tuple(found) for found in packed]


CONCURRENT_LISTS = 16


async def fetch_rows(
    store_url: str, queue: str, entries: Sequence[LaneEntry]
) -> list[list[PendingBatch]]:
    """Read the work lists of entries concurrently; return their rows in the order of the entries.

    A missing list is an error, and never skipped.
    """
    gate = asyncio.Semaphore(CONCURRENT_LISTS)
    async with open_store(store_url) as store:

        async def read_entry(entry: LaneEntry) -> list[PendingBatch]:
            async with gate:
                lane = Lane(queue=queue, lane=entry.lane)
                return await read_pending_batches(store, lane, entry.descriptor)

        return list(await run_together(*(read_entry(entry) for entry in entries)))


def read_descriptors(
    store_url: str, queue: str, entries: Sequence[LaneEntry]
) -> Iterator[pa.RecordBatch]:
    """Yield a row per accepted batch."""
    for rows in asyncio.run(fetch_rows(store_url, queue, entries)):
        yield encode_descriptors(rows)
    if not entries:
        yield pa.RecordBatch.from_pylist([], schema=arrow_schema(DESCRIPTORS))


def read_records(
    store_url: str, queue: str, entries: Sequence[LaneEntry], *, kind: Kind, table: Table
) -> Iterator[pa.RecordBatch]:
    """Yield a row per record of one kind, in the order of the queue.

    Raises:
        InvalidRecord: A blob is missing or does not match its manifest. A reader cannot write dead
            letters, so it must not skip the batch.
    """
    schema = arrow_schema(table)
    found = asyncio.run(fetch_rows(store_url, queue, entries))
    rows = [row for listed in found for row in listed if row.manifest.kind == kind]
    for fetched in BlobReader(store_url, rows):
        frame = decode_blob(fetched.row.manifest, fetched.body)
        if isinstance(frame, RejectedBlob):
            raise InvalidRecord(fetched.row.manifest.raw_blob_key, frame.detail)
        accepted_at_ns = fetched.row.manifest.accepted_at_unix_ns
        for batch in kept_batches(frame, fetched.row.manifest, fetched.row.sequence):
            records = records_table(kind, [batch], plain=True)
            for start in range(0, records.num_rows, _ROWS_TOGETHER):
                part = _with_maps(records.slice(start, _ROWS_TOGETHER))
                part = with_promoted_values(part, table.promoted_columns)
                yield from _with_partition_column(part, accepted_at_ns, schema)
    if not any(row.manifest.kept for row in rows):
        yield pa.RecordBatch.from_pylist([], schema=schema)


_ROWS_TOGETHER: Final = 4_096
"""Each of them contains the resource of its batch, which may be long."""


def _with_maps(rows: pa.Table) -> pa.Table:
    """Return rows of one batch with the resource of each as a map."""
    place = rows.schema.get_field_index("resource")
    [resources] = rows.column(place).chunks
    return rows.set_column(place, "resource", resources.dictionary.take(resources.indices))


def _with_partition_column(
    records: pa.Table, accepted_at_ns: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    day = date.fromisoformat(accepted_date(accepted_at_ns))
    whole = records.append_column(
        ACCEPTED_DATE, pa.repeat(pa.scalar(day, pa.date32()), records.num_rows)
    )
    yield from whole.select(schema.names).cast(schema).to_batches()


MAX_BYTES_PER_TRIGGER: Final = 512 * 1024 * 1024
MAX_BATCHES_PER_TRIGGER: Final = 20_000
PARTITION_BYTES: Final = 64 * 1024 * 1024
DESCRIPTOR_PARTITION_BYTES: Final = 1024 * 1024 * 1024
"""Descriptors are small: one task fetches the work lists of this many frame bytes."""

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of the source; see the table above."""

    store: str
    queue: str
    kind: Kind | None
    columns: tuple[str, ...] | None
    max_bytes: int
    max_batches: int
    partition_bytes: int
    promoted: tuple[Column, ...] = ()

    @property
    def table(self) -> Table:
        """The schema of the rows."""
        if self.kind is None:
            return DESCRIPTORS
        whole = RECORD_TABLES[self.kind].with_promoted(self.promoted)
        if self.columns is None:
            return whole
        chosen = tuple(column for column in whole.columns if column.name in self.columns)
        return Table(name=whole.name, columns=chosen, partition_column=whole.partition_column)


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a reader."""
    store = options.get("store")
    if not store:
        raise BadUsage("option `store` is missing; set it with .option('store', 'file:///path')")
    kind = _kind(options.get("face", "descriptors"), options.get("kind"))
    named = options.get("columns")
    columns = tuple(name.strip() for name in named.split(",")) if named else None
    if columns is not None:
        _check_columns(kind, columns)
    fallback = PARTITION_BYTES if kind is not None else DESCRIPTOR_PARTITION_BYTES
    return SourceOptions(
        store=store,
        queue=options.get("queue", INGEST_QUEUE),
        kind=kind,
        columns=columns,
        max_bytes=_positive(options, "maxBytesPerTrigger", MAX_BYTES_PER_TRIGGER),
        max_batches=_positive(options, "maxBatchesPerTrigger", MAX_BATCHES_PER_TRIGGER),
        partition_bytes=_positive(options, "partitionBytes", fallback),
    )


def _kind(face: str, kind: str | None) -> Kind | None:
    if face == "descriptors":
        return None
    if face != "records":
        raise BadUsage(f"option `face` must be descriptors or records, face=`{face}`")
    for known in get_args(Kind):
        if known == kind:
            return known  # type: ignore[no-any-return]
    raise BadUsage(
        f"option `kind` must be logs, metrics or entries if face is records, kind=`{kind}`"
    )


def _check_columns(kind: Kind | None, columns: Sequence[str]) -> None:
    if kind is None:
        raise BadUsage("option `columns` is allowed only if face is records")
    known = {column.name for column in RECORD_TABLES[kind].columns}
    for name in columns:
        if name not in known and not is_promoted_name(name):
            raise _no_column(name, kind)


def _no_column(name: str, kind: Kind) -> BadUsage:
    return BadUsage(f"option `columns` names no column of {kind}, column=`{name}`")


def _with_promoted(options: SourceOptions, schema: Any = None) -> SourceOptions:  # noqa: ANN401 - pyspark's StructType
    """Return options with the promoted columns of the store, or those of them in a schema."""
    kind = options.kind
    if kind is None:
        return options
    found = _read_store(options.store, read_promotions).records
    promoted = [promoted_column(one) for one in found if one.kind == kind]
    if schema is not None:
        promoted = [column for column in promoted if column.name in schema.names]
    whole = replace(options, promoted=tuple(promoted))
    have = {column.name for column in whole.table.columns}
    for name in options.columns or ():
        if name not in have:
            raise _no_column(name, kind)
    return whole


def _positive(options: Mapping[str, str], name: str, fallback: int) -> int:
    text = options.get(name)
    if text is None:
        return fallback
    if not text.isdigit() or int(text) == 0:
        raise BadUsage(f"option `{name}` must be a number of at least 1, {name}=`{text}`")
    return int(text)


class SluiceSource(DataSource):  # type: ignore[misc]
    """The data source that Spark finds under the name `sluice`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "sluice"

    def schema(self) -> Any:  # noqa: ANN401 - pyspark's StructType, which has no types here
        """Return the schema of the rows."""
        return spark_schema(_with_promoted(parse_options(self.options)).table)

    def reader(self, schema: Any) -> "SluiceReader":  # noqa: ANN401
        """Return the batch reader, which reads every pending entry of the queue."""
        return SluiceReader(_with_promoted(parse_options(self.options), schema))

    def streamReader(self, schema: Any) -> "SluiceStreamReader":  # noqa: ANN401, N802
        """Return the streaming reader."""
        return SluiceStreamReader(_with_promoted(parse_options(self.options), schema))


class EntryPartition(InputPartition):  # type: ignore[misc]
    """The entries that one task reads; keys and sizes only."""

    def __init__(self, entries: tuple[LaneEntry, ...]) -> None:
        super().__init__(entries)
        self.entries = entries


def _read_store(url: str, read: Callable[[ObjectStore], Awaitable[_Read]]) -> _Read:
    async def run() -> _Read:
        async with open_store(url) as store:
            return await read(store)

    return asyncio.run(run())


def _read(options: SourceOptions, partition: EntryPartition) -> Iterator[pa.RecordBatch]:
    if options.kind is None:
        return read_descriptors(options.store, options.queue, partition.entries)
    return read_records(
        options.store, options.queue, partition.entries, kind=options.kind, table=options.table
    )


class SluiceReader(DataSourceReader):  # type: ignore[misc]
    """Reads the entries that are pending when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[EntryPartition]:
        """Return the pending entries, split into partitions."""
        return _read_store(self._options.store, self._plan)

    async def _plan(self, store: ObjectStore) -> Sequence[EntryPartition]:
        views = await read_lanes(store, self._options.queue)
        start = await read_start(store, self._options.queue)
        end = plan_micro_batch(views, start, AdmissionLimit(frame_bytes=None, batches=None), None)
        packed = pack_entries(entries_between(views, start, end), self._options.partition_bytes)
        return [EntryPartition(entries) for entries in packed] or [EntryPartition(())]

    def read(self, partition: EntryPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return _read(self._options, partition)


class SluiceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads the queue from offset to offset."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: LanePositions | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the position after the acknowledged entries."""
        queue = self._options.queue
        return _read_store(self._options.store, lambda store: read_start(store, queue)).offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of one micro-batch."""
        return ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of an `availableNow` run."""
        queue = self._options.queue
        self._target = _read_store(self._options.store, lambda store: read_latest(store, queue))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next micro-batch."""
        return _read_store(
            self._options.store, lambda store: self._admit(store, start, limit)
        ).offset()

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the newest position, for the progress report."""
        queue = self._options.queue
        return _read_store(self._options.store, lambda store: read_latest(store, queue)).offset()

    async def _ends(self, store: ObjectStore, offset: Offset) -> LanePositions:
        authority = await read_authority(store)
        return parse_offset(offset, authority_id=authority.authority_id, queue=self._options.queue)

    async def _admit(self, store: ObjectStore, start: Offset, limit: ReadLimit) -> LanePositions:
        begun = await self._ends(store, start)
        views = await read_lanes(store, self._options.queue, begun.lanes)
        check_reachable(views, begun)
        return plan_micro_batch(views, begun, self._limit(limit), self._target)

    def _limit(self, limit: ReadLimit) -> AdmissionLimit:
        if isinstance(limit, ReadAllAvailable):
            return AdmissionLimit(frame_bytes=None, batches=None)
        frame_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return AdmissionLimit(
            frame_bytes=frame_bytes or self._options.max_bytes, batches=self._options.max_batches
        )

    def partitions(self, start: Offset, end: Offset) -> Sequence[EntryPartition]:
        """Return the entries between two offsets, split into partitions by bytes of frames."""
        return _read_store(self._options.store, lambda store: self._plan(store, start, end))

    async def _plan(
        self, store: ObjectStore, start: Offset, end: Offset
    ) -> Sequence[EntryPartition]:
        begun, ended = await self._ends(store, start), await self._ends(store, end)
        views = await read_lanes(store, self._options.queue, begun.lanes)
        packed = pack_entries(entries_between(views, begun, ended), self._options.partition_bytes)
        return [EntryPartition(entries) for entries in packed] or [EntryPartition(())]

    def read(self, partition: EntryPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return _read(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Do nothing: the ingest job acknowledges what the tables have committed."""

    def stop(self) -> None:
        """Do nothing: the reader has no open resources."""
