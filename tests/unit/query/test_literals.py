"""The texts by which index chunks are searched: of a pattern, and of a whole query."""

import re
import string

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.query_lake import make_query
from support.repetitions import examples

from sluice_protocol.index_chunk import folded
from sluice_query.request import ALTERNATIVES_MAX, common_text, condition_of
from sluice_query.text_index import wanted_terms


@pytest.mark.parametrize(
    ("pattern", "alternatives"),
    [
        ("connection reset", [("connection reset",)]),
        ("^GET /api/v2$", [("GET /api/v2",)]),
        (r"user=\d+ took 99\d ms", [("user=", " took 99", " ms")]),
        (r"a\.b\[c\]", [("a.b[c]",)]),
        (r"is\ in\-use", [("is in-use",)]),
        ("colou?r", [("colo", "r")]),
        ("ab{2,3}c", [("ab", "c")]),
        ("ab*c+d", [("a", "c", "d")]),
        ("ab{0,3}c{0}d", [("a", "d")]),
        ("ab+?c", [("ab", "c")]),
        ("(abc)def", [("abcdef",)]),
        ("[abc]def", [("def",)]),
        ("[]x]def", [("def",)]),
        ("[[:alpha:]]def", [("def",)]),
        ("[[:^alpha:]]def", [("def",)]),
        ("[^x[:^digit:]]def", [("def",)]),
        ("x[a(b]y", [("x", "y")]),
        ("abc|def", [("abc",), ("def",)]),
        ("GET /(users|orders)/x", [("GET /users/x",), ("GET /orders/x",)]),
        ("(?:a|b(c|d))+e", [("a", "e"), ("bc", "e"), ("bd", "e")]),
        ("(?P<name>abc)(?<other>d)", [("abcd",)]),
        ("a(b|)c", [("abc",), ("ac",)]),
        ("(ab|c)?d", [("d",)]),
        ("a||b", [("a",), (), ("b",)]),
        ("(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)xyz", None),
        (r"\Qa.b\E", [()]),
        (r"\x41bc", [()]),
        (r"\pLbc", [()]),
        ("(abc", [()]),
        (".*", [()]),
    ],
)
def test_alternatives_of_patterns(pattern: str, alternatives: list[tuple[str, ...]] | None) -> None:
    found = condition_of(pattern).alternatives
    if alternatives is None:
        assert len(found) <= ALTERNATIVES_MAX
        assert all("xyz" in one[-1] for one in found)
    else:
        assert found == tuple(alternatives)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"user=\d+ took 99\d ms", " took 99"),
        (r"user=42\d+ is (banned|gone)", "user=42"),
        ("reset|timeout", ""),
        ("preset by|reset", "reset"),
        ("reset by|preset", ""),
        ("reset||x", ""),
        ("(?i)reset", ""),
    ],
)
def test_the_text_of_every_match(pattern: str, text: str) -> None:
    assert common_text(pattern) == text


@pytest.mark.parametrize("pattern", ["(?i)abc", "x(?i:abc)", "(?s)(?im)abc"])
def test_a_flag_makes_the_whole_pattern_ignore_case(pattern: str) -> None:
    assert condition_of(pattern).ignore_case
    assert not condition_of("(?s)abc").ignore_case


def test_a_condition_with_a_short_alternative_decides_nothing() -> None:
    assert wanted_terms(make_query(text="short")) == []
    assert wanted_terms(make_query('{} |~ "longer text|short"')) == []
    (found,) = wanted_terms(make_query('{} |~ "longer text|not short"'))
    assert [len(one.terms) for one in found] == [6, 4]


_PIECES = st.sampled_from(
    [
        *("a", "bc", "d", r"\d", r"\.", ".", "[ab]", "[^c]", "(ab)", "(a(b)c)", "a+", "b*", "c?"),
        *("d{2}", "(?:ab|c)", "(a|b|cd)", "(ab|c)+", "(a|bc)*", "(?i)", "|", "(x|)", "ab{1,2}"),
    ]
)


@given(pieces=st.lists(_PIECES, min_size=1, max_size=8), data=st.data())
@settings(max_examples=examples(400), deadline=None)
def test_every_match_contains_the_texts_of_an_alternative(
    pieces: list[str], data: st.DataObject
) -> None:
    flags = "(?i)" if "(?i)" in pieces else ""
    pattern = flags + "".join(one for one in pieces if one != "(?i)")
    compiled = re.compile(pattern)
    text = data.draw(st.from_regex(compiled))
    assert compiled.search(text)
    found = condition_of(pattern)
    shown = folded(text.encode()) if found.ignore_case else text.encode()
    assert found.ignore_case == bool(flags)
    assert any(
        all((folded(one.encode()) if flags else one.encode()) in shown for one in texts)
        for texts in found.alternatives
    ), (pattern, text)
    assert common_text(pattern) in text


def test_the_engine_takes_no_other_character_for_a_letter_of_ascii() -> None:
    """Every character, with `lower` and with a pattern that ignores case."""
    every = "SELECT chr(code::INTEGER) AS one FROM range(1, 1114112) AS _(code)"  # 0x110000
    found: set[tuple[str, str]] = set()
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE every AS {every} WHERE code NOT BETWEEN 55296 AND 57343")
        assert connection.execute("SELECT count(*) FROM every").fetchone() == (0x110000 - 1 - 2048,)
        of_ascii = "regexp_matches(lower(one), '[\\x00-\\x7f]')"
        rows = connection.execute(f"SELECT one, lower(one) FROM every WHERE {of_ascii}")  # noqa: S608 - a constant
        found.update(rows.fetchall())
        of_letters = "CREATE TABLE of_letters AS SELECT one FROM every WHERE"
        connection.execute(f"{of_letters} regexp_full_match(one, '[a-z]', 'i')")
        for letter in string.ascii_lowercase:
            where = f"regexp_full_match(one, '{letter}', 'i')"
            rows = connection.execute(f"SELECT one, '{letter}' FROM of_letters WHERE {where}")  # noqa: S608 - a letter
            found.update(rows.fetchall())
    for one, lower in found:
        if any(x.isascii() for x in lower):
            assert folded(one.encode()) == "".join(x for x in lower if x.isascii()).encode()
    assert {one for one, lower in found if not one.isascii() and lower[0].isascii()} == {
        *("\u212a", "\u017f", "\u0130")
    }
