"""Readers that executors run for each partition: descriptors or records as Arrow batches."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import date

import pyarrow as pa

from pyspark_sluice.offsets import LaneEntry
from sluice_lake.blobs import RejectedBlob, decode_blob
from sluice_lake.kept_records import kept_batches
from sluice_lake.records import records_table
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import ACCEPTED_DATE, Table, accepted_date
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.manifests import Kind
from sluice_queue.lane import Lane
from sluice_queue.pending import PendingBatch, read_pending_batches
from sluice_spark.blob_reader import BlobReader
from sluice_spark.descriptors import DESCRIPTORS, encode_descriptors
from sluice_store import open_store

CONCURRENT_LISTS = 16


async def fetch_rows(
    store_url: str, queue: str, entries: Sequence[LaneEntry]
) -> list[list[PendingBatch]]:
    """Read the work lists of entries concurrently; return their rows in the order of the entries.

    Raises:
        WorkListMissing: A work list is missing; it is never skipped.
        StoreError: The store is unreachable.
    """
    gate = asyncio.Semaphore(CONCURRENT_LISTS)
    async with open_store(store_url) as store:

        async def read_entry(entry: LaneEntry) -> list[PendingBatch]:
            async with gate:
                lane = Lane(queue=queue, lane=entry.lane)
                return await read_pending_batches(store, lane, entry.descriptor)

        return list(await asyncio.gather(*(read_entry(entry) for entry in entries)))


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
            yield from _with_partition_column(records, accepted_at_ns, schema)
    if not any(row.manifest.kept for row in rows):
        yield pa.RecordBatch.from_pylist([], schema=schema)


def _with_partition_column(
    records: pa.Table, accepted_at_ns: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    day = date.fromisoformat(accepted_date(accepted_at_ns))
    whole = records.append_column(
        ACCEPTED_DATE, pa.repeat(pa.scalar(day, pa.date32()), records.num_rows)
    )
    yield from whole.select(schema.names).cast(schema).to_batches()
