"""Candidates from S3 Inventory: verified in full, and never a proof of an absence.

An inventory is not a point in time and may lack what was written or deleted lately (AWS, S3
Inventory, "eventual consistency"). So it only names incarnations that may be looked at: a plan
still asks the audit about each of them, and a run lists each again before it deletes.
"""

import csv
import gzip
import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote_plus

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sluice_gc.errors import GcRefused, Refusal
from sluice_gc.evidence import BLOBS, raw
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import RAW_BLOBS, parse_blob_key
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store.port import ObjectStore

_NS_PER_MS: Final = 1_000_000
_WANTED: Final = (
    *("Bucket", "Key", "VersionId", "IsLatest", "IsDeleteMarker", "Size", "LastModifiedDate"),
)


class InventoryFile(msgspec.Struct, frozen=True, kw_only=True):
    """One data file, as `manifest.json` names it."""

    key: str
    size: int
    MD5checksum: str


class InventoryManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The `manifest.json` of one S3 Inventory."""

    sourceBucket: str  # noqa: N815 - AWS names it
    destinationBucket: str = ""  # noqa: N815
    version: str
    creationTimestamp: str  # noqa: N815
    fileFormat: str  # noqa: N815
    fileSchema: str  # noqa: N815
    files: tuple[InventoryFile, ...]

    @property
    def created_at_ns(self) -> UnixNs:
        """When AWS began to make it."""
        return UnixNs(int(self.creationTimestamp) * _NS_PER_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventorySource:
    """What an inventory must be of.

    Attributes:
        bucket: The authority's bucket.
        prefix: The authority's prefix in it, with its slash, or empty.
        age_s_max: How old it may be, in seconds.
    """

    bucket: str
    prefix: str
    age_s_max: float


async def read_inventory(
    store: ObjectStore, manifest_key: ObjectKey, source: InventorySource, now_ns: UnixNs
) -> pa.Table:
    """Gives the blobs' incarnations of an inventory as rows of `BLOBS`, in key order.

    Args:
        store: Where the inventory lies.
        manifest_key: Its `manifest.json`; `manifest.checksum` stands beside it.
        source: What it must be of.
        now_ns: The authority's clock.

    Raises:
        GcRefused: It is of another bucket, not whole, altered, too old, or lacks a column; or keys
            of unknown form stand among the blobs.
        StoreError: No answer, or a refusal.
    """
    manifest = await _read_manifest(store, manifest_key)
    check_manifest(manifest, source, now_ns)
    tables = [
        _rows(_decode(manifest, await _read_file(store, one)), source) for one in manifest.files
    ]
    return pa.concat_tables([BLOBS.empty_table(), *tables]).sort_by("sha256")


def _refuse(reason: str) -> GcRefused:
    return GcRefused(Refusal.INVENTORY, f"inventory: {reason}")


async def _read_manifest(store: ObjectStore, key: ObjectKey) -> InventoryManifest:
    read = await store.get(key)
    beside = ObjectKey(f"{key.removesuffix('manifest.json')}manifest.checksum")
    checksum = await store.get(beside)
    if not isinstance(read, Found) or not isinstance(checksum, Found):
        raise _refuse(f"it is not whole, manifest.json or manifest.checksum is missing: {key}")
    if _md5(read.body) != checksum.body.decode(errors="replace").strip():
        raise _refuse(f"manifest.json does not match manifest.checksum: {key}")
    try:
        return msgspec.json.decode(read.body, type=InventoryManifest)
    except msgspec.DecodeError as error:
        raise _refuse(f"manifest.json has another form: {error}") from error


def check_manifest(manifest: InventoryManifest, source: InventorySource, now_ns: UnixNs) -> None:
    """Refuses an inventory that cannot name candidates of this authority.

    Raises:
        GcRefused: It is of another bucket, too old or of the future, of another format, or lacks
            a column.
    """
    if manifest.sourceBucket != source.bucket:
        raise _refuse(f"it is of bucket {manifest.sourceBucket}, not of {source.bucket}")
    age_s = (now_ns - manifest.created_at_ns) / NS_PER_S
    if not 0 <= age_s <= source.age_s_max:
        raise _refuse(f"it is {age_s:.0f} s old, at most {source.age_s_max:.0f} s is taken")
    if manifest.fileFormat not in {"CSV", "Parquet"}:
        raise _refuse(f"format {manifest.fileFormat} is not read: use CSV or Parquet")
    lacks = [one for one in _WANTED if one not in columns_of(manifest)]
    if manifest.fileFormat == "CSV" and lacks:
        raise _refuse(f"it lacks {', '.join(lacks)}: list all versions, with size and date")
    if not manifest.files:
        raise _refuse("it has no file: it is not whole")


def columns_of(manifest: InventoryManifest) -> list[str]:
    """Gives the columns of a CSV inventory in their order."""
    return [one.strip() for one in manifest.fileSchema.split(",")]


async def _read_file(store: ObjectStore, file: InventoryFile) -> bytes:
    read = await store.get(ObjectKey(file.key))
    if not isinstance(read, Found):
        raise _refuse(f"it is not whole, a file is missing: {file.key}")
    if len(read.body) != file.size or _md5(read.body) != file.MD5checksum:
        raise _refuse(f"a file was cut or altered: {file.key}")
    return read.body


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One incarnation, as an inventory tells it."""

    bucket: str
    key: str
    version: str
    latest: bool
    marker: bool
    size_bytes: int
    last_modified_ns: int


def _decode(manifest: InventoryManifest, body: bytes) -> Iterator[_Row]:
    try:
        if manifest.fileFormat == "CSV":
            yield from _decode_csv(columns_of(manifest), body)
        else:
            yield from _decode_parquet(body)
    except (OSError, EOFError, ValueError, KeyError, IndexError, pa.ArrowException) as error:
        raise _refuse(f"a file cannot be read: {error!r}") from error


def _decode_csv(columns: list[str], body: bytes) -> Iterator[_Row]:
    """Reads gzip CSV without a header; keys are URL-encoded."""
    places = {name: columns.index(name) for name in _WANTED}
    text = io.TextIOWrapper(gzip.GzipFile(fileobj=io.BytesIO(body)), encoding="utf-8", newline="")
    for cells in csv.reader(text):
        row = {name: cells[at] for name, at in places.items()}
        moment = datetime.fromisoformat(row["LastModifiedDate"])
        yield _Row(
            bucket=row["Bucket"],
            key=unquote_plus(row["Key"]),
            version=row["VersionId"] or "null",
            latest=row["IsLatest"] == "true",
            marker=row["IsDeleteMarker"] == "true",
            size_bytes=int(row["Size"] or 0),
            last_modified_ns=_ns_of(moment),
        )


def _ns_of(moment: datetime) -> int:
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return micros * 1_000


def _decode_parquet(body: bytes) -> Iterator[_Row]:
    """Reads Parquet; AWS names its columns in lower case with underscores, keys as they are."""
    table = pq.ParquetFile(pa.BufferReader(body)).read()
    for row in table.to_pylist():
        yield _Row(
            bucket=row["bucket"],
            key=row["key"],
            version=row["version_id"] or "null",
            latest=bool(row["is_latest"]),
            marker=bool(row["is_delete_marker"]),
            size_bytes=int(row["size"] or 0),
            last_modified_ns=_ns_of(row["last_modified_date"].replace(tzinfo=UTC)),
        )


def _rows(rows: Iterable[_Row], source: InventorySource) -> pa.Table:
    """Gives rows of `BLOBS`; keys outside the authority's blobs are none of its business."""
    root = f"{source.prefix}{RAW_BLOBS}"
    taken: list[dict[str, object]] = []
    for row in rows:
        if row.bucket != source.bucket:
            raise _refuse(f"a row is of bucket {row.bucket}, not of {source.bucket}")
        if not row.key.startswith(root) or row.marker:
            continue
        taken.append(
            {
                "sha256": _digest(row.key.removeprefix(source.prefix)),
                "incarnation": row.version,
                "last_modified_ns": row.last_modified_ns,
                "size_bytes": row.size_bytes,
                "current": row.latest,
            }
        )
    return pa.Table.from_pylist(taken, schema=BLOBS)


def _digest(key: str) -> bytes:
    try:
        return raw(parse_blob_key(key))
    except InvalidRecord as error:
        raise GcRefused(
            Refusal.FOREIGN_KEYS, f"the inventory names a key of unknown form: {key}"
        ) from error
