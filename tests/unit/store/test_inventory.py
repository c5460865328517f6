"""Reports of S3 Inventory: which rows are read, and which reports are rejected."""

import asyncio
import gzip
from collections.abc import Callable, Sequence

import pytest
from support.memory_bucket import open_memory_store
from support.store_inventory import (
    ALL_VERSIONS,
    CURRENT_ONLY,
    ReportRow,
    csv_of,
    parquet_of,
    put_report,
)

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.inventory import (
    InventoryColumn,
    InventoryRow,
    read_inventory_manifest,
    read_inventory_rows,
)
from sluice_store.port import ObjectStore

MANIFEST = ObjectKey("inv/2026-11-20T00-00Z/manifest.json")
EVERY_COLUMN = tuple(InventoryColumn)
ROWS = [
    ReportRow(key="prod/a b+c=ü", version="v2"),
    ReportRow(key="prod/a b+c=ü", version="v1", latest=False),
    ReportRow(key="prod/gone", version="v9", marker=True, size=0),
    ReportRow(key="prod/gone", version="", latest=False),
]
FORMS: list[tuple[str, Callable[[Sequence[ReportRow], str], bytes]]] = [
    ("CSV", csv_of),
    ("Parquet", parquet_of),
]
by_form = pytest.mark.parametrize(("form", "encode"), FORMS, ids=["CSV", "Parquet"])


async def rows_of(
    store: ObjectStore, required: Sequence[InventoryColumn] = (InventoryColumn.KEY,)
) -> list[InventoryRow]:
    manifest, _ = await read_inventory_manifest(store, MANIFEST)
    return [
        row
        for file in manifest.files
        for row in await read_inventory_rows(store, manifest, file, required=required)
    ]


@by_form
async def test_every_column_of_a_report_of_all_versions_is_decoded(
    form: str, encode: Callable[[Sequence[ReportRow], str], bytes]
) -> None:
    store, _ = open_memory_store()
    await put_report(store, MANIFEST, {"inv/data/1": encode(ROWS, ALL_VERSIONS)}, form=form)
    found = await rows_of(store, EVERY_COLUMN)
    assert found == [
        InventoryRow(
            key=row.key,
            latest=row.latest,
            marker=row.marker,
            bucket="telemetry",
            version_id=row.version or "null",
            size_bytes=row.size,
            last_modified_ns=row.at_ns,
        )
        for row in ROWS
    ]


@by_form
async def test_noncurrent_versions_and_delete_markers_are_no_current_objects(
    form: str, encode: Callable[[Sequence[ReportRow], str], bytes]
) -> None:
    store, _ = open_memory_store()
    await put_report(store, MANIFEST, {"inv/data/1": encode(ROWS, ALL_VERSIONS)}, form=form)
    found = await rows_of(store)
    assert [row.is_current_object for row in found] == [True, False, False, False]
    assert all(row.version_id is None for row in found)


@by_form
async def test_every_row_of_a_report_of_current_versions_is_a_current_object(
    form: str, encode: Callable[[Sequence[ReportRow], str], bytes]
) -> None:
    """S3 leaves `IsLatest` and `IsDeleteMarker` out of a report of current versions only."""
    store, _ = open_memory_store()
    body = encode(ROWS[:1], CURRENT_ONLY)
    await put_report(store, MANIFEST, {"inv/data/1": body}, form=form, schema=CURRENT_ONLY)
    (row,) = await rows_of(store)
    assert row.latest is None
    assert row.is_current_object


@by_form
async def test_a_report_of_current_versions_has_no_columns_that_distinguish_versions(
    form: str, encode: Callable[[Sequence[ReportRow], str], bytes]
) -> None:
    store, _ = open_memory_store()
    body = encode(ROWS[:1], CURRENT_ONLY)
    await put_report(store, MANIFEST, {"inv/data/1": body}, form=form, schema=CURRENT_ONLY)
    with pytest.raises(InvalidRecord, match="no column VersionId, IsLatest, IsDeleteMarker"):
        await rows_of(store, EVERY_COLUMN)


async def test_the_age_of_a_report_is_in_its_manifest() -> None:
    store, _ = open_memory_store()
    await put_report(store, MANIFEST, {}, created_at_ns=1_700_000_123 * NS_PER_S)
    manifest, date_ns = await read_inventory_manifest(store, MANIFEST)
    assert manifest.created_at_ns == 1_700_000_123 * NS_PER_S
    assert date_ns > manifest.created_at_ns


async def _no_manifest(store: ObjectStore) -> None:
    del store


async def _no_checksum(store: ObjectStore) -> None:
    await store.overwrite(MANIFEST, b"{}")


async def _edited_manifest(store: ObjectStore) -> None:
    await put_report(store, MANIFEST, {})
    await store.overwrite(MANIFEST, b"{}")


async def _malformed_manifest(store: ObjectStore) -> None:
    await store.overwrite(MANIFEST, b"{}")
    checksum = b"99914b932bd37a50b983c5e7c90ae93b"
    await store.overwrite(ObjectKey("inv/2026-11-20T00-00Z/manifest.checksum"), checksum)


async def _file_missing(store: ObjectStore) -> None:
    await put_report(store, MANIFEST, {"inv/data/1": csv_of(ROWS)})
    other = open_memory_store()[0]
    await put_report(other, MANIFEST, {"inv/data/2": csv_of(ROWS)})
    for name in ("manifest.json", "manifest.checksum"):
        read = await other.get(ObjectKey(f"inv/2026-11-20T00-00Z/{name}"))
        await store.overwrite(read.info.key, read.body)


async def _file_altered(store: ObjectStore) -> None:
    await put_report(store, MANIFEST, {"inv/data/1": csv_of(ROWS)})
    await store.overwrite(ObjectKey("inv/data/1"), csv_of(ROWS[:2]))


async def _file_of_the_same_size_altered(store: ObjectStore) -> None:
    body = csv_of(ROWS)
    await put_report(store, MANIFEST, {"inv/data/1": body})
    await store.overwrite(ObjectKey("inv/data/1"), body[:-1] + b"?")


async def _not_gzip(store: ObjectStore) -> None:
    await put_report(store, MANIFEST, {"inv/data/1": b"not gzip"})


async def _cut_gzip(store: ObjectStore) -> None:
    await put_report(store, MANIFEST, {"inv/data/1": csv_of(ROWS)[:-9]})


async def _too_few_columns(store: ObjectStore) -> None:
    await put_report(store, MANIFEST, {"inv/data/1": gzip.compress(b"one,two\n")})


async def _bad_flag(store: ObjectStore) -> None:
    body = gzip.compress(b'"telemetry","k","v1","perhaps","false","1","2026-11-20T00:00:00.000Z"\n')
    await put_report(store, MANIFEST, {"inv/data/1": body})


async def _bad_date(store: ObjectStore) -> None:
    body = gzip.compress(b'"telemetry","k","v1","true","false","1","yesterday"\n')
    await put_report(store, MANIFEST, {"inv/data/1": body})


async def _not_parquet(store: ObjectStore) -> None:
    await put_report(store, MANIFEST, {"inv/data/1": b"not Parquet"}, form="Parquet")


async def _orc(store: ObjectStore) -> None:
    await put_report(store, MANIFEST, {"inv/data/1": b""}, form="ORC")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_no_manifest, "manifest.json or manifest.checksum missing"),
        (_no_checksum, "manifest.json or manifest.checksum missing"),
        (_edited_manifest, "does not match manifest.checksum"),
        (_malformed_manifest, "not an inventory manifest"),
        (_file_missing, "file of the report is missing"),
        (_file_altered, "file of the report was altered"),
        (_file_of_the_same_size_altered, "file of the report was altered"),
        (_not_gzip, "not gzip CSV"),
        (_cut_gzip, "not gzip CSV"),
        (_too_few_columns, "a row has 2 columns, not 7"),
        (_bad_flag, "neither true nor false"),
        (_bad_date, "a row cannot be read"),
        (_not_parquet, "not Parquet"),
        (_orc, "format ORC is not supported"),
    ],
)
async def test_a_spoiled_report_is_rejected_with_its_reason(
    spoil: Callable[[ObjectStore], "asyncio.Future[None]"], reason: str
) -> None:
    store, _ = open_memory_store()
    await spoil(store)
    with pytest.raises(InvalidRecord, match=reason):
        await rows_of(store, EVERY_COLUMN)
