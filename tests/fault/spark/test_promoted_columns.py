"""Ingestion fills promoted columns, and loses or repeats nothing when they are added meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from structlog.testing import capture_logs
from support.spark_lake import Deployment, assert_lake_holds, make_batch
from support.spark_local import die_at, ingest_locally, merge_locally

from sluice_lake.delta import find_table, open_or_create_table
from sluice_lake.promoted import add_promoted, table_of
from sluice_lake.tables import LOGS
from sluice_protocol.keys import PROMOTIONS
from sluice_protocol.promotions import PromotedType, Promotion, column_of
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import ObjectKey
from sluice_spark.failpoints import FailPoint
from sluice_store import open_store
from sluice_store.retry import Backoff
from sluice_store.stored_promotions import read_promotions, submit_promotion

PATH = ("attributes", "path")
HOST = ("resource", "host.name")


def promotion(source: Any, key: str, kind: PromotedType = PromotedType.TEXT) -> Promotion:
    return Promotion(
        kind="logs",
        source=source,
        key=key,
        column=column_of(source, key),
        type=kind,
        decided_by="operator:test",
        decided_at_unix_ns=0,
    )


def promote(deployment: Deployment, *fields: tuple[str, str]) -> None:
    async def submit() -> None:
        async with open_store(deployment.url) as store:
            for source, key in fields:
                known = await read_promotions(store)
                backoff = Backoff.seeded_by(SystemClock())
                await submit_promotion(store, promotion(source, key), known, backoff)

    asyncio.run(submit())


def deliver(deployment: Deployment, start: int) -> None:
    deployment.deliver([make_batch(start), make_batch(start, kind="metrics", agent="m")])


def filled(deployment: Deployment) -> dict[int, str | None]:
    """Return the column of the attribute `path` by sequence number."""
    return {row["seq"]: row.get("attr_path") for row in deployment.rows("logs")}


def sent(start: int, end: int) -> dict[int, str | None]:
    return {n: f"/p/{n % 3}" if n % 2 else None for n in range(start, end)}


def test_a_column_is_filled_from_the_decision_on_and_compaction_fills_older_rows(
    tmp_path: Path,
) -> None:
    deployment = Deployment(tmp_path, lanes=1).init()
    deliver(deployment, 0)
    ingest_locally(deployment.url)
    promote(deployment, PATH, HOST)
    deliver(deployment, 10)
    ingest_locally(deployment.url)
    assert filled(deployment) == dict.fromkeys(range(10)) | sent(10, 20)
    assert_lake_holds(deployment, deployment.sent)
    opened = find_table(deployment.url, LOGS)
    assert opened is not None
    merge_locally(deployment.url, table_of(opened, LOGS))
    assert filled(deployment) == sent(0, 20)
    assert {row["res_host_name"] for row in deployment.rows("logs")} == {"h1"}
    assert_lake_holds(deployment, deployment.sent)


def test_a_rebuilt_lake_has_the_same_columns(tmp_path: Path) -> None:
    """The decision is not in the lake, and the first run of the job applies it."""
    deployment = Deployment(tmp_path, lanes=1).init()
    promote(deployment, PATH)
    deliver(deployment, 0)
    ingest_locally(deployment.url)
    assert filled(deployment) == sent(0, 10)


@pytest.mark.daily(1)
@pytest.mark.parametrize("step", ["after_write", "before_records_logs", "after_records_logs"])
def test_a_driver_that_is_killed_after_a_column_was_added_loses_nothing(
    step: str, tmp_path: Path
) -> None:
    """Between the commit of the column and that of the records, or after it."""
    deployment = Deployment(tmp_path, lanes=1).init()
    deliver(deployment, 0)
    ingest_locally(deployment.url)
    promote(deployment, PATH)
    deliver(deployment, 10)
    die_at(deployment.url, step)
    ingest_locally(deployment.url)
    assert filled(deployment) == dict.fromkeys(range(10)) | sent(10, 20)
    assert_lake_holds(deployment, deployment.sent)


def test_a_micro_batch_that_meets_a_new_column_is_written_again_with_it(tmp_path: Path) -> None:
    """Another job adds the column after the files were written, and before they are committed."""
    deployment = Deployment(tmp_path, lanes=1).init()
    open_or_create_table(deployment.url, LOGS)
    deliver(deployment, 0)

    def add() -> None:
        add_promoted(deployment.url, "logs", [promotion(*PATH)])

    ingest_locally(deployment.url, failpoint=FailPoint(step="before_records_logs", action=add))
    assert filled(deployment) == sent(0, 10)
    assert_lake_holds(deployment, deployment.sent)


def test_a_damaged_decision_stops_neither_records_nor_other_columns(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, lanes=1).init()
    promote(deployment, PATH)

    async def damage() -> None:
        async with open_store(deployment.url) as store:
            await store.create(ObjectKey(f"{PROMOTIONS}logs/attr_x.json"), b"{")

    asyncio.run(damage())
    deliver(deployment, 0)
    with capture_logs() as logged:
        ingest_locally(deployment.url)
    assert [one["event"] for one in logged if one["log_level"] == "warning"] == ["column_not_added"]
    assert filled(deployment) == sent(0, 10)


def test_other_programs_read_the_column_in_files_with_and_without_it(tmp_path: Path) -> None:
    """DuckDB over the table of delta-rs; the one of the JVM is in the tests of its reader."""
    deployment = Deployment(tmp_path, lanes=1).init()
    deliver(deployment, 0)
    ingest_locally(deployment.url)
    promote(deployment, PATH)
    deliver(deployment, 10)
    ingest_locally(deployment.url)
    logs = DeltaTable(str(tmp_path / "lake/v1/logs")).to_pyarrow_dataset()
    found = duckdb.sql(
        "SELECT attr_path, count(*), count(attributes['path']) FROM logs GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert logs.count_rows() == 20
    assert found == [("/p/0", 1, 1), ("/p/1", 2, 2), ("/p/2", 2, 2), (None, 15, 5)]
