"""Compare batches with the tables: what their blobs decode to, and what the lake contains.

Executors read and decode the blobs again, so the result does not depend on what ingestion reported.
Both sides lose the records that recorded deletes hide, whether compaction has removed them already
or not. The content of a record is what compaction compares; the sum over the digests of a batch
does not depend on their order.

The order of reading matters: discovery, queues, ledger, records. A batch that discovery has handed
over is in a queue or was acknowledged, and an acknowledged batch is in the ledger.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice_lake.blobs import RejectedBlob, decode_blob
from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import find_table
from sluice_lake.open_dead_letters import (
    identities_of,
    read_ledger,
    read_open_dead_letters,
)
from sluice_lake.records import DecodedBatch, records_table
from sluice_lake.schemas import arrow_schema, conform
from sluice_lake.tables import (
    BATCHES,
    RECORD_TABLES,
    Table,
    accepted_date,
    accepted_hour,
)
from sluice_protocol.expiry import RowTally
from sluice_protocol.fields import Kind
from sluice_protocol.identity import Identity
from sluice_protocol.journals import DISCOVERY, DiscoveryRecord
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import AcceptedManifest, decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.record_deletes import DeleteRecord, needed_deletes
from sluice_protocol.units import Digest
from sluice_queue.inspection import read_lane
from sluice_queue.lane import list_lanes
from sluice_queue.worklists import PendingBatch, read_pending_batches
from sluice_spark.compaction.delete_matches import is_deleted
from sluice_spark.compaction.rewrite import content_of, read_files
from sluice_spark.ingest.blob_reader import BlobReader, FetchedBlob
from sluice_spark.session import Session, spark_schema
from sluice_store import open_store
from sluice_store.port import ObjectStore
from sluice_store.stored_deletes import read_all_deletes

PENDING_MAX: Final = 200_000
"""Batches of unacknowledged entries that are read; with more, no batch counts as acknowledged."""
BATCHES_PER_TASK: Final = 2_000
ROWS_TOGETHER: Final = 4_096
"""Records that are passed to Spark together, unless a batch has more: a hand-over costs
milliseconds.
"""
BYTES_TOGETHER: Final = 16 << 20
"""The same for their bytes before compression."""
_NS_PER_US: Final = 1_000
_NOTHING: Final = RowTally(rows=0, content="0-0")
BATCH: Final = "batch_number"
READ: Final = "blob_sha256"
_DIGITS: Final = 15
"""Hex digits of a content hash in each of the two sums: they stay below 2^127 for 10^9 records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """What the queues show: how far discovery is complete, and what consumers still have to read.

    `pending` is None if it could not be read completely.
    """

    enqueued_before_ns: int
    pending: frozenset[Identity] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedBatch:
    """What was read about one batch; None is what was not read.

    `blob` is the sha256 of the bytes that were decoded, and `ledger` the one in the ledger.
    """

    blob: Digest | None = None
    ledger: Digest | None = None
    blob_rows: RowTally | None = None
    table_rows: RowTally | None = None
    dead_letter: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchComparison:
    """The result for some batches.

    `versions` are those of the tables that were read, by name; `deletes` is how many recorded
    deletes were applied to both sides.
    """

    batches: Mapping[Identity, ComparedBatch]
    versions: Mapping[str, int]
    deletes: int


async def read_queues(store: ObjectStore) -> QueueFacts:
    """Read how far every batch is in every queue, and the batches of unacknowledged entries.

    An unreadable register or work list raises an error: then nothing is known to be acknowledged.
    """
    read = await store.get(DISCOVERY)
    before_ns = 0
    if isinstance(read, Found):
        record = decode_record(DISCOVERY, read.body, DiscoveryRecord)
        before_ns = max(record.complete_through_unix_ns, record.pass_began_unix_ns or 0)
    pending: set[Identity] = set()
    for lane in await list_lanes(store):
        snapshot = await read_lane(store, lane.queue, lane.lane)
        for entry in snapshot.descriptors:
            pending.update(one.identity for one in await read_pending_batches(store, lane, entry))
            if len(pending) > PENDING_MAX:
                return QueueFacts(enqueued_before_ns=before_ns, pending=None)
    return QueueFacts(enqueued_before_ns=before_ns, pending=frozenset(pending))


def compare_batches(
    spark: Session, store_url: str, manifests: Sequence[AcceptedManifest]
) -> BatchComparison:
    """Compare batches of any kinds with the tables, one Spark job for each kind.

    `manifests` were read themselves, each identity once.
    """
    letters = read_open_dead_letters(store_url)
    ledger_version, ledger = _read_ledger(store_url, manifests)
    deletes = asyncio.run(_read_deletes(store_url))
    versions = {} if ledger_version is None else {BATCHES.name: ledger_version}
    by_kind: dict[Kind, list[AcceptedManifest]] = defaultdict(list)
    for one in manifests:
        by_kind[one.kind].append(one)
    found: dict[Identity, ComparedBatch] = {}
    for kind, of_kind in by_kind.items():
        table = RECORD_TABLES[kind]
        opened = find_table(store_url, table)
        if opened is None:
            found |= {one.identity: ComparedBatch() for one in of_kind}
            continue
        versions[table.name] = opened.version()
        files = _files_of(list_files(opened, table, _dates(of_kind).__contains__), of_kind)
        own = needed_deletes([one for one in deletes if one.kind == kind])
        rows = _compare(spark, store_url, table, of_kind, files, own)
        for one in of_kind:
            blob, blob_rows, table_rows = rows.get(one.identity, (None, None, None))
            found[one.identity] = ComparedBatch(
                blob=blob,
                ledger=ledger.get(one.identity),
                blob_rows=blob_rows,
                table_rows=table_rows,
                dead_letter=one.identity in letters,
            )
    return BatchComparison(batches=found, versions=versions, deletes=len(deletes))


async def _read_deletes(store_url: str) -> list[DeleteRecord]:
    async with open_store(store_url) as store:
        return await read_all_deletes(store)


def _read_ledger(
    store_url: str, manifests: Sequence[AcceptedManifest]
) -> tuple[int | None, dict[Identity, Digest]]:
    opened = find_table(store_url, BATCHES)
    if opened is None:
        return None, {}
    hours = sorted({accepted_hour(one.accepted_at_unix_ns) for one in manifests})
    rows = read_ledger(opened, hours, {one.agent_id for one in manifests}, ["frame_sha256"])
    found: dict[Identity, Digest] = {}
    for who, sha256 in zip(
        identities_of(rows), rows.column("frame_sha256").to_pylist(), strict=True
    ):
        # A second row would be a batch that was ingested twice.
        found[who] = Digest("") if who in found else Digest(sha256)
    return opened.version(), found


def _dates(manifests: Iterable[AcceptedManifest]) -> frozenset[str]:
    return frozenset(accepted_date(one.accepted_at_unix_ns) for one in manifests)


def _files_of(files: Sequence[DataFile], manifests: Sequence[AcceptedManifest]) -> list[DataFile]:
    """Return the files that may contain rows of the batches, by their times of acceptance."""
    times = [one.accepted_at_unix_ns for one in manifests]
    first, last = min(times) // _NS_PER_US * _NS_PER_US, max(times)
    return [
        file
        for file in files
        if file.accepted_at.range_ns is None
        or (file.accepted_at.range_ns[0] <= last and file.accepted_at.range_ns[1] >= first)
    ]


_Rows = tuple[Digest | None, RowTally | None, RowTally | None]


def _compare(
    spark: Session,
    store_url: str,
    table: Table,
    manifests: Sequence[AcceptedManifest],
    files: Sequence[DataFile],
    deletes: Sequence[DeleteRecord],
) -> dict[Identity, _Rows]:
    plain = table.without_promoted
    expected = _tallies(decode_batches(spark, store_url, plain, manifests), plain, deletes)
    there: dict[int, tuple[Digest | None, RowTally]] = {}
    if files:
        rows = read_files(spark, store_url, plain, files).drop("data_file")
        wanted = spark.createDataFrame(_ranges(manifests))
        same = ["agent_id", "boot_id", "accepted_at"]
        joined = rows.join(wanted, same).where("seq BETWEEN seq_start AND seq_end")
        joined = joined.drop("seq_start", "seq_end").selectExpr(
            "*", f"cast(null AS string) AS {READ}"
        )
        there = _tallies(joined, plain, deletes)
    found: dict[Identity, _Rows] = {}
    for number, one in enumerate(manifests):
        blob, blob_rows = expected.get(number, (None, _NOTHING))
        table_rows = there.get(number, (None, _NOTHING))[1]
        found[one.identity] = (blob, None if blob is None else blob_rows, table_rows)
    return found


def _ranges(manifests: Sequence[AcceptedManifest]) -> pa.Table:
    accepted = [one.accepted_at_unix_ns // _NS_PER_US for one in manifests]
    return pa.table(
        {
            BATCH: pa.array(range(len(manifests)), pa.int64()),
            "agent_id": pa.array([one.agent_id for one in manifests], pa.string()),
            "boot_id": pa.array([one.boot_id for one in manifests], pa.string()),
            "seq_start": pa.array([one.seq_start for one in manifests], pa.int64()),
            "seq_end": pa.array([one.seq_end for one in manifests], pa.int64()),
            "accepted_at": pa.array(accepted, pa.timestamp("us", tz="UTC")),
        }
    )


def decode_batches(
    spark: Session, store_url: str, table: Table, manifests: Sequence[AcceptedManifest]
) -> Any:  # noqa: ANN401 - a DataFrame
    """Return the records that the blobs decode to, with the number of the batch as `BATCH`.

    Each batch whose blob was decoded has one further row, with the sha256 of the bytes that were
    read as `READ` and nothing else but its time of acceptance.
    """
    bodies = [encode_record(one) for one in manifests]
    rows = pa.table(
        {
            BATCH: pa.array(range(len(bodies)), pa.int64()),
            "manifest": pa.array(bodies, pa.binary()),
        }
    )
    parts = max(1, -(-len(bodies) // BATCHES_PER_TASK))
    stored = Table(
        name=table.name, columns=table.stored_columns, partition_column=table.partition_column
    )
    schema = spark_schema(stored).add(BATCH, "long").add(READ, "string")
    frame = spark.createDataFrame(rows).repartition(parts)
    return frame.mapInArrow(_decoder(store_url, table), schema)


def _decoder(store_url: str, table: Table) -> Any:  # noqa: ANN401 - the function for `mapInArrow`
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(table, partition=False)
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            rows = [
                PendingBatch(
                    lane=0,
                    sequence=0,
                    position=number,
                    manifest=decode_record("manifest", body, AcceptedManifest),
                )
                for number, body in zip(numbers, batch.column(1).to_pylist(), strict=True)
            ]
            for some in _groups(BlobReader(store_url, rows)):
                kind, numbers = some[0].kind, [one.number for one in some]
                records = conform(records_table(kind, [one.batch for one in some]), schema)
                counts = [one.batch.frame.envelope.count for one in some]
                yield from _numbered(
                    records, np.repeat(numbers, counts), pa.nulls(len(records), pa.string())
                )
                times = [one.batch.accepted_at_ns // _NS_PER_US for one in some]
                accepted = pa.array(times, pa.timestamp("us", tz="UTC"))
                markers = conform(pa.table({"accepted_at": accepted}), schema)
                yield from _numbered(markers, numbers, pa.array([one.sha256 for one in some]))

    return decode


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoded:
    """A batch that was read and decoded, and the hash of the bytes."""

    number: int
    kind: Kind
    batch: DecodedBatch
    sha256: Digest


def _groups(blobs: Iterable[FetchedBlob]) -> Iterator[list[_Decoded]]:
    """Yield the batches that can be decoded, as many together as Spark gets at a time."""
    group: list[_Decoded] = []
    rows = size_bytes = 0
    for one in blobs:
        manifest = one.row.manifest
        frame = decode_blob(manifest, one.body)
        if isinstance(frame, RejectedBlob) or one.body is None:
            continue
        batch = DecodedBatch(frame=frame, accepted_at_ns=manifest.accepted_at_unix_ns, sequence=0)
        group.append(
            _Decoded(
                number=one.row.position,
                kind=manifest.kind,
                batch=batch,
                sha256=digest_of(one.body),
            )
        )
        rows, size_bytes = rows + frame.envelope.count, size_bytes + frame.raw_bytes
        if rows >= ROWS_TOGETHER or size_bytes >= BYTES_TOGETHER:
            yield group
            group, rows, size_bytes = [], 0, 0
    if group:
        yield group


def _numbered(
    rows: pa.Table, numbers: Sequence[int] | npt.NDArray[np.int64], sha256: pa.Array
) -> Iterator[pa.RecordBatch]:
    rows = rows.append_column(BATCH, pa.array(numbers, pa.int64()))
    yield from rows.append_column(READ, sha256).combine_chunks().to_batches()


def _tallies(
    rows: Any,  # noqa: ANN401 - a DataFrame
    table: Table,
    deletes: Sequence[DeleteRecord],
) -> dict[int, tuple[Digest | None, RowTally]]:
    """Return the sha256 that was read, and the tally of the records, by the number of the batch."""
    from pyspark.sql.functions import expr  # noqa: PLC0415 - the import takes a second

    if deletes:
        rows = rows.where(expr(f"{READ} IS NOT NULL") | ~is_deleted(deletes))
    content = f"sha2(concat({content_of(table)}, ' ', seq), 256)"
    contents = rows.selectExpr(
        BATCH, READ, f"CASE WHEN {READ} IS NULL THEN {content} END AS content"
    )
    sums = [
        f"cast(coalesce(sum(cast(conv(substring(content, {at}, {_DIGITS}), 16, 10)"
        f" AS decimal(20, 0))), 0) AS string) AS sum_{at}"
        for at in (1, 1 + _DIGITS)
    ]
    totals = [f"max({READ}) AS {READ}", "count(content) AS rows", *sums]
    found = contents.groupBy(BATCH).agg(*map(expr, totals)).toArrow()
    columns = (found.column(at).to_pylist() for at in range(found.num_columns))
    return {
        number: (
            None if sha256 is None else Digest(sha256),
            RowTally(rows=count, content=f"{int(first):x}-{int(second):x}"),
        )
        for number, sha256, count, first, second in zip(*columns, strict=True)
    }
