"""Conditions of many deletes: what they mean, and how deep they are."""

import pytest

from sluice_spark.compaction.delete_matches import any_of, sql_literal


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 500])
def test_one_true_condition_makes_the_whole_true(count: int) -> None:
    """Python reads the same text, with `or` in lower case."""
    plain = ["(1 > 2)"] * count
    for true in (None, *range(min(count, 7))):
        parts = [("(2 > 1)" if place == true else one) for place, one in enumerate(plain)]
        text = any_of(parts).replace(" OR ", " or ").replace("false", "False")
        assert eval(text) is (true is not None)  # noqa: S307 - a text of this test


def test_the_depth_grows_with_the_logarithm_of_the_conditions() -> None:
    """Spark's stack does not suffice for a thousand conditions in a row."""
    depth = deepest = 0
    for one in any_of(["x"] * 500):
        depth += {"(": 1, ")": -1}.get(one, 0)
        deepest = max(deepest, depth)
    assert deepest == 9


def test_quotes_and_backslashes_of_a_text_are_escaped() -> None:
    assert sql_literal("it's \\ here") == r"'it\'s \\ here'"
