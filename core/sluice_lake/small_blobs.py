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
from sluice_lake.records import Ints, payload_arrays
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.column_codings import RawColumns
from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.frame import Envelope, decode_head, raw_columns
from sluice_protocol.joined_frames import join_columns_of
from sluice_protocol.manifests import AcceptedManifest, Kind


@dataclass(frozen=True, slots=True)
class _SmallBatch:
    envelope: Envelope
    columns: RawColumns
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
    by_columns: dict[tuple[tuple[str, int], ...], list[_SmallBatch]] = {}
    for manifest, body in zip(manifests, bodies, strict=True):
        batch = _decode(kind, manifest, body)
        if batch is None:
            return None
        types = tuple([(name, one.type) for name, one in batch.columns.items()])
        by_columns.setdefault(types, []).append(batch)
    tables = [_table(kind, group) for group in by_columns.values()]
    found = [table for table in tables if table is not None]
    return pa.concat_tables(found) if len(found) == len(tables) else None


def _decode(kind: Kind, manifest: AcceptedManifest, body: bytes | None) -> _SmallBatch | None:
    if manifest.repeated:
        return None
    if body is None or hashlib.sha256(body).hexdigest() != manifest.frame_sha256:
        return None
    try:
        head = decode_head(body)
        columns = raw_columns(head, body)
    except (InvalidFrame, UnsupportedVersion, TooLarge):
        return None
    one = head.envelope
    named = (one.agent_id, one.boot_id, one.seq_start, one.seq_end, one.kind)
    wanted = (manifest.agent_id, manifest.boot_id, manifest.seq_start, manifest.seq_end, kind)
    if named != wanted or not states_times_of(manifest, one):
        return None
    return _SmallBatch(one, columns, manifest.accepted_at_unix_ns)


def _table(kind: Kind, batches: Sequence[_SmallBatch]) -> pa.Table | None:
    envelopes = [one.envelope for one in batches]
    counts = np.array([one.count for one in envelopes], dtype=np.int64)
    columns = join_columns_of(kind, [one.columns for one in batches], counts.tolist())
    if columns is None or not _are_spans(envelopes, columns.ts, counts):
        return None
    heads = [BatchHead(one.envelope, one.accepted_at_ns, 0) for one in batches]
    schema = arrow_schema(RECORD_TABLES[kind], partition=False)
    arrays = [
        *head_arrays(heads, counts, columns.ts),
        *payload_arrays(kind, columns, int(counts.sum())).values(),
        resource_array(envelopes, counts),
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _are_spans(envelopes: Sequence[Envelope], ts: Ints | None, counts: Ints) -> bool:
    """Return True if each envelope states the span of its times."""
    stated = [(one.min_ts_ns, one.max_ts_ns) for one in envelopes]
    if ts is None:
        return all(span == (None, None) for span in stated)
    firsts = np.cumsum(counts) - counts
    least, most = np.minimum.reduceat(ts, firsts), np.maximum.reduceat(ts, firsts)
    return stated == list(zip(least.tolist(), most.tolist(), strict=True))
