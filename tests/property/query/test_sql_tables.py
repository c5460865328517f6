"""SQL over lake and pending batches equals SQL over the same rows in one table."""

import itertools

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.query_lake import DAY0_NS, deployment, metric_batch
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

import sluice_query
from sluice_query.settings import QuerySettings

VALUES = [
    [[1.0, 5.0, 2.0], [float("nan"), 7.0]],
    [[0.0, -1.5], [float("inf"), 3.0, 3.0]],
]
"""The samples of each batch, of those in the lake and of the pending ones."""
LIMITS = QuerySettings(threads=2)
CONDITIONS = (
    "value > 2",
    "NOT isnan(value)",
    "agent_id = 'host-1'",
    "seq % 2 = 0",
    "ts >= '2026-09-21 14:13:40Z'",
    "name = 'cpu'",
    "value IS NULL",
)
RESULTS = (
    "count(*)",
    "agent_id, count(*), max(value)",
    "seq, value",
    "name, count(DISTINCT agent_id)",
    "increase(list(seq ORDER BY seq))",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Deployment, pa.Table]:
    made = deployment(tmp_path_factory.mktemp("sql"))
    rows = []
    numbers = itertools.count()
    for part, batches in enumerate(VALUES):
        for number, values in enumerate(batches):
            start = 100 * next(numbers)
            agent = f"host-{number + 1}"
            made.deliver([metric_batch(values, start=start, agent=agent)])
            rows += [
                {
                    "ts": (DAY0_NS + place * 10 * 10**9) // 1_000,
                    "name": "cpu",
                    "value": value,
                    "agent_id": agent,
                    "seq": start + place,
                }
                for place, value in enumerate(values)
            ]
        if part == 0:
            ingest_locally(made.url)
    columns = [("ts", pa.timestamp("us", "UTC")), ("name", pa.string()), ("value", pa.float64())]
    columns += [("agent_id", pa.string()), ("seq", pa.int64())]
    return made, pa.Table.from_pylist(rows, pa.schema(columns))


def _increase(numbers: list[int] | None) -> float | None:
    if numbers is None or len(numbers) < 2:
        return None
    return sum(float(b - a if b >= a else b) for a, b in itertools.pairwise(numbers))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    result=st.sampled_from(RESULTS),
    conditions=st.lists(st.sampled_from(CONDITIONS), max_size=3),
)
def test_a_select_has_the_rows_of_one_table(
    place: tuple[Deployment, pa.Table], result: str, conditions: list[str]
) -> None:
    made, table = place
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    group = "" if result == "seq, value" else " GROUP BY ALL"
    text = f"SELECT {result} FROM metrics{where}{group} ORDER BY ALL"  # noqa: S608 - constants
    found = sluice_query.sql(made.url, text, settings=LIMITS)
    with duckdb.connect() as plain:
        plain.execute("SET TimeZone = 'UTC'")
        plain.create_function("increase", _increase, ["BIGINT[]"], "DOUBLE")
        plain.register("metrics", table)
        expected = plain.sql(text).fetchall()
    assert str([tuple(row.values()) for row in found.to_pylist()]) == str(expected)


@settings(max_examples=10, deadline=None)
@given(samples=st.lists(st.integers(min_value=0, max_value=100), max_size=12))
def test_increase_counts_restarts_as_plain_python_does(
    place: tuple[Deployment, pa.Table], samples: list[int]
) -> None:
    text = f"SELECT increase({samples}::BIGINT[]) AS found"
    [row] = sluice_query.sql(place[0].url, text, settings=LIMITS).to_pylist()
    assert row["found"] == _increase(samples)
