"""Series from the rollups of the real job: equal to those from samples, as long as both exist."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.query_lake import make_query, put_delete, run_query
from support.spark_lake import T0_NS, Deployment, make_batch
from support.spark_local import ingest_locally

from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.request import Aggregate, Query, RecordField, Series
from sluice_query.result import QueryResult
from sluice_spark.compaction.job import run_compact
from sluice_spark.rollups import job as rollup
from sluice_spark.rollups.job import run_rollup
from sluice_spark.settings import CompactSettings

pytestmark = pytest.mark.spark

MINUTE_NS = 60 * NS_PER_S
HOUR_NS = 60 * MINUTE_NS


def deliver(deployment: Deployment, minutes: range, at_ns: int = T0_NS) -> None:
    """Deliver ten samples in each of some minutes, from two agents."""
    deployment.deliver(
        [
            make_batch(minute * 60_000, 10, agent=f"h-{n}", kind="metrics", at_ns=at_ns)
            for minute in minutes
            for n in range(2)
        ]
    )
    ingest_locally(deployment.url)


def compared(
    deployment: Deployment, query: Query, aggregates: Iterable[Aggregate] = (Aggregate.SUM,)
) -> QueryResult:
    """Return a series, after these aggregates of it were compared with those of the samples."""
    for aggregate in aggregates:
        series = Series(
            metric="m.2",
            step_ns=MINUTE_NS,
            aggregate=aggregate,
            by=(RecordField("agent_id"),) if aggregate == "sum" else (),
        )
        result = run_query(deployment, replace(query, series=series))
        control = run_query(deployment, replace(query, series=replace(series, raw=True)))
        assert [(one.step_ns, one.by) for one in result.points] == [
            (one.step_ns, one.by) for one in control.points
        ]
        assert [one.value for one in result.points] == pytest.approx(
            [one.value for one in control.points]
        )
        used = result.summary.rollup_segments_read > 0
        # Quantiles and rates need every sample.
        assert used is (aggregate.quantile is None and aggregate is not Aggregate.RATE)
    return result


@pytest.mark.long
def test_a_series_from_the_rollups_of_the_job_equals_that_from_samples(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a run, with late samples, after a crash before the commit, with deletes, compacted."""
    deployment = Deployment(tmp_path).init()
    query = make_query(kind="metrics", from_ns=UnixNs(T0_NS + 1), to_ns=UnixNs(T0_NS + 2 * HOUR_NS))
    deliver(deployment, range(0, 90, 15))
    run_rollup(spark, deployment.url)
    assert len(compared(deployment, query, Aggregate).points) == 6
    deliver(deployment, range(3, 20, 15))
    assert len(compared(deployment, query).points) == 2 * 8  # by agent
    commit = rollup._commit
    monkeypatch.setattr(rollup, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_rollup(spark, deployment.url)
    monkeypatch.setattr(rollup, "_commit", commit)
    compared(deployment, query)
    put_delete(deployment, record("A", from_unix_ns=T0_NS + 5 * MINUTE_NS, agent_id="h-0"))
    compared(deployment, query)
    run_compact(spark, deployment.url, CompactSettings(open_partitions=True))
    compared(deployment, query)
    assert run_rollup(spark, deployment.url).covers == 2
    compared(deployment, query, (Aggregate.SUM, Aggregate.LAST))


def record(letter: str, **conditions: Any) -> DeleteRecord:
    return DeleteRecord(
        delete_id="01" + letter * 24,
        kind="metrics",
        accepted_until_unix_ns=T0_NS + 86_400 * NS_PER_S,
        **conditions,
    )
