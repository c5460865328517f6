"""Blob versions from an S3 Inventory, which name candidates of a plan.

An inventory is verified completely but proves nothing: the plan compares each version with the
audit, and the run lists each one again before it deletes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.evidence_files import BLOBS, digest_bytes
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import RAW_BLOBS, parse_blob_key
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store import StoreMode, open_store
from sluice_store.authority import read_store_time
from sluice_store.inventory import (
    InventoryColumn,
    InventoryManifest,
    InventoryRow,
    read_inventory_manifest,
    read_inventory_rows,
)
from sluice_store.port import ObjectStore
from sluice_store.s3.settings import parse_s3_url

_COLUMNS: Final = tuple(InventoryColumn)
"""Every column is required: only a report of all versions distinguishes the versions of a blob."""

AGE_S_MAX: Final = 7 * 86_400.0
"""Maximum age of an inventory. S3 writes one each day or each week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventorySource:
    """The bucket of the authority, and its prefix in it with a slash, or empty."""

    bucket: str
    prefix: str


async def open_inventory(store: ObjectStore, store_url: str, inventory: str) -> pa.Table:
    """Read an inventory of the store's bucket.

    `inventory` is the store URL of the bucket or directory, `#`, and the key of its
    `manifest.json`.
    """
    if not store_url.startswith("s3://"):
        raise BadUsage(f"an inventory describes a bucket: omit --inventory, store=`{store_url}`")
    place, _, key = inventory.partition("#")
    if not place or not key:
        raise BadUsage(
            f"name an inventory as <store URL>#<key of manifest.json>, inventory=`{inventory}`"
        )
    authority = parse_s3_url(store_url)
    source = InventorySource(bucket=authority.bucket, prefix=authority.prefix)
    now_ns = await read_store_time(store)
    async with open_store(place, StoreMode.READ) as inventories:
        return await read_inventory(inventories, ObjectKey(key), source, now_ns)


async def read_inventory(
    store: ObjectStore, manifest_key: ObjectKey, source: InventorySource, now_ns: UnixNs
) -> pa.Table:
    """Return the blob versions of an inventory as rows of `BLOBS`, in key order.

    `store` is the bucket with the inventory, from its root; `manifest.checksum` must exist next to
    the manifest. Refuse an inventory of another bucket, incomplete, altered, too old, without a
    required column, or with a blob key of unknown form.
    """
    try:
        manifest, _ = await read_inventory_manifest(store, manifest_key)
        check_manifest(manifest, source, now_ns)
        tables = [
            _table(await read_inventory_rows(store, manifest, one, required=_COLUMNS), source)
            for one in manifest.files
        ]
    except InvalidRecord as error:
        raise _refuse(f"{error.reason}, key={error.key}") from error
    return pa.concat_tables([BLOBS.empty_table(), *tables]).sort_by("sha256")


def _refuse(reason: str) -> GcRefused:
    return GcRefused(RefusalRule.INVENTORY, f"inventory: {reason}")


def check_manifest(manifest: InventoryManifest, source: InventorySource, now_ns: UnixNs) -> None:
    """Refuse an inventory of another bucket, too old, from the future, or without files."""
    if manifest.sourceBucket != source.bucket:
        raise _refuse(f"wrong bucket, bucket={manifest.sourceBucket} expected={source.bucket}")
    age_s = (now_ns - manifest.created_at_ns) / NS_PER_S
    if not 0 <= age_s <= AGE_S_MAX:
        raise _refuse(f"it is too old, age_s={age_s:.0f} limit_s={AGE_S_MAX:.0f}")
    if not manifest.files:
        raise _refuse("it is incomplete: it has no file")


def _table(rows: Iterator[InventoryRow], source: InventorySource) -> pa.Table:
    """Return rows of `BLOBS`; keys outside the authority's blobs are ignored."""
    found = list(_blobs(rows, source))
    return pa.Table.from_pylist(found, schema=BLOBS)


def _blobs(rows: Iterator[InventoryRow], source: InventorySource) -> Iterator[dict[str, object]]:
    root = f"{source.prefix}{RAW_BLOBS}"
    for row in rows:
        if row.bucket != source.bucket:
            raise _refuse(
                f"a row has the wrong bucket, bucket={row.bucket} expected={source.bucket}"
            )
        if row.latest is None:
            raise _refuse(f"a row does not state whether its version is current, key={row.key}")
        if row.key.startswith(root) and not row.marker:
            yield {
                "sha256": _digest(row.key.removeprefix(source.prefix)),
                "incarnation": row.version_id,
                "last_modified_ns": row.last_modified_ns,
                "size_bytes": row.size_bytes,
                "current": row.latest,
            }


def _digest(key: str) -> bytes:
    try:
        return digest_bytes(parse_blob_key(key))
    except InvalidRecord as error:
        raise GcRefused(
            RefusalRule.FOREIGN_KEYS, f"the inventory contains a key of unknown form, key={key}"
        ) from error
