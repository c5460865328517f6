"""The ledger and the dead letters: read identities, and write rows to files ready to commit."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from sluice_lake.data_files import DataFile
from sluice_lake.durable_files import make_folder, sync_file
from sluice_lake.errors import data_errors_translated
from sluice_lake.locations import lake_location, open_filesystem
from sluice_lake.open_dead_letters import identities_of, read_ledger
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import ACCEPTED_HOUR, BATCHES, DEAD_LETTERS, Table, accepted_hour
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_queue.worklists import PendingBatch
from sluice_spark.written_files import (
    UnreadableBatch,
    WrittenFile,
    file_statistics,
    partition_folder,
)

_NS_PER_US: Final = 1000
_NS_PER_MS: Final = NS_PER_S // 1000
_IDENTITY: Final = ["agent_id", "boot_id", "seq_start", "seq_end"]


def hours_of(rows: Iterable[PendingBatch]) -> list[str]:
    """Return the ledger partitions that rows belong to, sorted."""
    return sorted({accepted_hour(row.manifest.accepted_at_unix_ns) for row in rows})


def read_identities(ledger: DeltaTable, rows: Sequence[PendingBatch]) -> set[Identity]:
    """Return the ledger's identities of the rows' agents in the rows' accepted hours.

    An identity has one manifest and so one accepted hour. The same identity cannot be in any other
    partition.
    """
    hours = hours_of(rows)
    if not hours:
        return set()
    found = read_ledger(ledger, hours, {row.manifest.agent_id for row in rows})
    return set(identities_of(found))


def _columns(manifest: AcceptedManifest, lane: int, sequence: int) -> dict[str, Any]:
    return {
        "agent_id": manifest.agent_id,
        "boot_id": manifest.boot_id,
        "seq_start": manifest.seq_start,
        "seq_end": manifest.seq_end,
        "kind": manifest.kind,
        "frame_sha256": manifest.frame_sha256,
        "frame_bytes": manifest.frame_bytes,
        "record_count": manifest.record_count,
        "accepted_at": manifest.accepted_at_unix_ns // _NS_PER_US,
        "accepted_at_ns": manifest.accepted_at_unix_ns,
        "lane": lane,
        "queue_sequence": sequence,
    }


def _ledger_row(row: PendingBatch) -> dict[str, Any]:
    return _columns(row.manifest, row.lane, row.sequence) | {
        "min_ts_ns": row.manifest.min_ts_unix_ns,
        "max_ts_ns": row.manifest.max_ts_unix_ns,
        "collector_id": row.manifest.collector_id,
        "principal": row.manifest.principal,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFiles:
    """Writer for the tables that the driver writes; one file per accepted hour.

    `name` is the unique stem of the file names.
    """

    store_url: str
    name: str
    now_ns: UnixNs

    def write_ledger(self, rows: Sequence[PendingBatch]) -> list[WrittenFile]:
        """Write ledger rows."""
        return self._write(BATCHES, [(row, _ledger_row(row)) for row in rows])

    def write_dead_letters(
        self, unreadable: Sequence[tuple[PendingBatch, UnreadableBatch]]
    ) -> list[WrittenFile]:
        """Write the batches that could not be read, each with its reason."""
        rows = []
        for row, batch in unreadable:
            found = {
                "reason": batch.reason.value,
                "detail": batch.detail,
                "observed_at": self.now_ns // _NS_PER_US,
            }
            rows.append((row, _columns(row.manifest, row.lane, row.sequence) | found))
        return self._write(DEAD_LETTERS, rows)

    def merge(self, table: Table, files: Sequence[DataFile]) -> WrittenFile:
        """Write the rows of files of one hour to one file, ordered by identity."""
        schema = arrow_schema(table, partition=False)
        location = lake_location(self.store_url, table.name)
        filesystem, root = open_filesystem(location)
        parts = []
        for file in files:
            path = f"{root}/{file.path}"
            with data_errors_translated(location.uri), filesystem.open_input_file(path) as source:
                parts.append(pq.ParquetFile(source).read().select(schema.names).cast(schema))
        rows = pa.concat_tables(parts).sort_by([(name, "ascending") for name in _IDENTITY])
        return self._write_rows(table, files[0].partition, rows)

    def _write(self, table: Table, rows: Sequence[tuple[PendingBatch, Any]]) -> list[WrittenFile]:
        by_hour: dict[str, list[Any]] = {}
        for row, columns in rows:
            hour = accepted_hour(row.manifest.accepted_at_unix_ns)
            by_hour.setdefault(hour, []).append(columns)
        schema = arrow_schema(table, partition=False)
        return [
            self._write_rows(table, hour, pa.Table.from_pylist(found, schema=schema))
            for hour, found in sorted(by_hour.items())
        ]

    def _write_rows(self, table: Table, hour: str, arrow: pa.Table) -> WrittenFile:
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, arrow.schema, compression="zstd", store_schema=False) as writer:
            writer.write_table(arrow)
        path = f"{partition_folder(ACCEPTED_HOUR, hour)}/{self.name}.parquet"
        self._put(table, path, sink.getvalue())
        return WrittenFile(
            table=table.name,
            path=path,
            partition=hour,
            size_bytes=len(sink.getvalue()),
            written_at_ms=self.now_ns // _NS_PER_MS,
            stats=file_statistics(table, writer.writer.metadata),
        )

    def _put(self, table: Table, path: str, body: bytes) -> None:
        location = lake_location(self.store_url, table.name)
        filesystem, root = open_filesystem(location)
        if location.is_local:
            make_folder(Path(root), str(Path(path).parent))
        with filesystem.open_output_stream(f"{root}/{path}") as sink:
            sink.write(body)
        if location.is_local:
            sync_file(f"{root}/{path}")
