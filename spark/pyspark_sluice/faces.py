"""The two faces of the source, as executors read them: Arrow batches, no record in Python."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import date

import pyarrow as pa

from sluice_lake.blobs import RejectedBlob, decode_blob
from sluice_lake.records import DecodedBatch, records_table
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import ACCEPTED_DATE, Table, accepted_date
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.manifests import Kind
from sluice_queue.lane import Lane
from sluice_queue.pending import PendingBatch, read_pending_batches
from sluice_spark.descriptors import DESCRIPTORS, encode_descriptors
from sluice_spark.fetching import ReadAhead
from sluice_spark.lanes import Entry
from sluice_store import open_store

LISTS_AT_ONCE = 16


async def fetch_rows(
    store_url: str, queue: str, entries: Sequence[Entry]
) -> list[list[PendingBatch]]:
    """Reads the work lists of entries, several at once, in their order.

    Raises:
        WorkListMissing: A list is gone; it is never skipped.
        StoreError: The store did not answer.
    """
    gate = asyncio.Semaphore(LISTS_AT_ONCE)
    async with open_store(store_url) as store:

        async def one(entry: Entry) -> list[PendingBatch]:
            async with gate:
                lane = Lane(queue=queue, lane=entry.lane)
                return await read_pending_batches(store, lane, entry.descriptor)

        return list(await asyncio.gather(*(one(entry) for entry in entries)))


def read_descriptors(
    store_url: str, queue: str, entries: Sequence[Entry]
) -> Iterator[pa.RecordBatch]:
    """Gives a row per accepted batch."""
    for rows in asyncio.run(fetch_rows(store_url, queue, entries)):
        yield encode_descriptors(rows)
    if not entries:
        yield pa.RecordBatch.from_pylist([], schema=arrow_schema(DESCRIPTORS))


def read_records(
    store_url: str, queue: str, entries: Sequence[Entry], *, kind: Kind, table: Table
) -> Iterator[pa.RecordBatch]:
    """Gives a row per record of one kind, in the order of the queue.

    Raises:
        InvalidRecord: A blob is missing or not what its manifest says: a reader without a table of
            dead letters must not pass over it.
    """
    schema = arrow_schema(table)
    found = asyncio.run(fetch_rows(store_url, queue, entries))
    rows = [row for listed in found for row in listed if row.manifest.kind == kind]
    for fetched in ReadAhead(store_url, rows):
        frame = decode_blob(fetched.row.manifest, fetched.body)
        if isinstance(frame, RejectedBlob):
            raise InvalidRecord(fetched.row.manifest.raw_blob_key, frame.detail)
        accepted_at_ns = fetched.row.manifest.accepted_at_unix_ns
        batch = DecodedBatch(
            frame=frame, accepted_at_ns=accepted_at_ns, sequence=fetched.row.sequence
        )
        yield from _dated(records_table(kind, [batch], plain=True), accepted_at_ns, schema)
    if not rows:
        yield pa.RecordBatch.from_pylist([], schema=schema)


def _dated(records: pa.Table, accepted_at_ns: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    day = date.fromisoformat(accepted_date(accepted_at_ns))
    whole = records.append_column(
        ACCEPTED_DATE, pa.repeat(pa.scalar(day, pa.date32()), records.num_rows)
    )
    yield from whole.select(schema.names).cast(schema).to_batches()
