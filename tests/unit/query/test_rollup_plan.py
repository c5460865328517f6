"""How the time range of a series is divided between rollups and samples."""

from dataclasses import replace
from typing import Any

import pytest

from sluice_lake.data_files import DataFile, TimeStats
from sluice_protocol.authority import LaneCounts
from sluice_protocol.keys import lane_of
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import UnixNs
from sluice_query.logql.planning import plan_query
from sluice_query.request import Aggregate, Query, RecordField, Series
from sluice_query.rollups import (
    HOUR_NS,
    MINUTE_NS,
    SPANS_MAX,
    RollupCoverage,
    RollupPlan,
    TimeSpan,
    divide_files,
    merge_spans,
    plan_rollups,
    subtract_spans,
    whole_windows,
    without_rollups,
)

COVERAGE = RollupCoverage(through={0: 5, 1: 7})


def delete(number: int = 1, **conditions: Any) -> DeleteRecord:
    return DeleteRecord(
        delete_id=f"01{number:024d}", kind="metrics", accepted_until_unix_ns=1, **conditions
    )


def plan(
    start: int,
    end: int,
    *deletes: DeleteRecord,
    step: int = MINUTE_NS,
    coverage: RollupCoverage = COVERAGE,
    **conditions: Any,
) -> RollupPlan | None:
    series = Series(metric="cpu", step_ns=step)
    query = Query(
        from_ns=UnixNs(start), to_ns=UnixNs(end), kind="metrics", series=series, **conditions
    )
    return plan_rollups(query, series, coverage, lanes=LaneCounts(lanes=2), deletes=deletes)


def parts(found: RollupPlan | None) -> tuple[list[tuple[int, int]], ...]:
    """Return the spans of hours, minutes and samples, in minutes."""
    return tuple(
        [(span.from_ns // MINUTE_NS, span.to_ns // MINUTE_NS) for span in spans]
        for spans in (found.hours, found.minutes, found.samples)
    )


def test_whole_hours_and_minutes_come_from_rollups_and_the_edges_from_samples() -> None:
    found = plan(MINUTE_NS - 1, 181 * MINUTE_NS + 1, step=2 * HOUR_NS)
    assert parts(found)[:2] == ([(60, 180)], [(1, 60), (180, 181)])
    assert found.samples == (
        TimeSpan(MINUTE_NS - 1, MINUTE_NS),
        TimeSpan(181 * MINUTE_NS, 181 * MINUTE_NS + 1),
    )
    assert found.through == (5, 7)
    assert parts(plan(0, 180 * MINUTE_NS, step=HOUR_NS // 2)) == ([], [(0, 180)], [])


@pytest.mark.parametrize(
    "conditions", [{"step": 90 * 10**9}, {"step": 10**9}, {"attributes": (("host", "a"),)}]
)
def test_rollups_are_not_used_where_samples_answer_differently(conditions: dict[str, Any]) -> None:
    """Steps that are not whole minutes, and attributes, which may belong to a resource."""
    assert plan(0, HOUR_NS, **conditions) is None
    kept = plan(0, 3 * HOUR_NS, delete(to_unix_ns=HOUR_NS), **conditions)
    assert parts(kept) == ([], [(0, 60)], [(60, 180)])


def test_a_range_without_a_whole_minute_needs_no_rollups() -> None:
    assert plan(1, 2 * MINUTE_NS - 1) is None


def test_a_delete_that_rollups_do_not_honour_yet_makes_its_time_come_from_samples() -> None:
    late = delete(from_unix_ns=10 * MINUTE_NS + 1, to_unix_ns=20 * MINUTE_NS)
    assert parts(plan(0, HOUR_NS, late)) == ([], [(0, 10), (20, 60)], [(10, 20)])
    honoured = RollupCoverage(through={}, deletes={late.delete_id})
    assert parts(plan(0, HOUR_NS, late, coverage=honoured)) == ([], [(0, 60)], [])
    assert plan(0, HOUR_NS, delete(agent_id="a")) is None
    assert parts(plan(0, HOUR_NS, delete(agent_id="a"), agents=("b",))) == ([], [(0, 60)], [])
    assert parts(plan(0, HOUR_NS, delete(contains="mem"))) == ([], [(0, 60)], [])


def test_many_deletes_make_the_whole_range_come_from_samples() -> None:
    deletes = [
        delete(n, from_unix_ns=2 * n * MINUTE_NS, to_unix_ns=(2 * n + 1) * MINUTE_NS)
        for n in range(SPANS_MAX + 1)
    ]
    assert plan(0, 10 * HOUR_NS, *deletes) is None
    assert plan(0, 10 * HOUR_NS, *deletes[2:]) is not None


def test_before_the_cut_of_retention_only_rollups_are_used() -> None:
    """In whole minutes. The rest of the hour of the cut comes from samples, because the job does
    not aggregate that hour again.
    """
    cut = delete(to_unix_ns=90 * MINUTE_NS + 1)
    found = plan(MINUTE_NS + 1, 4 * HOUR_NS, cut, step=HOUR_NS)
    assert parts(found) == ([(120, 240)], [(1, 91)], [(91, 120)])
    assert found.rollups_only_before_ns == 91 * MINUTE_NS
    assert found.span == TimeSpan(MINUTE_NS, 4 * HOUR_NS)
    assert parts(plan(90 * MINUTE_NS + 1, 4 * HOUR_NS, cut)) == ([], [(120, 240)], [(90, 120)])
    old = plan(1, MINUTE_NS + 1, cut)
    assert (parts(old), old.span) == (([], [(0, 2)], []), TimeSpan(0, 2 * MINUTE_NS))
    other = delete(2, agent_id="a")
    assert [one.dropped for one in (plan(1, HOUR_NS, cut, other), old) if one] == [(other,), ()]


def test_spans_are_merged_subtracted_and_reduced_to_whole_windows() -> None:
    a, b, c = TimeSpan(0, 10), TimeSpan(10, 20), TimeSpan(30, 40)
    assert merge_spans([c, b, a, TimeSpan(5, 5), TimeSpan(2, 3)]) == [TimeSpan(0, 20), c]
    holes = [TimeSpan(-5, 1), TimeSpan(9, 12), TimeSpan(19, 35)]
    assert subtract_spans([a, b, c], holes) == [TimeSpan(1, 9), TimeSpan(12, 19), TimeSpan(35, 40)]
    assert subtract_spans([a], [TimeSpan(0, 10)]) == []
    assert whole_windows([TimeSpan(-25, -1), TimeSpan(1, 19), TimeSpan(21, 29)], 10) == [
        TimeSpan(-20, -10)
    ]


def file(path: str, at_ns: int, sequences: tuple[int, int] | None) -> DataFile:
    ts = TimeStats(range_ns=(at_ns, at_ns), nulls=0)
    return DataFile(path=path, partition="2026-01-01", size_bytes=1, ts=ts, sequences=sequences)


def test_files_are_read_for_the_edges_and_for_samples_that_are_later_than_the_rows() -> None:
    found = plan(MINUTE_NS // 2, 4 * MINUTE_NS)
    assert found is not None
    old, edge = file("old", 2 * MINUTE_NS, (1, 5)), file("edge", MINUTE_NS // 2, (1, 5))
    new, unknown = file("new", 2 * MINUTE_NS, (5, 8)), file("unknown", 2 * MINUTE_NS, None)
    files = [old, edge, new, unknown]
    divided = divide_files(found, files, {0: 5, 1: 8}, ())
    assert [one.path for one in divided.every] == ["edge"]
    assert [one.path for one in divided.later] == ["new", "unknown"]
    assert divide_files(found, files, {0: 5, 1: 7}, ()).later == ()
    other = next(name for name in "abcdefgh" if lane_of(name, 2) == 0)
    assert divide_files(found, files, {0: 5, 1: 8}, (other,)).later == ()


def test_rows_of_samples_that_the_table_does_not_contain_are_recognized() -> None:
    found = plan(0, HOUR_NS)
    assert found.is_within({0: 5, 1: 8})
    assert not found.is_within({0: 5, 1: 6})
    assert not found.is_within({0: 5})


RETENTION = DeleteRecord(
    delete_id="0" * 26, kind="metrics", accepted_until_unix_ns=1, to_unix_ns=HOUR_NS
)


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        ({"aggregate": Aggregate.P90}, "`p90` is computed from samples only"),
        ({"raw": True}, "omit `raw`"),
        ({"by": (RecordField("resource", "a"),)}, "rollups are not divided by `resource.a`"),
        ({"by": (RecordField("attributes", "a"), RecordField("agent_id"))}, None),
    ],
)
def test_what_rollups_do_not_contain_is_computed_from_samples(
    series: dict[str, Any], reason: str | None
) -> None:
    """The answer is partial, with the reason, only where retention removed samples."""
    wanted = replace(Series(metric="cpu", step_ns=MINUTE_NS), **series)
    span = {"from_ns": UnixNs(0), "to_ns": UnixNs(3 * HOUR_NS)}
    query = Query(**span, kind="metrics", series=wanted)
    found = plan_rollups(query, wanted, COVERAGE, lanes=LaneCounts(lanes=2), deletes=[RETENTION])
    assert (found is None) is (reason is not None)
    if reason is not None:
        (problem,) = without_rollups(query, (RETENTION,))
        assert problem.startswith("retention removed samples at the beginning of the time range: ")
        assert reason in problem
        assert without_rollups(query, ()) == ()


@pytest.mark.parametrize(
    ("selector", "is_exact"),
    [('{a="b", agent="h"}', True), ('{a=~"b"}', False), ('{a="b", c_d="e"}', False)],
)
def test_a_selector_of_other_labels_needs_samples(selector: str, is_exact: bool) -> None:
    wanted = Series(metric="cpu", step_ns=MINUTE_NS)
    span = {"from_ns": UnixNs(0), "to_ns": UnixNs(3 * HOUR_NS)}
    query = plan_query(selector, Query(**span, kind="metrics", series=wanted))
    found = plan_rollups(query, wanted, COVERAGE, lanes=LaneCounts(lanes=2), deletes=[RETENTION])
    assert (found is not None) == is_exact
