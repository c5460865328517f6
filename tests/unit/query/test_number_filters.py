"""Conditions on the value of a sample are the same in files, whose statistics omit NaN."""

import math
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice_query.engine import QueryEngine, open_engine
from sluice_query.request import FilterOperator, parse_filter
from sluice_query.settings import QuerySettings
from sluice_query.sql import SqlStatement, filter_conditions

FILES: Final = (
    [1.0, 3.0, math.nan],
    [3.0, math.nan],
    [-math.inf, 0.0, math.inf],
    [math.nan],
    [5e-324],
)
COMPARED: Final[dict[FilterOperator, Callable[[float, float], bool]]] = {
    FilterOperator.EQUAL: operator.eq,
    FilterOperator.UNEQUAL: operator.ne,
    FilterOperator.LESS: operator.lt,
    FilterOperator.AT_MOST: operator.le,
    FilterOperator.GREATER: operator.gt,
    FilterOperator.AT_LEAST: operator.ge,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[QueryEngine]:
    with open_engine(QuerySettings(threads=1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder: Path = tmp_path_factory.mktemp("values")
    for number, values in enumerate(FILES):
        pq.write_table(table_of(values), folder / f"{number}.parquet")
    return [str(folder / f"{number}.parquet") for number in range(len(FILES))]


@pytest.mark.parametrize("number", ["3", "5", "0", "-1", "inf", "-inf", "nan"])
def test_a_value_matches_alike_in_files_and_in_memory(
    engine: QueryEngine, paths: list[str], number: str
) -> None:
    for one, compare in COMPARED.items():
        if number == "nan" and one not in {FilterOperator.EQUAL, FilterOperator.UNEQUAL}:
            continue
        (condition,) = filter_conditions([parse_filter(f"value{one}{number}", "metrics")])
        for path, values in zip(paths, FILES, strict=True):
            engine.register_table("memory", table_of(values))
            wanted = [value for value in values if matches(value, float(number), one, compare)]
            for source, before in (("memory", ()), ("read_parquet(?)", (path,))):
                found = engine.rows(
                    SqlStatement(
                        f"SELECT value FROM {source} WHERE {condition.text}",  # noqa: S608 - constants
                        (*before, *condition.values),
                    )
                )
                shown = [str(row[0]) for row in found]
                assert shown == list(map(str, wanted)), (one, number, source, values)


def table_of(values: list[float]) -> pa.Table:
    """Return samples of several agents, so that two of them have the same number."""
    return pa.table({"value": values, "seq": pa.array([7] * len(values), pa.int64())})


def matches(
    value: float, number: float, one: FilterOperator, compare: Callable[[float, float], bool]
) -> bool:
    """Compare as IEEE 754 does, except that NaN is equal to NaN."""
    if math.isnan(number) and math.isnan(value):
        return one is FilterOperator.EQUAL
    return compare(value, number)
