"""Candidates from an S3 Inventory that is complete and of this bucket; others are refused."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.gc_store import VersionedStore
from support.gc_world import AUDIT, HORIZON_S, KEYS, PLAN, GcWorld, memory_world
from support.store_inventory import ALL_VERSIONS, ReportRow, csv_of, md5_of, parquet_of

from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.inventory_candidates import InventorySource, read_inventory
from sluice_gc.planner import Planner
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol.collection_records import Plan
from sluice_protocol.keys import RAW_BLOBS
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey

BUCKET, PREFIX = "telemetry", "live/"
SOURCE = InventorySource(bucket=BUCKET, prefix=PREFIX)
MANIFEST = ObjectKey("inv/2026-11-20T01-00Z/manifest.json")
Rows = list[dict[str, Any]]


@dataclass
class Inventory:
    """An inventory in the layout of AWS, with two data files."""

    rows: Rows
    created_at_ns: int
    form: str = "CSV"
    bucket: str = BUCKET
    schema: str = ALL_VERSIONS

    def lay_down(self) -> VersionedStore:
        store = VersionedStore(clock=SystemClock())
        half = len(self.rows) // 2
        files = []
        for number, rows in enumerate((self.rows[:half], self.rows[half:])):
            report = [ReportRow(**row) for row in rows]
            body = csv_of(report) if self.form == "CSV" else parquet_of(report)
            key = ObjectKey(f"inv/data/{number}.{self.form}")
            store.put(key, body)
            files.append({"key": key, "size": len(body), "MD5checksum": md5_of(body)})
        manifest = {
            "sourceBucket": self.bucket,
            "destinationBucket": "arn:aws:s3:::lists",
            "version": "2016-11-30",
            "creationTimestamp": str(self.created_at_ns // 1_000_000),
            "fileFormat": self.form,
            "fileSchema": self.schema,
            "files": files,
        }
        body = json.dumps(manifest).encode()
        store.put(MANIFEST, body)
        store.put(
            ObjectKey("inv/2026-11-20T01-00Z/manifest.checksum"), md5_of(body).encode() + b"\n"
        )
        return store


def rows_of(store: VersionedStore) -> Rows:
    """Return the rows of an inventory of the store."""
    return [
        {
            "bucket": BUCKET,
            "key": PREFIX + key,
            "version": one.incarnation,
            "latest": number == 0,
            "marker": False,
            "size": len(one.body),
            "at_ns": one.at_ns,
        }
        for key, held in store.versions.items()
        for number, one in enumerate(held)
    ]


async def plan_with(world: GcWorld, lists: VersionedStore) -> Plan:
    table = await read_inventory(lists, MANIFEST, SOURCE, world.clock.now_ns())
    engine = LocalTaskEngine(world.store)
    planner = Planner(world.store, engine, KEYS, world.clock, world.ids)
    return await planner.plan(PLAN, inventory=table)


async def prepared(world: GcWorld) -> None:
    await world.accept(0)
    await world.quarantine(0, salt="other")
    await world.orphan(10)
    world.clock.pass_s(HORIZON_S + 2)


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
async def test_orphan_in_an_inventory_is_deleted(form: str) -> None:
    """With an inventory and an audit without blobs, only the orphan is deleted."""
    async with memory_world() as (world, store):
        await prepared(world)
        lists = Inventory(rows_of(store), world.clock.now_ns(), form).lay_down()
        certificate = await world.audit(replace(AUDIT, list_blobs=False))
        assert len(certificate.coverage) == 4
        with pytest.raises(GcRefused) as refused:
            await world.plan()
        assert refused.value.rule is RefusalRule.NO_CERTIFICATE
        plan = await plan_with(world, lists)
        assert plan.summary.blobs.incarnations == 3
        assert (await world.run(plan)).facts.deleted == 1


async def test_inventory_does_not_prove_an_absence() -> None:
    """A blob that was accepted after the inventory is kept because the audit saw its manifest."""
    async with memory_world() as (world, store):
        await prepared(world)
        stale = Inventory(rows_of(store), world.clock.now_ns()).lay_down()
        orphan = await world.orphan(10)
        await world.put_manifest(world.identity(10), orphan, indexed=False)
        await world.audit(replace(AUDIT, list_blobs=False))
        plan = await plan_with(world, stale)
        assert plan.summary.orphans.incarnations == 0


def _other_bucket(made: Inventory) -> VersionedStore:
    return replace(made, bucket="elsewhere").lay_down()


def _row_of_other_bucket(made: Inventory) -> VersionedStore:
    return replace(made, rows=[{**row, "bucket": "elsewhere"} for row in made.rows]).lay_down()


def _file_missing(made: Inventory) -> VersionedStore:
    lists = made.lay_down()
    lists.remove_key(ObjectKey("inv/data/1.CSV"))
    return lists


def _file_cut(made: Inventory) -> VersionedStore:
    lists = made.lay_down()
    key = ObjectKey("inv/data/0.CSV")
    lists.put(key, lists.versions[key][0].body[:-20])
    return lists


def _no_checksum(made: Inventory) -> VersionedStore:
    lists = made.lay_down()
    lists.remove_key(ObjectKey("inv/2026-11-20T01-00Z/manifest.checksum"))
    return lists


def _manifest_edited(made: Inventory) -> VersionedStore:
    lists = made.lay_down()
    lists.put(MANIFEST, lists.versions[MANIFEST][0].body.replace(b"2016", b"2017"))
    return lists


def _too_old(made: Inventory) -> VersionedStore:
    return replace(made, created_at_ns=made.created_at_ns - 8 * 86_400 * NS_PER_S).lay_down()


def _of_the_future(made: Inventory) -> VersionedStore:
    return replace(made, created_at_ns=made.created_at_ns + 60 * NS_PER_S).lay_down()


def _column_missing(made: Inventory) -> VersionedStore:
    return replace(made, schema=ALL_VERSIONS.replace("VersionId", "ETag")).lay_down()


def _orc(made: Inventory) -> VersionedStore:
    return replace(made, form="ORC").lay_down()


@pytest.mark.parametrize(
    "spoil",
    [
        *(_other_bucket, _row_of_other_bucket, _file_missing, _file_cut, _no_checksum),
        *(_manifest_edited, _too_old, _of_the_future, _column_missing, _orc),
    ],
)
async def test_bad_inventory_is_refused(spoil: Callable[[Inventory], VersionedStore]) -> None:
    """An incomplete, foreign, altered or old inventory is refused."""
    async with memory_world() as (world, store):
        await prepared(world)
        await world.audit()
        lists = spoil(Inventory(rows_of(store), world.clock.now_ns()))
        with pytest.raises(GcRefused) as refused:
            await plan_with(world, lists)
        assert refused.value.rule is RefusalRule.INVENTORY


async def test_foreign_key_in_an_inventory_is_refused() -> None:
    """A blob key of unknown form in an inventory prevents a plan."""
    async with memory_world() as (world, store):
        await prepared(world)
        await world.audit()
        foreign = {**rows_of(store)[0], "key": f"{PREFIX}{RAW_BLOBS}notes.txt"}
        lists = Inventory([*rows_of(store), foreign], world.clock.now_ns()).lay_down()
        with pytest.raises(GcRefused) as refused:
            await plan_with(world, lists)
        assert refused.value.rule is RefusalRule.FOREIGN_KEYS
