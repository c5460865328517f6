import asyncio
import itertools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.builders import make_identity, manifest_of
from support.repetitions import times
from support.spark_lake import (
    T0_NS,
    Deployment,
    Sent,
    assert_lake_holds,
    lake_rows,
    make_batch,
)
from support.spark_local import ingest_locally

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import find_table
from sluice_lake.errors import CommitConflict
from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import LOGS, METRICS, Table
from sluice_protocol.fields import KINDS
from sluice_protocol.frame import encode_frame
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_protocol.records import SpanRecord, spans_from_records
from sluice_spark import session
from sluice_spark.commits import replace_files
from sluice_spark.compaction import job as compaction
from sluice_spark.compaction import repetitions
from sluice_spark.compaction.job import CompactReport, run_compact
from sluice_spark.compaction.repetitions import find_overlaps
from sluice_spark.compaction.rewrite import content_of
from sluice_spark.session import SessionSettings
from sluice_spark.settings import CompactSettings
from sluice_store import open_store

pytestmark = pytest.mark.spark

DAY_NS = 86_400 * 10**9
NAN, STALE_NAN = 0x7FF8_0000_0000_0000, 0x7FF0_0000_0000_0002
"""The usual NaN, and that with which Prometheus marks the end of a series."""


def compact(spark: Any, deployment: Deployment, **more: Any) -> CompactReport:
    settings = CompactSettings(open_partitions=True, **more)
    return run_compact(spark, deployment.url, settings)


def files(deployment: Deployment, name: str = "logs") -> list[str]:
    return DeltaTable(str(deployment.root / "lake" / "v1" / name)).file_uris()


def put_delete(deployment: Deployment, record: DeleteRecord) -> None:
    async def put() -> None:
        async with open_store(deployment.url) as store:
            await store.create(delete_key(record.delete_id), encode_record(record))

    asyncio.run(put())


def test_compact_merges_small_files_without_changing_records(spark: Any, tmp_path: Path) -> None:
    """Every value is unchanged, the file is ordered by time, and a second run changes nothing.

    Half of the batches are in frames of version 2.
    The order in which an agent sent its records is given by `seq`, not by the file.
    """
    deployment = Deployment(tmp_path, lanes=1).init()
    for n in range(4):
        deployment.deliver(
            [make_batch(n * 10, agent=f"{kind}-{n % 2}", kind=kind) for kind in KINDS]
        )
        ingest_locally(deployment.url)
    assert len(files(deployment)) == 4
    report = compact(spark, deployment)
    assert (report.files_after, report.dropped_rows, report.conflicts) == (4, 0, 0)
    assert_lake_holds(deployment, deployment.sent)
    (path,) = files(deployment)
    stamps = pq.read_table(path, columns=["ts"]).column("ts").to_pylist()
    assert stamps == sorted(stamps)
    assert compact(spark, deployment).rewritten == 0
    for file in list_files(deployment.table("logs"), LOGS):
        assert file.agents == ("logs-0", "logs-1")
        assert file.times_ns is not None
        assert file.times_ns[0] <= T0_NS <= file.times_ns[1]


def test_compact_keeps_the_highest_queue_sequence_of_a_duplicate(
    spark: Any, tmp_path: Path
) -> None:
    """Of two overlapping accepted batches, each (agent, boot, seq) remains once, from the later
    one.
    """
    deployment = Deployment(tmp_path, lanes=1).init()
    deployment.deliver([make_batch(0, 10)])
    ingest_locally(deployment.url)
    deployment.deliver([make_batch(5, 10, at_ns=T0_NS + 86_400 * 10**9)])
    ingest_locally(deployment.url)
    assert len(lake_rows(deployment, "logs")) == 20
    assert compact(spark, deployment).dropped_rows == 5
    rows = {row["seq"]: row["queue_sequence"] for row in deployment.rows("logs")}
    assert rows == {n: 1 if n < 5 else 2 for n in range(15)}
    assert len(deployment.rows("logs")) == 15
    assert len(deployment.rows("batches")) == 2


@pytest.mark.long
def test_spans_are_sorted_by_service_and_time_without_deleted_ones(
    spark: Any, tmp_path: Path
) -> None:
    deployment = Deployment(tmp_path, lanes=1).init()
    for number in range(4):
        spans = [
            SpanRecord(
                ts_ns=T0_NS + place * 7_000_000 % 11_000_000,
                name=f"op {place % 3}",
                attributes={"service.name": f"s{place % 4}"},
            )
            for place in range(12)
        ]
        frame = encode_frame(
            identity=make_identity(number * 20, count=12), columns=spans_from_records(spans)
        )
        deployment.deliver([Sent(manifest_of(frame, at_ns=T0_NS), frame, ())])
        ingest_locally(deployment.url)
    record = DeleteRecord(
        delete_id="0" * 26, kind="spans", accepted_until_unix_ns=T0_NS, contains="op 1"
    )
    put_delete(deployment, record)
    compact(spark, deployment)
    (path,) = files(deployment, "spans")
    rows = pq.read_table(path, columns=["service", "ts", "name"]).to_pylist()
    order = [(row["service"], row["ts"]) for row in rows]
    assert order == sorted(order)
    assert len(rows) == 32
    assert {row["name"] for row in rows} == {"op 0", "op 2"}


def text_of(row: tuple[Any, ...]) -> str:
    return repr([sorted(one.items()) if isinstance(one, dict) else one for one in row])


@pytest.mark.long
def test_compact_keeps_different_records_of_one_number(spark: Any, tmp_path: Path) -> None:
    """Both were accepted, for example from an agent that was restored from a snapshot."""
    deployment = Deployment(tmp_path, lanes=1).init()
    kept: dict[str, set[str]] = {}
    for kind in KINDS:
        batches = [make_batch(start, 10, agent=kind, kind=kind) for start in (0, 4)]
        batches.append(make_batch(6, 10, agent=kind, kind=kind, text="other"))
        deployment.deliver(batches)
        kept[kind] = {text_of(row) for one in batches for row in one.rows}
        assert 15 < len(kept[kind]) < 30
    ingest_locally(deployment.url)
    compact(spark, deployment)
    for kind, wanted in kept.items():
        assert sorted(map(text_of, lake_rows(deployment, kind))) == sorted(wanted)
    assert compact(spark, deployment).rewritten == 0


def test_records_that_differ_in_a_type_are_different(spark: Any, tmp_path: Path) -> None:
    """A text is no number; a file without the column is like one whose values are all text."""
    schema = arrow_schema(LOGS, partition=False)
    attributes = pa.array([[("k", "500")]] * 3, schema.field("attributes").type)
    types = pa.array([[("k", "integer")], None, []], schema.field("attribute_types").type)
    columns = {name: pa.nulls(3, schema.field(name).type) for name in schema.names}
    columns |= {"attributes": attributes, "attribute_types": types}
    columns |= {"seq": pa.array(range(3), pa.int64())}
    pq.write_table(pa.table(columns, schema=schema), tmp_path / "types.parquet")
    rows = spark.read.parquet(str(tmp_path)).selectExpr("seq", f"{content_of(LOGS)} AS content")
    number, text, empty = [row.content for row in rows.orderBy("seq").collect()]
    assert number != text
    assert text == empty


def test_values_are_compared_by_their_bits(spark: Any, tmp_path: Path) -> None:
    """A stale marker is a NaN with certain bits, so two records that differ in them are kept."""
    bits = [STALE_NAN, NAN, 0, 1 << 63, 0x3FF0_0000_0000_0000, STALE_NAN, NAN]
    values = np.array(bits, np.uint64).view(np.float64)
    schema = arrow_schema(METRICS, partition=False)
    columns = {name: pa.nulls(len(bits), schema.field(name).type) for name in schema.names}
    columns |= {"value": pa.array(values), "seq": pa.array(range(len(bits)), pa.int64())}
    pq.write_table(pa.table(columns, schema=schema), tmp_path / "values.parquet")
    rows = spark.read.parquet(str(tmp_path)).selectExpr("seq", f"{content_of(METRICS)} AS content")
    found = {row.seq: row.content for row in rows.collect()}
    assert [found[5], found[6]] == [found[0], found[1]]
    assert len(set(found.values())) == 5


@pytest.mark.long
def test_a_run_of_few_overlaps_does_not_always_choose_the_same(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger keeps overlapping batches, so a fixed order would never process the others."""
    deployment = Deployment(tmp_path, lanes=1).init()
    for agent in ("a", "b"):
        deployment.deliver([make_batch(0, 10, agent=agent), make_batch(5, 10, agent=agent)])
    ingest_locally(deployment.url)
    expected = {("a", 5, 9), ("b", 5, 9)}
    overlaps = find_overlaps(spark, deployment.url)["logs"]
    assert {(one.agent_id, one.seq_start, one.seq_end) for one in overlaps} == expected
    monkeypatch.setattr(repetitions, "OVERLAPS_MAX", 1)
    chosen: set[str] = set()
    for _ in range(30):
        (one,) = find_overlaps(spark, deployment.url)["logs"]
        chosen.add(one.agent_id)
        if len(chosen) > 1:
            break
    assert chosen == {"a", "b"}


def test_overlaps_with_a_date_without_records_are_not_searched(spark: Any, tmp_path: Path) -> None:
    """Retention has removed one of the two copies. Overlaps across dates with records are found."""
    deployment = Deployment(tmp_path, lanes=1).init()
    day = 86_400 * 10**9
    deployment.deliver(
        [
            make_batch(0, 10, agent="a"),
            make_batch(5, 10, agent="a", at_ns=T0_NS + day),
            make_batch(0, 10, agent="b", at_ns=T0_NS + day),
            make_batch(5, 10, agent="b", at_ns=T0_NS + 2 * day),
        ]
    )
    ingest_locally(deployment.url)

    def agents() -> set[str]:
        return {one.agent_id for one in find_overlaps(spark, deployment.url)["logs"]}

    assert agents() == {"a", "b"}
    first = list_files(deployment.table("logs"), LOGS)[0]
    replace_files(deployment.url, LOGS, [first], (), data_change=True)
    assert agents() == {"b"}


EARLY, LATE = make_batch(0, 10), make_batch(10, 10, at_ns=T0_NS + 5 * 10**9)
AFTER = make_batch(20, 10, at_ns=T0_NS + 3600 * 10**9)
"""Two batches before the cut-off of `delete_path`, and one after it."""


def delete_path(deployment: Deployment) -> None:
    put_delete(
        deployment,
        DeleteRecord(
            delete_id="01" + "B" * 24,
            kind="logs",
            accepted_until_unix_ns=T0_NS + 10 * 10**9,
            attributes={"path": "/p/1"},
        ),
    )


def test_compact_removes_deleted_rows_that_were_ingested_later(spark: Any, tmp_path: Path) -> None:
    """Rows accepted before the cut-off are removed, even if they are ingested after the delete."""
    deployment = Deployment(tmp_path, lanes=1).init()
    deployment.deliver([EARLY, AFTER])
    ingest_locally(deployment.url)
    put_delete(
        deployment,
        DeleteRecord(
            delete_id="01" + "A" * 24,
            kind="logs",
            accepted_until_unix_ns=T0_NS + 10 * 10**9,
            contains="'ä€ ",
            agent_id="host-1",
        ),
    )
    delete_path(deployment)
    wanted = [row for one in (EARLY, LATE) for row in one.rows if row[6].get("path") != "/p/1"]
    compact(spark, deployment)
    deployment.deliver([LATE])
    ingest_locally(deployment.url)
    compact(spark, deployment)
    assert lake_rows(deployment, "logs") == [*wanted, *AFTER.rows]
    assert len(deployment.rows("batches")) == 3


@pytest.mark.long
def test_a_delete_is_applied_once_to_each_file(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the file of a late batch is searched again, and its deleted rows are removed."""
    searched: set[str] = set()
    find = compaction._Compactor._find_deleted

    def watched(
        self: Any, table: Table, found: Sequence[DataFile], deletes: Sequence[DeleteRecord]
    ) -> list[DataFile]:
        searched.update(file.path for file in found)
        return find(self, table, found, deletes)

    monkeypatch.setattr(compaction._Compactor, "_find_deleted", watched)
    deployment = Deployment(tmp_path, lanes=1).init()

    def paths() -> set[str]:
        opened = find_table(deployment.url, LOGS)
        assert opened is not None
        return {file.path for file in list_files(opened, LOGS)}

    def compact_once() -> set[str]:
        searched.clear()
        compact(spark, deployment)
        return set(searched)

    deployment.deliver([EARLY, AFTER])
    ingest_locally(deployment.url)
    delete_path(deployment)
    first = paths()
    assert compact_once() == first
    kept = [row for row in EARLY.rows if row[6].get("path") != "/p/1"]
    assert lake_rows(deployment, "logs") == [*kept, *AFTER.rows]
    assert compact_once() == set()
    before = paths()
    deployment.deliver([LATE])
    ingest_locally(deployment.url)
    added = paths() - before
    assert len(added) == 1
    assert compact_once() == added
    kept += [row for row in LATE.rows if row[6].get("path") != "/p/1"]
    assert len(kept) < 20
    assert lake_rows(deployment, "logs") == [*kept, *AFTER.rows]
    assert compact_once() == set()


@pytest.mark.long
def test_defaults_of_a_cluster_do_not_change_what_is_deleted(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They set another time zone, another rule for string literals, and unreadable files."""
    defaults = dict.fromkeys(session.RESULT_CONF, "true")
    defaults["spark.sql.session.timeZone"] = "Asia/Tokyo"
    monkeypatch.setattr(session, "_submitted", lambda: True)
    monkeypatch.setattr(session, "_submitted_conf", lambda: {"spark.master": "local", **defaults})
    for name, value in defaults.items():
        spark.conf.set(name, value)
    submitted = session.open_session(SessionSettings(), delta=False)
    assert {name: spark.conf.get(name) for name in defaults} == session.RESULT_CONF

    deployment = Deployment(tmp_path, lanes=1).init()
    evening_ns = T0_NS // DAY_NS * DAY_NS + 20 * 3600 * 10**9
    gone, kept = (make_batch(0, agent=agent, at_ns=evening_ns) for agent in ("a\\1", "b"))
    deployment.deliver([gone, kept])
    ingest_locally(deployment.url)
    dates = {file.partition for file in list_files(deployment.table("logs"), LOGS)}
    put_delete(
        deployment,
        DeleteRecord(
            delete_id="01J00000000000000000000001",
            kind="logs",
            agent_id="a\\1",
            accepted_until_unix_ns=evening_ns + 10**9,
        ),
    )
    compact(submitted, deployment)
    assert {row["agent_id"] for row in deployment.rows("logs")} == {"b"}
    assert {file.partition for file in list_files(deployment.table("logs"), LOGS)} == dates


def test_compact_drops_whole_partitions_by_retention(spark: Any, tmp_path: Path) -> None:
    """Retention drops whole partitions; vacuum removes files that are old enough.

    `test_vacuum` has every case of vacuum, without a JVM.
    """
    deployment = Deployment(tmp_path, lanes=1).init()
    day = 86_400 * 10**9
    old, new = make_batch(0), make_batch(10, at_ns=T0_NS + 3 * day)
    deployment.deliver([old, new])
    ingest_locally(deployment.url)
    put_delete(
        deployment,
        DeleteRecord(
            delete_id="01" + "C" * 24,
            kind="logs",
            accepted_until_unix_ns=T0_NS + day,
            to_unix_ns=T0_NS + 2 * day,
        ),
    )
    stray, abandoned = (
        deployment.root / f"lake/v1/logs/accepted_date=2026-09-21/{name}.parquet"
        for name in ("stray", "abandoned")
    )
    stray.write_bytes(b"x")
    abandoned.write_bytes(b"x")
    os.utime(abandoned, (1, 1))
    assert compact(spark, deployment, dry_run=True).vacuumed == 1
    assert abandoned.exists()
    report = compact(spark, deployment)
    assert (report.dropped_rows, report.vacuumed) == (10, 1)
    assert lake_rows(deployment, "logs") == list(new.rows)
    assert (stray.exists(), abandoned.exists()) == (True, False)


def test_replacing_a_file_twice_is_refused(tmp_path: Path) -> None:
    """Replacing a file twice would duplicate its rows."""
    deployment = Deployment(tmp_path, lanes=1).init()
    deployment.deliver([make_batch(0)])
    ingest_locally(deployment.url)
    table = find_table(deployment.url, LOGS)
    assert table is not None
    found = list_files(table, LOGS)
    replace_files(deployment.url, LOGS, found, (), data_change=True)
    with pytest.raises(CommitConflict):
        replace_files(deployment.url, LOGS, found, (), data_change=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_compact_concurrent_with_ingest_loses_no_record(spark: Any, tmp_path: Path) -> None:
    """Ingestion and two compactions run concurrently on the open partition: every record exactly
    once.
    """
    race(spark, Deployment(tmp_path, lanes=2).init(), rounds=10, seconds=times(30))


def race(spark: Any, deployment: Deployment, *, rounds: int, seconds: float) -> None:
    """Run that many rounds and that long, and until a compaction has rewritten files."""
    done = threading.Event()
    reports: list[CompactReport] = []

    def maintain() -> None:
        while not done.is_set():
            reports.append(compact(spark, deployment))

    threads = [threading.Thread(target=maintain) for _ in range(2)]
    deployment.deliver([make_batch(0, agent="host-9")])
    ingest_locally(deployment.url)
    for thread in threads:
        thread.start()
    try:
        ends = time.monotonic() + seconds
        for n in itertools.count():
            rewritten = any(report.rewritten for report in reports)
            if n >= rounds and time.monotonic() >= ends and rewritten:
                break
            batch = [make_batch(n * 10, 10, agent=f"host-{k}") for k in range(3)]
            deployment.deliver(batch)
            ingest_locally(deployment.url)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert_lake_holds(deployment, deployment.sent)
