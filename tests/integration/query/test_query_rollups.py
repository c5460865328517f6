"""Series over real tables of samples and rollups, and a real queue."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.query_lake import (
    DAY0_NS,
    MINUTE_NS,
    deployment,
    make_query,
    metric_batch,
    put_delete,
    run_query,
)
from support.query_rollups import LakeRollups
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_lake.source_ranges import source_range_key
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import UnixNs
from sluice_query import rollups as rollups_module
from sluice_query import search
from sluice_query.request import Aggregate, Query, RecordField, Series
from sluice_query.result import QueryResult

HOUR_NS = 60 * MINUTE_NS
START_NS = DAY0_NS // HOUR_NS * HOUR_NS
AGENTS = ("host-1", "host-2")


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    return deployment(tmp_path)


@pytest.fixture
def rollups(place: Deployment) -> LakeRollups:
    return LakeRollups(place=place)


class Sender:
    """Delivers batches of increasing sequence numbers."""

    def __init__(self, place: Deployment) -> None:
        self.place = place
        self.start = 0

    def send(self, from_ns: int, *values: float, step_ns: int = 10 * 10**9) -> None:
        for agent in AGENTS:
            batch = metric_batch(
                values or range(400),
                start=self.start,
                agent=agent,
                from_ns=from_ns,
                step_ns=step_ns,
            )
            self.place.deliver([batch])
        self.start += 1000


@pytest.fixture
def sender(place: Deployment) -> Sender:
    return Sender(place)


def series_query(
    aggregate: Aggregate = Aggregate.SUM,
    *,
    start: int = START_NS + 7,
    end: int = START_NS + 2 * HOUR_NS - 7,
    step: int = MINUTE_NS,
    raw: bool = False,
    **changes: Any,
) -> Query:
    series = Series(
        metric="cpu", step_ns=step, aggregate=aggregate, by=(RecordField("agent_id"),), raw=raw
    )
    return make_query(
        kind="metrics", from_ns=UnixNs(start), to_ns=UnixNs(end), series=series, **changes
    )


def raw(query: Query) -> Query:
    assert query.series is not None
    return replace(query, series=replace(query.series, raw=True))


def assert_equal(place: Deployment, query: Query | None = None) -> QueryResult:
    """Assert that rollups are used and change nothing; return the result."""
    query = query or series_query()
    result, control = run_query(place, query), run_query(place, raw(query))
    assert result.points == control.points
    assert result.points
    assert control.summary.rollup_segments_read == 0
    assert result.summary.partial is control.summary.partial is False
    return result


@pytest.mark.long
def test_a_series_from_rollups_equals_that_from_samples(
    place: Deployment, rollups: LakeRollups, sender: Sender
) -> None:
    """At each stage: only rollups, late samples in the queue, in the lake, and in rollups."""
    sender.send(START_NS)
    ingest_locally(place.url)
    rollups.run()
    in_hours = (Aggregate.AVG, Aggregate.LAST)
    for aggregate, step in [
        *((one, MINUTE_NS) for one in Aggregate if one.quantile is None and one != "rate"),
        *((one, HOUR_NS) for one in in_hours),
    ]:
        found = assert_equal(place, series_query(aggregate, step=step))
        assert found.summary.rollup_segments_read > 0
    sender.send(START_NS + 90 * 10**9, 1.5, float("nan"), -3.0)
    assert assert_equal(place, series_query(step=HOUR_NS)).summary.waiting_batches == len(AGENTS)
    ingest_locally(place.url)
    for aggregate, step in ((Aggregate.AVG, MINUTE_NS), (Aggregate.LAST, HOUR_NS)):
        assert_equal(place, series_query(aggregate, step=step))
    rollups.run()
    assert_equal(place, series_query(Aggregate.AVG))


def test_a_quantile_is_computed_from_samples_although_rollups_exist(
    place: Deployment, rollups: LakeRollups, sender: Sender
) -> None:
    """Where retention removed samples, the answer is partial with the reason."""
    sender.send(START_NS)
    ingest_locally(place.url)
    rollups.run()
    query = series_query(Aggregate.P90, start=START_NS, step=HOUR_NS)
    found = run_query(place, query)
    assert [(one.by["agent_id"], one.value) for one in found.points[:2]] == [
        (agent, pytest.approx(323.1)) for agent in AGENTS
    ]
    assert (found.summary.rollup_segments_read, found.summary.partial) == (0, False)
    retain(place, START_NS + 30 * MINUTE_NS)
    (reason,) = run_query(place, query).summary.reasons
    assert reason.endswith(
        "at the beginning of the time range: `p90` is computed from samples only"
    )


def test_samples_that_rollups_contain_are_not_read(
    place: Deployment, rollups: LakeRollups, sender: Sender
) -> None:
    """Only files of the edges and of samples that are later than the rollups are read."""
    for hour in range(4):
        sender.send(START_NS + hour * HOUR_NS, step_ns=8 * 10**9)
        ingest_locally(place.url)
    rollups.run()
    aligned = series_query(start=START_NS, end=START_NS + 4 * HOUR_NS)
    before = assert_equal(place, aligned).summary
    assert before.segments_read == before.rollup_segments_read
    assert before.rollups_only_before is None
    edge = assert_equal(place, series_query(end=START_NS + 4 * HOUR_NS)).summary
    files = [edge.segments_read - edge.rollup_segments_read]
    sender.send(START_NS, 1.0)
    ingest_locally(place.url)
    later = assert_equal(place, aligned).summary
    files.append(later.segments_read - later.rollup_segments_read)
    everything = run_query(place, raw(aligned)).summary.segments_read
    assert everything >= 4 * min(files) > 0


def test_a_source_range_that_is_not_committed_is_not_used(
    place: Deployment, rollups: LakeRollups, sender: Sender
) -> None:
    """The job creates its object before it commits the rows; it may stop in between."""
    sender.send(START_NS)
    ingest_locally(place.url)
    rollups.run(crash=True)
    assert run_query(place, series_query()).summary.rollup_segments_read == 0
    rollups.run()
    sender.send(START_NS + 90 * 10**9, 100.0, 200.0)
    ingest_locally(place.url)
    rollups.run(crash=True)
    assert assert_equal(place).summary.rollup_segments_read > 0


def test_a_delete_applies_before_and_after_rollups_honour_it(
    place: Deployment, rollups: LakeRollups, sender: Sender
) -> None:
    sender.send(START_NS)
    ingest_locally(place.url)
    rollups.run()
    everything = assert_equal(place).points
    record = DeleteRecord(
        delete_id="0" * 26,
        kind="metrics",
        accepted_until_unix_ns=DAY0_NS,
        agent_id="host-1",
        from_unix_ns=START_NS + 90 * 10**9,
        to_unix_ns=START_NS + 10 * MINUTE_NS + 1,
    )
    put_delete(place, record)
    hidden = assert_equal(place)
    assert len(hidden.points) == len(everything) - 8
    assert hidden.summary.rollup_segments_read > 0
    rollups.run()
    assert assert_equal(place).points == hidden.points


def retain(place: Deployment, before_ns: int) -> None:
    record = DeleteRecord(
        delete_id="0" * 26,
        kind="metrics",
        accepted_until_unix_ns=DAY0_NS + 1,
        to_unix_ns=before_ns,
    )
    put_delete(place, record)


@pytest.mark.long
def test_beyond_the_retention_of_samples_a_series_is_computed_from_rollups(
    place: Deployment, rollups: LakeRollups, sender: Sender
) -> None:
    """In whole minutes, which the summary reports; attributes of resources make it partial."""
    sender.send(START_NS)
    ingest_locally(place.url)
    rollups.run()
    query = series_query(start=START_NS)
    everything = run_query(place, query).points
    retain(place, START_NS + 30 * MINUTE_NS + 1)
    kept = run_query(place, series_query(start=START_NS + 7))
    assert kept.points == everything
    assert not kept.summary.partial
    assert kept.summary.rollups_only_before == "2026-09-21T14:31:00.000000000Z"
    gone = run_query(place, raw(query))
    assert len(gone.points) < len(everything)
    assert gone.summary.rollups_only_before is None
    selected = run_query(place, series_query(attributes=(("service.name", "web"),)))
    assert [reason for reason in selected.summary.reasons if "attributes" in reason]


@pytest.mark.long
def test_samples_that_retention_hides_before_they_are_rolled_up_make_a_series_partial(
    place: Deployment, rollups: LakeRollups, sender: Sender
) -> None:
    sender.send(START_NS)
    ingest_locally(place.url)
    rollups.run()
    sender.send(START_NS + 90 * 10**9, 1.0, 2.0)
    ingest_locally(place.url)
    retain(place, START_NS + 30 * MINUTE_NS)
    hidden = run_query(place, series_query(start=START_NS))
    assert [reason for reason in hidden.summary.reasons if "hides samples" in reason]
    assert hidden.summary.partial
    rollups.run()
    shown = run_query(place, series_query(start=START_NS))
    assert not shown.summary.partial
    assert shown.points != hidden.points


@pytest.mark.daily(1)
@pytest.mark.parametrize("damage", ["missing", "unreadable", "another queue"])
def test_rollups_that_do_not_match_the_samples_are_not_used(
    place: Deployment, rollups: LakeRollups, sender: Sender, damage: str
) -> None:
    """Where samples remain, the answer is complete; otherwise it is partial with the reason."""
    sender.send(START_NS)
    ingest_locally(place.url)
    if damage == "another queue":
        rollups.job.through = {0: 1000, 1: 1000}
        rollups.run()
        path = place.root / source_range_key(1)
        path.write_bytes(path.read_bytes().replace(b'"through":{"0":', b'"through":{"0":9'))
    else:
        rollups.run()
        path = place.root / source_range_key(1)
        path.write_bytes(b"{}")
        if damage == "missing":
            path.unlink()
    assert assert_equal(place).summary.rollup_segments_read == 0
    retain(place, START_NS + 30 * MINUTE_NS)
    summary = run_query(place, series_query()).summary
    assert summary.partial
    assert "rollups are not used" in summary.reasons[0]


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "step",
    [
        "read_pending",
        pytest.param("read_active_deletes", marks=pytest.mark.long),
        "open_rollups",
        pytest.param("choose_rollups", marks=pytest.mark.long),
        "select_files",
        "fetch_batches",
    ],
)
def test_every_sample_counts_once_while_the_jobs_work(
    place: Deployment,
    rollups: LakeRollups,
    sender: Sender,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """Ingestion and the rollup job run between any two reads of a query."""
    sender.send(START_NS)
    ingest_locally(place.url)
    rollups.run()
    sender.send(START_NS + 95 * 10**9, 1.0, 2.0, 4.0)
    expected = run_query(place, series_query(raw=True)).points
    module = rollups_module if step in ("open_rollups", "choose_rollups") else search
    before: Callable[..., Any] = getattr(module, step)

    def move() -> None:
        ingest_locally(place.url)
        rollups.run()

    def moving(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(module, step, before)
        thread = threading.Thread(target=move)
        thread.start()
        thread.join()
        return before(*given, **named)

    monkeypatch.setattr(module, step, moving)
    result = run_query(place, series_query())
    assert result.points == expected
    assert result.summary.rollup_segments_read > 0
