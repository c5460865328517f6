"""A cold scan from inventory reports, CSV and Parquet, intact and damaged."""

import asyncio
import gzip
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.reconciler_seed import accept, enqueued

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import accepted_key
from sluice_protocol.units import ObjectKey
from sluice_reconciler.service import Reconciler
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore

MANIFEST = ObjectKey("inv/2026-11-20T00-00Z/manifest.json")


def csv_of(keys: list[str], gone: str = "") -> bytes:
    """Return a report of these keys, and of one whose current version is a delete marker."""
    rows = [f'"b","prod%2F{quote(key)}","true","false"' for key in keys]
    if gone:
        rows.append(f'"b","{quote(gone)}","true","true"')
    return gzip.compress("\n".join(rows).encode())


def parquet_of(keys: list[str], gone: str = "") -> bytes:
    """Return the same report as Parquet, which does not encode keys."""
    rows = [(f"prod/{key}", False) for key in keys] + ([(gone, True)] if gone else [])
    columns = {
        "bucket": ["b"] * len(rows),
        "key": [key for key, _ in rows],
        "is_latest": [True] * len(rows),
        "is_delete_marker": [marker for _, marker in rows],
    }
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


ENCODERS: dict[str, Callable[[list[str], str], bytes]] = {"CSV": csv_of, "Parquet": parquet_of}


async def put_report(store: ObjectStore, form: str, files: dict[str, bytes], **extra: Any) -> None:
    described = [
        {
            "key": name,
            "size": len(body),
            "MD5checksum": hashlib.md5(body, usedforsecurity=False).hexdigest(),
        }
        for name, body in files.items()
    ]
    body = json.dumps(
        {
            "sourceBucket": "b",
            "version": "2016-11-30",
            "creationTimestamp": "1700000000000",
            "fileFormat": form,
            "fileSchema": "Bucket, Key, IsLatest, IsDeleteMarker",
            "files": described + extra.get("more", []),
        }
    ).encode()
    await store.overwrite(MANIFEST, body)
    checksum = hashlib.md5(body, usedforsecurity=False).hexdigest()
    await store.overwrite(ObjectKey("inv/2026-11-20T00-00Z/manifest.checksum"), checksum.encode())
    for name, data in files.items():
        await store.overwrite(ObjectKey(name), data)


def make(store: ObjectStore) -> Reconciler:
    return Reconciler(store, Authority(authority_id="A", lanes=2))


@pytest.mark.parametrize("forms", [("CSV", "Parquet"), ("Parquet", "CSV")])
def test_batches_that_a_report_names_are_enqueued_once(
    tmp_path: Path, forms: tuple[str, str]
) -> None:
    """The first report names a part, the second one everything: no batch is enqueued twice, and the
    pass at the end finds none that they left out.
    """

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
            foreign = "raw-blobs/v1/x"
            report = ENCODERS[forms[0]]([*keys[:12], foreign], keys[15])
            await put_report(reports, forms[0], {"inv/data/1": report})
            first = await make(store).scan_inventory(reports, MANIFEST)
            assert (first.named, first.foreign, first.outcome.enqueued) == (12, 1, 12)
            assert first.unreadable == ()
            assert first.age_s > 86_400
            await put_report(reports, forms[1], {"inv/data/2": ENCODERS[forms[1]](keys, "")})
            second = await make(store).scan_inventory(reports, MANIFEST)
            assert (second.named, second.foreign, second.outcome.enqueued) == (20, 0, 8)
            assert second.unreadable == ()
            found = sorted(accepted_key(one.identity) for one in await enqueued(store))
            assert found == sorted(keys)
            # The pass finds no batch that the scans left out.
            assert (await make(store).once()).outcome.enqueued == 0

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
            await put_report(reports, "CSV", files, more=more)
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
            await put_report(reports, "ORC", {"b.gz": good})
            orc = await make(store).scan_inventory(reports, MANIFEST)
            assert "ORC" in orc.unreadable[0]
            await reports.overwrite(MANIFEST, b"{}")
            with pytest.raises(BadUsage, match="checksum"):
                await make(store).scan_inventory(reports, MANIFEST)
            with pytest.raises(BadUsage, match="no inventory"):
                await make(store).scan_inventory(reports, ObjectKey("x/manifest.json"))

    asyncio.run(run())
