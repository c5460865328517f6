"""Pending batches as Arrow: the rows of the data source's descriptors.

A row is named by (lane, sequence of the queue entry, position in its work list). It contains all
that ingestion needs, so that neither the driver nor an executor reads a manifest again.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa

from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import Column, ColumnType, Table
from sluice_protocol.manifests import AcceptedManifest, RecordRange
from sluice_queue.worklists import PendingBatch

_STRING, _LONG, _INTEGER = ColumnType.STRING, ColumnType.LONG, ColumnType.INTEGER

_MANIFEST_COLUMNS: Final = (
    ("agent_id", _STRING, "the agent that sent it"),
    ("boot_id", _STRING, "the agent's boot"),
    ("seq_start", _LONG, "first sequence number"),
    ("seq_end", _LONG, "last sequence number, inclusive"),
    ("frame_sha256", _STRING, "sha256 of the frame, hex"),
    ("frame_bytes", _LONG, "size of the frame"),
    ("raw_blob_key", _STRING, "key of the blob"),
    ("accepted_at_unix_ns", _LONG, "when it was accepted, Unix ns"),
    ("collector_id", _STRING, "the gateway that accepted it"),
    ("wire_version", _INTEGER, "version of the envelope"),
    ("frame_version", _INTEGER, "version of the frame"),
    ("attempt_id", _STRING, "id of the upload that was accepted"),
    ("kind", _STRING, "logs, metrics or entries"),
    ("record_count", _LONG, "number of records"),
    ("min_ts_unix_ns", _LONG, "earliest record, Unix ns, or null"),
    ("max_ts_unix_ns", _LONG, "latest record, Unix ns, or null"),
    ("principal", _STRING, "the principal that sent it"),
)
_REPEATED: Final = "repeated"
_RANGES: Final = msgspec.json.Decoder(tuple[RecordRange, ...])
DESCRIPTORS: Final = Table(
    name="descriptors",
    columns=(
        Column(name="lane", type=_INTEGER, meaning="lane of the queue"),
        Column(name="queue_sequence", type=_LONG, meaning="sequence of the queue entry"),
        Column(name="position", type=_INTEGER, meaning="position in the entry's work list, from 0"),
        *(
            Column(name=name, type=kind, meaning=meaning)
            for name, kind, meaning in _MANIFEST_COLUMNS
        ),
        Column(
            name=_REPEATED,
            type=_STRING,
            meaning="JSON: ranges of records that an earlier batch contains, or null",
        ),
    ),
    partition_column="",
)
"""The schema of the descriptors; it is no table of the lake."""


def encode_descriptors(rows: Iterable[PendingBatch]) -> pa.RecordBatch:
    """Return batches as one Arrow batch of the schema of `DESCRIPTORS`."""
    listed = list(rows)
    columns: dict[str, list[object]] = {
        "lane": [row.lane for row in listed],
        "queue_sequence": [row.sequence for row in listed],
        "position": [row.position for row in listed],
    }
    for name, _, _ in _MANIFEST_COLUMNS:
        columns[name] = [getattr(row.manifest, name) for row in listed]
    columns[_REPEATED] = [
        msgspec.json.encode(row.manifest.repeated).decode() if row.manifest.repeated else None
        for row in listed
    ]
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(DESCRIPTORS))


def decode_descriptors(table: pa.Table) -> list[PendingBatch]:
    """Return the batches of an Arrow table, ordered by lane, sequence, position."""
    names = [name for name, _, _ in _MANIFEST_COLUMNS]
    columns = [table.column(name).to_pylist() for name in names]
    places = zip(
        *(table.column(name).to_pylist() for name in ("lane", "queue_sequence", "position")),
        strict=True,
    )
    rows = [
        PendingBatch(
            lane=lane,
            sequence=sequence,
            position=position,
            manifest=AcceptedManifest(
                **dict(zip(names, values, strict=True)),
                repeated=_RANGES.decode(repeated) if repeated else msgspec.UNSET,
            ),
        )
        for (lane, sequence, position), values, repeated in zip(
            places,
            zip(*columns, strict=True),
            table.column(_REPEATED).to_pylist(),
            strict=True,
        )
    ]
    return sorted(rows, key=lambda row: row.order)
