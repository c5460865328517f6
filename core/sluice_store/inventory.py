"""Reports of S3 Inventory: manifest, data files and their rows, each file checked before use.

A report is not a point in time. It can be days old and can leave out objects that were written or
deleted around its time, so it only names candidates: a row proves nothing about the object now,
and a missing row proves no absence.

A report lists either all versions of every object or only the current ones. Only the first kind has
the columns `VersionId`, `IsLatest` and `IsDeleteMarker`. In the second kind every row is a current
object, so a missing `IsLatest` means "current". A user that needs to distinguish versions requires
the columns and so refuses reports of the second kind.

Source: docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory.html (list contents,
consistency) and storage-inventory-location.html (manifest and checksum).
"""

import csv
import gzip
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote_plus

import msgspec

from sluice_protocol.errors import UNREADABLE_JSON, InvalidRecord
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_store.port import ObjectStore

_NS_PER_MS: Final = 1_000_000
_NS_PER_US: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FLAGS: Final = {"true": True, "false": False}


class InventoryColumn(StrEnum):
    """The columns that are read, as CSV reports name them."""

    BUCKET = "Bucket"
    KEY = "Key"
    VERSION_ID = "VersionId"
    IS_LATEST = "IsLatest"
    IS_DELETE_MARKER = "IsDeleteMarker"
    SIZE = "Size"
    LAST_MODIFIED_DATE = "LastModifiedDate"


_PARQUET_NAMES: Final = {
    InventoryColumn.BUCKET: "bucket",
    InventoryColumn.KEY: "key",
    InventoryColumn.VERSION_ID: "version_id",
    InventoryColumn.IS_LATEST: "is_latest",
    InventoryColumn.IS_DELETE_MARKER: "is_delete_marker",
    InventoryColumn.SIZE: "size",
    InventoryColumn.LAST_MODIFIED_DATE: "last_modified_date",
}
_ALWAYS_READ: Final = (
    InventoryColumn.KEY,
    InventoryColumn.IS_LATEST,
    InventoryColumn.IS_DELETE_MARKER,
)


class InventoryFile(msgspec.Struct, frozen=True, kw_only=True):
    """One data file of a report, as its manifest names it."""

    key: str
    size: int
    MD5checksum: str


class InventoryManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The `manifest.json` of a report. AWS sets the field names."""

    sourceBucket: str  # noqa: N815 - a field name of AWS
    fileFormat: str  # noqa: N815 - a field name of AWS
    fileSchema: str  # noqa: N815 - a field name of AWS
    files: tuple[InventoryFile, ...]
    creationTimestamp: str = "0"  # noqa: N815 - a field name of AWS

    @property
    def created_at_ns(self) -> UnixNs:
        """When AWS began to write the report; 0 when the manifest has no valid time."""
        milliseconds = self.creationTimestamp
        valid = milliseconds.isascii() and milliseconds.isdecimal()
        return UnixNs(int(milliseconds) * _NS_PER_MS if valid else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryRow:
    """One object version of a report. A field whose column was not read is None.

    `key` is the full key in the bucket, decoded. `latest` is None when the report lists current
    versions only. `version_id` is `null` when the version was written without versioning. A delete
    marker has size 0.
    """

    key: str
    latest: bool | None
    marker: bool
    bucket: str | None = None
    version_id: str | None = None
    size_bytes: int | None = None
    last_modified_ns: UnixNs | None = None

    @property
    def is_current_object(self) -> bool:
        """Whether a read of the key would have returned this version at the report's time."""
        return self.latest is not False and not self.marker


async def read_inventory_manifest(
    store: ObjectStore, key: ObjectKey
) -> tuple[InventoryManifest, UnixNs]:
    """Read a report's manifest and compare it with `manifest.checksum` next to it.

    `store` starts at the root of the bucket with the report. The time returned is the store's.
    """
    read = await store.get(key)
    checksum = await store.get(ObjectKey(f"{key[: key.rfind('/') + 1]}manifest.checksum"))
    if not isinstance(read, Found) or not isinstance(checksum, Found):
        raise InvalidRecord(key, "no inventory report: manifest.json or manifest.checksum missing")
    if _md5(read.body) != checksum.body.decode("ascii", "replace").strip():
        raise InvalidRecord(key, "the inventory manifest does not match manifest.checksum")
    try:
        return msgspec.json.decode(read.body, type=InventoryManifest), read.info.date_ns
    except UNREADABLE_JSON as error:
        raise InvalidRecord(key, f"not an inventory manifest: {error}") from error


async def read_inventory_rows(
    store: ObjectStore,
    manifest: InventoryManifest,
    file: InventoryFile,
    *,
    required: Sequence[InventoryColumn] = (InventoryColumn.KEY,),
) -> Iterator[InventoryRow]:
    """Read a data file, compare it with the manifest, and return its rows one at a time.

    `store` starts at the root of the bucket with the report. Of the columns that are not
    `required`, only `Key`, `IsLatest` and `IsDeleteMarker` are read.

    Raises:
        InvalidRecord: The file is missing, altered or malformed, has another format than CSV or
            Parquet, or has no such column. The iterator raises it too.
    """
    read = await store.get(ObjectKey(file.key))
    if not isinstance(read, Found):
        raise InvalidRecord(file.key, "file of the report is missing")
    if len(read.body) != file.size or _md5(read.body) != file.MD5checksum:
        raise InvalidRecord(file.key, "file of the report was altered")
    match manifest.fileFormat.upper():
        case "CSV":
            cells = _csv_cells(manifest, file.key, read.body, required)
        case "PARQUET":
            cells = _parquet_cells(file.key, read.body, required)
        case other:
            raise InvalidRecord(
                file.key, f"inventory format {other} is not supported: use CSV or Parquet"
            )
    return _rows(file.key, cells)


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


_Cells = Mapping[InventoryColumn, Any]
"""The cells of one row: text in CSV, typed values in Parquet."""


def _wanted(
    file_key: str,
    present: Sequence[str],
    names: Mapping[InventoryColumn, str],
    required: Sequence[InventoryColumn],
) -> list[InventoryColumn]:
    """Return the columns to read, in the order of `InventoryColumn`."""
    missing = [one for one in required if names[one] not in present]
    if missing or names[InventoryColumn.KEY] not in present:
        columns = ", ".join(missing or [InventoryColumn.KEY])
        raise InvalidRecord(
            file_key, f"the report has no column {columns}: add it, list all versions if needed"
        )
    wanted = {*_ALWAYS_READ, *required}
    return [one for one in InventoryColumn if one in wanted and names[one] in present]


def _csv_cells(
    manifest: InventoryManifest, file_key: str, body: bytes, required: Sequence[InventoryColumn]
) -> Iterator[_Cells]:
    """Yield the cells of a gzip CSV file, which has no header and URL-encoded keys."""
    present = [name.strip().lower() for name in manifest.fileSchema.split(",")]
    names = {one: one.value.lower() for one in InventoryColumn}
    places = {one: present.index(names[one]) for one in _wanted(file_key, present, names, required)}
    text = io.TextIOWrapper(gzip.GzipFile(fileobj=io.BytesIO(body)), encoding="utf-8", newline="")
    try:
        for row in csv.reader(text):
            if len(row) != len(present):
                raise InvalidRecord(file_key, f"a row has {len(row)} columns, not {len(present)}")
            cells = {one: row[at] for one, at in places.items()}
            cells[InventoryColumn.KEY] = unquote_plus(cells[InventoryColumn.KEY])
            yield cells
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidRecord(file_key, f"not gzip CSV in UTF-8: {error}") from error


def _parquet_cells(
    file_key: str, body: bytes, required: Sequence[InventoryColumn]
) -> Iterator[_Cells]:
    """Yield the cells of a Parquet file, whose keys are not encoded."""
    import pyarrow as pa  # noqa: PLC0415 - not among the base dependencies
    from pyarrow import parquet  # noqa: PLC0415 - not among the base dependencies

    try:
        opened: Any = parquet.ParquetFile(pa.BufferReader(body))
        wanted = _wanted(file_key, opened.schema_arrow.names, _PARQUET_NAMES, required)
        for batch in opened.iter_batches(columns=[_PARQUET_NAMES[one] for one in wanted]):
            for row in batch.to_pylist():
                yield {one: row[_PARQUET_NAMES[one]] for one in wanted}
    except pa.ArrowException as error:
        raise InvalidRecord(file_key, f"not Parquet: {error}") from error


def _rows(file_key: str, cells: Iterator[_Cells]) -> Iterator[InventoryRow]:
    try:
        for row in cells:
            yield _row(row)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidRecord(file_key, f"a row cannot be read: {error}") from error


def _row(cells: _Cells) -> InventoryRow:
    latest = cells.get(InventoryColumn.IS_LATEST)
    has_version = InventoryColumn.VERSION_ID in cells
    has_size = InventoryColumn.SIZE in cells
    modified = cells.get(InventoryColumn.LAST_MODIFIED_DATE)
    return InventoryRow(
        key=cells[InventoryColumn.KEY],
        latest=None if latest in {None, ""} else _flag(latest),
        marker=_flag(cells.get(InventoryColumn.IS_DELETE_MARKER) or False),
        bucket=cells.get(InventoryColumn.BUCKET),
        version_id=(cells[InventoryColumn.VERSION_ID] or "null") if has_version else None,
        size_bytes=int(cells[InventoryColumn.SIZE] or 0) if has_size else None,
        last_modified_ns=None if modified is None else _ns_of(modified),
    )


def _flag(value: str | bool) -> bool:  # noqa: FBT001 - a cell of a file
    if isinstance(value, bool):
        return value
    flag = _FLAGS.get(value.lower())
    if flag is None:
        raise ValueError(f"neither true nor false: {value!r}")
    return flag


def _ns_of(moment: str | datetime) -> UnixNs:
    at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return UnixNs(micros * _NS_PER_US)
