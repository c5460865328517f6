"""A cold scan from inventory reports, CSV and Parquet, intact and damaged."""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.reconciler_seed import accept, enqueued
from support.store_inventory import ReportRow, csv_of, parquet_of, put_report

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import accepted_key
from sluice_protocol.units import ObjectKey
from sluice_reconciler.service import Reconciler
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore

MANIFEST = ObjectKey("inv/2026-11-20T00-00Z/manifest.json")


ENCODERS: dict[str, Callable[[Sequence[ReportRow]], bytes]] = {
    "CSV": csv_of,
    "Parquet": parquet_of,
}


def make(store: ObjectStore) -> Reconciler:
    return Reconciler(store, Authority(authority_id="A", lanes=2))


@pytest.mark.parametrize("forms", [("CSV", "Parquet"), ("Parquet", "CSV")])
async def test_batches_that_a_report_names_are_enqueued_once(
    tmp_path: Path, forms: tuple[str, str]
) -> None:
    """The first report names a part, the second one everything: no batch is enqueued twice, and the
    pass at the end finds none that they left out.
    """
    async with (
        open_local_store(tmp_path / "store") as store,
        open_local_store(tmp_path / "reports") as reports,
    ):
        keys: list[str] = [
            accepted_key((await accept(store, seq, agent=agent)).identity)
            for agent in ("a", "b")
            for seq in range(0, 100, 10)
        ]
        rows = [ReportRow(key=f"prod/{key}") for key in keys]
        report = ENCODERS[forms[0]](
            [*rows[:12], ReportRow(key="prod/raw-blobs/v1/x"), replace(rows[15], marker=True)]
        )
        await put_report(reports, MANIFEST, {"inv/data/1": report}, form=forms[0])
        first = await make(store).scan_inventory(reports, MANIFEST)
        assert (first.named, first.foreign, first.outcome.enqueued) == (12, 1, 12)
        assert first.unreadable == ()
        assert first.age_s > 86_400
        report = ENCODERS[forms[1]](rows)
        await put_report(reports, MANIFEST, {"inv/data/2": report}, form=forms[1])
        second = await make(store).scan_inventory(reports, MANIFEST)
        assert (second.named, second.foreign, second.outcome.enqueued) == (20, 0, 8)
        assert second.unreadable == ()
        found = sorted(accepted_key(one.identity) for one in await enqueued(store))
        assert found == sorted(keys)
        # The pass finds no batch that the scans left out.
        assert (await make(store).once()).outcome.enqueued == 0


async def test_damaged_report_files_are_reported_and_the_others_are_read(tmp_path: Path) -> None:
    """A missing, an altered and a malformed file are reported; the intact one is read."""
    async with (
        open_local_store(tmp_path / "store") as store,
        open_local_store(tmp_path / "reports") as reports,
    ):
        key = accepted_key((await accept(store, 0)).identity)
        good = csv_of([ReportRow(key=f"prod/{key}")])
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
