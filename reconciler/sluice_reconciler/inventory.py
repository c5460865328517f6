"""A cold scan from an S3 Inventory report instead of listing everything.

A report is days old and may leave out what came or went around its time, so it only names
candidates: what it names is read from the store, and what it does not name proves nothing. Its
manifest must match its checksum and each file the MD5 and size that the manifest says; a file that
does not, or is missing, is reported and the others are read.

Source: docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory-location.html
"""

import csv
import gzip
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus

import msgspec
import structlog

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_reconciler.events import accepted_of
from sluice_reconciler.new_batches import ComparedRanges
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_store.port import ObjectStore

log = structlog.get_logger()

CHUNK: Final = 2048
_MS_PER_S: Final = 1000


class InventoryFile(msgspec.Struct, frozen=True):
    """One data file of a report."""

    key: str
    size: int
    MD5checksum: str


class InventoryManifest(msgspec.Struct, frozen=True):
    """The report's own description; the names are those of S3."""

    sourceBucket: str  # noqa: N815 - the name in the file
    fileFormat: str  # noqa: N815 - the name in the file
    fileSchema: str  # noqa: N815 - the name in the file
    files: tuple[InventoryFile, ...]
    creationTimestamp: str = "0"  # noqa: N815 - the name in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryScanResult:
    """What a scan of a report did.

    Attributes:
        age_s: How old the report is by the store's clock, seconds.
        named: Accepted keys that it names.
        foreign: Other keys that it names.
        unreadable: Files that are missing, altered or malformed, each with the reason.
        outcome: What became of the keys that were not done.
    """

    age_s: float
    named: int
    foreign: int
    unreadable: tuple[str, ...]
    outcome: PipelineResult


async def scan_inventory(
    pipeline: BatchPipeline, reports: ObjectStore, manifest_key: ObjectKey
) -> InventoryScanResult:
    """Takes every batch that a report names and that was not done.

    Args:
        pipeline: Processes the keys.
        reports: The bucket that holds the report, from its root.
        manifest_key: The report's `manifest.json`.

    Raises:
        BadUsage: There is no such report, or its manifest does not match its checksum.
        StoreError: A store did not answer.
    """
    manifest, date_ns = await _read_manifest(reports, manifest_key)
    scan = _Scan(pipeline)
    for file in manifest.files:
        try:
            await scan.take(_keys(manifest, file, await _read_file(reports, file)))
        except InvalidRecord as error:
            log.warning("inventory file not usable", key=file.key, reason=error.reason)
            scan.unreadable.append(f"{file.key}: {error.reason}")
    created_ms = int(manifest.creationTimestamp) if manifest.creationTimestamp.isdecimal() else 0
    return InventoryScanResult(
        age_s=max(0.0, date_ns / 1e9 - created_ms / _MS_PER_S),
        named=scan.named,
        foreign=scan.foreign,
        unreadable=tuple(scan.unreadable),
        outcome=scan.outcome,
    )


class _Scan:
    """Adds up what the files of one report named."""

    def __init__(self, pipeline: BatchPipeline) -> None:
        self._pipeline = pipeline
        self._compared: ComparedRanges = {}
        self.named = 0
        self.foreign = 0
        self.unreadable: list[str] = []
        self.outcome = PipelineResult()

    async def take(self, keys: Iterator[str]) -> None:
        """Hands a file's keys to the intake, a chunk at a time."""
        chunk: list[ObjectKey] = []
        for raw in keys:
            key = accepted_of(raw)
            if key is None:
                self.foreign += 1
                continue
            self.named += 1
            chunk.append(key)
            if len(chunk) >= CHUNK:
                await self._flush(chunk)
                chunk = []
        await self._flush(chunk)

    async def _flush(self, chunk: list[ObjectKey]) -> None:
        if chunk:
            done = await self._pipeline.process_new(chunk, compared=self._compared)
            self.outcome = self.outcome.plus(done)


async def _read_manifest(
    reports: ObjectStore, manifest_key: ObjectKey
) -> tuple[InventoryManifest, int]:
    read = await reports.get(manifest_key)
    place = manifest_key.rpartition("/")[0]
    checksum = await reports.get(ObjectKey(f"{place}/manifest.checksum".lstrip("/")))
    if not isinstance(read, Found) or not isinstance(checksum, Found):
        raise BadUsage(f"no inventory report with manifest and checksum, key=`{manifest_key}`")
    found = hashlib.md5(read.body, usedforsecurity=False).hexdigest()
    if checksum.body.decode("ascii", "replace").strip() != found:
        raise BadUsage(f"inventory manifest does not match its checksum, key=`{manifest_key}`")
    try:
        return msgspec.json.decode(read.body, type=InventoryManifest), read.info.date_ns
    except msgspec.DecodeError as error:
        raise BadUsage(f"not an inventory manifest: {error}, key=`{manifest_key}`") from error


async def _read_file(reports: ObjectStore, file: InventoryFile) -> bytes:
    read = await reports.get(ObjectKey(file.key))
    if not isinstance(read, Found):
        raise InvalidRecord(file.key, "file of the report is missing")
    found = hashlib.md5(read.body, usedforsecurity=False).hexdigest()
    if len(read.body) != file.size or found != file.MD5checksum:
        raise InvalidRecord(file.key, "file of the report was altered")
    return read.body


def _keys(manifest: InventoryManifest, file: InventoryFile, body: bytes) -> Iterator[str]:
    """Gives the full keys of current objects that a file names.

    Raises:
        InvalidRecord: The file is malformed, or of a format other than CSV and Parquet.
    """
    match manifest.fileFormat.upper():
        case "CSV":
            return _csv_keys(manifest, file, body)
        case "PARQUET":
            return _parquet_keys(file, body)
        case other:
            raise InvalidRecord(file.key, f"inventory format {other} is not read; use CSV, Parquet")


def _csv_keys(manifest: InventoryManifest, file: InventoryFile, body: bytes) -> Iterator[str]:
    names = [name.strip().lower() for name in manifest.fileSchema.split(",")]
    if "key" not in names:
        raise InvalidRecord(file.key, "the report has no column Key")
    try:
        text = gzip.decompress(body).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidRecord(file.key, f"not gzip of UTF-8: {error}") from error
    for row in csv.reader(io.StringIO(text)):
        if len(row) != len(names):
            raise InvalidRecord(file.key, f"a row has {len(row)} columns, not {len(names)}")
        values = dict(zip(names, row, strict=True))
        if _is_current(values.get("islatest", ""), values.get("isdeletemarker", "")):
            yield unquote_plus(values["key"])  # CSV reports are URL-encoded, Parquet ones are not


def _is_current(latest: str, marker: str) -> bool:
    return latest.lower() != "false" and marker.lower() != "true"


def _parquet_keys(file: InventoryFile, body: bytes) -> Iterator[str]:
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    try:
        opened: Any = parquet.ParquetFile(pa.BufferReader(body))
        present = set(opened.schema_arrow.names)
        wanted = [name for name in ("key", "is_latest", "is_delete_marker") if name in present]
        if "key" not in wanted:
            raise InvalidRecord(file.key, "the report has no column key")
        for batch in opened.iter_batches(columns=wanted):
            for row in batch.to_pylist():
                if row.get("is_latest") is not False and not row.get("is_delete_marker"):
                    yield row["key"]
    except pa.ArrowException as error:
        raise InvalidRecord(file.key, f"not Parquet: {error}") from error
