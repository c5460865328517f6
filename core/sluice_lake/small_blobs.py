"""Blobs of small batches, verified and decoded together into one Arrow table.

The result equals that of decoding each blob. If one of the blobs cannot be used, the result is
None, and the caller decodes each of them to learn which and why.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice_lake.blobs import states_times_of
from sluice_lake.joined_records import BatchHead, head_arrays, resource_array
from sluice_lake.records import payload_arrays
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.column_joins import join_columns
from sluice_protocol.columns import Columns, EntryColumns, LogColumns, MetricColumns
from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.manifests import AcceptedManifest, Kind


@dataclass(frozen=True, slots=True)
class _SmallBatch:
    frame: Frame
    accepted_at_ns: int


def small_blobs_table(
    kind: Kind, manifests: Sequence[AcceptedManifest], bodies: Sequence[bytes | None]
) -> pa.Table | None:
    """Return the records of small blobs; None if one of them cannot be used.

    Args:
        kind: The kind of every batch.
        manifests: The accepted manifests, at least one.
        bodies: The bytes of each blob, or None when the store does not contain it.
    """
    by_columns: dict[tuple[bool, ...], list[_SmallBatch]] = {}
    for manifest, body in zip(manifests, bodies, strict=True):
        batch = _decode(kind, manifest, body)
        if batch is None:
            return None
        by_columns.setdefault(_absent(batch.frame.columns), []).append(batch)
    return pa.concat_tables([_table(kind, group) for group in by_columns.values()])


def _absent(columns: Columns) -> tuple[bool, ...]:
    """Return which columns are absent, because an absent one differs from an empty one."""
    match columns:
        case LogColumns():
            return columns.severity is None, columns.attributes is None
        case MetricColumns():
            return (columns.attributes is None,)
        case EntryColumns():
            return (columns.ts is None,)


def _decode(kind: Kind, manifest: AcceptedManifest, body: bytes | None) -> _SmallBatch | None:
    if manifest.repeated:
        return None
    if body is None or hashlib.sha256(body).hexdigest() != manifest.frame_sha256:
        return None
    try:
        frame = decode_frame(body)
    except (InvalidFrame, UnsupportedVersion, TooLarge):
        return None
    one = frame.envelope
    named = (one.agent_id, one.boot_id, one.seq_start, one.seq_end, one.kind)
    wanted = (manifest.agent_id, manifest.boot_id, manifest.seq_start, manifest.seq_end, kind)
    if named != wanted or not states_times_of(manifest, one):
        return None
    return _SmallBatch(frame, manifest.accepted_at_unix_ns)


def _table(kind: Kind, batches: Sequence[_SmallBatch]) -> pa.Table:
    envelopes = [one.frame.envelope for one in batches]
    counts = np.array([one.count for one in envelopes], dtype=np.int64)
    columns = join_columns([one.frame.columns for one in batches])
    heads = [BatchHead(one.frame.envelope, one.accepted_at_ns, 0) for one in batches]
    schema = arrow_schema(RECORD_TABLES[kind], partition=False)
    arrays = [
        *head_arrays(heads, counts, columns.ts),
        *payload_arrays(kind, columns, int(counts.sum())).values(),
        resource_array(envelopes, counts),
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
