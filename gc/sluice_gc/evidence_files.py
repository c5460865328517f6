"""Evidence of audits, plans and proofs: table schemas and Parquet files.

Digests are stored as 32 raw bytes, not as hexadecimal text: half the size, and joins compare them
without conversion. Each file has a key that contains the hash of its bytes and is created once.
"""

import asyncio
import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.key_ranges import split_shards
from sluice_protocol.collection_records import EvidenceFile
from sluice_protocol.errors import InvariantViolated
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, OtherBytes, create_once

DIGEST: Final = pa.binary(32)


MANIFESTS: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("etag", pa.string(), nullable=False),
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("last_modified_ns", pa.int64(), nullable=False),
    ]
)
"""Every manifest of both kinds in key order. The next audit copies the unchanged rows."""


NAMED: Final = pa.schema(
    [
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("quarantined", pa.bool_(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("last_modified_ns", pa.int64(), nullable=False),
    ]
)
"""The same manifests, split by shard of the sha256 that they name."""


EXPIRING: Final = pa.schema(
    [
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("last_modified_ns", pa.int64(), nullable=False),
    ]
)
"""Accepted manifests that are older than the raw retention, and whose blob exists.

They are candidates of an expiry run, which proves each.
"""


NAMES: Final = pa.schema([pa.field("sha256", DIGEST, nullable=False)])
"""Each sha256 that a manifest or a reverse reference names: unique and sorted."""


BLOBS: Final = pa.schema(
    [
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("incarnation", pa.string(), nullable=False),
        pa.field("last_modified_ns", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("current", pa.bool_(), nullable=False),
    ]
)
"""Each stored object version of a blob, in the order of the listing.

Files of eligible versions have some of these rows, in the same order.
"""


FINDINGS: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)
"""The findings of an audit."""


RANGES: Final = pa.schema(
    [
        pa.field("prefix", pa.string(), nullable=False),
        pa.field("start_after", pa.string(), nullable=False),
        pa.field("end_at", pa.string(), nullable=True),
        pa.field("pages", pa.int64(), nullable=False),
        pa.field("objects", pa.int64(), nullable=False),
        pa.field("root", DIGEST, nullable=False),
        pa.field("first_date_unix_ns", pa.int64(), nullable=False),
        pa.field("last_date_unix_ns", pa.int64(), nullable=False),
    ]
)
"""The key ranges of an audit as they were listed, if its certificate contains merged ones."""


FILES: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("prefix", pa.string(), nullable=False),
        pa.field("first_key", pa.string(), nullable=False),
        pa.field("last_key", pa.string(), nullable=False),
    ]
)
"""The evidence files that a certificate omits because there are too many."""


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
"""The candidates of a plan, with the evidence of every clause that a plan can check."""


CANDIDATES_PER_GROUP: Final = 16_384
"""Rows of a row group of candidates, about 1.5 MB: operators read single groups of large plans."""


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
"""The evidence read by a run, and the verdict. It is written before anything is deleted."""
PROOFS_BYTES_MAX: Final = 64 << 20
"""The size of a decompressed file of proofs, at most."""


def encode_proofs(table: pa.Table) -> bytes:
    """Return the bytes of proofs, which are permanent: about 60 bytes a row.

    Parquet alone has 8 KB for a single row, and most files of a small deployment have few.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="NONE",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )
    return zlib.compress(sink.getvalue(), 9)


def decode_proofs(body: bytes) -> pa.Table:
    """Decode proofs.

    Raises:
        ValueError: The file is damaged or too large.
    """
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(body, PROOFS_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof:
        raise ValueError("it is cut off or too large")
    return decode_table(plain, PROOFS)


def encode_table(table: pa.Table) -> bytes:
    """Return the Parquet bytes of a table. Random values are not compressed with zstd."""
    sink = pa.BufferOutputStream()
    repeated = [
        one.name for one in table.schema if one.type == pa.string() and one.name not in _UNIQUE
    ]
    compression = {one.name: _compression(one) for one in table.schema}
    pq.write_table(
        table,
        sink,
        compression=compression,
        use_dictionary=repeated,
        row_group_size=CANDIDATES_PER_GROUP if table.schema.equals(CANDIDATES) else None,
        write_page_checksum=True,
    )
    return bytes(sink.getvalue())


_UNIQUE: Final = frozenset({"key", "etag", "incarnation"})


def _compression(column: pa.Field) -> str:
    if column.type == DIGEST:
        return "NONE"
    return "LZ4" if column.name in {"etag", "incarnation"} else "ZSTD"


def decode_table(body: bytes, schema: pa.Schema) -> pa.Table:
    """Decode Parquet bytes of exactly this schema, or raise `ValueError`."""
    table = pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False)
    if not table.schema.equals(schema):
        raise ValueError(f"wrong columns, columns={table.schema.names} expected={schema.names}")
    return table


def digest_bytes(digest: Digest) -> bytes:
    """Return the 32 bytes of a digest."""
    return bytes.fromhex(digest)


def digest_from_bytes(value: bytes) -> Digest:
    """Return the digest for 32 bytes."""
    return Digest(value.hex())


async def put_table(
    store: ObjectStore, folder: str, kind: str, place: str, table: pa.Table, *, backoff: Backoff
) -> EvidenceFile:
    """Write a table as Parquet under a key with the hash of the bytes; safe to repeat."""
    body = await asyncio.to_thread(encode_table, table)
    sha256 = digest_of(body)
    key = ObjectKey(f"{folder}{kind}/{place}-{sha256[:16]}.parquet")
    if isinstance(await create_once(store, key, body, backoff), OtherBytes):
        raise InvariantViolated(f"other bytes exist under a content-addressed key, key=`{key}`")
    return EvidenceFile(
        kind=kind, place=place, key=key, sha256=sha256, size_bytes=len(body), rows=len(table)
    )


async def read_table(store: ObjectStore, file: EvidenceFile, schema: pa.Schema) -> pa.Table:
    """Read an evidence file and compare its sha256 with the record."""
    table = await read_table_if_kept(store, file, schema)
    if table is None:
        raise GcRefused(
            RefusalRule.EVIDENCE_CHANGED,
            "evidence is missing: it was removed by rule, or is lost; run a new audit and plan, "
            f"key={file.key}",
        )
    return table


async def read_table_if_kept(
    store: ObjectStore, file: EvidenceFile, schema: pa.Schema
) -> pa.Table | None:
    """Read an evidence file and compare its sha256 with the record; None if it does not exist."""
    read = await store.get(file.key)
    if not isinstance(read, Found):
        return None
    return await asyncio.to_thread(_decode_evidence, read.body, file, schema)


def _decode_evidence(body: bytes, file: EvidenceFile, schema: pa.Schema) -> pa.Table:
    if digest_of(body) != file.sha256:
        raise GcRefused(RefusalRule.EVIDENCE_CHANGED, f"evidence was altered, key={file.key}")
    try:
        return decode_table(body, schema)
    except (ValueError, pa.ArrowException) as error:
        raise GcRefused(
            RefusalRule.EVIDENCE_CHANGED, f"evidence is not readable: {error}, key={file.key}"
        ) from error


async def read_tables(
    store: ObjectStore, files: Iterable[EvidenceFile], schema: pa.Schema
) -> pa.Table:
    """Read several evidence files as one table."""
    tables = [await read_table(store, one, schema) for one in files]
    # A column in one piece is used without a copy.
    return tables[0] if len(tables) == 1 else pa.concat_tables([schema.empty_table(), *tables])


async def read_names(store: ObjectStore, files: Iterable[EvidenceFile]) -> frozenset[bytes]:
    """Return every sha256 in files of `NAMES`."""
    table = await read_tables(store, files, NAMES)
    return frozenset(table["sha256"].to_pylist())


async def put_blobs(
    store: ObjectStore, folder: str, shards: int, blobs: pa.Table, backoff: Backoff
) -> list[EvidenceFile]:
    """Write rows of `BLOBS` from an inventory, one file per shard."""
    first = np.array([one[0] for one in blobs["sha256"].to_pylist()], np.uint16)
    return [
        await put_table(
            store,
            folder,
            "blobs",
            shard.name,
            blobs.filter(pa.array((first >= shard.first) & (first < shard.end))),
            backoff=backoff,
        )
        for shard in split_shards(shards)
    ]
