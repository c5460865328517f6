"""S3 Inventory reports as AWS writes them: CSV or Parquet, all versions or current ones only."""

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

import pyarrow as pa
from pyarrow import parquet

from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.port import ObjectStore

ALL_VERSIONS = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate"
CURRENT_ONLY = "Bucket, Key, Size, LastModifiedDate"


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One version in a report."""

    key: str
    bucket: str = "telemetry"
    version: str = "v1"
    latest: bool = True
    marker: bool = False
    size: int = 7
    at_ns: int = 1_700_000_000 * NS_PER_S

    def cells(self) -> dict[str, object]:
        return {
            "Bucket": self.bucket,
            "Key": self.key,
            "VersionId": self.version,
            "IsLatest": self.latest,
            "IsDeleteMarker": self.marker,
            "Size": self.size,
            "LastModifiedDate": datetime.fromtimestamp(self.at_ns // NS_PER_S, UTC),
        }


def csv_of(rows: Sequence[ReportRow], schema: str = ALL_VERSIONS) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for row in rows:
        cells = row.cells() | {"Key": quote(row.key, safe="")}
        moment = datetime.fromtimestamp(row.at_ns // NS_PER_S, UTC)
        cells["LastModifiedDate"] = f"{moment:%Y-%m-%dT%H:%M:%S}.000Z"
        line = [cells[name.strip()] for name in schema.split(",")]
        writer.writerow([str(one).lower() if isinstance(one, bool) else one for one in line])
    return gzip.compress(text.getvalue().encode())


PARQUET_NAMES = {
    "Bucket": "bucket",
    "Key": "key",
    "VersionId": "version_id",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
    "Size": "size",
    "LastModifiedDate": "last_modified_date",
}


def parquet_of(rows: Sequence[ReportRow], schema: str = ALL_VERSIONS) -> bytes:
    columns = [name.strip() for name in schema.split(",")]
    found: dict[str, pa.Array] = {}
    for name in columns:
        values = [row.cells()[name] for row in rows]
        if name == "LastModifiedDate":
            plain = [one.replace(tzinfo=None) for one in values if isinstance(one, datetime)]
            found[PARQUET_NAMES[name]] = pa.array(plain, pa.timestamp("ms"))
        else:
            found[PARQUET_NAMES[name]] = pa.array(values)
    sink = io.BytesIO()
    parquet.write_table(pa.table(found), sink)
    return sink.getvalue()


def md5_of(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


async def put_report(
    store: ObjectStore,
    manifest_key: ObjectKey,
    files: Mapping[str, bytes],
    *,
    form: str = "CSV",
    schema: str = ALL_VERSIONS,
    created_at_ns: int = 1_700_000_000 * NS_PER_S,
    more: Sequence[Mapping[str, object]] = (),
) -> None:
    """Write data files, manifest and checksum; `more` are files that only the manifest names."""
    for name, body in files.items():
        await store.overwrite(ObjectKey(name), body)
    described = [
        {"key": name, "size": len(body), "MD5checksum": md5_of(body)}
        for name, body in files.items()
    ]
    manifest = json.dumps(
        {
            "sourceBucket": "telemetry",
            "destinationBucket": "arn:aws:s3:::lists",
            "version": "2016-11-30",
            "creationTimestamp": str(created_at_ns // 1_000_000),
            "fileFormat": form,
            "fileSchema": schema,
            "files": [*described, *more],
        }
    ).encode()
    await store.overwrite(manifest_key, manifest)
    checksum = ObjectKey(f"{manifest_key.rpartition('/')[0]}/manifest.checksum")
    await store.overwrite(checksum, md5_of(manifest).encode() + b"\n")
