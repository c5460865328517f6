"""Blobs of small batches, verified and decoded together into one Arrow table.

The result equals that of decoding each blob. If one of the blobs cannot be used, the result is
None, and the caller decodes each of them to learn which and why.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice_lake.blobs import states_times_of
from sluice_lake.joined_records import BatchHead, head_arrays, resource_array
from sluice_lake.records import payload_arrays
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.envelope import Envelope
from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.frame import decode_head, frame_version, raw_payload
from sluice_protocol.joined_payloads import join_payloads
from sluice_protocol.manifests import AcceptedManifest, Kind
from sluice_protocol.payload import read_short_payload
from sluice_protocol.payload_layout import LAYOUTS
from sluice_protocol.short_cbor import ShortValue


@dataclass(frozen=True, slots=True)
class _SmallBatch:
    version: int
    envelope: Envelope
    payload: Mapping[str, ShortValue]
    accepted_at_ns: int


def small_blobs_table(
    kind: Kind, manifests: Sequence[AcceptedManifest], bodies: Sequence[bytes | None]
) -> pa.Table | None:
    """Return the records of small blobs; None if one of them cannot be used, or is not small.

    Args:
        kind: The kind of every batch.
        manifests: The accepted manifests, at least one.
        bodies: The bytes of each blob, or None when the store does not contain it.
    """
    by_columns: dict[tuple[int, tuple[str, ...]], list[_SmallBatch]] = {}
    for manifest, body in zip(manifests, bodies, strict=True):
        batch = _decode(kind, manifest, body)
        if batch is None:
            return None
        by_columns.setdefault((batch.version, tuple(batch.payload)), []).append(batch)
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
        if len(body) != head.frame_bytes:
            return None
        version = frame_version(body)
        payload = read_short_payload(kind, raw_payload(head, body), LAYOUTS[version])
    except (InvalidFrame, UnsupportedVersion, TooLarge):
        return None
    one = head.envelope
    named = (one.agent_id, one.boot_id, one.seq_start, one.seq_end, one.kind)
    wanted = (manifest.agent_id, manifest.boot_id, manifest.seq_start, manifest.seq_end, kind)
    if payload is None or named != wanted or not states_times_of(manifest, one):
        return None
    return _SmallBatch(version, one, payload, manifest.accepted_at_unix_ns)


def _table(kind: Kind, batches: Sequence[_SmallBatch]) -> pa.Table | None:
    envelopes = [one.envelope for one in batches]
    counts = np.array([one.count for one in envelopes], dtype=np.int64)
    columns = join_payloads(
        kind, [one.payload for one in batches], counts.tolist(), LAYOUTS[batches[0].version]
    )
    if columns is None:
        return None
    if columns.ts is not None:
        firsts = np.cumsum(counts) - counts
        spans = zip(
            np.minimum.reduceat(columns.ts, firsts).tolist(),
            np.maximum.reduceat(columns.ts, firsts).tolist(),
            strict=True,
        )
        if any(
            (one.min_ts_ns, one.max_ts_ns) != span
            for one, span in zip(envelopes, spans, strict=True)
        ):
            return None
    elif any(one.min_ts_ns is not None for one in envelopes):
        return None
    heads = [BatchHead(one.envelope, one.accepted_at_ns, 0) for one in batches]
    schema = arrow_schema(RECORD_TABLES[kind], partition=False)
    arrays = [
        *head_arrays(heads, counts, columns.ts),
        *payload_arrays(kind, columns, int(counts.sum())).values(),
        resource_array(envelopes, counts),
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
