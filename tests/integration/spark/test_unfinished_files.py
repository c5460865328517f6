"""Files that a killed job has left: an erasure finds them, and removes them when they are old."""

import os
import shutil
from pathlib import Path
from typing import Any

from support.spark_lake import Deployment, make_batch
from support.spark_local import ingest_locally, merge_locally

from sluice_lake.tables import LOGS
from sluice_protocol.erasure import decide_erasure
from sluice_protocol.units import NS_PER_S
from sluice_spark.erasure import ErasureLake

KEPT_HOURS = 3


def test_unfinished_files_are_kept_longer_than_replaced_ones(spark: Any, tmp_path: Path) -> None:
    place = Deployment(tmp_path, lanes=1).init()
    for n in range(2):
        place.deliver([make_batch(n * 10)])
        ingest_locally(place.url)
    folder = place.root / "lake/v1/logs"
    replaced = {str(one.relative_to(folder)) for one in folder.glob("*=*/*.parquet")}
    merge_locally(place.url, LOGS)
    present = {str(one.relative_to(folder)) for one in folder.glob("*=*/*.parquet")} - replaced
    (source,) = present
    killed = (folder / source).with_name("killed.parquet")
    shutil.copy(folder / source, killed)
    cut = killed.with_name("cut.parquet")
    cut.write_bytes(b"PAR1")
    unfinished = {str(one.relative_to(folder)): one.stat().st_mtime_ns for one in (killed, cut)}

    lake = ErasureLake(spark=spark, store_url=place.url)
    deletes = decide_erasure(
        "agent = 'host-1'",
        ("logs",),
        (None, None),
        "request 17",
        erasure_id="01J00000000000000000000000",
        delete_ids=["01J00000000000000000000001"],
        now_ns=2_000_000_000 * NS_PER_S,
        decided_by="operator:ann",
    ).deletes
    found = lake.search(deletes)["logs"]
    assert found.rows > 0
    assert set(found.replaced) == replaced
    assert found.unfinished == unfinished

    lake.remove_replaced(["logs"], 0, KEPT_HOURS)
    found = lake.search(deletes)["logs"]
    assert (found.replaced, found.unfinished) == ((), unfinished)

    old_ns = killed.stat().st_mtime_ns - (KEPT_HOURS + 1) * 3_600 * NS_PER_S
    os.utime(killed, ns=(old_ns, old_ns))
    lake.remove_replaced(["logs"], 0, KEPT_HOURS)
    found = lake.search(deletes)["logs"]
    assert list(found.unfinished) == [str(cut.relative_to(folder))]
    assert (killed.exists(), (folder / source).exists()) == (False, True)
