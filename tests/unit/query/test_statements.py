"""The statements are run by DuckDB on small Arrow tables, one as the lake and one as pending."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from support.query_lake import DAY0_NS, MINUTE_NS, log_batch, make_query, metric_batch
from support.spark_lake import Sent, make_batch

from sluice_lake.records import DecodedBatch, records_table
from sluice_protocol.fields import Kind
from sluice_protocol.frame import decode_frame
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S
from sluice_query.logql.expressions import LogQuery, Matcher, MatchOperator
from sluice_query.logql.planning import narrowed
from sluice_query.request import Aggregate, Query, RecordField, Series
from sluice_query.series import SampleSource, SeriesSources, points_of, series_sql
from sluice_query.statements import (
    RecordSources,
    SqlStatement,
    condition,
    counts_sql,
    dead_letters_condition,
    dead_letters_sql,
    records_sql,
    returned_columns,
)

CUT_OFF_NS = DAY0_NS
LATE_NS = DAY0_NS + NS_PER_S

LAKE = (
    log_batch(["GET /a 200", "GET /b 500", "it's 100% 'x'"], attributes={"p": "1"}),
    log_batch(["get /c 404"], agent="host-2", from_ns=DAY0_NS + 9 * NS_PER_S),
)
PENDING = (log_batch(["GET /late"], start=3, from_ns=DAY0_NS + 20 * NS_PER_S, at_ns=LATE_NS),)
POINTS = (
    metric_batch([1, 2, 3, 4, 5, 6], from_ns=DAY0_NS // MINUTE_NS * MINUTE_NS),
    metric_batch([100], agent="host-2", from_ns=DAY0_NS // MINUTE_NS * MINUTE_NS),
    metric_batch([7], name="mem", start=8, from_ns=DAY0_NS // MINUTE_NS * MINUTE_NS),
)
LATER_POINTS = (
    metric_batch([10, 20], start=6, from_ns=DAY0_NS // MINUTE_NS * MINUTE_NS + MINUTE_NS),
)
ENTRIES = (make_batch(0, 2, kind="entries"), make_batch(5, 2, kind="entries", agent="host-3"))
"""A batch with times and a batch without times."""


def table_of(kind: Kind, batches: Sequence[Sent]) -> Any:
    decoded = [
        DecodedBatch(
            frame=decode_frame(one.frame),
            accepted_at_ns=one.manifest.accepted_at_unix_ns,
            sequence=1,
        )
        for one in batches
    ]
    return records_table(kind, decoded, plain=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with duckdb.connect(":memory:") as connection:
        connection.register("lake", table_of("logs", LAKE))
        connection.register("pending", table_of("logs", PENDING))
        connection.register("points", table_of("metrics", POINTS))
        connection.register("later_points", table_of("metrics", LATER_POINTS))
        connection.register("entries", table_of("entries", ENTRIES))
        yield connection


SOURCES = RecordSources(names=("lake", "pending"))


def series_sources(*names: str) -> SeriesSources:
    return SeriesSources(samples=tuple(SampleSource(name=name) for name in names))


def rows(engine: Any, statement: SqlStatement) -> list[tuple[Any, ...]]:
    return list(engine.execute(statement.text, list(statement.values)).fetchall())


def bodies(engine: Any, query: Query, sources: RecordSources = SOURCES) -> list[object]:
    column = returned_columns(query.kind).index("body")
    return [row[column] for row in rows(engine, records_sql(query, sources))]


@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        ({"text": "GET"}, ["GET /a 200", "GET /b 500", "GET /late"]),
        (
            {"logql": '{} |~ "(?i)GET /"'},
            ["GET /a 200", "GET /b 500", "get /c 404", "GET /late"],
        ),
        ({"logql": r"{} |~ `/[bc] [45]\d\d$`"}, ["GET /b 500", "get /c 404"]),
        ({"logql": "{} |~ `(?i)^get.*a$`"}, []),
        ({"logql": "{} |~ `(?i)^get.*e$`"}, ["GET /late"]),
        ({"text": "100% 'x'"}, ["it's 100% 'x'"]),
        ({"text": "%"}, ["it's 100% 'x'"]),
        ({"text": "' OR 1=1 --"}, []),
        ({"agents": ("host-2", "nobody")}, ["get /c 404"]),
        ({"agents": ("' OR 1=1 --",)}, []),
        ({"attributes": (("p", "1"),), "text": "500"}, ["GET /b 500"]),
        ({"attributes": (("p", "2"),)}, []),
        ({"attributes": (("p'] = '", "1"),)}, []),
        ({"attributes": (("service.name", "web"),), "agents": ("host-2",)}, ["get /c 404"]),
    ],
)
def test_each_condition_selects_its_records(
    engine: Any, conditions: dict[str, object], wanted: list[str]
) -> None:
    """Attributes are searched in the record's attributes and in its batch's resource."""
    assert bodies(engine, make_query(**conditions)) == wanted


def test_the_text_never_contains_a_value_of_the_query() -> None:
    query = make_query(text="sec'ret", agents=("sec'ret",), attributes=(("sec'ret", "sec'ret"),))
    deletes = (
        DeleteRecord(delete_id="0" * 26, kind="logs", accepted_until_unix_ns=1, contains="sec'ret"),
    )
    statement = condition(query, deletes)
    assert "ret" not in statement.text
    assert statement.text.count("?") == len(statement.values)
    assert statement.values.count("sec'ret") == 7


def test_the_time_range_includes_its_start_and_excludes_its_end(engine: Any) -> None:
    second = DAY0_NS + NS_PER_S
    assert bodies(engine, make_query(from_ns=second, to_ns=second + 1)) == ["GET /b 500"]
    assert bodies(engine, make_query(from_ns=second + 1, to_ns=second + 2)) == []
    assert bodies(engine, make_query(from_ns=DAY0_NS, to_ns=second)) == ["GET /a 200"]


def test_one_record_over_the_limit_is_returned(engine: Any) -> None:
    """It shows the caller that more records match."""
    assert bodies(engine, make_query(limit=1)) == ["GET /a 200", "GET /b 500"]
    latest = make_query(limit=1, newest_first=True)
    assert bodies(engine, latest) == ["GET /late", "get /c 404"]


def test_counts_include_the_first_and_last_time(engine: Any) -> None:
    (found,) = rows(engine, counts_sql(make_query(text="GET"), SOURCES))
    assert found == (3, DAY0_NS, DAY0_NS + 20 * NS_PER_S)
    assert rows(engine, counts_sql(make_query(text="none"), SOURCES)) == [(0, None, None)]


@pytest.mark.parametrize(
    ("changes", "hidden"),
    [
        ({"contains": "GET"}, ["GET /a 200", "GET /b 500"]),
        ({"attributes": {"p": "1"}}, ["GET /a 200", "GET /b 500", "it's 100% 'x'"]),
        ({"agent_id": "host-2"}, ["get /c 404"]),
        ({"agent_id": "host-2", "contains": "GET"}, []),
        ({"contains": "GET", "from_unix_ns": DAY0_NS + 1}, ["GET /b 500"]),
        ({"contains": "GET", "to_unix_ns": DAY0_NS + 1}, ["GET /a 200"]),
        (
            {"contains": "GET", "accepted_until_unix_ns": LATE_NS},
            ["GET /a 200", "GET /b 500", "GET /late"],
        ),
    ],
)
def test_a_delete_hides_what_it_names_and_was_accepted_until_its_cut_off(
    engine: Any, changes: dict[str, Any], hidden: list[str]
) -> None:
    given = {"accepted_until_unix_ns": CUT_OFF_NS} | changes
    record = DeleteRecord(delete_id="0" * 26, kind="logs", **given)
    everything = bodies(engine, make_query())
    left = bodies(engine, make_query(), RecordSources(names=SOURCES.names, deletes=(record,)))
    assert [body for body in everything if body not in left] == hidden


@pytest.mark.parametrize(
    ("aggregate", "values"),
    [
        (Aggregate.AVG, [121 / 7, 15.0]),
        (Aggregate.SUM, [121.0, 30.0]),
        (Aggregate.MIN, [1.0, 10.0]),
        (Aggregate.MAX, [100.0, 20.0]),
        (Aggregate.COUNT, [7.0, 2.0]),
        (Aggregate.LAST, [6.0, 20.0]),
        (Aggregate.P50, [4.0, 15.0]),
        (Aggregate.P90, [43.6, 19.0]),
        (Aggregate.P99, [94.36, 19.9]),
    ],
)
def test_points_of_a_metric_are_aggregated_by_step(
    engine: Any, aggregate: Aggregate, values: list[float]
) -> None:
    start_ns = DAY0_NS // MINUTE_NS * MINUTE_NS
    series = Series(metric="cpu", step_ns=MINUTE_NS, aggregate=aggregate)
    query = make_query(kind="metrics", from_ns=start_ns, series=series)
    sources = series_sources("points", "later_points")
    assert rows(engine, series_sql(query, series, sources)) == [
        (start_ns, pytest.approx(values[0])),
        (start_ns + MINUTE_NS, pytest.approx(values[1])),
    ]


def test_a_series_by_agent_has_a_row_for_each_step_and_agent(engine: Any) -> None:
    start_ns = DAY0_NS // MINUTE_NS * MINUTE_NS
    series = Series(
        metric="cpu", step_ns=MINUTE_NS, aggregate=Aggregate.MAX, by=(RecordField("agent_id"),)
    )
    query = make_query(kind="metrics", from_ns=start_ns, series=series)
    sources = series_sources("points", "later_points")
    assert rows(engine, series_sql(query, series, sources)) == [
        (start_ns, "host-1", 6.0),
        (start_ns, "host-2", 100.0),
        (start_ns + MINUTE_NS, "host-1", 20.0),
    ]


def test_records_without_a_field_are_no_group_of_the_text_none() -> None:
    by = RecordField("attributes", "user")
    series = Series(metric="ms", by=(by,), step_ns=MINUTE_NS)
    found = points_of(series, [(0, "None", 1.0), (0, None, 2.0), (60, None, 3.0)])
    assert [one.by["attributes.user"] for one in found] == ["None", None, None]


def test_the_statement_of_a_quantile_reads_every_number() -> None:
    series = Series(metric="ms", by=(RecordField("agent_id"),), step_ns=60, aggregate=Aggregate.P99)
    query = make_query(kind="metrics", series=series)
    statement = series_sql(query, series, series_sources("lake"))
    assert statement.text.startswith(
        "SELECT step, by0, quantile_cont(a, 0.99) FROM (SELECT step, by0, value AS a"
        " FROM (SELECT ts_ns - ((ts_ns % 60) + 60) % 60 AS step, left(agent_id, 1000) AS by0,"
        " value::DOUBLE AS value, ts_ns AS at_ns FROM lake"
        " WHERE ts_ns >= ? AND ts_ns < ? AND name = ?"
    )
    assert statement.text.endswith(" WHERE value IS NOT NULL) GROUP BY ALL ORDER BY ALL LIMIT ?")


def test_nan_in_a_file_is_ignored(tmp_path: Path) -> None:
    """The statistics of a Parquet file omit NaN, and the engine concludes from statistics."""
    path = str(tmp_path / "points.parquet")
    points = table_of("metrics", (metric_batch([1.0, float("nan"), 2.0]),))
    pq.write_table(points.drop_columns("resource"), path)
    series = Series(metric="cpu", step_ns=10**9, aggregate=Aggregate.MAX)
    query = make_query(kind="metrics", series=series)
    with duckdb.connect(":memory:") as connection:
        connection.read_parquet(path).create_view("points")
        found = rows(connection, series_sql(query, series, series_sources("points")))
    assert [value for _, value in found] == [1.0, 2.0]


def test_steps_begin_at_multiples_of_their_width_before_1970_too(engine: Any) -> None:
    del engine
    with duckdb.connect(":memory:") as connection:
        early = metric_batch([1.0], from_ns=-1)
        connection.register("points", table_of("metrics", (early,)))
        series = Series(metric="cpu", step_ns=MINUTE_NS)
        query = make_query(kind="metrics", from_ns=-MINUTE_NS, series=series)
        sources = series_sources("points")
        assert rows(connection, series_sql(query, series, sources)) == [(-MINUTE_NS, 1.0)]


def test_entries_without_a_time_have_the_time_of_their_acceptance(engine: Any) -> None:
    sources = RecordSources(names=("entries",))
    times = {one.manifest.accepted_at_unix_ns for one in ENTRIES}
    wide = make_query(kind="entries", from_ns=0)
    found = rows(engine, records_sql(wide, sources))
    assert len(found) == 4
    bare = make_query(
        kind="entries", agents=("host-3",), from_ns=min(times) // 1000 * 1000, to_ns=max(times) + 1
    )
    assert len(rows(engine, records_sql(bare, sources))) == 2


def test_dead_letters_count_until_the_ledger_contains_them() -> None:
    with duckdb.connect(":memory:") as connection:
        connection.execute(
            "CREATE TABLE dead AS SELECT * FROM (VALUES"
            " ('host-1', 'b1', 0, 0, 'logs', 5, 'missing'),"
            " ('host-1', 'b1', 0, 0, 'logs', 5, 'missing'),"
            " ('host-1', 'b1', 1, 1, 'logs', 6, 'corrupt'),"
            " ('host-2', 'b1', 0, 0, 'logs', 6, 'missing'),"
            " ('host-1', 'b1', 2, 2, 'metrics', 6, 'missing'))"
            " t(agent_id, boot_id, seq_start, seq_end, kind, accepted_at_ns, reason)"
        )
        connection.execute(
            "CREATE TABLE ledger AS SELECT agent_id, boot_id, seq_start, seq_end FROM dead"
            " WHERE reason = 'corrupt'"
        )
        query = make_query(from_ns=5, to_ns=6)
        wanted = dead_letters_condition(query, 5)
        found = rows(connection, dead_letters_sql("dead", wanted, None, limit=9))
        assert sorted(found) == [
            ("host-1", "b1", 0, 0, "missing"),
            ("host-1", "b1", 1, 1, "corrupt"),
            ("host-2", "b1", 0, 0, "missing"),
        ]
        missing = rows(connection, dead_letters_sql("dead", wanted, "ledger", limit=9))
        assert [row[-1] for row in missing] == ["missing", "missing"]
        assert len(rows(connection, dead_letters_sql("dead", wanted, None, limit=2))) == 2
        late = dead_letters_condition(make_query(agents=("host-2",)), 7)
        assert rows(connection, dead_letters_sql("dead", late, None, limit=9)) == []


def test_an_attribute_is_compared_while_its_column_is_read(tmp_path: Path) -> None:
    """The columns of other records are not decoded then."""
    engine, path = duckdb.connect(), str(tmp_path / "logs")
    engine.from_arrow(table_of("logs", LAKE)).write_parquet(path)
    engine.read_parquet(path).create_view("logs")
    query = narrowed(make_query(), LogQuery((Matcher("p", MatchOperator.EQUAL, "1"),)))
    statement = records_sql(query, RecordSources(names=("logs",)))
    text = f"EXPLAIN (FORMAT json) {statement.text}"
    ((_, plan),) = engine.execute(text, statement.values).fetchall()
    scan = plan[plan.index("PARQUET_SCAN") :]
    assert "COALESCE(map_extract_value(attributes, 'p'), '') IN ('', '1')" in scan


def test_the_attribute_of_a_label_that_is_a_field_excludes_no_record(engine: Any) -> None:
    """An attribute may have the name of the field and another value."""
    engine.execute(
        "CREATE TABLE fields AS SELECT * REPLACE ('web-1' AS host, MAP {'host': 'x'} AS attributes)"
        " FROM lake"
    )
    query = narrowed(make_query(), LogQuery((Matcher("host", MatchOperator.EQUAL, "web-1"),)))
    assert len(rows(engine, records_sql(query, RecordSources(names=("fields",))))) == 4
