"""Descriptors: one row per accepted batch that waits in the queue, as values and as Arrow.

A row is named by (lane, sequence of the queue entry, position in its work list). It carries all
that ingestion needs, so that neither the driver nor an executor reads a manifest again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from sluice_protocol.identity import Identity
from sluice_protocol.lake import Column, ColumnType, Table
from sluice_protocol.manifests import AcceptedManifest
from sluice_spark.schemas import arrow_schema

_STRING, _LONG, _INTEGER = ColumnType.STRING, ColumnType.LONG, ColumnType.INTEGER

_MANIFEST_COLUMNS: Final = (
    ("agent_id", _STRING, "the agent that sent it"),
    ("boot_id", _STRING, "that agent's life"),
    ("seq_start", _LONG, "first sequence number"),
    ("seq_end", _LONG, "last sequence number, inclusive"),
    ("frame_sha256", _STRING, "sha256 of the frame, hex"),
    ("frame_bytes", _LONG, "size of the frame"),
    ("raw_blob_key", _STRING, "key of the blob"),
    ("accepted_at_unix_ns", _LONG, "when it was accepted, Unix ns"),
    ("collector_id", _STRING, "the gateway that accepted it"),
    ("wire_version", _INTEGER, "version of the envelope"),
    ("frame_version", _INTEGER, "version of the frame"),
    ("attempt_id", _STRING, "the upload that was accepted"),
    ("kind", _STRING, "logs, metrics or entries"),
    ("record_count", _LONG, "number of records"),
    ("min_ts_unix_ns", _LONG, "earliest record, Unix ns, or null"),
    ("max_ts_unix_ns", _LONG, "latest record, Unix ns, or null"),
    ("principal", _STRING, "the principal that sent it"),
)
DESCRIPTORS: Final = Table(
    name="descriptors",
    columns=(
        Column(name="lane", type=_INTEGER, meaning="lane of the queue"),
        Column(name="queue_sequence", type=_LONG, meaning="sequence of the queue entry"),
        Column(name="position", type=_INTEGER, meaning="place in the entry's work list, from 0"),
        *(
            Column(name=name, type=kind, meaning=meaning)
            for name, kind, meaning in _MANIFEST_COLUMNS
        ),
    ),
    partition_column="",
)
"""Not a table of the lake: the rows of the data source's descriptors face."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One accepted batch as the queue brings it.

    Attributes:
        lane: The lane.
        sequence: The sequence of the queue entry.
        position: The place in the entry's work list, from 0.
        manifest: The accepted manifest.
    """

    lane: int
    sequence: int
    position: int
    manifest: AcceptedManifest

    @property
    def identity(self) -> Identity:
        """The identity of the batch."""
        return self.manifest.identity

    @property
    def order(self) -> tuple[int, int, int]:
        """What rows are ordered by: lane, sequence, position."""
        return (self.lane, self.sequence, self.position)


def waiting_of(lane: int, sequence: int, manifests: Sequence[AcceptedManifest]) -> list[Waiting]:
    """Gives the rows of one queue entry."""
    return [
        Waiting(lane=lane, sequence=sequence, position=position, manifest=manifest)
        for position, manifest in enumerate(manifests)
    ]


def encode_descriptors(rows: Iterable[Waiting]) -> pa.RecordBatch:
    """Gives rows as one Arrow batch of the schema of `DESCRIPTORS`."""
    listed = list(rows)
    columns: dict[str, list[object]] = {
        "lane": [row.lane for row in listed],
        "queue_sequence": [row.sequence for row in listed],
        "position": [row.position for row in listed],
    }
    for name, _, _ in _MANIFEST_COLUMNS:
        columns[name] = [getattr(row.manifest, name) for row in listed]
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(DESCRIPTORS))


def decode_descriptors(table: pa.Table) -> list[Waiting]:
    """Gives the rows of an Arrow table of descriptors, ordered by lane, sequence, position."""
    names = [name for name, _, _ in _MANIFEST_COLUMNS]
    columns = [table.column(name).to_pylist() for name in names]
    places = zip(
        *(table.column(name).to_pylist() for name in ("lane", "queue_sequence", "position")),
        strict=True,
    )
    rows = [
        Waiting(
            lane=lane,
            sequence=sequence,
            position=position,
            manifest=AcceptedManifest(**dict(zip(names, values, strict=True))),
        )
        for (lane, sequence, position), values in zip(
            places, zip(*columns, strict=True), strict=True
        )
    ]
    return sorted(rows, key=lambda row: row.order)
