"""SQL over lake and pending batches equals SQL over the same rows in one table."""

import itertools
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commands import sluice
from support.query_lake import DAY0_NS, deployment, log_batch, metric_batch
from support.repetitions import examples
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

import sluice_query
from sluice_lake.promoted import converted_text
from sluice_lake.tables import ColumnType
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


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
        plain.create_function(
            "increase", _increase, ["BIGINT[]"], "DOUBLE", null_handling="special"
        )
        plain.register("metrics", table)
        expected = plain.sql(text).fetchall()
    assert str([tuple(row.values()) for row in found.to_pylist()]) == str(expected)


@settings(max_examples=examples(20), deadline=None)
@given(samples=st.lists(st.integers(min_value=0, max_value=100), max_size=12))
def test_increase_counts_restarts_as_plain_python_does(
    place: tuple[Deployment, pa.Table], samples: list[int]
) -> None:
    text = f"SELECT increase({samples}::BIGINT[]) AS found"
    [row] = sluice_query.sql(place[0].url, text, settings=LIMITS).to_pylist()
    assert row["found"] == _increase(samples)


TEXTS = (
    *("", " ", "ä", "0", "-0", "-0.0", "500", "0500", "+500", "5e2", "500 ", "1_000", "0x10"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "9" * 40),
    *("9007199254740993.5", "0.10", "1e999", "-1e999", "5e-324", "1.7976931348623157e308"),
    *("0." + "1" * 1_001, "nan", "inf", "true", "True", "false", "null", "it's ?"),
)
PROMOTED = ("a.text", "long", "double", "it's")
TYPES = (ColumnType.STRING, ColumnType.LONG, ColumnType.DOUBLE, ColumnType.BOOLEAN)


def test_a_promoted_column_has_the_value_of_its_attribute_in_every_row(tmp_path: Path) -> None:
    """In files that were written before and after the promotion, and in pending batches."""
    made = deployment(tmp_path)
    for part in range(3):
        for number, text in enumerate(TEXTS):
            start = part * 1_000 + number
            attributes = dict.fromkeys(PROMOTED, text)
            made.deliver([log_batch(["x", "y"], start=2 * start, attributes=attributes)])
        made.deliver([log_batch(["without"], start=2 * (part * 1_000 + 999))])
        if part == 0:
            ingest_locally(made.url)
            names = zip(PROMOTED, ("text", "integer", "float", "boolean"), strict=True)
            for key, kind in names:
                given = ("logs", f"attributes.{key}", kind, f"attr_{kind}")
                assert sluice("columns", "add", *given, "--store", made.url).returncode == 0
        elif part == 1:
            ingest_locally(made.url)
    text = (
        "SELECT attributes['long'] AS sent, attr_text, attr_integer, attr_float, attr_boolean"
        " FROM logs"
    )
    found = sluice_query.sql(made.url, text, settings=LIMITS).to_pylist()
    assert len(found) == 3 * (2 * len(TEXTS) + 1)
    for row in found:
        sent = row.pop("sent")
        expected = [None if sent is None else converted_text(sent, kind) for kind in TYPES]
        assert repr(list(row.values())) == repr(expected)
    where = "SELECT count(*) FROM logs WHERE attr_integer >= 500"
    [row] = sluice_query.sql(made.url, where, settings=LIMITS).to_pylist()
    assert list(row.values()) == [3 * 2 * 2]
