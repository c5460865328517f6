from collections.abc import Iterator

import pyarrow as pa
import pytest

from sluice_protocol.errors import BadUsage
from sluice_query.engine import PENDING, QueryEngine, open_engine
from sluice_query.settings import QuerySettings
from sluice_query.sql import SqlStatement


@pytest.fixture(scope="module")
def engine() -> Iterator[QueryEngine]:
    with open_engine(QuerySettings(threads=1)) as opened:
        yield opened


@pytest.mark.parametrize("pattern", ["(", "a{1001}", "[z-a]", r"(?<=x)y", r"\1"])
def test_a_pattern_that_re2_refuses_is_bad_usage(engine: QueryEngine, pattern: str) -> None:
    with pytest.raises(BadUsage, match="regex does not compile") as refused:
        engine.check_pattern(pattern)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("pattern", ["a+b", r"^\d{4}$", "[[:alpha:]]", "(?i)x", ""])
def test_a_pattern_of_re2_is_accepted(engine: QueryEngine, pattern: str) -> None:
    engine.check_pattern(pattern)


def test_a_pattern_with_nested_repetition_runs_in_linear_time(engine: QueryEngine) -> None:
    """A backtracking matcher would need exponential time."""
    engine.register_table(PENDING, pa.table({"body": ["a" * 100_000 + "!"]}))
    found = engine.rows(
        SqlStatement(
            "SELECT count(*) FROM pending WHERE regexp_matches(body, ?, 'c')", ("^(a|a|aa)*$",)
        )
    )
    assert found == [(0,)]
