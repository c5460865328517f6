"""The rows of evidence: their Arrow schemas, and Parquet bytes of them.

Digests are 32 raw bytes, not hex: half the size, and joins compare them as they are.
"""

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from sluice_protocol.units import Digest

DIGEST: Final = pa.binary(32)

MANIFESTS: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("etag", pa.string(), nullable=False),
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("last_modified_ns", pa.int64(), nullable=False),
    ]
)
"""Every manifest of both kinds in key order: what the next audit carries on."""

NAMED: Final = pa.schema(
    [
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("quarantined", pa.bool_(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
    ]
)
"""The same manifests, split by shard of the sha256 that they name."""

NAMES: Final = pa.schema([pa.field("sha256", DIGEST, nullable=False)])
"""Each sha256 that a manifest or a reverse reference names, once, sorted."""

BLOBS: Final = pa.schema(
    [
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("incarnation", pa.string(), nullable=False),
        pa.field("last_modified_ns", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("current", pa.bool_(), nullable=False),
    ]
)
"""Each stored incarnation of a raw blob, in the order of the listing."""

FINDINGS: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)
"""What is wrong, one row each."""

CANDIDATES: Final = pa.schema(
    [
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("incarnation", pa.string(), nullable=False),
        pa.field("last_modified_ns", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("superseded", pa.bool_(), nullable=False),
        pa.field("versioning_enabled", pa.bool_(), nullable=False),
        pa.field("now_ns", pa.int64(), nullable=False),
        pa.field("retry_horizon_ns", pa.int64(), nullable=False),
        pa.field("audit_id", pa.string(), nullable=False),
        pa.field("audit_started_at_ns", pa.int64(), nullable=False),
        pa.field("named_in_audit", pa.bool_(), nullable=False),
    ]
)
"""What a plan proposes, each with the evidence of every clause that a plan can check."""

PROOFS: Final = pa.schema(
    [
        *CANDIDATES,
        pa.field("plan_id", pa.string(), nullable=False),
        pa.field("references_read", pa.int32(), nullable=True),
        pa.field("envelope_accepted_key", pa.string(), nullable=True),
        pa.field("envelope_accepted", pa.string(), nullable=True),
        pa.field("envelope_quarantine_key", pa.string(), nullable=True),
        pa.field("envelope_quarantine", pa.string(), nullable=True),
        pa.field("listed_current", pa.bool_(), nullable=True),
        pa.field("current_incarnation", pa.string(), nullable=True),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("clause", pa.string(), nullable=True),
        pa.field("reason", pa.string(), nullable=True),
    ]
)
"""Evidence read at deletion time and the verdict; written before anything is deleted."""


def encode_table(table: pa.Table) -> bytes:
    """Gives Parquet bytes: digests plain, ids in LZ4, for both are random; the rest in zstd."""
    sink = pa.BufferOutputStream()
    repeated = [
        one.name for one in table.schema if one.type == pa.string() and one.name not in _UNIQUE
    ]
    compression = {one.name: _compression(one) for one in table.schema}
    pq.write_table(table, sink, compression=compression, use_dictionary=repeated)
    return bytes(sink.getvalue())


_UNIQUE: Final = frozenset({"key", "etag", "incarnation"})


def _compression(column: pa.Field) -> str:
    if column.type == DIGEST:
        return "NONE"
    return "LZ4" if column.name in {"etag", "incarnation"} else "ZSTD"


def decode_table(body: bytes, schema: pa.Schema) -> pa.Table:
    """Reads Parquet bytes of exactly this schema.

    Raises:
        ValueError: The bytes are not Parquet, or of other columns.
    """
    table = pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False)
    if not table.schema.equals(schema):
        raise ValueError(f"columns are {table.schema.names}, wanted {schema.names}")
    return table


def raw(digest: Digest) -> bytes:
    """Gives the 32 bytes of a digest."""
    return bytes.fromhex(digest)


def hexed(value: bytes) -> Digest:
    """Gives the digest of 32 bytes."""
    return Digest(value.hex())
