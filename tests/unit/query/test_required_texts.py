"""The texts that a line must contain to pass filters of lines, for the look-up in the index."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice_query.engine import open_engine
from sluice_query.logql.expressions import LineFilter, LineOperator
from sluice_query.logql.required import (
    ALTERNATIVES_MAX,
    PARENTHESES_MAX,
    pattern_texts,
    required_texts,
)
from sluice_query.settings import QuerySettings
from sluice_query.statements import SqlStatement


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [
        ("connection reset", [("connection reset",)]),
        ("^GET /api/v2$", [("GET /api/v2",)]),
        (r"user=\d+ took 99\d ms", [("user=",), (" took 99",), (" ms",)]),
        (r"a\.b\[c\]", [("a.b[c]",)]),
        ("colou?r", [("colo",), ("r",)]),
        ("ab{2,3}c", [("a",), ("c",)]),
        ("ab*c+d", [("a",), ("d",)]),
        ("[abc]def", [("def",)]),
        ("[]x]def", [("def",)]),
        ("[[:alpha:]]def", [("def",)]),
        ("[[:^alpha:]]def", [("def",)]),
        ("[^x[:^digit:]]def", [("def",)]),
        ("x[a(b]y", [("x",), ("y",)]),
        ("(abc)def", [("abc",), ("def",)]),
        ("(abc)?def", [("def",)]),
        ("(?P<name>abc)def", [("abc",), ("def",)]),
        ("abc|def", [("abc", "def")]),
        ("x(?:abc|d(e|f)g)h", [("x",), ("abc", "d"), ("h",)]),
        ("abc|d*", []),
        ("abc|", []),
        ("(?i)abcd", [("abcd",)]),
        ("(?i)disk full|TIMEOUT", [(" full", "TIMEOUT")]),
        ("(?i)Größe", [("Gr",), ("e",)]),
        ("(?i:abc)", []),
        (r"\Qa.b\E", []),
        (r"\x41bc", []),
        (".*", []),
        ("(" * (PARENTHESES_MAX + 1) + "a" + ")" * (PARENTHESES_MAX + 1), []),
        ("|".join(f"text {number}" for number in range(ALTERNATIVES_MAX + 1)), []),
    ],
)
def test_texts_of_patterns(pattern: str, groups: list[tuple[str, ...]]) -> None:
    assert pattern_texts(pattern) == tuple(groups)


@pytest.mark.parametrize(
    ("filters", "groups"),
    [
        ([("|=", "a|b")], [("a|b",)]),
        ([("|=", "a", "b"), ("|=", "c")], [("a", "b"), ("c",)]),
        ([("|=", "a", "")], []),
        ([("|~", "ab+", "c")], [("a", "c")]),
        ([("|>", "<_>GET <_> 200")], [("GET ",), (" 200",)]),
        ([("!=", "a"), ("!~", "b"), ("!>", "c<_>")], []),
    ],
)
def test_texts_of_filters(filters: list[tuple[str, ...]], groups: list[tuple[str, ...]]) -> None:
    found = [LineFilter(LineOperator(one), tuple(values)) for one, *values in filters]
    assert required_texts(found) == tuple(groups)


_PIECES = st.sampled_from(
    [
        *("a", "bc", "d", r"\d", r"\.", ".", "[ab]", "[^c]", "(ab)", "(a(b)c)", "a+", "b*", "c?"),
        *("d{2}", "(?:ab|c)", "(a|b)*", "|", "sk", "(s|K)d"),
    ]
)


@given(pieces=st.lists(_PIECES, min_size=1, max_size=8), ignores_case=st.booleans(), data=st.data())
@settings(max_examples=400, deadline=None)
def test_every_match_contains_a_text_of_each_group(
    pieces: list[str], ignores_case: bool, data: st.DataObject
) -> None:
    pattern = f"{'(?i)' if ignores_case else ''}{''.join(pieces)}"
    text = data.draw(st.from_regex(re.compile(pattern)))
    assert re.search(pattern, text)
    folded = text.encode().lower().decode()  # as the index compares: ASCII only
    for group in pattern_texts(pattern):
        assert any(one.lower() in folded for one in group), (pattern, text)


def test_a_pattern_that_ignores_case_also_matches_letters_beyond_ascii() -> None:
    """Otherwise the characters k and s would need no exception."""
    with open_engine(QuerySettings(threads=1)) as engine:
        statement = "SELECT regexp_matches('\u017f', '(?i)s'), regexp_matches('\u212a', '(?i)k')"
        assert engine.rows(SqlStatement(statement)) == [(True, True)]
