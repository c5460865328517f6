"""Benchmark `read_back`: the comparison of batches with their table, as a run of expiry makes it.

Spark decodes every blob again and reads the rows of its batch: their number, and a hash of their
contents that does not depend on their order. A run compares 10,000 batches in a job, so its memory
does not grow with their number. The control counts rows and adds up hashes for each batch of the
same files in DuckDB, which reads no blob. The start of Spark and DuckDB is not measured.

`SLUICE_BENCH_READ_BACK_BATCHES` sets the number of batches, by default 10^6. Each has four records.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.manifests import log_manifest
from benchmarks.measure import Sample, forget_peaks, peak_gib, report, timed
from sluice_gc.expiry_run import BATCHES_TOGETHER
from sluice_lake.delta import open_or_create_table
from sluice_lake.records import DecodedBatch, records_table
from sluice_lake.schemas import arrow_schema, conform
from sluice_lake.tables import LOGS, accepted_date
from sluice_protocol.columns import LogColumns, TextColumn
from sluice_protocol.frame import decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import blob_key
from sluice_protocol.manifests import AcceptedManifest
from sluice_spark.read_back import compare_batches
from sluice_spark.session import SessionSettings, open_session
from sluice_store import StoreMode, open_store

BATCHES: Final = "1000000"
RECORDS: Final = 4
IN_FILE: Final = 10_000
"""Batches of one data file of the table."""
AGENTS: Final = 1_000
CORES: Final = 2
MEMORY_GIB_MAX: Final = 1.5
T0_NS: Final = 1_790_000_000_000_000_000


def main() -> None:
    """Compare every batch, and print the time of each job and the memory of all processes."""
    batches = int(os.environ.get("SLUICE_BENCH_READ_BACK_BATCHES", BATCHES))
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-read-back-"))
    session = open_session(SessionSettings(master=f"local[{CORES}]"), delta=False)
    jobs: list[Sample] = []
    controls: list[Sample] = []
    try:
        asyncio.run(_create_store(folder))
        manifests = _make(folder, batches)
        forget_peaks()
        for at in range(0, batches, BATCHES_TOGETHER):
            some = manifests[at : at + BATCHES_TOGETHER]
            jobs.append(timed(partial(_compare, session, folder, some)))
            controls.append(timed(partial(_control, folder, some)))
        peak = peak_gib()
    finally:
        session.stop()
        shutil.rmtree(folder)
    walls = [one.wall_s for one in jobs]
    wall_s, control_s = sum(walls), sum(one.wall_s for one in controls)
    speed = f"{wall_s:.0f} s, {batches / wall_s:,.0f} batches/s"
    ends = f"the first job {walls[0]:.0f} s, the last {walls[-1]:.0f} s"
    report(
        "read_back",
        [
            f"{batches:,} batches of {RECORDS} records in {len(jobs)} jobs: {speed}; {ends}",
            f"  {wall_s / control_s:.1f} x DuckDB, which reads the table only",
            f"  peak memory of all its processes {peak:.2f} GiB (bar {MEMORY_GIB_MAX})",
        ],
        {"read_back": jobs, "duckdb": controls},
    )


async def _create_store(folder: Path) -> None:
    async with open_store(f"file://{folder}", StoreMode.CREATE):
        pass


def _make(folder: Path, batches: int) -> list[AcceptedManifest]:
    """Write the blobs, and the table with their records."""
    url, schema = f"file://{folder}", arrow_schema(LOGS, partition=False)
    manifests: list[AcceptedManifest] = []
    for first in range(0, batches, IN_FILE):
        decoded: list[DecodedBatch] = []
        for number in range(first, min(first + IN_FILE, batches)):
            manifest, frame = _batch(number)
            path = folder / blob_key(manifest.digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(frame)
            manifests.append(manifest)
            at_ns = manifest.accepted_at_unix_ns
            decoded.append(
                DecodedBatch(frame=decode_frame(frame), accepted_at_ns=at_ns, sequence=0)
            )
        rows = conform(records_table("logs", decoded), schema)
        dates = pa.array([accepted_date(T0_NS)] * len(rows)).cast(pa.date32())
        rows = rows.append_column(LOGS.partition_column, dates)
        write_deltalake(open_or_create_table(url, LOGS), rows, mode="append")
    return manifests


def _batch(number: int) -> tuple[AcceptedManifest, bytes]:
    start = number // AGENTS * RECORDS
    who = Identity(
        agent_id=f"host-{number % AGENTS}",
        boot_id="b",
        seq_start=start,
        seq_end=start + RECORDS - 1,
    )
    bodies = [b"GET /api/v1/items/%d?batch=%d 200" % (n, number) for n in range(RECORDS)]
    offsets = np.zeros(RECORDS + 1, np.int32)
    np.cumsum([len(one) for one in bodies], out=offsets[1:])
    at_ns = T0_NS + number * 1_000_000
    columns = LogColumns(
        ts=at_ns + np.arange(RECORDS),
        body=TextColumn(offsets=offsets, data=b"".join(bodies)),
        severity=np.full(RECORDS, 9, np.uint8),
    )
    frame = encode_frame(identity=who, columns=columns, resource=(("host.name", who.agent_id),))
    return log_manifest(who, frame, at_ns), frame


def _compare(
    session: Any,  # noqa: ANN401 - pyspark has no types
    folder: Path,
    manifests: Sequence[AcceptedManifest],
) -> float:
    found = compare_batches(session, f"file://{folder}", manifests).batches
    for one in manifests:
        compared = found[one.identity]
        if compared.blob != one.digest or compared.blob_rows != compared.table_rows:
            raise SystemExit(f"wrong result: {one.identity} {compared}")
    return float(len(manifests))


def _control(folder: Path, manifests: Sequence[AcceptedManifest]) -> float:
    """Count and hash the rows of as many batches; every file has an equal share of them."""
    files = open_or_create_table(f"file://{folder}", LOGS).file_uris()
    wanted = files[: -(-len(manifests) // IN_FILE)]
    with duckdb.connect(config={"threads": CORES}) as connection:
        found = connection.execute(
            "SELECT count(*) FROM (SELECT count(*), sum(hash(ts, body, severity, attributes, seq))"
            " FROM read_parquet(?) GROUP BY agent_id, accepted_at)",
            [wanted],
        ).fetchone()
    if found is None or found[0] != len(manifests):
        raise SystemExit(f"wrong result: {found} instead of {len(manifests)}")
    return float(len(manifests))


if __name__ == "__main__":
    main()
