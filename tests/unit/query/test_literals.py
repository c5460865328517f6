import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.query_lake import make_query

from sluice_query.pruning import literals_of, required_texts


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("connection reset", ("connection reset",)),
        ("^GET /api/v2$", ("GET /api/v2",)),
        (r"user=\d+ took 99\d ms", ("user=", " took 99", " ms")),
        (r"a\.b\[c\]", ("a.b[c]",)),
        ("colou?r", ("colo", "r")),
        ("ab{2,3}c", ("a", "c")),
        ("ab*c+d", ("a", "d")),
        ("(abc)def", ("def",)),
        ("[abc]def", ("def",)),
        ("[]x]def", ("def",)),
        ("[[:alpha:]]def", ("def",)),
        ("[[:^alpha:]]def", ("def",)),
        ("[^x[:^digit:]]def", ("def",)),
        ("x[a(b]y", ("x", "y")),
        ("abc|def", ()),
        ("(?i)abc", ()),
        (r"\Qa.b\E", ()),
        (r"\x41bc", ()),
        (".*", ()),
    ],
)
def test_literals_of_patterns(pattern: str, literals: tuple[str, ...]) -> None:
    """They are outside of groups, sets and repetition counts."""
    assert literals_of(pattern) == literals


def test_required_texts_of_a_query() -> None:
    """A plain text is required unchanged; without regard to case nothing is."""
    assert required_texts(make_query(text="a|b")) == ("a|b",)
    assert required_texts(make_query(text="abc", ignore_case=True)) == ()
    assert required_texts(make_query(text="ab+", regex=True)) == ("a",)
    assert required_texts(make_query()) == ()


_PIECES = st.sampled_from(
    ["a", "bc", "d", r"\d", r"\.", ".", "[ab]", "[^c]", "(ab)", "(a(b)c)", "a+", "b*", "c?", "d{2}"]
)


@given(pieces=st.lists(_PIECES, min_size=1, max_size=8), data=st.data())
@settings(max_examples=400, deadline=None)
def test_every_match_contains_the_literals(pieces: list[str], data: st.DataObject) -> None:
    pattern = "".join(pieces)
    compiled = re.compile(pattern)
    text = data.draw(st.from_regex(compiled))
    assert compiled.search(text)
    assert all(literal in text for literal in literals_of(pattern)), (pattern, text)
