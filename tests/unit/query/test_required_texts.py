"""The texts that a line must contain to pass filters of lines, for the look-up in the index."""

import pytest

from sluice_query.logql.expressions import LineFilter, LineOperator
from sluice_query.logql.planning import required_texts
from sluice_query.request import ALTERNATIVES_MAX, Alternatives, TextCondition


@pytest.mark.parametrize(
    ("filters", "conditions"),
    [
        ([("|=", "a|b")], [(("a|b",),)]),
        ([("|=", "a", "b"), ("|=", "c")], [(("a",), ("b",)), (("c",),)]),
        ([("|=", "a", "")], []),
        ([("|~", "ab+", "c")], [(("ab",), ("c",))]),
        ([("|~", "a|b.c", "a")], [(("a",), ("b", "c"))]),
        ([("|~", "a", "b*")], []),
        ([("|>", "<_>GET <_> 200")], [(("GET ", " 200"),)]),
        ([("!=", "a"), ("!~", "b"), ("!>", "c<_>")], []),
        ([("|=", *map(str, range(ALTERNATIVES_MAX + 1)))], []),
    ],
)
def test_texts_of_filters(filters: list[tuple[str, ...]], conditions: list[Alternatives]) -> None:
    found = [LineFilter(LineOperator(one), tuple(values)) for one, *values in filters]
    assert required_texts(found) == tuple(map(TextCondition, conditions))


def test_one_pattern_that_ignores_case_counts_for_all_values() -> None:
    found = LineFilter(LineOperator.MATCHES, ("a", "(?i)b"))
    assert required_texts([found]) == (TextCondition((("a",), ("b",)), ignore_case=True),)
