"""The bounds of LogQL texts; the golden cases have its forms."""

import pytest

from sluice_protocol.errors import BadUsage
from sluice_query.logql.expressions import (
    LineFilter,
    LineOperator,
    LogQuery,
    Matcher,
    MatchOperator,
)
from sluice_query.logql.grammar import NESTING_MAX, STAGES_MAX, TEXT_CHARS_MAX, parse_logql


def test_a_query_selects_and_filters() -> None:
    expected = LogQuery(
        (Matcher("app", MatchOperator.EQUAL, "shop"),),
        (LineFilter(LineOperator.CONTAINS, ("a", "b")),),
    )
    assert parse_logql('{app="shop"} |= "a" or `b`') == expected


def test_a_text_is_parsed_once() -> None:
    text = '{app="parsed once"}'
    assert parse_logql(text) is parse_logql(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{{}}{' ' * TEXT_CHARS_MAX}", "query is too long: write at most 10,000 characters"),
        ("{}" + '|= "a"' * (STAGES_MAX + 1), "too many stages, column=`303`"),
        ("(" * 5_000, "query is nested too deeply, column=`51`"),
        ("sum(" * 2_000, "query is nested too deeply, column=`201`"),
        ("rate(" + "(" * 5_000, "query is nested too deeply"),
        ("{} | " + "(" * 5_000, "query is nested too deeply"),
        ("{} | " + 'a="" ' * 1_000, "too many conditions"),
        ("rate({}[1m])" + "+rate({}[1m])" * 700, "too many operators"),
        ("1" + "^1" * 4_000, "query is nested too deeply, column=`101`"),
        ("{} | a > " + "9" * 5_000, "number is too long"),
        ('{a="\ud800"}', "query is not valid UTF-8, column=`5`: remove the character"),
    ],
)
def test_length_and_depth_are_bounded(text: str, message: str) -> None:
    with pytest.raises(BadUsage, match=f"^{message}"):
        parse_logql(text)


def test_the_bounds_themselves_are_accepted() -> None:
    parse_logql("{}" + '|= "a"' * STAGES_MAX)
    parse_logql("{} | " + "(" * (NESTING_MAX - 2) + 'a=""' + ")" * (NESTING_MAX - 2))
    parse_logql("{} | " + 'a="" ' * NESTING_MAX)
    parse_logql("{}" + " " * (TEXT_CHARS_MAX - 2))
