"""A cold scan from inventory reports, CSV and Parquet, intact and damaged."""

import asyncio
import gzip
from pathlib import Path

import pytest
from support import store_inventory as inventory
from support.reconciler_seed import accept, enqueued
from support.store_inventory import ReportRow, put_report

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import accepted_key
from sluice_protocol.units import ObjectKey
from sluice_reconciler.service import Reconciler
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore

MANIFEST = ObjectKey("inv/2026-11-20T00-00Z/manifest.json")


def csv_of(keys: list[str], *, gone: str = "") -> bytes:
    rows = [ReportRow(key=f"prod/{key}") for key in [*keys, "raw-blobs/v1/x"]]
    if gone:
        rows.append(ReportRow(key=gone, marker=True))
    return inventory.csv_of(rows)


def parquet_of(keys: list[str]) -> bytes:
    return inventory.parquet_of([ReportRow(key=key) for key in keys], inventory.CURRENT_ONLY)


def make(store: ObjectStore) -> Reconciler:
    return Reconciler(store, Authority(authority_id="A", lanes=2))


def test_batches_that_a_report_names_are_enqueued_once(tmp_path: Path) -> None:
    """A second scan and a pass enqueue no batch twice."""

    async def run() -> None:
        async with (
            open_local_store(tmp_path / "store") as store,
            open_local_store(tmp_path / "reports") as reports,
        ):
            keys: list[str] = [
                accepted_key((await accept(store, seq, agent=agent)).identity)
                for agent in ("a", "b")
                for seq in range(0, 100, 10)
            ]
            files = {"inv/data/1.csv.gz": csv_of(keys[:12], gone=keys[15])}
            await put_report(reports, MANIFEST, files, form="CSV")
            first = await make(store).scan_inventory(reports, MANIFEST)
            assert (first.named, first.foreign, first.outcome.enqueued) == (12, 1, 12)
            assert first.unreadable == ()
            assert first.age_s > 86_400
            await put_report(
                reports, MANIFEST, {"inv/data/2.parquet": parquet_of(keys)}, form="Parquet"
            )
            reconciler = make(store)
            second = await reconciler.scan_inventory(reports, MANIFEST)
            assert second.named == 20
            assert len(await enqueued(store)) in (12, 20)
            await make(store).once()
            found = [one.identity for one in await enqueued(store)]
            assert len(found) == len(set(found)) == 20

    asyncio.run(run())


def test_damaged_report_files_are_reported_and_the_others_are_read(tmp_path: Path) -> None:
    """A missing, an altered and a malformed file are reported; the intact one is read."""

    async def run() -> None:
        async with (
            open_local_store(tmp_path / "store") as store,
            open_local_store(tmp_path / "reports") as reports,
        ):
            key = accepted_key((await accept(store, 0)).identity)
            good = csv_of([key])
            more = [{"key": "inv/data/none", "size": 1, "MD5checksum": "0"}]
            files = {"a.gz": b"not gzip", "b.gz": good, "c.gz": gzip.compress(b"one,two\n")}
            await put_report(reports, MANIFEST, files, form="CSV", more=more)
            found = await make(store).scan_inventory(reports, MANIFEST)
            assert found.outcome.enqueued == 1
            assert [one.partition(":")[0] for one in found.unreadable] == [
                "a.gz",
                "c.gz",
                "inv/data/none",
            ]
            await reports.overwrite(ObjectKey("b.gz"), good[:-1] + b"?")
            altered = await make(store).scan_inventory(reports, MANIFEST)
            assert any("altered" in one for one in altered.unreadable)
            await put_report(reports, MANIFEST, {"b.gz": good}, form="ORC")
            orc = await make(store).scan_inventory(reports, MANIFEST)
            assert "ORC" in orc.unreadable[0]
            await reports.overwrite(MANIFEST, b"{}")
            with pytest.raises(BadUsage, match="checksum"):
                await make(store).scan_inventory(reports, MANIFEST)
            with pytest.raises(BadUsage, match="no inventory"):
                await make(store).scan_inventory(reports, ObjectKey("x/manifest.json"))

    asyncio.run(run())
